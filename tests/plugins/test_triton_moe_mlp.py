"""What no case of ``moe_mlp`` shows of its Triton kernels, interpreted: how weights are read, bits, other routing."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel import explain
from portakernel.authoring import ArgumentValueError, CannotRun
from portakernel.references import moe_mlp as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.experts import moe_mlp as op
from portakernel_plugins.triton.experts import moe_mlp_gradients
from portakernel_plugins.triton.launching.configurations import Configuration
from portakernel_plugins.triton.matrix import grouped_mm

SILU = {"activation": "silu", "halves": "concat"}


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def launched_with(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Products are launched so from now on."""
    known = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, **options}
    monkeypatch.setattr(grouped_mm, "configuration", lambda *_: Configuration(1, 1, 1, 1, 3, options=known))


def drawn(width: int, hidden: int = 48, tokens: int = 19, choices: int = 3) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(width)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source) / 4

    experts = torch.rand(tokens, 5, generator=source).argsort(-1)[:, :choices].int()
    experts[3, 0], experts[4] = -1, -1
    return (
        numbers(tokens, hidden),
        numbers(5, 2 * width, hidden),
        numbers(5, hidden, width),
        numbers(tokens, choices),
        experts,
    )


def drawn_biases(width: int, hidden: int = 48) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(width)
    sizes = {"bias_in": 2 * width, "bias_out": hidden}
    return {name: torch.randn(5, size, generator=source) for name, size in sizes.items()}


