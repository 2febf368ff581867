"""The tensors of a request: random numbers made on the device, and what backward is given beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments, dtype_name
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.contract.case import Draw
from portakernel.contracts import contract
from portakernel.tensors.block_draws import BLOCK_LISTS, draw_block_lists
from portakernel.tensors.block_lists import blocks_of
from portakernel.tensors.group_draws import OF_GROUPS, draw_groups
from portakernel.tensors.scratch import described, laid
from portakernel.tensors.serving_draws import SERVING, depth, draw_serving, routed_experts
from portakernel_kit.bench.question import Question

# Random numbers are made in float32 before they are narrowed; a piece at a time, because some tensors fill a device.
_PIECE = 1 << 26
# Exponents around that of 1, as bytes of e8m0.
_E8M0 = (120, 135)
_FEW_IDS = 3


@dataclass(slots=True)
class Operands:
    """One call's arguments; ``grads`` and ``kept`` are backward's, by name, where that is measured."""

    contract: Contract
    arguments: Arguments
    tensors: tuple[Tensor | None, ...]
    values: tuple[Any, ...]
    grads: dict[str, Tensor | None] = field(default_factory=dict[str, Tensor | None])
    kept: dict[str, Tensor | None] = field(default_factory=dict[str, Tensor | None])
    needs: tuple[bool, ...] = ()

    def request(self, phase: Phase, saved_by: str | None = None) -> Request:
        """The request that this call makes."""
        return self.arguments.request(self.tensors, self.values, phase, saved_by=saved_by)

    @property
    def written(self) -> dict[str, Tensor]:
        """The arguments that the call writes, and that are there, by name."""
        pairs = zip(self.contract.names, self.tensors, strict=True)
        return {name: t for name, t in pairs if name in self.contract.mutated and t is not None}

    def lengths(self) -> dict[str, tuple[int, ...]]:
        """What the call's integer tensors say of lengths, by name: a cost may depend on them."""
        pairs = zip(self.contract.tensors, self.tensors, strict=True)
        kinds = ("lengths", "segments", "offsets", "block_counts")
        return {a.name: tuple(t.flatten().tolist()) for a, t in pairs if t is not None and a.draw.kind in kinds}

    def call(self, phase: Phase, kept: dict[str, Tensor | None] | None = None) -> tuple[Any, ...]:
        """What a launcher of ``phase`` takes, in order."""
        match phase:
            case Phase.INFERENCE:
                return (*self.tensors, *self.values, None)
            case Phase.BACKWARD:
                held = self.kept if kept is None else kept
                return (*self.grads.values(), *held.values(), *self.values, self.needs)
            case _:
                return (*self.tensors, *self.values)

    def keep(self, returned: Sequence[Tensor]) -> dict[str, Tensor | None]:
        """What backward is given of a call whose training form returned these outputs and saved tensors."""
        made = self.arguments.at(self.values)
        held: dict[str, Tensor | None] = dict(zip(self.contract.names, self.tensors, strict=True))
        held |= dict(zip([result.name for result in (*made.outputs, *made.saved)], returned, strict=False))
        names = [*self.contract.backward_inputs, *(saved.name for saved in self.contract.saved)]
        return {name: held.get(name) for name in names}

    def draw_grads(self, seed: int) -> None:
        """Draws the gradients of the outputs; asks for that of every argument that is made of floats."""
        source = generator(self._device(), seed)
        forms = self.arguments.results(self.tensors, self.values)
        for output in self.contract.outputs:
            if output.differentiable:
                self.grads[f"grad_{output.name}"] = None
                if output.name in forms:
                    shape, dtype = forms[output.name]
                    tensor = torch.empty(shape, dtype=dtype, device=self._device())
                    fill(tensor, Draw(), 0, source)
                    self.grads[f"grad_{output.name}"] = tensor
        self.needs = tuple(t is not None and t.dtype.is_floating_point and t.dtype.itemsize > 1 for t in self.tensors)

    def bytes(self) -> int:
        """The memory of the arguments."""
        return sum(memory_bytes(tensor) for tensor in self.tensors)

    def _device(self) -> torch.device:
        return next(tensor.device for tensor in self.tensors if tensor is not None)


