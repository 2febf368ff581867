"""The products that products.py measures: their operands, their exact results, and how PyTorch's users write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import ScalingType

from portakernel.calling.arguments import Arguments
from portakernel.contract import GridRow
from portakernel.contracts import contract
from portakernel.references import scaled_mm as scaled_mm_reference
from portakernel.runtime import dispatcher
from portakernel.words.target import Device
from portakernel_kit.bench.operands import Operands, draw
from portakernel_kit.bench.question import questions

Call = Callable[[], Any]
Named = tuple[str, Call]

AUTOTUNE = "max-autotune-no-cudagraphs"
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}
_FORMATS = {"row": ("row", "row"), "tensor": ("tensor", "tensor"), "blocks": ("block_1x128", "block_128x128")}


@dataclass(frozen=True, slots=True)
class Case:
    """One product; ``variant`` is linear_act's activation, or what shares a scale in scaled_mm."""

    op: str
    m: int
    n: int
    k: int
    variant: str

    def __str__(self) -> str:
        return f"{self.op} {self.m}×{self.n}×{self.k} {self.variant}"

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each term."""
        return 2 * self.m * self.n * self.k

    def row(self) -> GridRow:
        """The case as portakernel's benchmarks describe one."""
        if self.op == "linear_act":
            shapes: dict[str, tuple[int, ...]] = {"x": (self.m, self.k), "weight": (self.n, self.k), "bias": (self.n,)}
            return GridRow(str(self), shapes, {"activation": self.variant})
        values = dict(zip(("format_a", "format_b"), _FORMATS[self.variant], strict=True))
        return GridRow(str(self), {"a": (self.m, self.k), "b": (self.n, self.k)}, values)


CASES = (
    Case("linear_act", 8192, 14336, 4096, "gelu_tanh"),
    Case("linear_act", 4096, 8192, 8192, "silu"),
    Case("linear_act", 8192, 4096, 14336, "none"),
    Case("linear_act", 8192, 8192, 1024, "gelu"),
    Case("linear_act", 64, 14336, 4096, "gelu"),
    Case("linear_act", 1, 14336, 4096, "none"),
    *(
        Case("scaled_mm", *sizes, variant)
        for variant in ("row", "tensor")
        for sizes in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 14336, 4096))
    ),
    Case("scaled_mm", 64, 14336, 4096, "row"),
    Case("scaled_mm", 4096, 4096, 4096, "blocks"),
    Case("scaled_mm", 8192, 8192, 8192, "blocks"),
)
SMALL_CASES = (
    Case("linear_act", 32, 48, 64, "gelu"),
    Case("linear_act", 1, 48, 64, "none"),
    Case("scaled_mm", 32, 48, 64, "row"),
    Case("scaled_mm", 32, 48, 64, "tensor"),
    Case("scaled_mm", 32, 256, 512, "blocks"),
)


def operands_of(case: Case, where: Device, device: torch.device) -> Operands:
    """The arguments on which every way computes."""
    (question,) = questions(case.op, [case.row()], ["bfloat16"], where.target)
    found = draw(question, Arguments(contract(case.op), dispatcher().registry), device, seed=0)
    if case.op == "linear_act":
        # sums near 1, where one activation is told from another
        found.tensors[1].mul_(case.k**-0.5)  # type: ignore[union-attr]  # a weight is never left out
    elif case.variant == "blocks":
        # cuBLAS takes a's scales in columns; lying so, nobody has to move them
        a, b, scale_a, *others = found.tensors
        found.tensors = (a, b, scale_a.t().contiguous().t(), *others)  # type: ignore[union-attr]  # nor are scales
    return found


def exact_rows(case: Case, tensors: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Some rows of the product in float64."""
    if case.op == "linear_act":
        x, weight, bias = (tensor.double() for tensor in (tensors[0][rows], *tensors[1:]))
        return _ACTIVATIONS[case.variant](F.linear(x, weight, bias))
    a, b, scale_a, scale_b = tensors
    # bytes: not every device picks rows of float8
    some = a.view(torch.uint8)[rows].view(a.dtype)
    scales = scale_a[rows] if scale_a.dim() else scale_a
    return scaled_mm_reference.truth(some, b, scales, scale_b, **case.row().values)[0]


def linear_act_peers(case: Case, tensors: Sequence[Tensor], autotune: bool) -> Iterator[Named]:
    """What PyTorch offers for a linear layer and its activation."""
    activation = _ACTIVATIONS[case.variant]

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return activation(F.linear(x, weight, bias))

    yield "F.linear" if case.variant == "none" else f"F.linear, {case.variant}", partial(layer, *tensors)
    x, weight, bias = tensors
    # its gelu is that of the library underneath: exact on CPUs, by tanh elsewhere
    if case.variant == ("gelu" if x.device.type == "cpu" else "gelu_tanh"):
        yield "torch._addmm_activation", partial(torch._addmm_activation, bias, x, weight.t(), use_gelu=True)
    yield from compiled(layer, tensors, autotune)


def scaled_mm_peers(case: Case, tensors: Sequence[Tensor], autotune: bool) -> Iterator[Named]:
    """What PyTorch offers for a product of float8."""

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=False)

    yield "torch._scaled_mm", partial(product, *tensors)
    if case.variant == "blocks":  # which the newer operator is told of, and the older one infers from the shapes
        a, b, scale_a, scale_b = tensors
        recipes = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
        scaled = scale_a, recipes[0], scale_b.t(), recipes[1]
        yield "F.scaled_mm", partial(F.scaled_mm, a, b.t(), *scaled, output_dtype=torch.bfloat16)
    yield from compiled(product, tensors, autotune)


def compiled(function: Callable[..., Tensor], tensors: Sequence[Tensor], autotune: bool) -> Iterator[Named]:
    """``function`` by torch.compile, which compiles it when first called."""
    for mode in (None, *([AUTOTUNE] if autotune else [])):
        called = torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
        yield "torch.compile" if mode is None else f"torch.compile, {mode}", partial(called, *tensors)