def assert_right(given: tuple[Tensor, ...], biases: dict[str, Tensor] | None = None, **values: Any) -> None:
    *floats, experts = given
    wide = [tensor.double() for tensor in floats]
    biases = biases or {}
    wide_biases = {name: bias.double() for name, bias in biases.items()}
    want = reference.forward(*wide, experts, **wide_biases, **values)
    torch.testing.assert_close(op.moe_mlp(*given, **biases, **values).double(), want, atol=1e-5, rtol=1e-5)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(0))
    wanted = reference.backward(grad.double(), *wide, experts, **wide_biases, **values)
    found = moe_mlp_gradients.backward(grad, *given, **biases, **values)
    known_ones = [grad for grad in (*wanted[:4], *wanted[8:]) if grad is not None]
    found_ones = [grad for grad in found if grad is not None]
    assert len(found_ones) == 4 + len(biases)
    for got, known in zip(found_ones, known_ones, strict=True):
        torch.testing.assert_close(got.double(), known, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("width", [8, 16, 20, 36])
def test_gate_and_up_meet_however_the_matrices_are_read(monkeypatch, halves, swap, described, width):
    launched_with(monkeypatch, SWAP=swap, DESCRIPTORS=described, STORES=described)
    assert_right(drawn(width), activation="gelu", halves=halves)


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("width", [16, 20, 18])
def test_matrices_that_lie_the_other_way_round(monkeypatch, halves, width):
    launched_with(monkeypatch, DESCRIPTORS=True)
    x, w_in, w_out, *rest = drawn(width)
    turned = (w.transpose(1, 2).contiguous().transpose(1, 2) for w in (w_in, w_out))
    assert_right((x, *turned, *rest), activation="silu", halves=halves)


def test_halves_are_described_together_where_strides_allow_it():
    w_in = drawn(20)[1]
    paired = w_in.unflatten(1, (2, 20))
    assert grouped_mm._described(paired, (16, 32), True, paired=True)[1] == "inner"
    turned = w_in.transpose(1, 2).contiguous().transpose(1, 2)
    assert grouped_mm._described(turned.unflatten(1, (2, 20)), (16, 32), True, paired=True)[1] == "outer"
    odd = drawn(18)[1].transpose(1, 2).contiguous().transpose(1, 2)
    assert grouped_mm._described(odd.unflatten(1, (2, 18)), (16, 32), True, paired=True)[1] == "pointers"


def test_equal_calls_give_equal_bits_and_a_token_counts_its_experts_in_order():
    x, w_in, w_out, weights, experts = drawn(24)
    first = op.moe_mlp(x, w_in, w_out, weights, experts, **SILU)
    assert torch.equal(first, op.moe_mlp(x, w_in, w_out, weights, experts, **SILU))
    # large numbers that cancel before a small one is added, and not behind it
    one = op.moe_mlp(x[:1], w_in, w_out, torch.ones(1, 1), torch.tensor([[2]]), **SILU)
    picked, of_picked = torch.tensor([[2, 2, 2]]), torch.tensor([[1e9, -1e9, 1.0]])
    assert torch.equal(op.moe_mlp(x[:1], w_in, w_out, of_picked, picked, **SILU), one)


def test_what_nobody_routed_is_looked_at_by_nobody():
    x, w_in, w_out, weights, experts = drawn(24)
    want = op.moe_mlp(x, w_in, w_out, weights, experts, **SILU)
    weights[4], x[4] = torch.nan, torch.nan  # that token's experts are all elsewhere
    found = op.moe_mlp(x, w_in, w_out, weights, experts, **SILU)
    assert not found[4].any()
    assert torch.equal(found, want)


@pytest.mark.parametrize("format", ["row", "block"])
@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("swap", [False, True])
def test_float8_with_its_scales(monkeypatch, format, halves, swap):
    launched_with(monkeypatch, SWAP=swap, DESCRIPTORS=True, BLOCK_K=128)
    x, w_in, w_out, weights, experts = drawn(176, hidden=144)  # blocks that gate and up share, and tiles of two blocks
    source = torch.Generator().manual_seed(3)
    sizes = ((19, 1), (5, 352, 1), (5, 144, 1)) if format == "row" else ((19, 2), (5, 3, 2), (5, 2, 2))
    scales = [torch.rand(size, generator=source) + 0.5 for size in sizes]
    narrow = [tensor.to(torch.float8_e4m3fn) for tensor in (x, w_in, w_out)]
    given = dict(zip(("scale_x", "scale_in", "scale_out"), scales, strict=True))
    values: dict[str, Any] = {**given, "activation": "silu", "halves": halves, "format": format}
    found = op.moe_mlp(*narrow, weights, experts, **values)
    (want,) = reference.truth(*narrow, weights, experts, **values)
    off = (found.double() - want).norm() / want.norm()
    plain = reference.plain(*narrow, weights, experts, **values)
    assert found.dtype is torch.bfloat16
    assert off < 1.5 * (plain.double() - want).norm() / want.norm()
    assert not found[4].any()


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("described", [False, True])
def test_biases_go_before_the_gate_and_to_each_experts_results(monkeypatch, halves, swap, described):
    launched_with(monkeypatch, SWAP=swap, DESCRIPTORS=described, STORES=described)
    x, *rest = drawn(36)
    # gates and ups on both sides of their bounds
    assert_right((8 * x, *rest), drawn_biases(36), activation="swiglu_oai", halves=halves)


@pytest.mark.parametrize("name", ["bias_in", "bias_out"])
def test_either_bias_may_be_absent(name):
    assert_right(drawn(20), {name: drawn_biases(20)[name]}, activation="silu")


def test_biases_are_read_by_strides_and_those_of_experts_without_rows_have_no_gradient():
    x, w_in, w_out, weights, experts = drawn(20)
    experts[experts == 2] = 1
    biases = {name: torch.stack((bias, bias), -1)[..., 0] for name, bias in drawn_biases(20).items()}
    assert_right((x, w_in, w_out, weights, experts), biases, activation="silu")
    given = (x, w_in, w_out, weights, experts, biases["bias_in"], biases["bias_out"])
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    first, second = (moe_mlp_gradients.backward(grad, *given, activation="silu") for _ in range(2))
    for place in (5, 6):
        found, again = first[place], second[place]
        assert found is not None
        assert again is not None
        assert torch.equal(found, again)
        assert not found[2].any()
        assert found[1].all()


def test_gates_that_are_no_numbers_stay_so():
    x, w_in, w_out, weights, experts = drawn(20)
    bias = torch.zeros(5, 40)
    bias[:, 3] = torch.nan
    y = op.moe_mlp(x, w_in, w_out, weights, experts, bias_in=bias, activation="swiglu_oai", halves="concat")
    assert y[0].isnan().all()


def packed(codes: Tensor) -> Tensor:
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize(
    ("hidden", "options"),
    [
        (72, {"SWAP": False, "BLOCK_K": 32}),
        (72, {"SWAP": True, "BLOCK_K": 32}),
        (72, {"SWAP": False, "BLOCK_K": 64}),
        (72, {"SWAP": True, "BLOCK_K": 64}),
        (72, {"SWAP": True, "BLOCK_K": 128, "BLOCK_N": 64, "FRAGMENTS": True}),
        (72, {"SWAP": True, "BLOCK_K": 128, "BLOCK_N": 64, "BLOCK_M": 8, "FRAGMENTS": True}),
        (424, {"SWAP": True, "BLOCK_K": 256, "BLOCK_N": 128, "FRAGMENTS": True}),
    ],
)
def test_mxfp4_is_the_layers_of_what_it_stands_for(monkeypatch, dtype, halves, hidden, options):
    launched_with(monkeypatch, **options)
    x, _, _, weights, experts = drawn(40, hidden=hidden)  # neither is a multiple of what shares a scale
    source = torch.Generator().manual_seed(1)

    def matrix(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        codes = torch.randint(16, (5, rows, columns), generator=source, dtype=torch.uint8)
        scale = torch.randint(120, 127, (5, rows, -(-columns // 32)), generator=source, dtype=torch.uint8)
        return packed(codes), scale.view(torch.float8_e8m0fnu)

    (w_in, scale_in), (w_out, scale_out) = matrix(80, hidden), matrix(hidden, 40)
    values: dict[str, Any] = {"activation": "swiglu_oai", "halves": halves, "format": "mxfp4"}
    values |= {"scale_in": scale_in, "scale_out": scale_out, **drawn_biases(40, hidden)}
    found = op.moe_mlp(x.to(dtype), w_in, w_out, weights, experts, **values)
    (want,) = reference.truth(x.to(dtype), w_in, w_out, weights, experts, **values)
    assert found.dtype is dtype
    assert not found[4].any()
    if dtype is torch.float32:
        torch.testing.assert_close(found.double(), want, atol=1e-4, rtol=1e-4)
        return
    plain = reference.plain(x.to(dtype), w_in, w_out, weights, experts, **values)
    assert (found.double() - want).norm() < 1.5 * (plain.double() - want).norm()


def test_every_code_and_every_scale_of_mxfp4_is_exact():
    # a weight for each pair of code and scale: x picks one, and no gate changes it
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 2).unsqueeze(0)  # (1, 256, 32)
    scales = torch.arange(256, dtype=torch.uint8).reshape(1, 256, 1)
    offsets, y = torch.tensor([0, 16]), torch.empty(16, 256)
    with torch.no_grad():
        x = torch.eye(16, 32)
        grouped_mm.multiply(
            "forward", x, packed(codes), offsets, y, scale_b=scales.view(torch.float8_e8m0fnu), format="mxfp4"
        )
    positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    numbers = torch.cat((positive, -positive))
    powers = 2.0 ** (torch.arange(255, dtype=torch.float64) - 127)
    # what is beyond float32 would meet the zeros of x
    want = (numbers[:, None] * powers).float()[:, :252]
    assert torch.equal(y[:, :252], want)
    assert y[:, 255].isnan().all()


def test_rows_beside_mxfp4_weights_have_no_scales():
    x, _, _, weights, experts = drawn(32, hidden=64)
    w_in, w_out = packed(torch.zeros(5, 64, 64, dtype=torch.uint8)), packed(torch.zeros(5, 64, 32, dtype=torch.uint8))
    values: dict[str, Any] = {"activation": "silu", "format": "mxfp4", "scale_x": torch.ones(19, 1)}
    with pytest.raises(ArgumentValueError, match="scale_x is a tensor with format='mxfp4'; it must be left out"):
        op.moe_mlp(x, w_in, w_out, weights, experts, **values)
    del values["scale_x"]
    with pytest.raises(ArgumentValueError, match="scale_in is None with format='mxfp4'; it must be given"):
        op.moe_mlp(x, w_in, w_out, weights, experts, **values)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"activation": "swiglu_oai"}, "activation takes silu, gelu, gelu_tanh; this is 'swiglu_oai'"),
        ({"dtype": {"bias_in": "bfloat16"}}, "does not serve bias_in=True"),
        ({"dtype": {"bias_out": "bfloat16"}}, "does not serve bias_out=True"),
    ],
)
def test_the_kernel_for_hopper_declines_clamped_gates_and_biases(asked, reason):
    dtypes = {"x": "bfloat16", "weights": "float32", "experts": "int32", **asked.get("dtype", {})}
    decision = explain("moe_mlp", target="nvidia:sm_90", **{**asked, "dtype": dtypes})
    assert decision.chosen is not None
    assert decision.chosen.name == "triton.moe_mlp"
    (line,) = (line for line in str(decision).splitlines() if line.split()[0] == "triton.moe_mlp_hopper")
    assert reason in line


def test_more_assignments_than_32_bits_number_are_left_to_others():
    # no memory behind them
    x, w_in, w_out = torch.zeros(1, 8).expand(2**28, 8), torch.zeros(3, 16, 8), torch.zeros(3, 8, 8)
    weights, experts = torch.zeros(1, 1).expand(2**28, 5), torch.zeros(1, 1, dtype=torch.int32).expand(2**28, 5)
    refused = "limit: needs T * K <= 1073741824, since assignments are numbered in 32 bits; this is 1342177280"
    with pytest.raises(CannotRun, match=re.escape(f"{refused}: call it with fewer tokens at a time")):
        op.moe_mlp(x, w_in, w_out, weights, experts, **SILU)
