"""Norms and gates in float8 in Triton, where the conformance kit's sizes do not reach."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.contracts import contract
from portakernel.references import add_rms_norm_quantize as add_reference
from portakernel.references import rms_norm_quantize as norm_reference
from portakernel.references import silu_and_mul_quantize as gate_reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_kit.conformance.comparison import Match, compare
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.norms.norm_forward import is_long
from portakernel_plugins.triton.quantize import add_rms_norm_quantize, rms_norm_quantize, silu_and_mul_quantize

EPS = 1e-6
LONG = 33001
GRANULARITIES = ("row", "block_1x128")
FORMAT = "float8_e4m3fn"


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normalised(x: Tensor, weight: Tensor, granularity: str, *, out=None) -> tuple[Tensor, ...]:
    how = {"granularity": granularity, "dtype": FORMAT, "out": out}
    return rms_norm_quantize.rms_norm_quantize(x, weight, eps=EPS, **how)


def added(x: Tensor, residual: Tensor, weight: Tensor, granularity: str, *, out=None) -> tuple[Tensor, ...]:
    how = {"granularity": granularity, "dtype": FORMAT, "out": out}
    return add_rms_norm_quantize.add_rms_norm_quantize(x, residual, weight, eps=EPS, weight_offset=1.0, **how)


def gated(x: Tensor, granularity: str, *, out=None) -> tuple[Tensor, ...]:
    return silu_and_mul_quantize.silu_and_mul_quantize(x, granularity=granularity, dtype=FORMAT, out=out)


def assert_conforms(op: str, found: tuple[Tensor, ...], truth: tuple[Tensor, ...]) -> None:
    described = contract(op)
    for output, tensor, wanted in zip(described.outputs, found, truth, strict=True):
        kind, tolerance = str(tensor.dtype).removeprefix("torch."), described.tolerance.forward
        allowed = tolerance.get(f"{output.name}.{kind}", tolerance.get(kind, 0.0))
        outcome = compare(tensor, wanted, allowed)
        assert isinstance(outcome, Match), str(outcome)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_long_rows_are_normalised_and_quantised_block_by_block(granularity, dtype):
    x, residual, weight = draw(2, LONG, dtype=dtype), draw(2, LONG, seed=1, dtype=dtype), draw(LONG, seed=2)
    for kernel in ("rms_norm_quantize", "add_rms_norm_quantize"):
        assert is_long(configuration(kernel, torch.device("cpu"), LONG))
    truth = norm_reference.truth(x, weight, eps=EPS, granularity=granularity)
    assert_conforms("rms_norm_quantize", normalised(x, weight, granularity), truth)
    truth = add_reference.truth(x, residual, weight, eps=EPS, weight_offset=1.0, granularity=granularity)
    assert_conforms("add_rms_norm_quantize", added(x, residual, weight, granularity), truth)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("columns", [16384, 16385, LONG])
def test_long_rows_are_gated_and_quantised_block_by_block(granularity, columns):
    assert is_long(configuration("silu_and_mul_quantize", torch.device("cpu"), columns)) == (columns > 16384)
    x = draw(2, 2 * columns)
    assert_conforms("silu_and_mul_quantize", gated(x, granularity), gate_reference.truth(x, granularity=granularity))


@pytest.mark.parametrize("columns", [500, LONG])
def test_a_nan_spoils_its_row_and_an_infinity_what_shares_its_scale(columns):
    x = draw(3, columns)
    x[0, -1], x[1, -1] = float("nan"), float("inf")
    weight = torch.ones(columns, dtype=torch.bfloat16)
    for granularity in GRANULARITIES:
        q, scale = normalised(x, weight, granularity)
        wanted_q, wanted_scale = norm_reference.forward(x, weight, eps=EPS, granularity=granularity)
        torch.testing.assert_close(scale, wanted_scale, rtol=1e-6, atol=0, equal_nan=True)
        assert torch.equal(q.float().isnan(), wanted_q.float().isnan())
        assert not q[1].float().nan_to_num(0.0).any()
        q, scale = gated(torch.cat((weight.expand_as(x), x), 1), granularity)
        assert torch.equal(q.float().isnan()[2], torch.zeros(columns, dtype=torch.bool))
        assert scale[:2, -1].isnan().all()
        assert scale[:2, :-1].isfinite().all()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("columns", [256, 300])
def test_rows_of_a_wider_matrix_are_read_where_they_lie(granularity, columns):
    x, weight = draw(33, 640)[:, :columns], draw(columns, seed=1)
    for found, wanted in (
        (normalised(x, weight, granularity), normalised(x.contiguous(), weight, granularity)),
        (added(x, x, weight, granularity), added(x.contiguous(), x.contiguous(), weight, granularity)),
        (gated(x, granularity), gated(x.contiguous(), granularity)),
    ):
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_may_lie_beyond_two_to_the_31_elements(granularity):
    # untouched pages are free
    x = torch.empty((1 << 31) + 256, dtype=torch.bfloat16).as_strided((2, 256), (1 << 31, 1))
    x.copy_(draw(2, 256))
    weight = draw(256, seed=1)
    truth = norm_reference.truth(x, weight, eps=EPS, granularity=granularity)
    assert_conforms("rms_norm_quantize", normalised(x, weight, granularity), truth)
    assert_conforms("silu_and_mul_quantize", gated(x, granularity), gate_reference.truth(x, granularity=granularity))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("n", [40, LONG])
def test_each_result_may_be_written_where_its_rows_have_no_single_stride(granularity, n):
    x, residual, weight = draw(2, 2, n), draw(2, 2, n, seed=1), draw(n, seed=2)
    expected = added(x, residual, weight, granularity)
    out = tuple(torch.empty((2, 3, *r.shape[2:]), dtype=torch.uint8 if r.element_size() == 1 else r.dtype)[:, :2]
                .view(r.dtype) for r in expected)  # fmt: skip
    found = added(x, residual, weight, granularity, out=out)
    for tensor, place, wanted in zip(found, out, expected, strict=True):
        assert tensor is place
        assert torch.equal(tensor.float(), wanted.float())


def test_no_columns_of_a_gate_give_rows_scales_of_one():
    q, scale = gated(torch.empty(3, 0), "row")
    assert (q.shape, scale.tolist()) == ((3, 0), [[1.0]] * 3)
    assert gated(torch.empty(3, 0), "block_1x128")[1].shape == (3, 0)
