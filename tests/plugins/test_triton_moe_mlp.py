"""What no case of ``moe_mlp`` shows of its Triton kernels, interpreted: how weights are read, bits, other routing."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

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


def assert_right(given: tuple[Tensor, ...], **values: Any) -> None:
    *floats, experts = given
    wide = [tensor.double() for tensor in floats]
    want = reference.forward(*wide, experts, **values)
    torch.testing.assert_close(op.moe_mlp(*given, **values).double(), want, atol=1e-5, rtol=1e-5)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(0))
    wanted = reference.backward(grad.double(), *wide, experts, **values)
    found = moe_mlp_gradients.backward(grad, *given, **values)
    for got, known in zip(found[:4], wanted[:4], strict=True):
        assert got is not None
        assert known is not None
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
