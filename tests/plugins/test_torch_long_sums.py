"""Long sums of 16-bit numbers, of which cuBLAS would leave out terms."""

from __future__ import annotations

import pytest
import torch

from portakernel import ops
from portakernel_plugins.torch.matrix import long_sums

LONG = 20488  # of as many ones cuBLAS of CUDA 13.0 makes 20480
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture
def everywhere(monkeypatch):
    """Sums are taken for ones that cuBLAS cuts short, and products into float32 are those of a GPU."""
    product = torch.mm
    monkeypatch.setattr(long_sums, "is_cut_short", lambda a, _: a.shape[1] > long_sums.ALWAYS_WHOLE)
    monkeypatch.setattr(torch, "mm", lambda x, y, out_dtype: product(x.to(out_dtype), y.to(out_dtype)))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_pieces_add_up_to_the_product(everywhere, biased, trained):
    a, b = (torch.randn(rows, LONG).bfloat16() for rows in (3, 5))
    bias = torch.randn(5).bfloat16() if biased else None
    b.requires_grad_(trained)
    y = long_sums.product(a, b, bias)
    want = a.double() @ b.detach().double().t() + (0.0 if bias is None else bias.double())
    torch.testing.assert_close(y.detach().double(), want, rtol=2**-8, atol=1e-2)
    if trained:
        y.sum().backward()
        torch.testing.assert_close(b.grad, a.float().sum(0).expand(5, -1).bfloat16())


def test_float8_is_padded_to_whole_steps():
    x = torch.ones(2, LONG).to(torch.float8_e4m3fn)
    padded = long_sums.with_whole_steps(x)
    assert padded.shape == (2, 24576)
    assert padded.float().sum() == 2 * LONG


def test_a_cpu_cuts_nothing_short():
    a = torch.ones(1, LONG).bfloat16()
    assert not long_sums.is_cut_short(a, a)
    assert long_sums.product(a, a).item() == 20480.0  # rounded


@on_a_gpu
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("terms", [LONG, 61480, 116536])
def test_no_term_is_lost_on_a_gpu(activation, terms):
    x, weight = (torch.ones(rows, terms, device="cuda").half() / 8 for rows in (2, 8))
    kernel = "torch.linear_act" if activation == "relu" else "torch.linear_act_unfused"
    want = (torch.ones(()) * terms / 64).half().item()
    assert ops.linear_act(x, weight, activation=activation, kernel=kernel).eq(want).all()


@on_a_gpu
def test_no_term_of_a_gradient_is_lost_on_a_gpu():
    x, weight = (torch.ones(rows, 64, device="cuda").half() for rows in (61480, 16))
    weight.requires_grad_()
    ops.linear_act(x / 8, weight, activation="relu", kernel="torch.linear_act").backward(torch.ones_like(x[:, :16]) / 8)
    assert weight.grad is not None
    assert weight.grad.eq(960.5).all()


@on_a_gpu
def test_no_term_of_float8_is_lost_on_a_gpu():
    a, b = (torch.ones(rows, 61456, device="cuda").to(torch.float8_e4m3fn) for rows in (1, 16))
    one = torch.ones((), device="cuda")
    formats = {"format_a": "tensor", "format_b": "tensor", "out_dtype": "float32"}
    assert ops.scaled_mm(a, b, one, one, **formats, kernel="torch.scaled_mm").eq(61456.0).all()
