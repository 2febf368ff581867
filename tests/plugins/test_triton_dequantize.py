"""``dequantize`` in Triton: every code of every dtype, and where the conformance kit's sizes do not reach."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from portakernel.references import dequantize as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.quantize import dequantize

FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def codes(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    drawn = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.uint8).view(getattr(torch, dtype))


def assert_same(q: torch.Tensor, scale: torch.Tensor, format: str, dtype: str = "float32") -> None:
    found = dequantize.dequantize(q, scale, format=format, dtype=dtype)
    wanted = reference.forward(q, scale, format=format, dtype=dtype)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8_code_gives_its_number(dtype):
    q = torch.arange(256).to(torch.uint8).view(getattr(torch, dtype))
    assert_same(q, torch.ones(()), "tensor")


def test_every_pair_of_e2m1_codes_gives_its_numbers_in_order():
    q = torch.arange(256).to(torch.uint8).view(1, 256).view(torch.float4_e2m1fn_x2)
    assert_same(q, torch.ones(1, 32).to(torch.float8_e4m3fn), "nvfp4")


def test_every_e8m0_code_is_its_power_of_two():
    # 2.0 as the element: the smallest power is subnormal in float32, the product with 2 is not
    q = torch.full((256, 1), 2.0).to(torch.float8_e5m2)
    scale = torch.arange(256).to(torch.uint8).view(256, 1).view(torch.float8_e8m0fnu)
    found = dequantize.dequantize(q, scale, format="mxfp8", dtype="float32")
    wanted = torch.cat([2.0 ** torch.arange(-126, 128).double(), torch.tensor([float("inf"), float("nan")])]).float()
    torch.testing.assert_close(found, wanted.view(256, 1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5000), (3, 1024), (200, 7), (5, 2500)])
def test_rows_longer_and_shorter_than_a_program_keep_their_scales(rows, columns):
    q, scale = codes(rows, columns, dtype="float8_e5m2"), torch.arange(1, rows + 1).float().view(rows, 1)
    assert_same(q, scale, "row")


@pytest.mark.parametrize("columns", [256, 300])
def test_rows_of_a_wider_matrix_are_read_where_they_lie(columns):
    q = codes(130, 320, dtype="float8_e4m3fn")[:, :columns]
    scale = torch.rand(130, -(-columns // 128), generator=torch.Generator().manual_seed(1)) + 0.5
    assert_same(q, scale, "block_1x128")
    assert_same(q, scale[:2], "block_128x128", "bfloat16")
    assert_same(q, scale[0, 0], "tensor")


def test_scales_may_have_any_strides():
    q = codes(4, 300, dtype="float8_e4m3fn")
    scale = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)).t()
    assert_same(q, scale, "block_1x128")
