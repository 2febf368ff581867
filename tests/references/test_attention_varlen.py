"""The reference of attention_varlen against formulas of other forms: one masked attention for all, and torch's."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from portakernel.contracts.attention_varlen import CONTRACT
from portakernel.errors import ArgumentValueError
from portakernel.references import attention_varlen

NAMES = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks")
DIFFERENTIABLE = ("q", "k", "v", "sinks")

# queries and keys of each sequence
LENGTHS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one": ((5,), (7,)),
    "several": ((3, 1, 6), (3, 8, 2)),
    "empty ones": ((0, 4, 0, 2, 0), (3, 0, 0, 5, 0)),
    "one query each": ((1, 1, 1), (4, 1, 9)),
}
each_length = pytest.mark.parametrize("lengths", list(LENGTHS))
each_call = pytest.mark.parametrize(
    ("present", "parameters"),
    [
        ((), {}),
        ((), {"causal": True}),
        ((), {"window": (1, -1), "scale": 0.9}),
        ((), {"window": (-1, 0), "softcap": 0.8}),
        (("alibi_slopes",), {}),
        (("sinks",), {"causal": True}),
        (("alibi_slopes", "sinks"), {"causal": True, "scale": 0.4, "window": (3, 1), "softcap": 1.3}),
    ],
)


@pytest.fixture(autouse=True)
def _numbers_that_the_orders_seed_repeats() -> None:
    torch.manual_seed(random.getrandbits(63))


def ends(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([sum(lengths[:place]) for place in range(len(lengths) + 1)], dtype=torch.int32)


def draw(
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    present: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Random tensors: 4 heads, 2 key heads, keys of 6 and values of 3 dims."""
    queries, keys = map(sum, lengths)
    shapes = {"q": (queries, 4, 6), "k": (keys, 2, 6), "v": (keys, 2, 3)} | dict.fromkeys(present, (4,))
    tensors = {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}
    return {**tensors, "cu_seqlens_q": ends(lengths[0]), "cu_seqlens_k": ends(lengths[1])}


def run(tensors: dict[str, Tensor], **more: Any) -> Any:
    return attention_varlen.forward(**tensors, **more)


def differentiate(grad: Tensor, tensors: dict[str, Tensor], **more: Any) -> dict[str, Tensor | None]:
    out, lse = run(tensors, save=True, **more)
    found = attention_varlen.backward(grad, *(tensors.get(name) for name in NAMES), out, lse, **more)
    return dict(zip(NAMES, found, strict=True))


def with_leaves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.clone().requires_grad_() if n in DIFFERENTIABLE else t for n, t in tensors.items()}


