"""PyTorch's grouped products behind ``grouped_mm`` and ``moe_mlp``: which serves where, and what they leave undone."""
# ruff: noqa: N803
# The letters are the contracts'.

from __future__ import annotations

import re

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.authoring import CannotRun
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel.references import moe_mlp as formula
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_plugins.torch.matrix import grouped_mm, moe_mlp

NAN = float("nan")


def serves(op, target, dtypes, shapes, **values):
    asked = ask(contract(op), Target(*target.split(":")), dtypes=dtypes, shapes=shapes, values=values)
    found = dispatcher().decide(asked)
    return [c.kernel.name for c in found.candidates if c.status != "rejected" and c.kernel.plugin == "torch"]


def pieces(M, N, K, E=8):
    return {"a": (M, K), "b": (E, N, K), "offsets": (E + 1,)}


@pytest.mark.parametrize(
    ("target", "dtype", "sizes", "asked", "kernels"),
    [
        ("nvidia:sm_90", "bfloat16", (64, 128, 256), {}, ["torch.grouped_mm"]),
        ("nvidia:sm_100", "bfloat16", (64, 128, 256), {}, ["torch.grouped_mm"]),
        ("nvidia:sm_80", "bfloat16", (64, 128, 256), {}, []),  # a loop that waits for the device
        ("nvidia:sm_90", "float16", (64, 128, 256), {}, []),
        ("nvidia:sm_90", "bfloat16", (64, 124, 256), {}, []),
        ("nvidia:sm_90", "float8_e4m3fn", (64, 128, 256), {"format": "row"}, ["torch.grouped_mm_rows"]),
        ("nvidia:sm_90", "float8_e5m2", (64, 128, 256), {"format": "row"}, []),
        ("nvidia:sm_90", "float8_e4m3fn", (64, 120, 256), {"format": "row"}, []),
        ("cpu:x86_64", "float32", (64, 12, 20), {}, ["torch.grouped_mm_cpu"]),
        ("cpu:x86_64", "float16", (64, 12, 20), {}, []),
    ],
)
def test_which_product_serves_where(target, dtype, sizes, asked, kernels):
    shapes = pieces(*sizes)
    if asked.get("format") == "row":
        shapes |= {"scale_a": (sizes[0], 1), "scale_b": (8, sizes[1], 1)}
    assert serves("grouped_mm", target, {"a": dtype, "b": dtype}, shapes, **asked) == kernels


def test_grouped_products_in_a_row_stand_beside_kernels_for_all_of_it():
    shapes = {"x": (64, 128), "w_in": (8, 128, 128), "w_out": (8, 128, 64), "weights": (64, 2), "experts": (64, 2)}
    found = portakernel.explain("moe_mlp", target="nvidia:sm_90", dtype="bfloat16", shape=shapes)
    assert str(found).index("triton.moe_mlp") < str(found).index("torch.moe_mlp_unfused")


def test_rows_of_no_expert_and_experts_without_rows_have_gradients_of_zero(monkeypatch):
    def garbage(*given, **named):
        y = product(*given, **named)
        ends = named["offs"]
        if y.dim() == 2:
            y[int(ends[-1]) :] = NAN
        else:
            y[ends.diff(prepend=ends.new_zeros(1)) == 0] = NAN
        return y

    product = grouped_mm._product
    monkeypatch.setattr(grouped_mm, "_product", garbage)
    a, b, grad_y = torch.randn(9, 8), torch.randn(4, 12, 8), torch.randn(9, 12)
    offsets = torch.tensor([0, 3, 3, 7, 7])
    grad_a, grad_b, *_ = grouped_mm.backward(grad_y, a, b, offsets, needs=(True, True))
    assert torch.equal(grad_a[7:], torch.zeros(2, 8))
    assert torch.equal(grad_b[1::2], torch.zeros(2, 12, 8))
    torch.testing.assert_close(grad_a[3:7], grad_y[3:7] @ b[2])
    torch.testing.assert_close(grad_b[2], grad_y[3:7].t() @ a[3:7])