def draw(question: Question, arguments: Arguments, device: torch.device, seed: int) -> Operands:
    """A call's arguments, drawn afresh.

    Raises:
        ArgumentTypeError, ArgumentValueError: the question leaves a shape or dtype open, or does not fit the op.
    """
    op = contract(question.op)
    request = question.request
    found = described(request, question.row.shapes, device, training=False)
    source, host = generator(device, seed), generator(torch.device("cpu"), seed)
    drawn = sorted(op.at(request.values).tensors, key=lambda tensor: depth(tensor.draw))
    for tensor in drawn:
        if tensor.name not in found:
            continue
        if tensor.draw.kind in BLOCK_LISTS and tensor.name not in question.row.given:
            blocks, _ = blocks_of(tensor.draw.below, request.dims, request.values)
            elements = draw_block_lists(tensor.draw, found[tensor.name].shape, blocks, request.dims, found, host)
            found[tensor.name].copy_(elements)
            continue
        if tensor.draw.kind in OF_GROUPS and tensor.name not in question.row.given:
            shape, dtype = found[tensor.name].shape, dtype_name(found[tensor.name].dtype)
            elements = draw_groups(tensor.draw, shape, dtype, request.dims, request.values, found, host)
            found[tensor.name].copy_(elements)
            continue
        sizes: dict[str, Any] = {**request.dims, **{f"${name}": value for name, value in request.values.items()}}
        below = math.prod(sizes.get(name, 0) for name in tensor.draw.factors(sizes))
        if tensor.name in question.row.given:
            found[tensor.name].view(-1).copy_(torch.tensor(question.row.given[tensor.name]))
        elif tensor.draw.kind == "experts" and found[tensor.name].shape[-1] <= below:
            found[tensor.name].copy_(routed_experts(tuple(found[tensor.name].shape), below, host))
        elif tensor.draw.kind in SERVING:
            elements = draw_serving(tensor.draw, found[tensor.name].shape, below, request.dims, found, host)
            found[tensor.name].copy_(elements)
        else:
            fill(found[tensor.name], tensor.draw, below, source)
    found = laid(found, question.memory)
    tensors = tuple(found.get(name) for name in op.names)
    values = tuple(request.values.values())
    arguments.check(tensors, values)
    return Operands(op, arguments, tensors, values)


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A source of random numbers on ``device``."""
    return torch.Generator(device).manual_seed(seed)


def fill(tensor: Tensor, kind: Draw, below: int, source: torch.Generator) -> None:
    """Fills a contiguous tensor with what its argument holds; pieces are all of one length, and every part has keys."""
    flat = tensor.view(-1)
    match kind.kind:
        case "index":
            flat.random_(0, max(below, 1), generator=source)
        case "ids":
            flat.random_(0, below + 1 if kind.below else _FEW_IDS, generator=source)
        case "segments" | "offsets":
            pieces = len(flat) - 1 if kind.kind == "segments" else len(flat)
            flat.copy_(torch.arange(len(flat), device=tensor.device) * below // max(pieces, 1))
        case _ if dtype_name(tensor.dtype) in ("float8_e8m0fnu", "float4_e2m1fn_x2"):
            low, high = _E8M0 if tensor.dtype is torch.float8_e8m0fnu else (0, 256)
            flat.view(torch.uint8).random_(low, high, generator=source)
        case _:
            for piece in torch.split(flat, _PIECE):
                wide = torch.empty(len(piece), dtype=torch.float32, device=tensor.device)
                if kind.kind == "scale":
                    wide.uniform_(-2.0, 2.0, generator=source).exp2_()
                else:
                    wide.normal_(generator=source)
                narrow = wide.to(tensor.dtype)
                if tensor.dtype.itemsize == 1:  # not every operator knows the 8-bit floats
                    piece.view(torch.uint8).copy_(narrow.view(torch.uint8))
                else:
                    piece.copy_(narrow)


def memory_bytes(tensor: object) -> int:
    """The bytes of a tensor's elements; none where there is no tensor."""
    return tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
