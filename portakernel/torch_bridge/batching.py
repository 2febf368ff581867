"""vmap: a batch is one more leading dimension where rows are independent, else one call per element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.call import OpCaller


def looped(op: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The rule that calls ``op`` once for each element of the batch."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        results = [
            op(
                *(
                    argument.select(dim, i) if isinstance(argument, Tensor) and dim is not None else argument
                    for argument, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for i in range(info.batch_size)
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])

    return rule


class Batching:
    """One op's vmap rules."""

    def __init__(self, caller: OpCaller) -> None:
        self.caller = caller
        self.contract = caller.contract

    def of_op(self, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        """The rule for the op itself."""
        moved = self._moved(info, in_dims, arguments)
        op = self.caller.torch_op()
        return (op(*moved), 0) if moved is not None else looped(op)(info, in_dims, *arguments)

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
                part if result.shape[0].startswith("*") else part.unflatten(0, (info.batch_size, -1))
                for part, result in zip(returned, results, strict=True)
            ]
            return tuple(unfolded), (0,) * len(unfolded)

        return rule

    def _moved(self, info: Any, in_dims: Any, arguments: Sequence[Any]) -> list[Any] | None:
        """The arguments with the batch as first leading dimension; None when one without such has a batch."""
        moved = list(arguments)
        for place, tensor in enumerate(self.contract.tensors):
            given, dim = arguments[place], in_dims[place]
            if tensor.leading is not None:
                moved[place] = given.movedim(dim, 0) if dim is not None else given.expand(info.batch_size, *given.shape)
            elif dim is not None:
                return None
        return moved
