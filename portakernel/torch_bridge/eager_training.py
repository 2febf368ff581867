"""Recording a gradient without torch's dispatcher, for calls of a kind that was seen before.

A public call on plain tensors of which some require gradients needs of autograd nothing but a node. Everything else
(modes, transforms, subclasses) takes the registered op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.key_layout import TRAINING, CallKind
from portakernel.calling.fast.training_source import are_plain, make_backward, make_forward
from portakernel.calling.key_table import Placement
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.deciding.policies import Policy
from portakernel.host.as_written import as_written
from portakernel.torch_bridge.derivatives import Derivatives, check_gradients, for_each_input, run_backward


def has_eager_training(contract: Contract) -> bool:
    """Whether the op has a gradient, and every result that has one exists whatever the parameters."""
    return contract.gradient != "none" and all(r.when is None for r in contract.outputs if r.differentiable)


class EagerTraining:
    """One op's nodes in eager autograd graphs: a class for each set of results that its parameters can ask for."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self.caller: OpCaller = derivatives.caller
        self.contract: Contract = derivatives.contract
        signature, choice = derivatives.signature, derivatives.choice
        self._materialised = any(name in signature.grads for name in self.contract.stands_for.values())
        self._own = {name: name for name in choice.kernels if choice.own_saver(name)}
        # where kernels save in ways of their own, which one it was is kept beside what it saved
        self._marks = {name: choice.mark(name) for name in choice.kernels} if self._own else {}
        names = [parameter.name for parameter in self.contract.parameters]
        self._choosers = [names.index(name) for name in self.contract.choosers]
        self._nodes: dict[tuple[Any, ...], type[torch.autograd.Function]] = {}

    @as_written
    def apply(self, placement: Placement, tensors: Sequence[Tensor | None], values: Sequence[Any]) -> Any:
        """The op's results with their gradient recorded, by ``placement``'s kernel, or the next where it declines.

        None where a stream is captured, for which another serves.
        """
        attempts = None
        while True:
            try:
                record = placement.record
                if record is None:
                    if placement.kernel.saves == "autograd":
                        return placement.launch(*tensors, *values)
                    placement.backward = self._backward_kernel(placement, tensors, values)
                    record = placement.record = self._record(values)
                return record(*tensors, placement, values)
            except CannotRun as error:
                rejection = error.rejection
            if rejection.code is ReasonCode.NOT_CAPTURABLE:
                return None
            # one for all that decline: each turns to a key beyond the last one's
            attempts = attempts or self._derivatives.choice.attempts(TRAINING, tensors, values, "", placement)
            attempts.decline(placement, rejection)
            placement = attempts.placed()

    def _backward_kernel(self, placement: Placement, tensors: Sequence[Tensor | None], values: Sequence[Any]) -> str:
        """The kernel that serves backward, where forward went by another policy than the process's; else an empty name.

        Raises:
            NoKernelError: that policy, or what forward's kernel saves, leaves none. In backward it would be said late.
        """
        if self.contract.gradient != "kernel" or not (self._own or placement.policy):
            return ""
        kind = CallKind(Phase.BACKWARD, saved_by=self._own.get(placement.kernel.name))
        chosen = self.caller.placed(kind, tensors, values, self._policy_of(placement)).kernel.name
        return chosen if placement.policy else ""

    def _policy_of(self, placement: Placement) -> Policy:
        """The policy that backward of ``placement``'s calls goes by: forward's, unless it runs in another block."""
        dispatcher, forward = self.caller.dispatcher, placement.policy
        blocks = dispatcher.context_layers.get()
        if forward is None or (blocks and blocks[0] not in forward.layers):
            return dispatcher.policy()
        return forward

    def _record(self, values: Sequence[Any]) -> Callable[..., Any]:
        """``apply`` of the node of calls with such values, without the questions that transforms are met with."""
        chosen = tuple([values[place] for place in self._choosers])
        node = self._nodes.get(chosen) or self._nodes.setdefault(chosen, self._made(values))
        single_level: Any = super(torch.autograd.Function, node)
        apply: Callable[..., Any] = single_level.apply
        return apply

    def _made(self, values: Sequence[Any]) -> type[torch.autograd.Function]:
        made = self.caller.arguments.at(values)
        forward = make_forward(self.contract, made, materialise=self._materialised, marks=self._marks)
        backward = self._identity() if self.contract.gradient == "identity" else self._gradient(made)
        # functions, because compiled autograd traces no methods
        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(f"Portakernel_{self.contract.op}", (torch.autograd.Function,), members)

    def _gradient(self, made: Contract) -> Callable[..., Any]:
        names = {
            "_policy_of": self._policy_of,
            "_table": self.caller.table.entries,
            "_check": functools.partial(check_gradients, self.contract),
            "_slow": self._backward,
            "_own": self._own,
        }
        lookup, signatures = self.caller.lookup, self.caller.signatures
        return make_backward(self.contract, made, lookup, signatures, names, self._marks)

    def _identity(self) -> Callable[..., Any]:
        @as_written
        def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
            return self._derivatives.identity_gradient(ctx, grad)

        return backward

    @as_written
    def _backward(
        self, ctx: Any, grads: Sequence[Tensor | None], saved: tuple[Tensor | None, ...] | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of a node, whatever its tensors are; ``saved`` is what it kept, where that is unpacked."""
        derivatives, count, kernel = self._derivatives, len(ctx.needs_input_grad), ctx.placement.kernel.name
        # `Derivatives` reads the same of its own nodes
        ctx.kernel, ctx.backward_kernel, ctx.marked = kernel, ctx.placement.backward, bool(self._marks)
        ctx.saved_by = kernel if kernel in self._own else ""
        if torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling():
            return derivatives.kernel_gradient(ctx, *grads)
        pairs = zip(grads, self.contract.outputs, strict=False)
        given = [grad for grad, output in pairs if output.differentiable]
        if all(grad is None for grad in given):
            return (None,) * count
        kept = derivatives.kept(ctx, saved)
        if not are_plain(*given, *kept):
            return derivatives.kernel_gradient(ctx, *grads, kept=kept)
        needs = list(ctx.needs_input_grad[: derivatives.signature.tensors])
        arguments = (*given, *kept, *ctx.values, needs, "", ctx.saved_by)
        parts, arguments = derivatives.signature.backward(arguments)
        gradients = run_backward(self.caller, parts, arguments, self._policy_of(ctx.placement))
        return for_each_input(gradients, needs, count)
