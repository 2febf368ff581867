"""Recording a gradient without torch's dispatcher, for calls of a kind that was seen before.

A public call on plain tensors of which some require gradients needs of autograd nothing but a node. Everything else
(modes, transforms, subclasses, policy blocks) takes the registered op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.calling.key_table import Placement
from portakernel.claims.capability import CannotRun
from portakernel.contract import Contract
from portakernel.host.as_written import as_written
from portakernel.tensors.layout import has_plain_memory
from portakernel.tensors.torch_internals import dispatch_modes, forward_ad, innermost_transform
from portakernel.torch_bridge.derivatives import Derivatives, for_each_input, run_backward


def has_eager_training(contract: Contract) -> bool:
    """Whether the op has a gradient, and every result that has one exists whatever the parameters."""
    return contract.gradient != "none" and all(r.when is None for r in contract.outputs if r.differentiable)


class EagerTraining:
    """One op's node in eager autograd graphs."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self.caller: OpCaller = derivatives.caller
        self.contract: Contract = derivatives.contract

        @as_written
        def forward(ctx: Any, *arguments: Any) -> Any:
            return self._forward(ctx, *arguments)

        @as_written
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return self._backward(ctx, *grads)

        # functions, because compiled autograd traces no methods
        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self._node: Any = type(f"Portakernel_{self.contract.op}", (torch.autograd.Function,), members)
        signature = derivatives.signature
        self._materialised = any(name in signature.grads for name in self.contract.stands_for.values())
        choice = derivatives.choice
        self._own = frozenset(name for name in choice.kernels if choice.own_saver(name))
        # where kernels save in ways of their own, which one it was is kept beside what it saved
        self._marks = {name: choice.mark(name) for name in choice.kernels} if self._own else {}

    @as_written
    def apply(self, placement: Placement, tensors: Sequence[Tensor | None], values: Sequence[Any]) -> Any:
        """The op's results with their gradient recorded, by ``placement``'s kernel; None when it declines the call."""
        try:
            if placement.kernel.saves == "autograd":
                return placement.launch(*tensors, *values)
            return self._node.apply(*tensors, placement, values)
        except CannotRun:
            return None

    def _forward(self, ctx: Any, *arguments: Any) -> Any:
        *tensors, placement, values = arguments
        returned = placement.launch(*tensors, *values)
        if self.contract.gradient == "identity":
            return returned
        made = self.caller.arguments.at(values)
        results = returned if isinstance(returned, tuple) else (returned,)
        outputs = results[: len(made.outputs)]
        held: dict[str, Tensor | None] = dict(zip(self.contract.names, tensors, strict=True))
        held |= {result.name: tensor for result, tensor in zip((*made.outputs, *made.saved), results, strict=True)}
        kept = [*self.contract.backward_inputs, *(saved.name for saved in self.contract.saved)]
        kernel: str = placement.kernel.name
        mark = self._marks.get(kernel)
        ctx.save_for_backward(*(held.get(name) for name in kept), *(() if mark is None else (mark,)))
        # `Derivatives` reads the same where the backward itself is differentiated or transformed
        ctx.values, ctx.kernel, ctx.backward_kernel, ctx.marked = values, kernel, "", mark is not None
        ctx.saved_by = kernel if kernel in self._own else ""
        constant = [tensor for result, tensor in zip(made.outputs, outputs, strict=True) if not result.differentiable]
        if constant:
            ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(self._materialised)
        return outputs[0] if len(outputs) == 1 else outputs

    def _backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        derivatives, count = self._derivatives, len(ctx.needs_input_grad)
        if self.contract.gradient == "identity":
            return derivatives.identity_gradient(ctx, *grads)
        if torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling():
            return derivatives.kernel_gradient(ctx, *grads)
        pairs = zip(grads, self.contract.outputs, strict=False)
        given = [grad for grad, output in pairs if output.differentiable]
        if all(grad is None for grad in given):
            return (None,) * count
        kept = derivatives.kept(ctx)
        if not _is_plain((*given, *kept)):
            return derivatives.kernel_gradient(ctx, *grads, kept=kept)
        needs = list(ctx.needs_input_grad[: derivatives.signature.tensors])
        arguments = (*given, *kept, *ctx.values, needs, ctx.backward_kernel, ctx.saved_by)
        gradients = run_backward(self.caller, *derivatives.signature.backward(arguments))
        return for_each_input(gradients, needs, count)


def _is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """Whether a kernel may read the memory of gradients and of what was kept, which hooks may have replaced."""
    if innermost_transform() is not None or dispatch_modes() or forward_ad._current_level >= 0:
        return False
    return all(tensor is None or has_plain_memory(tensor) for tensor in tensors)