def test_the_gradient_of_a_row_that_is_taken_several_times_is_a_sum_that_is_rounded_once():
    a, b = torch.randn(3, 8, dtype=torch.float16), torch.randn(2, 8, 8, dtype=torch.float16)
    gather, offsets = torch.tensor([2, 0, 2, 2]), torch.tensor([0, 2, 4])
    grad_y = torch.randn(4, 8, dtype=torch.float16)
    grad_a, *_ = grouped_mm.backward(grad_y, a, b, offsets, gather, needs=(True, False))
    parts = torch.cat([grad_y[:2] @ b[0], grad_y[2:] @ b[1]]).float()
    assert torch.equal(grad_a, torch.stack([parts[1], torch.zeros(8), parts[0] + parts[2] + parts[3]]).half())


def test_on_a_cpu_values_that_lead_elsewhere_are_named():
    a, b = torch.randn(4, 8), torch.randn(2, 8, 8)
    with pytest.raises(ArgumentValueError, match="grouped_mm: offsets rises from 0 to at most M = 4"):
        grouped_mm.grouped_mm(a, b, torch.tensor([0, 2, 5]))
    with pytest.raises(IndexOutOfRangeError, match="grouped_mm: gather holds 4"):
        grouped_mm.grouped_mm(a, b, torch.tensor([0, 1, 2]), gather=torch.tensor([0, 4]))


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
def test_experts_that_are_elsewhere_add_nothing_whatever_memory_holds(halves, monkeypatch):
    def garbage(rows, matrices, ends):
        y = product(rows, matrices, ends)
        y[int(ends[-1]) :] = NAN
        return y

    product = grouped_mm.product
    monkeypatch.setattr(moe_mlp, "product", garbage)
    x, w_in, w_out = torch.randn(5, 8), torch.randn(3, 16, 8), torch.randn(3, 8, 8)
    weights, experts = torch.rand(5, 2), torch.tensor([[0, -1], [-1, -1], [2, 0], [-1, 2], [0, 0]])
    given = (x, w_in, w_out, weights, experts)
    y = moe_mlp.moe_mlp(*given, activation="silu", halves=halves)
    torch.testing.assert_close(y, formula.forward(*given, activation="silu", halves=halves))
    assert torch.equal(y[1], torch.zeros(8))


def test_more_assignments_than_32_bits_number_are_left_to_others():
    # no memory behind them
    x, w_in, w_out = torch.zeros(1, 8).expand(2**28, 8), torch.zeros(3, 16, 8), torch.zeros(3, 8, 8)
    weights, experts = torch.zeros(1, 1).expand(2**28, 8), torch.zeros(1, 1, dtype=torch.int32).expand(2**28, 8)
    refused = (
        "limit: needs T * K <= 2147483647, since PyTorch's grouped product numbers rows in 32 bits; this is 2147483648"
    )
    with pytest.raises(CannotRun, match=re.escape(f"{refused}: call it with fewer tokens at a time")):
        moe_mlp.moe_mlp(x, w_in, w_out, weights, experts, activation="silu")


def test_a_call_on_a_cpu_is_served_by_it():
    a, b, offsets = torch.randn(6, 8), torch.randn(2, 8, 8), torch.tensor([0, 2, 6])
    y = ops.grouped_mm(a, b, offsets, kernel="torch.grouped_mm_cpu")
    torch.testing.assert_close(y, torch.cat([a[:2] @ b[0].t(), a[2:] @ b[1].t()]))


def test_one_row_that_is_said_to_share_memory_with_the_next_is_copied():
    a, b = torch.randn(24).as_strided((1, 24), (0, 1)), torch.randn(3, 16, 24)
    offsets = torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    y = grouped_mm.grouped_mm(a, b, offsets)
    torch.testing.assert_close(y, a @ b[1].T)
    grad_y = torch.ones(16).as_strided((1, 16), (0, 1))
    grad_a, grad_b, *_ = grouped_mm.backward(grad_y, a, b, offsets, needs=(True, True))
    torch.testing.assert_close(grad_a, b[1].sum(0, keepdim=True))
    torch.testing.assert_close(grad_b[1], a.expand(16, 24))
