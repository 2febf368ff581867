"""Scratch tensors: like somebody's, and nobody's."""

from __future__ import annotations

import pytest
import torch

from portakernel.tensors.layout import alignment, layout_facts
from portakernel.tensors.scratch import extent, like, refill


def tensors():
    rows = torch.arange(48.0).reshape(6, 8)
    return {
        "contiguous": rows,
        "sliced": rows[1:5, 2:7],
        "transposed": rows.T,
        "expanded": rows[:1].expand(4, 8),
        "stepped": rows[:, ::2],
        "empty": rows[:0],
        "a number": rows[2, 3],
        "bytes apart": torch.arange(40, dtype=torch.bfloat16)[3:],
        "eight bits": torch.arange(16.0).to(torch.float8_e4m3fn),
        "truth": rows > 7,
        "counts": torch.arange(5),
    }


@pytest.mark.parametrize("name", tensors())
def test_a_copy_lies_in_memory_as_the_tensor_does_and_holds_its_values(name):
    tensor = tensors()[name]
    made = like(tensor)
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert layout_facts("x", made) == layout_facts("x", tensor)
    assert torch.equal(made.double(), tensor.double())
    assert made.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_a_copy_needs_a_gradient_where_the_tensor_does_and_has_no_history():
    tensor = torch.ones(3, requires_grad=True) * 2
    assert like(tensor).requires_grad
    assert like(tensor).is_leaf
    assert not like(torch.ones(3)).requires_grad
    assert type(like(torch.nn.Parameter(torch.ones(3)))) is torch.Tensor


def test_a_lazy_negation_is_copied_by_its_values():
    negative = torch.complex(torch.zeros(3), torch.arange(3.0)).conj().imag
    assert negative.is_neg()
    assert torch.equal(like(negative), torch.tensor([-0.0, -1.0, -2.0]))


@pytest.mark.parametrize("name", ["sliced", "transposed", "expanded", "eight bits", "empty"])
def test_values_are_replaced_in_place(name):
    tensor, other = like(tensors()[name]), like(tensors()[name])
    extent(other).view(torch.uint8).zero_()
    before = tensor.data_ptr()
    refill(tensor, other)
    assert (tensor.data_ptr(), tensor.double().abs().sum().item()) == (before, 0.0)


def test_alignment_is_kept_below_the_allocators_own():
    tensor = torch.zeros(64, dtype=torch.float16)[1:]
    assert alignment(like(tensor)) == alignment(tensor) == 2
