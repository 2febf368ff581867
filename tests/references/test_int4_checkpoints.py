"""Checkpoints as the projects' own packers write them, element by element, give the products of what they hold."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from portakernel import ops

GROUP, K, N = 64, 192, 24
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ's order_map: which of eight columns nibble i holds
KERNELS = ("reference.int4_mm", "torch.int4_mm_decoded")


@dataclass(frozen=True)
class Weight:
    """A weight ``(q - zeros) * scales``; q: (N, K), the others (groups, N), and each column's group."""

    q: Tensor
    zeros: Tensor
    scales: Tensor
    ids: Tensor

    def times(self, x: Tensor) -> Tensor:
        """``x @ w.T`` in float64."""
        zeros, scales = (of.double()[self.ids.long()].t() for of in (self.zeros, self.scales))
        return x.double() @ ((self.q - zeros) * scales).t()


def drawn(dtype: torch.dtype, *, zero: int | None = None, least: int = 0, shuffled: bool = False) -> Weight:
    source = torch.Generator().manual_seed(K + N)
    groups = math.ceil(K / GROUP)
    zeros = torch.randint(least, 16 + least, (groups, N), generator=source)
    ids = torch.arange(K) // GROUP
    return Weight(
        torch.randint(16, (N, K), generator=source),
        zeros if zero is None else torch.full_like(zeros, zero),
        (torch.rand(groups, N, generator=source) / 8 + 0.02).to(dtype),
        (ids[torch.randperm(K, generator=source)] if shuffled else ids).int(),
    )


def words(numbers: Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers along ``dim`` in a word, nibble i being number ``order[i]`` of them."""
    rows = numbers.movedim(dim, 0)
    made = torch.zeros(len(rows) // 8, *rows.shape[1:], dtype=torch.int64)
    for word, nibble in itertools.product(range(len(made)), range(8)):
        made[word] |= rows[8 * word + order[nibble]] << (4 * nibble)
    return torch.where(made < 2**31, made, made - 2**32).int().movedim(0, dim).contiguous()


def gptq(weight: Weight, *, version: int) -> tuple[Tensor, Tensor, Tensor]:
    """AutoGPTQ's QuantLinear.pack: version 1 takes one off its zeros."""
    zeros = weight.zeros - 1 if version == 1 else weight.zeros
    return words(weight.q.t(), 0), weight.scales, words(zeros, 1)


def awq(weight: Weight) -> tuple[Tensor, Tensor, Tensor]:
    """AutoAWQ's WQLinear_GEMM.from_linear."""
    return words(weight.q.t(), 1, AWQ_ORDER), weight.scales, words(weight.zeros, 1, AWQ_ORDER)


def compressed_tensors(weight: Weight) -> tuple[Tensor, Tensor, Tensor]:
    """compressed-tensors' pack_to_int32 of numbers from -8 to 7, which it shifts up by 8; zeros are packed along N."""
    signed, zeros = weight.q - 8, weight.zeros.t() - 8
    return words(signed + 8, 1), weight.scales.t().contiguous(), words(zeros + 8, 0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", ["", "packed_mma", "packed_mfma"])
@pytest.mark.parametrize(
    "form", ["gptq v1", "gptq v1, act-order", "gptq v2", "gptq v2, act-order", "awq", "ct", "ct, symmetric"]
)
def test_a_checkpoint_gives_the_float64_product_s_result(form, target, dtype, kernel):
    layout, first = form.split(",")[0].partition(" ")[0], form.startswith("gptq v1")
    # version 1 holds zeros from 1 to 16
    weight = drawn(
        dtype, zero=8 if "symmetric" in form else None, least=1 if first else 0, shuffled="act-order" in form
    )
    pack = {"awq": awq, "ct": compressed_tensors}.get(layout)
    made = gptq(weight, version=1 if first else 2) if pack is None else pack(weight)
    words_of, scales, zeros = made
    zero = "none" if "symmetric" in form else "stored_plus_one" if first else "stored"
    given = {"layout": layout, "group": GROUP, "zero": zero}
    order = weight.ids if "act-order" in form else None
    if target:
        held = () if zero == "none" else (zeros,)
        packed = ops.pack_int4(
            words_of, scales, weight.ids, *held, source=layout, target=target, group=GROUP, zero=zero
        )
        words_of, scales, order = packed[:3]
        zeros = packed[3] if held else None
        given["layout"] = target
    elif zero == "none":
        zeros = None
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(3)).to(dtype)
    y = ops.int4_mm(x, words_of, scales, zeros, order, kernel=kernel, **given)
    want, finest = weight.times(x), torch.finfo(dtype).eps
    assert y.dtype is dtype
    # a weight and a result are each rounded once to x's dtype
    sizes = weight.times(x.abs()).abs() + (
        x.double().abs() @ (weight.q.double().t() * weight.scales.double()[weight.ids.long()])
    )
    assert bool(((y.double() - want).abs() <= 2 * finest * sizes).all())


@pytest.mark.parametrize("layout", ["gptq", "packed_mma"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_scales_of_float16_are_not_made_bfloat16_beside_such_an_x(kernel, layout):
    scale = 1 + 3 * 2**-9  # 1 + 2**-7 in bfloat16, seven of which are 7.0625 there
    q = torch.zeros(8, 128, dtype=torch.int64)
    q[:, 5] = 15
    tensors = words(q.t(), 0), torch.full((1, 8), scale, dtype=torch.float16)
    order = torch.zeros(128, dtype=torch.int32)
    if layout != "gptq":
        packed = ops.pack_int4(*tensors, order, target=layout, zero="none")
        assert packed[1].dtype is torch.float16
        tensors = packed[0], packed[1]
    x = torch.zeros(1, 128, dtype=torch.bfloat16)
    x[0, 5] = 1.0
    y = ops.int4_mm(x, *tensors, layout=layout, zero="none", kernel=kernel)
    assert y.tolist() == [[7.03125] * 8]