def gradients_of(out: Tensor, grad: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    asked = [name for name in DIFFERENTIABLE if name in leaves]
    return dict(zip(asked, torch.autograd.grad(out, [leaves[name] for name in asked], grad), strict=True))


def in_one_go(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Every query against the keys of all sequences; what it does not see is multiplied by zero, after the exponential.

    Each query's place among its own keys, and each key's, counts within their sequences.
    """
    places, owner = torch.full((len(q),), -1), torch.full((len(q),), -1)
    key_places, key_owner = torch.full((len(k),), -2), torch.full((len(k),), -2)
    pairs = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for number, ((a, b), (c, d)) in enumerate(pairs):
        owner[a:b], key_owner[c:d] = number, number
        key_places[c:d] = torch.arange(d - c)
        places[a:b] = torch.arange(b - a) + (d - c) - (b - a)
    apart = places[:, None] - key_places
    seen = owner[:, None] == key_owner
    if causal:
        seen &= apart >= 0
    if window[0] >= 0:
        seen &= apart <= window[0]
    if window[1] >= 0:
        seen &= apart >= -window[1]
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    score = torch.bmm(q.transpose(0, 1), k.permute(1, 2, 0)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    if alibi_slopes is not None:
        score = score - alibi_slopes[:, None, None] * apart.abs()
    terms = score.exp() * seen
    total = terms.sum(-1)
    if sinks is not None:
        total = total + sinks.exp()[:, None]
    mixed = torch.bmm(terms, v.transpose(0, 1))
    out = mixed / torch.where(total == 0.0, 1.0, total)[..., None]
    return out.transpose(0, 1), total.log()


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


# --- numbers ----------------------------------------------------------------------------------------------------------


@each_call
@each_length
def test_forward_is_one_masked_attention(lengths: str, present: tuple[str, ...], parameters: dict[str, Any]) -> None:
    tensors = draw(LENGTHS[lengths], present)
    wanted, wanted_lse = in_one_go(**tensors, **parameters)
    for found, found_lse in (
        run(tensors, return_lse=True, **parameters),
        attention_varlen.plain(**tensors, return_lse=True, **parameters),
    ):
        close(found, wanted)
        close(found_lse, wanted_lse)
    close(run(tensors, **parameters), wanted)
    close(attention_varlen.plain(**tensors, **parameters), wanted)


@each_call
@each_length
def test_gradients_are_those_of_one_masked_attention(
    lengths: str, present: tuple[str, ...], parameters: dict[str, Any]
) -> None:
    tensors = draw(LENGTHS[lengths], present)
    leaves = with_leaves(tensors)
    out, _ = in_one_go(**leaves, **parameters)
    grad = torch.randn_like(out)
    wanted = gradients_of(out, grad, leaves)
    plain = gradients_of(attention_varlen.plain(**leaves, **parameters), grad, leaves)
    for name, found in differentiate(grad, tensors, **parameters).items():
        if name in wanted:
            close(found, wanted[name])
            close(plain[name], wanted[name])
        else:
            assert found is None


@each_length
def test_each_sequence_is_torchs_attention(lengths: str) -> None:
    tensors = draw(LENGTHS[lengths])
    out = run(tensors)
    q, k, v = (tensors[name].transpose(0, 1)[None] for name in "qkv")
    queries, keys = (pairwise(tensors[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k"))
    for (a, b), (c, d) in zip(queries, keys, strict=True):
        if b > a and d > c:
            wanted = F.scaled_dot_product_attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], enable_gqa=True)
            close(out[a:b], wanted[0].transpose(0, 1))
        else:
            assert out[a:b].eq(0.0).all()


def test_gradients_are_differences() -> None:
    tensors = draw(((2, 0, 1), (2, 1, 3)), ("alibi_slopes", "sinks"))
    parameters: dict[str, Any] = {"causal": True, "window": (1, -1), "softcap": 1.2}
    asked = [name for name in DIFFERENTIABLE if name in tensors]

    class Reference(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Tensor) -> Tensor:
            ctx.given = {**tensors, **dict(zip(asked, values, strict=True))}
            return run(ctx.given, **parameters)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            found = differentiate(grad, ctx.given, **parameters)
            return tuple(found[name] for name in asked)

    assert torch.autograd.gradcheck(Reference.apply, tuple(tensors[name].requires_grad_() for name in asked))


@each_length
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_once_to_their_dtypes(lengths: str, dtype: torch.dtype) -> None:
    tensors = draw(LENGTHS[lengths], ("alibi_slopes", "sinks"), dtype)
    tensors["alibi_slopes"] = tensors["alibi_slopes"].float()
    exact = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    out, lse = run(tensors, return_lse=True, causal=True)
    truth, truth_lse = run(exact, return_lse=True, causal=True)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    tolerance = {"rtol": max(0.51 * torch.finfo(dtype).eps, 1e-5), "atol": 5e-6}
    torch.testing.assert_close(out.double(), truth, **tolerance)
    torch.testing.assert_close(lse.double(), truth_lse, rtol=1e-5, atol=1e-5)
    grad = torch.randn(out.shape).to(dtype)
    wanted = differentiate(grad.double(), exact, causal=True)
    for name, gradient in differentiate(grad, tensors, causal=True).items():
        if gradient is not None:
            assert gradient.dtype == dtype
            assert gradient.is_contiguous()
            # the sinks' too: its sum over sequences is kept wide
            torch.testing.assert_close(gradient.double(), wanted[name], **tolerance)


@each_length
def test_lse_is_off_by_few_units_of_what_its_errors_are_in_proportion_to(lengths: str) -> None:
    for _ in range(20):
        tensors = draw(LENGTHS[lengths], ("alibi_slopes", "sinks"), torch.float32)
        exact = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        parameters: dict[str, Any] = {"causal": True, "max_seqlen_q": 9, "max_seqlen_k": 9}
        out, lse = run(tensors, save=True, **parameters)
        truth_out, truth = run(exact, save=True, **parameters)
        (magnitude,) = attention_varlen.saved_magnitudes(**exact, **parameters)
        assert ((lse - truth).abs() / magnitude).max() < 2 * torch.finfo(torch.float32).eps
        of_out, returned = attention_varlen.output_magnitudes(**exact, return_lse=True, **parameters)
        assert torch.equal(returned, magnitude)
        assert of_out.shape == out.shape
        off = (out - truth_out).abs()
        assert (off <= torch.finfo(torch.float32).eps * (of_out + 8.0 * truth_out.abs().max())).all()


# --- nothing there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [((), ()), ((0, 0), (0, 0)), ((2, 3), (0, 0)), ((0,), (4,))])
@pytest.mark.parametrize("present", [(), ("alibi_slopes", "sinks")])
def test_without_tokens_results_are_zeros_or_empty(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], present: tuple[str, ...]
) -> None:
    tensors = draw(lengths, present, torch.bfloat16)
    out, lse = run(tensors, return_lse=True)
    queries = sum(lengths[0])
    assert (out.shape, lse.shape) == ((queries, 4, 3), (4, queries))
    assert out.eq(0.0).all()
    wanted = tensors["sinks"].float()[:, None].expand_as(lse) if present else torch.full_like(lse, -math.inf)
    torch.testing.assert_close(lse, wanted, rtol=1e-6, atol=1e-6)
    leaves, grad = with_leaves(tensors), torch.ones_like(out)
    plain = attention_varlen.plain(**leaves)
    assert plain.shape == out.shape
    for found in (differentiate(grad, tensors), gradients_of(plain, grad, leaves)):
        for name in ("q", "k", "v", *(["sinks"] if present else [])):
            assert found[name].shape == tensors[name].shape
            assert found[name].eq(0.0).all()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_longest_lengths_change_nothing() -> None:
    tensors = draw(LENGTHS["several"], ("sinks",))
    for found, wanted in zip(
        run(tensors, return_lse=True, max_seqlen_q=100, max_seqlen_k=8), run(tensors, return_lse=True), strict=True
    ):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("return_lse", [False, True])
def test_out_is_written_and_returned(return_lse: bool) -> None:
    tensors = draw(LENGTHS["empty ones"], ("sinks",), torch.float16)
    wanted = run(tensors, return_lse=return_lse)
    out = torch.full((4, 6, 3), math.nan, dtype=torch.float16).transpose(0, 1)
    lse = torch.full((6, 4), math.nan).T
    given = (out, lse) if return_lse else out
    assert run(tensors, return_lse=return_lse, out=given) is given
    if return_lse:
        assert torch.equal(lse, wanted[1])
    assert torch.equal(out, wanted[0] if return_lse else wanted)


def test_saved_lse_has_memory_of_its_own() -> None:
    out, lse, saved = run(draw(LENGTHS["several"], (), torch.float16), return_lse=True, save=True)
    assert torch.equal(saved, lse)
    assert len({tensor.data_ptr() for tensor in (out, lse, saved)}) == 3


def test_strides_make_no_difference() -> None:
    tensors = draw(LENGTHS["several"], ("alibi_slopes", "sinks"))
    moved = {name: t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() == 3 else t for name, t in tensors.items()}
    moved |= {name: tensors[name].repeat_interleave(2)[::2] for name in ("cu_seqlens_q", "cu_seqlens_k", "sinks")}
    out = run(tensors, causal=True)
    found = run(moved, causal=True)
    close(found, out)
    assert found.is_contiguous()
    grad = torch.randn_like(out)
    wanted = differentiate(grad, tensors, causal=True)
    for name, gradient in differentiate(grad.mT.contiguous().mT, moved, causal=True).items():
        if gradient is not None:
            close(gradient, wanted[name])
            assert gradient.is_contiguous()


def test_only_the_gradients_that_are_asked_for_come_back() -> None:
    tensors = draw(LENGTHS["several"], ("alibi_slopes", "sinks"))
    out, lse = run(tensors, save=True)
    given = (torch.randn_like(out), *(tensors[name] for name in NAMES), out, lse)
    whole = attention_varlen.backward(*given)
    for place in range(7):
        found = attention_varlen.backward(*given, needs=tuple(other == place for other in range(7)))
        for other, gradient in enumerate(found):
            if other == place and NAMES[other] in DIFFERENTIABLE:
                assert torch.equal(gradient, whole[other])
            else:
                assert gradient is None


# --- contract ---------------------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_equally_long_sequences() -> None:
    dims = {"B": 4, "S": 40, "T": 400, "H": 8, "G": 2, "D": 64, "E": 32}
    sizes = {"q": 2, "k": 2, "v": 2, "cu_seqlens_q": 4, "cu_seqlens_k": 4}
    whole = CONTRACT.cost(dims, sizes, CONTRACT.values())
    assert whole.flops == 2 * (4 * 8 * 10 * 100) * (64 + 32)
    assert whole.bytes == 2 * 40 * 8 * (64 + 32) + 2 * 400 * 2 * (64 + 32) + 2 * 5 * 4
    near = CONTRACT.cost(dims, {**sizes, "sinks": 2}, CONTRACT.values({"window": (4, 0), "return_lse": True}))
    assert near.flops == 2 * (4 * 8 * 10 * 5) * (64 + 32)
    assert near.bytes == 2 * 40 * 8 * (64 + 32) + 2 * 4 * 14 * 2 * (64 + 32) + 2 * 5 * 4 + 8 * 2 + 4 * 8 * 40


def test_lengths_of_different_numbers_of_sequences_are_refused() -> None:
    with pytest.raises(ArgumentValueError) as caught:
        CONTRACT.bind_shapes({"q": (5, 2, 8), "cu_seqlens_q": (3,), "cu_seqlens_k": (4,)})
    assert (
        str(caught.value)
        == "attention_varlen: cu_seqlens_k has shape (4,), 4 where B+1 = 3 is needed, but cu_seqlens_q has B = 2"
    )
