"""The Triton kernel of ``add`` adds, in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.add import add


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", [(), (1,), (0, 8), (1023,), (2049,), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_adds_every_element_rounded_once(shape, dtype):
    x, y = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    total = add(x, y)
    assert (total.shape, total.dtype) == (x.shape, dtype)
    assert torch.equal(total, (x.double() + y.double()).to(dtype))


@pytest.mark.parametrize("scale", [1.0, 2.0**-128])
def test_bfloat16_is_the_sum_rounded_to_nearest_subnormal_or_not(scale):
    x, y = draw(1000, dtype=torch.bfloat16) * scale, draw(1000, dtype=torch.bfloat16, seed=1) * scale
    assert torch.equal(add(x, y), (x.float() + y.float()).bfloat16())


def test_special_values_follow_ieee_754():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, inf, -inf, nan, -0.0, 3e38])
    y = torch.tensor([1.0, -inf, -inf, 1.0, -0.0, 3e38])
    expected = torch.tensor([inf, nan, -inf, nan, -0.0, inf])
    total = add(x, y)
    torch.testing.assert_close(total, expected, rtol=0, atol=0, equal_nan=True)
    assert total[4].signbit()


@pytest.mark.parametrize("written", ["x", "y", "both"])
def test_out_may_be_an_argument(written):
    x, y = draw(50, 41), draw(50, 41, seed=1)
    if written == "both":
        y = x
    expected = x + y
    out = y if written == "y" else x
    assert add(x, y, out=out) is out
    assert torch.equal(out, expected)


def test_out_may_have_any_strides():
    x, y = draw(6, 40), draw(6, 40, seed=1)
    backing = torch.full((6, 80), -1.0)
    out = backing[:, ::2]
    assert add(x, y, out=out) is out
    assert torch.equal(out, x + y)
    assert torch.equal(backing[:, 1::2], torch.full((6, 40), -1.0))
