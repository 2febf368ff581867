"""``quantize_fp8`` and ``quantize_mxfp8`` in Triton, where the conformance kit's sizes do not reach."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from portakernel.references import quantize_fp8 as reference
from portakernel.references import quantize_mxfp8 as mx_reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.quantize import quantize_fp8, quantize_mxfp8

GRANULARITIES = ("tensor", "row", "block_1x128", "block_128x128")


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def assert_same(x: torch.Tensor, granularity: str, dtype: str = "float8_e4m3fn") -> None:
    q, scale = quantize_fp8.quantize_fp8(x, granularity=granularity, dtype=dtype)
    wanted_q, wanted_scale = reference.forward(x, granularity=granularity, dtype=dtype)
    torch.testing.assert_close(scale, wanted_scale, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(q.float(), wanted_q.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [65536, 65537, 70000])
def test_rows_beyond_the_registers_are_read_twice_with_the_same_results(columns):
    assert_same(draw(2, columns), "row")


@pytest.mark.parametrize("columns", [2049, 2560, 5120, 7001, 8191, 14336, 20000, 36864])
def test_rows_that_are_no_power_of_two_are_several_blocks_with_the_same_results(columns):
    x = draw(3, columns)
    x[0, 0] = x[2, -1] = 50.0  # in the first block, and in the last
    assert_same(x, "row")


def test_a_nan_at_the_end_of_a_long_row_makes_all_of_it_nan():
    x = draw(2, 70000)
    x[1, -1] = float("nan")
    q, scale = quantize_fp8.quantize_fp8(x, granularity="row", dtype="float8_e5m2")
    assert scale.isnan().flatten().tolist() == [False, True]
    assert q.float().isnan().all(1).tolist() == [False, True]
    assert not q[0].float().isnan().any()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("columns", [256, 300])
def test_rows_of_a_wider_matrix_are_quantised_where_they_lie(granularity, columns):
    assert_same(draw(130, 320)[:, :columns], granularity)


@pytest.mark.parametrize("shape", [(40, 1000), (3, 70000), (1, 1), (33, 8192)])
def test_one_scale_serves_all_tiles_of_a_tensor(shape):
    x = draw(*shape)
    x[-1, -1] = 100.0  # in the last tile
    assert_same(x, "tensor")


def test_one_scale_serves_all_tiles_of_rows_of_a_wider_matrix():
    assert_same(draw(5, 9000)[:, :8500], "tensor")


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_columns_give_scales_of_one(granularity):
    q, scale = quantize_fp8.quantize_fp8(torch.empty(3, 0), granularity=granularity, dtype="float8_e4m3fn")
    wanted = reference.forward(torch.empty(3, 0), granularity=granularity)[1]
    assert q.shape == (3, 0)
    assert torch.equal(scale, wanted)


def test_out_of_any_strides_is_filled_and_returned():
    x = draw(6, 260)
    q, scale = torch.empty(260, 6, dtype=torch.float8_e4m3fn).t(), torch.empty(6, 6)[:, ::2]
    found = quantize_fp8.quantize_fp8(x, granularity="block_1x128", dtype="float8_e4m3fn", out=(q, scale))
    wanted = reference.forward(x, granularity="block_1x128")
    assert found[0] is q
    assert found[1] is scale
    assert torch.equal(q.float(), wanted[0].float())
    assert torch.equal(scale, wanted[1])


@pytest.mark.parametrize("columns", [31, 96])
@pytest.mark.parametrize("rows", [1, 300])
def test_powers_of_two_are_those_of_their_groups_across_programs(rows, columns):
    x = draw(rows, 100)[:, :columns]
    found = quantize_mxfp8.quantize_mxfp8(x, dtype="float8_e4m3fn")
    for tensor, wanted in zip(found, mx_reference.forward(x), strict=True):
        assert torch.equal(tensor.view(torch.uint8) & 0x7F, wanted.view(torch.uint8) & 0x7F)
        assert torch.equal(tensor.float(), wanted.float())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_may_lie_beyond_two_to_the_31_elements(granularity):
    x = torch.empty((1 << 31) + 256, dtype=torch.bfloat16).as_strided(
        (2, 256), (1 << 31, 1)
    )  # untouched pages are free
    x.copy_(draw(2, 256))
    assert_same(x, granularity)
