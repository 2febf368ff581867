"""A whole step of training as something to launch: forward and backward, as a program that calls the op has them.

Where some kernel saves for backward in its own way, or PyTorch records what it is made of, forward and backward are one
choice, and the time of forward alone says nothing: one may compute there what another leaves to backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel import ops
from portakernel.registry.kernel import Kernel
from portakernel_kit.bench.contenders import Contender
from portakernel_kit.bench.operands import Operands

Leaves = tuple[Tensor | None, ...]


def step_contender(kernel: Kernel, sets: Sequence[Operands]) -> Contender:
    """``kernel`` as a call of the public op that names it, and the gradients of that.

    Backward is by whichever kernel dispatch picks beside it. The operands have gradients of the outputs drawn.
    """
    return Contender(kernel, _Step(kernel, sets))


class _Step:
    """Returns the outputs, and behind them a gradient for each argument; None for those that need none."""

    def __init__(self, kernel: Kernel, sets: Sequence[Operands]) -> None:
        self._kernel, self._function = kernel.name, getattr(ops, kernel.op)
        self._leaves: dict[int, Leaves] = {id(operands): _leaves(operands) for operands in sets}

    def __call__(self, given: Operands) -> tuple[Tensor | None, ...]:
        leaves, contract = self._leaves[id(given)], given.contract
        named = {a.name: leaf for a, leaf in zip(contract.tensors, leaves, strict=True) if a.keyword}
        positional = [leaf for a, leaf in zip(contract.tensors, leaves, strict=True) if not a.keyword]
        values = given.arguments.named(given.values)
        with torch.enable_grad():
            found: Any = self._function(*positional, **named, **values, kernel=self._kernel)
        results = found if isinstance(found, tuple) else (found,)
        pairs = list(zip(given.arguments.at(given.values).outputs, results, strict=True))
        wanted = [leaf for leaf, need in zip(leaves, given.needs, strict=True) if need and leaf is not None]
        trained = [(result, given.grads[f"grad_{output.name}"]) for output, result in pairs if output.differentiable]
        gradients = torch.autograd.grad(
            [result for result, _ in trained], wanted, [grad for _, grad in trained], allow_unused=True
        )
        by_place = iter(gradients)
        needed = [need and leaf is not None for leaf, need in zip(leaves, given.needs, strict=True)]
        return (*(result.detach() for result in results), *(next(by_place) if need else None for need in needed))


def _leaves(given: Operands) -> Leaves:
    """The arguments over the same memory, as leaves of autograd's graph where they have gradients."""
    pairs = zip(given.tensors, given.needs, strict=True)
    return tuple(t.detach().requires_grad_() if t is not None and need else t for t, need in pairs)
