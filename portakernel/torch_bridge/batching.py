"""vmap: a batch is one more leading dimension where rows are independent, else one call per element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.contract import alternatives


def looped(op: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The rule that calls ``op`` once for each element of the batch."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        # an empty batch still has results of some shape: that of one element, whatever it holds
        empty = info.batch_size == 0
        results = [
            op(
                *(
                    argument
                    if not isinstance(argument, Tensor) or dim is None
                    else argument.new_zeros(_without(argument.shape, dim))
                    if empty
                    else argument.select(dim, i)
                    for argument, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for i in range(max(info.batch_size, 1))
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results)[: info.batch_size], 0
        stacked = tuple(torch.stack(parts)[: info.batch_size] for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def _without(shape: Sequence[int], dim: int) -> list[int]:
    return [size for place, size in enumerate(shape) if place != dim % len(shape)]


class Batching:
    """One op's vmap rules."""

    def __init__(self, caller: OpCaller) -> None:
        self.caller = caller
        self.contract = caller.contract

    def of_op(self, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        """The rule for the op itself."""
        moved = self._moved(info, in_dims, arguments)
        op = self.caller.torch_op()
        if moved is None:
            return looped(op)(info, in_dims, *arguments)
        returned = op(*moved)
        return returned, (0,) * len(returned) if isinstance(returned, tuple) else 0

    def of_forward(self, apply: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
        """The rule for the form that also returns saved tensors, applied by ``apply``."""
        results = (*self.contract.outputs, *self.contract.saved)

        def rule(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
            moved = self._moved(info, in_dims, arguments)
            if moved is None:
                return looped(apply)(info, in_dims, *arguments)
            returned = apply(*moved)
            if isinstance(returned, Tensor):
                return returned, 0
            # a plain M counts the batch's rows too
            unfolded = [
                part if alternatives(result.shape)[0][0].startswith("*") else part.unflatten(0, (info.batch_size, -1))
                for part, result in zip(returned, results, strict=True)
            ]
            return tuple(unfolded), (0,) * len(unfolded)

        return rule

    def _moved(self, info: Any, in_dims: Any, arguments: Sequence[Any]) -> list[Any] | None:
        """The arguments with the batch as first leading dimension; None when one element at a time has to be asked."""
        if not self._rows_are_apart:
            return None
        moved = list(arguments)
        for place, tensor in enumerate(self.contract.tensors):
            # torch's dispatcher leaves trailing defaults away
            given, dim = (arguments[place], in_dims[place]) if place < len(arguments) else (None, None)
            if given is None:
                # without positions, rows have them by their place
                if tensor.leading is not None:
                    return None
                continue
            if tensor.leading is not None:
                moved[place] = given.movedim(dim, 0) if dim is not None else given.expand(info.batch_size, *given.shape)
            elif dim is not None:
                return None
        return moved

    @functools.cached_property
    def _rows_are_apart(self) -> bool:
        """Whether every result has the leading dimensions, whatever the parameters: a batch is then only more rows."""
        if self.contract.choosers:
            return False
        leading = next((tensor.leading for tensor in self.contract.tensors if tensor.leading), None)
        shapes = [shape for r in (*self.contract.outputs, *self.contract.saved) for shape in alternatives(r.shape)]
        return all(shape[:1] in ((f"*{leading}",), (leading,)) for shape in shapes)
