"""Matrix products over rows of 16-bit numbers that fill no vectors, which cuBLAS reads one by one, or a few at once."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from portakernel_plugins.torch.matrix import linear_act, long_sums, odd_rows

SIZES = [(5, 17, 24), (5, 16, 23), (3, 17, 23), (4, 18, 21), (2, 3, 1)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("rows", "columns", "terms"), SIZES)
@pytest.mark.parametrize("leading", [(), (2,)])
def test_vectors_and_what_is_left_make_the_product_and_its_gradients(rows, columns, terms, biased, trained, leading):
    a, b = torch.randn(*leading, rows, terms), torch.randn(columns, terms)
    bias = torch.randn(columns) if biased else None
    given = [tensor.requires_grad_(trained) for tensor in (a, b, bias) if tensor is not None]
    y = odd_rows.product_of_vectors(a, b, bias)
    wanted = torch.nn.functional.linear(a, b, bias)
    assert y.is_contiguous()
    torch.testing.assert_close(y, wanted)
    if trained:
        g = torch.randn_like(y)
        for found, right in zip(torch.autograd.grad(y, given, g), torch.autograd.grad(wanted, given, g), strict=True):
            torch.testing.assert_close(found, right)


def test_zeros_behind_infinities_make_no_nan():
    a = torch.full((2, 3), float("inf"))
    assert odd_rows.product_of_vectors(a, torch.ones(9, 3), None).isinf().all()


@pytest.mark.parametrize(
    ("shape", "slow"),
    [
        ((1024, 32001, 4096), True),
        ((33, 151669, 2048), True),  # of a result with odd rows no side is copied
        ((4096, 4096, 11007), True),
        ((1024, 32004, 4096), True),
        ((4096, 4096, 11004), True),
        ((256, 1001, 4096), True),
        ((1024, 32000, 4096), False),
        ((64, 1001, 1280), False),  # over before it is split
        ((1, 50257, 768), False),
        ((2048, 65536, 11), False),  # copied for little
    ],
)
def test_products_are_slow_that_have_much_to_do_and_odd_rows(shape, slow):
    rows, columns, terms = shape
    with FakeTensorMode():
        for dtype, there in ((torch.bfloat16, slow), (torch.float32, False)):
            a, b = (torch.empty(size, terms, dtype=dtype, device="cuda") for size in (rows, columns))
            assert odd_rows.is_slow(a, b) is there
        assert not odd_rows.is_slow(torch.empty(rows, terms).bfloat16(), torch.empty(columns, terms).bfloat16())


def test_a_gradient_is_wanted_of_copies_that_have_to_be_worth_it():
    with FakeTensorMode():
        a, b = (torch.empty(size, 2048, dtype=torch.bfloat16, device="cuda") for size in (33, 151669))
        b.requires_grad_()
        assert not odd_rows.is_slow(a, b)
        with torch.no_grad():
            assert odd_rows.is_slow(a, b)


def test_linear_layers_of_any_rank_ask(monkeypatch):
    asked = []

    def is_slow(a, b):
        asked.append((tuple(a.shape), tuple(b.shape)))
        return True

    for module in (long_sums, linear_act):
        monkeypatch.setattr(module, "is_slow", is_slow)
    weight, bias = torch.randn(9, 5), torch.randn(9)
    for shape in ((5,), (4, 5), (2, 4, 5), (2, 2, 4, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(linear_act.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
        assert asked, shape
        asked.clear()
