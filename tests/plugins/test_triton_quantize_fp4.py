"""``quantize_fp4`` in Triton: every rounding of e2m1, and where the conformance kit's sizes do not reach."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from portakernel.references import quantize_fp4 as reference
from portakernel.references.scale_formats import numbers
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.quantize import quantize_fp4

FORMATS = ("mxfp4", "nvfp4")


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def assert_same(x: torch.Tensor, format: str) -> None:
    found, wanted = quantize_fp4.quantize_fp4(x, format=format), reference.forward(x, format=format)
    assert torch.equal(numbers(found[0]), numbers(wanted[0]))
    for tensor, exact in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(tensor.float(), exact.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_is_to_nearest_ties_to_even_around_every_tie(format):
    # the scales are 1: each block has a 6, and nvfp4's tensor a 2688
    points = torch.arange(0, 33) * 0.25
    points = torch.cat([points, torch.nextafter(points, torch.tensor(9.0)), torch.nextafter(points, torch.tensor(0.0))])
    blocks = torch.zeros(len(points) + 1, 16)
    blocks[:, 0] = 6.0
    blocks[:-1, 1], blocks[:-1, 2] = points.clamp(max=6.0), -points.clamp(max=6.0)
    if format == "nvfp4":
        blocks[-1, 0] = 2688.0
    assert_same(blocks, format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 20000), (300, 50), (5, 4128)])
@pytest.mark.parametrize("format", FORMATS)
def test_groups_are_told_apart_across_programs_and_rows(format, rows, columns, dtype):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[-1, -1] = 50.0
    assert_same(x, format)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_a_wider_matrix_are_quantised_where_they_lie(format):
    assert_same(torch.randn(9, 80, generator=torch.Generator().manual_seed(0))[:, :64], format)


def test_elements_of_a_block_with_a_nan_are_zero_and_others_are_not():
    x = torch.full((1, 64), 4.0)
    x[0, 5] = float("nan")
    q, scale = quantize_fp4.quantize_fp4(x, format="mxfp4")
    assert scale.view(torch.uint8).tolist() == [[255, 127]]
    assert numbers(q).tolist() == [[0.0] * 32 + [4.0] * 32]


@pytest.mark.parametrize("format", FORMATS)
def test_equal_calls_give_equal_bits(format):
    x = torch.randn(40, 400, generator=torch.Generator().manual_seed(0))
    first, second = (quantize_fp4.quantize_fp4(x, format=format) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(*(tensor.view(torch.uint8) if tensor.dim() else tensor for tensor in (one, other)))
