"""``moe_mlp``'s reference against each token's experts one by one, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from portakernel import ops
from portakernel.errors import ArgumentValueError, DerivativeError, IndexOutOfRangeError
from portakernel.references.moe_mlp import backward, plain


def drawn(tokens: int = 7, experts: int = 4, choices: int = 2) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(tokens)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=source)

    picked = torch.rand(tokens, experts, generator=source).argsort(-1)[:, :choices]
    weights = numbers(tokens, choices).float()
    return numbers(tokens, 6), numbers(experts, 10, 6), numbers(experts, 6, 5), weights, picked


def test_each_token_is_the_weighted_sum_of_its_experts_layers():
    x, w_in, w_out, weights, experts = drawn()
    y = ops.moe_mlp(x, w_in, w_out, weights, experts)
    for token in range(7):
        want = torch.zeros(6, dtype=torch.float64)
        for weight, expert in zip(weights[token], experts[token].tolist(), strict=True):
            gate, up = (w_in[expert] @ x[token]).chunk(2)
            want += weight.double() * (w_out[expert] @ (silu(gate) * up))
        torch.testing.assert_close(y[token], want)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_interleaved_halves_are_those_of_rows_in_turn(activation):
    x, w_in, w_out, weights, experts = drawn()
    turned = w_in.unflatten(1, (2, 5)).transpose(1, 2).flatten(1, 2)
    want = ops.moe_mlp(x, w_in, w_out, weights, experts, activation=activation)
    found = ops.moe_mlp(x, turned, w_out, weights, experts, activation=activation, halves="interleaved")
    torch.testing.assert_close(found, want)


def test_gelu_is_the_exact_one_and_tanhs_the_other():
    x, w_in, w_out, _, _ = drawn(experts=1, choices=1)
    weights, experts = torch.ones(7, 1), torch.zeros(7, 1, dtype=torch.int32)
    gate, up = (x @ w_in[0].T).chunk(2, -1)
    for activation, form in (("gelu", "none"), ("gelu_tanh", "tanh")):
        want = (gelu(gate, approximate=form) * up) @ w_out[0].T
        torch.testing.assert_close(ops.moe_mlp(x, w_in, w_out, weights, experts, activation=activation), want)


def test_experts_that_are_elsewhere_add_nothing_and_shares_of_experts_add_up():
    x, w_in, w_out, weights, experts = drawn()
    whole = ops.moe_mlp(x, w_in, w_out, weights, experts)
    here = (torch.where(experts < 2, experts, -1), torch.where(experts < 2, -1, experts - 2))
    parts = (slice(2), slice(2, 4))
    first, second = (
        ops.moe_mlp(x, w_in[part], w_out[part], weights, picked) for part, picked in zip(parts, here, strict=True)
    )
    torch.testing.assert_close(first + second, whole)
    nowhere = torch.full_like(experts, -1)
    weights[0, 0] = torch.nan
    assert not ops.moe_mlp(x, w_in, w_out, weights, nowhere).any()


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gradients_are_those_of_the_formula(halves, activation):
    *layers, weights, experts = drawn()
    experts[2, 1] = -1
    values: dict[str, Any] = {"activation": activation, "halves": halves}
    assert torch.autograd.gradcheck(
        lambda *given: ops.moe_mlp(*given, weights, experts, **values), [tensor.requires_grad_() for tensor in layers]
    )
    layers, wide = [tensor.detach() for tensor in layers], weights.double().requires_grad_()
    grad = torch.randn(7, 6, dtype=torch.float64)
    (want,) = torch.autograd.grad(plain(*layers, wide, experts, **values), wide, grad)
    found = backward(grad, *layers, wide.detach(), experts, **values)[3]
    torch.testing.assert_close(found, want)


def test_gpt_oss_gates_are_clamped_and_biases_are_added_to_both_products():
    x, w_in, w_out, weights, experts = drawn()
    before, behind = (4 * drawn(tokens=9)[1][:, :, 0], drawn(tokens=8)[1][:, :6, 0])
    values: dict[str, Any] = {"activation": "swiglu_oai", "halves": "interleaved"}
    y = ops.moe_mlp(4 * x, w_in, w_out, weights, experts, bias_in=before, bias_out=behind, **values)
    clamped = 0
    for token in range(7):
        want = torch.zeros(6, dtype=torch.float64)
        for weight, expert in zip(weights[token], experts[token].tolist(), strict=True):
            z = w_in[expert] @ (4 * x[token]) + before[expert]
            gate, up = z[0::2].clamp(max=7), z[1::2].clamp(-7, 7)
            clamped += int((z[0::2] > 7).sum() + (z[1::2].abs() > 7).sum())
            want += weight.double() * (w_out[expert] @ ((up + 1) * gate * torch.sigmoid(1.702 * gate)) + behind[expert])
        torch.testing.assert_close(y[token], want)
    assert clamped > 10


@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])
def test_gradients_of_biases_are_those_of_the_formula(activation):
    x, w_in, w_out, weights, experts = drawn()
    experts[2, 1], experts[experts == 3] = -1, 1
    biases = [drawn(tokens=9)[1][:, :, 0].contiguous(), drawn(tokens=8)[1][:, :6, 0].contiguous()]

    def layers(x: Tensor, w_in: Tensor, bias_in: Tensor, bias_out: Tensor) -> Tensor:
        return ops.moe_mlp(x, w_in, w_out, weights, experts, bias_in=bias_in, bias_out=bias_out, activation=activation)

    leaves = [tensor.clone().requires_grad_() for tensor in (4 * x, w_in, *biases)]
    assert torch.autograd.gradcheck(layers, leaves)
    layers(*leaves).sum().backward()
    assert leaves[3].grad is not None
    assert not leaves[3].grad[3].any()
    wide, grad = weights.double().requires_grad_(), torch.randn(7, 6, dtype=torch.float64)
    y = plain(x, w_in, w_out, wide, experts, bias_in=biases[0], bias_out=biases[1], activation=activation)
    (want,) = torch.autograd.grad(y, wide, grad)
    found = backward(grad, x, w_in, w_out, wide.detach(), experts, *biases, activation=activation)[3]
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_mxfp4_weights_are_what_they_stand_for_beside_x_as_it_is(dtype):
    source = torch.Generator().manual_seed(5)
    x, w_in, w_out = (torch.randn(shape, generator=source) for shape in ((7, 72), (3, 80, 72), (3, 72, 40)))
    weights, experts = torch.rand(7, 2, generator=source), torch.randint(-1, 3, (7, 2), generator=source)
    given: dict[str, Any] = {"bias_in": torch.randn(3, 80, generator=source), "activation": "swiglu_oai"}
    narrow, wide, scales = [], [], {}
    for name, matrices in (("scale_in", w_in), ("scale_out", w_out)):
        pairs = [ops.quantize_fp4(matrix, format="mxfp4")[:2] for matrix in matrices]
        narrow.append(torch.stack([q.view(torch.uint8) for q, _ in pairs]).view(torch.float4_e2m1fn_x2))
        scales[name] = torch.stack([scale.view(torch.uint8) for _, scale in pairs]).view(torch.float8_e8m0fnu)
        wide.append(torch.stack([ops.dequantize(*pair, format="mxfp4", dtype="float32") for pair in pairs]))
    x = x.to(dtype)
    y = ops.moe_mlp(x, *narrow, weights, experts, format="mxfp4", **scales, **given)
    assert y.dtype is dtype
    want = ops.moe_mlp(x.float(), *wide, weights, experts, **given)
    torch.testing.assert_close(y.float(), want, atol=1e-4 if dtype is torch.float32 else 0.1, rtol=0.01)


def test_rows_beside_mxfp4_weights_have_no_scales():
    x, w_in, w_out = torch.ones(5, 64), torch.zeros(3, 64, 32), torch.zeros(3, 64, 16)
    narrow = [w.to(torch.uint8).view(torch.float4_e2m1fn_x2) for w in (w_in, w_out)]
    scales = {"scale_in": torch.ones(3, 64, 2), "scale_out": torch.ones(3, 64, 1)}
    given: dict[str, Any] = {name: scale.to(torch.float8_e8m0fnu) for name, scale in scales.items()}
    experts = torch.zeros(5, 1, dtype=torch.int32)
    text = "moe_mlp: scale_x is a tensor with format='mxfp4'; it must be left out"
    with pytest.raises(ArgumentValueError, match=re.escape(text)):
        ops.moe_mlp(x, *narrow, torch.ones(5, 1), experts, format="mxfp4", scale_x=torch.ones(5, 1), **given)
    del given["scale_out"]
    text = "moe_mlp: scale_out is None with format='mxfp4'; it must be given"
    with pytest.raises(ArgumentValueError, match=re.escape(text)):
        ops.moe_mlp(x, *narrow, torch.ones(5, 1), experts, format="mxfp4", **given)


def test_gradients_beside_weights_of_four_bits_are_refused():
    x, experts = torch.ones(5, 64, requires_grad=True), torch.zeros(5, 1, dtype=torch.int32)
    w_in, w_out = (torch.zeros(3, 64, n, dtype=torch.uint8).view(torch.float4_e2m1fn_x2) for n in (32, 16))
    scale_in, scale_out = (torch.ones(3, 64, n).to(torch.float8_e8m0fnu) for n in (2, 1))
    given: dict[str, Any] = {"scale_in": scale_in, "scale_out": scale_out, "format": "mxfp4"}
    y = ops.moe_mlp(x, w_in, w_out, torch.ones(5, 1), experts, kernel="reference.moe_mlp", **given)
    text = "moe_mlp: format is 'mxfp4'; gradients are those of format='none'"
    with pytest.raises(DerivativeError, match=f"^{re.escape(text)}$"):
        y.sum().backward()


def test_experts_without_tokens_and_tokens_without_experts_have_zero_gradients():
    x, w_in, w_out, weights, _ = drawn()
    experts = torch.full((7, 2), 3)
    experts[4] = -1
    grads = backward(torch.ones(7, 6, dtype=torch.float64), x, w_in, w_out, weights, experts)
    assert grads[4] is None
    of_x, of_in, of_out, of_weights = (grad for grad in grads[:4] if grad is not None)
    assert not of_x[4].any()
    assert not of_weights[4].any()
    assert not of_in[:3].any()
    assert not of_out[:3].any()
    assert of_in[3].all()


def test_experts_that_there_are_not_are_refused():
    *given, experts = drawn()
    experts[3, 1] = 4
    text = "moe_mlp: experts holds 4, which is not in [0, E) with E = 4"
    with pytest.raises(IndexOutOfRangeError, match=re.escape(text)):
        ops.moe_mlp(*given, experts)


def test_experts_are_looked_at_on_request_whatever_the_kernel():
    from portakernel.calling.value_checks import check_values
    from portakernel.contracts import contract

    names = ("x", "w_in", "w_out", "weights", "experts")
    given: dict[str, Any] = dict(zip(names, drawn(), strict=True))
    given |= dict.fromkeys(("scale_x", "scale_in", "scale_out", "bias_in", "bias_out"))
    given["experts"][3, 1] = 4
    text = "moe_mlp: experts[3, 1] is 4; it must be in [0, E) with E = 4, or -1 for one that is not here"
    with pytest.raises(IndexOutOfRangeError, match=re.escape(text)):
        check_values(contract("moe_mlp"), {**given, "activation": "silu", "halves": "concat", "format": "none"})


@pytest.mark.parametrize("format", ["row", "block"])
def test_float8_is_the_layers_of_what_it_stands_for(format):
    x, w_in, w_out, weights, experts = (tensor.float() for tensor in drawn())
    experts = experts.int()
    by = ("row", "row") if format == "row" else ("block_1x128", "block_128x128")
    q, scale_x = ops.quantize_fp8(x, granularity=by[0])
    given: dict[str, Any] = {"scale_x": scale_x, "format": format}
    narrow, wide = [q], [ops.dequantize(q, scale_x, format=by[0], dtype="float32")]
    for name, matrices in (("scale_in", w_in), ("scale_out", w_out)):
        pairs = [ops.quantize_fp8(matrix, granularity=by[1]) for matrix in matrices]
        given[name] = torch.stack([scale for _, scale in pairs])
        narrow.append(torch.stack([one.view(torch.uint8) for one, _ in pairs]).view(q.dtype))
        wide.append(torch.stack([ops.dequantize(*pair, format=by[1], dtype="float32") for pair in pairs]))
    y = ops.moe_mlp(*narrow, weights, experts, **given)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.float(), ops.moe_mlp(*wide, weights, experts), atol=0.02, rtol=0.01)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"scale_in": torch.ones(4, 10, 1)}, "scale_in is a tensor with format='none'; it must be left out"),
        ({"scale_out": torch.ones(4, 6, 1)}, "scale_out is a tensor with format='none'; it must be left out"),
    ],
)
def test_scales_that_a_format_has_not_are_refused(values, text):
    x, w_in, w_out, weights, experts = drawn()
    with pytest.raises(ArgumentValueError, match=re.escape(f"moe_mlp: {text}")):
        ops.moe_mlp(x.float(), w_in.float(), w_out.float(), weights, experts, **values)
