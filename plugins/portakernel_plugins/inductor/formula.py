"""What is compiled of an op: forward, forward with what it saves, backward; and the shapes of their tensors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from portakernel.authoring import Contract, Phase, parse_size, reference_module

Part = Literal["forward", "saving", "backward"]
Shape = tuple[str, ...]
Free = tuple[int, ...]

# Permissions, not values: a graph returns memory of its own whatever it may overwrite.
_PERMISSIONS: Mapping[str, Any] = {"overwrite_logits": False}


def part_of(contract: Contract, phase: Phase) -> Part:
    """The part that serves ``phase``; an op that saves nothing has one forward."""
    if phase is Phase.BACKWARD:
        return "backward"
    return "saving" if phase is Phase.TRAINING and contract.saved else "forward"


@dataclass(frozen=True, slots=True)
class Formula:
    """One part of an op for one set of values, of tensors in a fixed order; ``shapes`` has None for absent results.

    Leading dimensions are flattened into the *free* sizes, for any of which one graph serves: their product or, where
    an absent argument (positions) gives rows a meaning by their place, the last one and the product of the others.
    """

    contract: Contract
    part: Part
    values: Mapping[str, Any]
    names: tuple[str, ...]
    shapes: tuple[Shape | None, ...]
    results: tuple[Shape | None, ...]

    @classmethod
    def of(cls, contract: Contract, part: Part, values: Mapping[str, Any]) -> Formula:
        """The formula for these values of all parameters."""
        made = contract.at(values)
        arguments = {tensor.name: tensor.sizes for tensor in made.tensors}
        outputs = {result.name: result.shape for result in made.outputs}
        saved = {result.name: result.shape for result in made.saved}
        if part != "backward":
            results = [*outputs.values(), *(saved.values() if part == "saving" else ())]
            return cls(contract, part, values, contract.names, tuple(arguments.values()), tuple(map(_made, results)))
        known = outputs | arguments
        grads = {f"grad_{r.name}": outputs.get(r.name) for r in contract.outputs if r.differentiable}
        kept = {name: known.get(name) for name in contract.backward_inputs}
        given = [*grads.items(), *kept.items(), *((result.name, saved.get(result.name)) for result in contract.saved)]
        names, shapes = zip(*given, strict=True)
        return cls(contract, part, values, names, tuple(map(_made, shapes)), tuple(arguments.values()))

    def __call__(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """What the reference computes, one entry for each of ``results``."""
        module = importlib.import_module(reference_module(self.contract.op))
        values = {name: _PERMISSIONS.get(name, value) for name, value in self.values.items()}
        if self.part == "backward":
            needs = (True,) * len(self.contract.tensors)
            return tuple(module.backward(*tensors, **values, needs=needs))
        by_keyword = {tensor.name for tensor in self.contract.tensors if tensor.keyword}
        named = list(zip(self.names, tensors, strict=True))
        keywords = {name: tensor for name, tensor in named if name in by_keyword} | values
        if self.part == "saving":
            keywords["save"] = True
        found = module.forward(*(tensor for name, tensor in named if name not in by_keyword), **keywords)
        return tuple(found) if isinstance(found, tuple) else (found,)

    # --- shapes ----------------------------------------------------------------------------------------------------

    def leading(self, tensors: Sequence[Tensor | None]) -> tuple[int, ...] | None:
        """The leading dimensions, None where the op has none."""
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            if tensor is not None and shape is not None and leads(shape):
                return tuple(tensor.shape[: tensor.dim() - len(shape) + 1])
        return None

    def free(self, tensors: Sequence[Tensor | None], leading: tuple[int, ...] | None) -> Free:
        """The free sizes of a call."""
        if leading is None:
            return ()
        placed = any(
            tensor is None and name in self.contract.names and shape is not None and leads(shape)
            for tensor, name, shape in zip(tensors, self.names, self.shapes, strict=True)
        )
        if placed and len(leading) > 1:
            return math.prod(leading[:-1]), leading[-1]
        return (math.prod(leading),)

    def form(self, shape: Shape, dims: Mapping[str, Any], free: Sequence[Any]) -> tuple[Any, ...]:
        """The sizes of a tensor where the free ones are these, numbers or symbols."""
        found: list[Any] = []
        rows = math.prod(free)
        known = {**dims, **dict.fromkeys(self.product_names, rows)}
        for text in shape:
            if text.startswith("*"):
                found += free
            else:
                size = parse_size(text)
                found.append(size.of(known[size.name] if size.name is not None else 0))
        return tuple(found)

    @property
    def product_names(self) -> tuple[str, ...]:
        """The names of dimensions that are products of leading ones."""
        return tuple(name for name in self.contract.dims if name not in self.contract.fixed_dims)

    def static_places(self) -> tuple[tuple[int, ...], ...]:
        """Of each tensor, the dimensions, counted from the last, that a graph is compiled for."""
        return tuple(
            ()
            if shape is None
            else tuple(
                place - len(shape)
                for place, text in enumerate(shape)
                if not text.startswith("*") and parse_size(text).name not in self.product_names
            )
            for shape in self.shapes
        )

    def dtype_names(self) -> tuple[str | None, ...]:
        """Of each tensor, the argument that it takes its dtype from, or the dtype's own name."""
        made = self.contract.at(self.values)
        results = {r.name: r for r in (*made.outputs, *made.saved)}
        found: list[str | None] = []
        for name in self.names:
            result = results.get(name.removeprefix("grad_")) if name not in self.contract.names else None
            dtype = None if result is None else result.dtype
            if isinstance(dtype, str):
                found.append(str(self.values.get(dtype, dtype)))
            else:
                found.append(name if result is None else result.like)
        return tuple(found)


def leads(shape: Shape) -> bool:
    """Whether a shape begins with the leading dimensions."""
    return shape[:1] != () and shape[0].startswith("*")


def flattened(tensor: Tensor, shape: Shape | None, free: Free) -> Tensor:
    """``tensor`` with its leading dimensions as the free sizes; a view, since it is contiguous."""
    if shape is None or not leads(shape):
        return tensor
    kept = len(shape) - 1
    return tensor.view((*free, *tensor.shape[tensor.dim() - kept :]))


def unflattened(tensor: Tensor, shape: Shape | None, leading: tuple[int, ...] | None, free: Free) -> Tensor:
    """A result with its leading dimensions again."""
    if shape is None or leading is None or not leads(shape) or leading == free:
        return tensor
    return tensor.view((*leading, *tensor.shape[len(free) :]))


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that contracts call ``name``."""
    found: torch.dtype = getattr(torch, name)
    return found


def _made(shape: Any) -> Shape | None:
    return None if shape is None else tuple(shape)
