"""A formula's gradients in the place of an operator's, for operators whose own cannot be differentiated as often.

PyTorch records the operator, in C++. Its node looks before backward whether gradients are to be differentiated
themselves (``create_graph=True``), and has those of the formula take the place of its own then. They are made of what
the node saved, so that memory is freed as the operator alone would have it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portakernel.authoring.tensors import node_in_backward, saved_tensor_hooks

Gradients = tuple[Tensor | None, ...]


class Formula(NamedTuple):
    """What an operator computes of its inputs, in operators that have all derivatives."""

    of: Callable[..., Tensor]
    saved: tuple[str, ...]  # under which names the operator's node has its inputs
    readable: Callable[[Tensor], Tensor] | None = None  # the gradient as the operator's backward can read it

    def gradients(self, given: Gradients, needs: tuple[bool, ...], grad: Tensor) -> Gradients:
        """The gradients of the inputs ``given`` from that of the result; they can be differentiated."""
        asked = [x for x, needed in zip(given, needs, strict=True) if needed and x is not None]
        made = iter(torch.autograd.grad(self.of(*given), asked, grad, create_graph=True))
        return tuple(next(made) if needed else None for needed in needs)


def attached(y: Tensor, given: Gradients, formula: Formula) -> Tensor:
    """``y``, fresh from the operator, whose node saved ``given``, with the formula where it is to take its place."""
    if (node := y.grad_fn) is None:
        return y
    if saved_tensor_hooks():
        apply: Callable[..., Tensor] = _Chooses.apply
        return apply(formula, y, *given)
    node.register_prehook(partial(_before_backward, formula))
    return y


def _before_backward(formula: Formula, grads: Gradients) -> Gradients | None:
    if torch.is_grad_enabled():
        node = node_in_backward()
        if not node.metadata.get(__name__):
            node.metadata[__name__] = node.register_hook(partial(_instead, formula))
    first = grads[0]
    if formula.readable is None or first is None:
        return None
    readable = formula.readable(first)
    return None if readable is first else (readable, *grads[1:])


def _instead(formula: Formula, found: Gradients, grads: tuple[Tensor, ...]) -> Gradients | None:
    """In the place of the gradients that the node ``found`` those of the formula; None leaves them."""
    needs = tuple(gradient is not None for gradient in found)
    if not torch.is_grad_enabled() or not any(needs):
        return None
    node = node_in_backward()
    return formula.gradients(tuple(getattr(node, name) for name in formula.saved), needs, grads[0])


class _Chooses(torch.autograd.Function):
    """Chooses between the operator's gradients and the formula's where hooks for saved tensors are in force.

    Checkpoints unpack what they packed but once, and the operator's node does that itself: here it does not run where
    the formula does.
    """

    @staticmethod
    def forward(ctx: Any, formula: Formula, y: Tensor, *given: Tensor | None) -> Tensor:
        ctx.formula = formula
        ctx.save_for_backward(*given)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (grad,) = grads
        if not torch.is_grad_enabled():
            return None, grad, *(None for _ in ctx.saved_tensors)
        return None, None, *ctx.formula.gradients(ctx.saved_tensors, ctx.needs_input_grad[2:], grad)
