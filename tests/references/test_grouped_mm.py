"""``grouped_mm``'s reference against a linear layer for each expert, and what it refuses."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from portakernel import ops
from portakernel.errors import ArgumentValueError, DerivativeError
from portakernel.references.grouped_mm import backward


def drawn(rows: int = 9, experts: int = 4, columns: int = 5, inners: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(rows)
    a = torch.randn(rows, inners, dtype=torch.float64, generator=source)
    b = torch.randn(experts, columns, inners, dtype=torch.float64, generator=source)
    return a, b, torch.tensor([0, 3, 3, 8, 8])


def test_each_piece_is_a_linear_layer_of_its_own():
    a, b, offsets = drawn()
    bias = torch.randn(4, 5, dtype=torch.float64)
    y = ops.grouped_mm(a, b, offsets, bias=bias.float())
    torch.testing.assert_close(y[:3], linear(a[:3], b[0], bias.float()[0].double()))
    torch.testing.assert_close(y[3:8], linear(a[3:8], b[2], bias.float()[2].double()))


def test_gradients_are_those_of_the_formula():
    a, b, offsets = drawn()
    assert torch.autograd.gradcheck(
        lambda x, w: ops.grouped_mm(x, w, offsets)[:8], (a.requires_grad_(), b.requires_grad_())
    )


def test_experts_without_rows_and_rows_without_expert_have_zero_gradients():
    a, b, offsets = drawn()
    bias = torch.randn(4, 5)
    grads = backward(torch.ones(9, 5, dtype=torch.float64), a, b, offsets, bias, None)
    grad_a, grad_b, _, grad_bias, *_ = grads
    assert grad_a is not None
    assert grad_b is not None
    assert grad_bias is not None
    assert not grad_a[8:].any()
    assert not grad_b[[1, 3]].any()
    assert grad_bias[:, 0].tolist() == [3.0, 0.0, 5.0, 0.0]


@pytest.mark.parametrize("format", ["row", "block"])
def test_float8_is_the_product_of_what_it_stands_for(format):
    source = torch.Generator().manual_seed(1)
    a, b = torch.randn(8, 200, generator=source), torch.randn(3, 130, 200, generator=source)
    by = ("row", "row") if format == "row" else ("block_1x128", "block_128x128")
    q, scale_a = ops.quantize_fp8(a, granularity=by[0])
    matrices = [ops.quantize_fp8(matrix, granularity=by[1]) for matrix in b]
    w, scale_b = (torch.stack([pair[place].view(torch.uint8) if place == 0 else pair[1] for pair in matrices])
                  for place in (0, 1))  # fmt: skip
    w = w.view(torch.float8_e4m3fn)
    offsets = torch.tensor([0, 2, 2, 8], dtype=torch.int32)
    y = ops.grouped_mm(q, w, offsets, scale_a=scale_a, scale_b=scale_b, format=format)
    assert y.dtype is torch.bfloat16
    wide = ops.dequantize(q, scale_a, format=by[0], dtype="float32")
    for expert, rows in ((0, slice(2)), (2, slice(2, 8))):
        matrix = ops.dequantize(w[expert], scale_b[expert], format=by[1], dtype="float32")
        torch.testing.assert_close(y[rows].float(), wide[rows] @ matrix.T, atol=0.02, rtol=0.01)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([0, 4, 3, 5, 9], "offsets[1] is 4 and offsets[2] is 3"),
        ([0, 1, 2, 3, 10], "offsets rises from 0 to at most M = 9; this goes from 0 to 10"),
        ([1, 1, 2, 3, 9], "offsets rises from 0 to at most M = 9; this goes from 1 to 9"),
    ],
)
def test_offsets_that_fall_or_end_beyond_the_rows_are_refused(offsets, text):
    a, b, _ = drawn()
    with pytest.raises(ArgumentValueError, match=re.escape(f"grouped_mm: {text}")):
        ops.grouped_mm(a, b, torch.tensor(offsets))


def test_offsets_are_looked_at_on_request_whatever_the_kernel():
    from portakernel.calling.value_checks import check_values
    from portakernel.contracts import contract

    a, b, _ = drawn()
    absent = dict.fromkeys(("bias", "scale_a", "scale_b", "gather"))
    given = {"a": a, "b": b, "offsets": torch.tensor([0, 4, 3, 5, 9]), "format": "none", **absent}
    text = "grouped_mm: offsets[2] is 3; it must be at least offsets[1] = 4"
    with pytest.raises(ArgumentValueError, match=re.escape(text)):
        check_values(contract("grouped_mm"), given)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"scale_a": torch.ones(9, 1)}, "scale_a is a tensor with format='none'; it must be left out"),
    ],
)
def test_scales_that_a_format_has_not_are_refused(values, text):
    a, b, offsets = drawn()
    with pytest.raises(ArgumentValueError, match=re.escape(f"grouped_mm: {text}")):
        ops.grouped_mm(a.float(), b.float(), offsets, **values)


def test_scales_that_a_format_lacks_are_refused():
    q = torch.ones(9, 6).to(torch.float8_e4m3fn)
    w = torch.ones(4, 5, 6).to(torch.float8_e4m3fn)
    text = "grouped_mm: scale_b is None with format='row'; it must be given"
    with pytest.raises(ArgumentValueError, match=re.escape(text)):
        ops.grouped_mm(q, w, torch.tensor([0, 3, 3, 8, 9]), scale_a=torch.ones(9, 1), format="row")


def test_rows_may_be_gathered_several_times_and_their_gradients_add_up():
    a, b, offsets = drawn()
    gather = torch.tensor([0, 0, 8, 3, 3, 3, 1, 0])
    y = ops.grouped_mm(a, b, offsets, gather=gather)
    assert torch.equal(y, ops.grouped_mm(a[gather], b, offsets))
    assert torch.autograd.gradcheck(
        lambda x, w: ops.grouped_mm(x, w, offsets, gather=gather), (a.requires_grad_(), b.requires_grad_())
    )
    with pytest.raises(IndexError, match=re.escape("grouped_mm: gather holds 9, which is not in [0, M) with M = 9")):
        ops.grouped_mm(a, b, offsets, gather=torch.tensor([0, 0, 9, 3, 3, 3, 1, 0]))


def test_gradients_of_float8_are_refused():
    q, w = (torch.ones(shape).to(torch.float8_e4m3fn) for shape in ((9, 6), (4, 5, 6)))
    offsets, needs = torch.tensor([0, 3, 3, 8, 9]), (True, False, False, False, False, False, False)
    text = "grouped_mm: format is 'row'; gradients of a and b are those of format='none'"
    with pytest.raises(DerivativeError, match=f"^{text}$"):
        backward(torch.ones(9, 5), q, w, offsets, None, None, format="row", needs=needs)
