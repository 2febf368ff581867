"""PyTorch's softmax: the gradient that GPUs compute, which the conformance kit sees there alone."""

from __future__ import annotations

import pytest
import torch

import portakernel
from portakernel_plugins.torch import softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gradient_of_gpus_is_rounded_once(dtype):
    generator = torch.Generator().manual_seed(0)
    y = softmax.softmax(torch.randn(40, 300, generator=generator).to(dtype))
    grad = torch.randn(40, 300, generator=generator).to(dtype)
    (found,) = softmax.backward(grad, y, needs=(True,))
    p, g = y.double(), grad.double()
    terms = p * (g.abs() + (g * p).abs().sum(-1, keepdim=True))
    want = p * (g - (g * p).sum(-1, keepdim=True))
    assert found.dtype == dtype
    assert ((found.double() - want).abs() <= 0.51 * torch.finfo(dtype).eps * terms + 2e-7 * terms + 2**-25).all()


def test_no_gradient_is_computed_where_none_is_needed():
    y = torch.softmax(torch.randn(2, 3), -1)
    assert softmax.backward(y, y, needs=(False,)) == softmax.backward_cpu(y, y, needs=(False,)) == (None,)


@pytest.mark.parametrize("strides", [(12, 1), (24, 2), (1, 5)])
def test_out_is_filled_whatever_its_strides(strides):
    x = torch.randn(5, 12)
    out = torch.full((200,), torch.nan).as_strided((5, 12), strides)
    assert softmax.softmax(x, out=out) is out
    torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.parametrize(
    ("target", "dtype", "served"),
    [("nvidia:sm_90", "bfloat16", True), ("intel:pvc", "float16", True), ("apple:m3", "bfloat16", False)],
)
def test_apple_s_is_claimed_in_float32_alone(target, dtype, served):
    decision = portakernel.explain("softmax", target=target, dtype=dtype)
    assert (decision.candidate("torch.softmax").status != "rejected") == served
