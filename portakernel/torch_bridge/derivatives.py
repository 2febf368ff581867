"""An op's derivatives: reverse mode through saved tensors, forward mode through the reference, ``torch.func``, vmap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.call import OpCaller
from portakernel.errors import DerivativeError
from portakernel.naming import STRICT_MARK
from portakernel.request import Phase
from portakernel.torch_bridge.batching import Batching, looped
from portakernel.torch_bridge.signature import Signature
from portakernel.torch_internals import below_autograd, has_tangent, innermost_transform, is_fake


class Derivatives:
    """What autograd, ``torch.func`` and tracing do with one op.

    ``torch.library``'s own registration of a gradient does not work under ``torch.func``'s transforms, and an
    ``autograd.Function`` does; both are made from the same formulas.
    """

    def __init__(self, caller: OpCaller, signature: Signature) -> None:
        self.caller = caller
        self.contract = caller.contract
        self.signature = signature
        kernels = caller.dispatcher.registry.for_op(self.contract.op)
        self._some_save_their_own = any(kernel.saves == "own" for kernel in kernels)

    def register(self, library: torch.library.Library) -> None:
        """Enters the rules for the op and its parts."""
        op, name = self.contract.op, f"{self.caller.namespace}::{self.contract.op}"
        library.impl(op, self.above_autograd, "Autograd")
        rules: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
            "identity": (self._identity_gradient, _keep_nothing),
            "kernel": (self._kernel_gradient, self._keep),
            "none": (_refuse(f"{op} has no gradient"), _keep_nothing),
        }
        gradient, keep = rules[self.contract.gradient]
        torch.library.register_autograd(f"{name}_forward", gradient, setup_context=keep, lib=library)
        batching = Batching(self.caller)
        self._forward_function = _function(self.caller.torch_op("_forward"), keep, gradient)
        self._forward_function.vmap = staticmethod(batching.of_forward(self._forward_function.apply))
        torch.library.register_vmap(name, batching.of_op, lib=library)
        torch.library.register_vmap(f"{name}_forward", looped(self.caller.torch_op("_forward")), lib=library)
        if self.contract.gradient == "kernel":
            twice = _refuse(f"{op} has a gradient, but no gradient of its gradient; portakernel.references.{op} has")
            torch.library.register_autograd(f"{name}_backward", twice, lib=library)
            self._backward_function = _function(self.caller.torch_op("_backward"), _keep_nothing, twice)
            self._backward_function.vmap = staticmethod(looped(self._backward_function.apply))
            torch.library.register_vmap(f"{name}_backward", looped(self.caller.torch_op("_backward")), lib=library)
        self.caller.transformed = self._transformed

    def above_autograd(self, *arguments: Any) -> Any:
        """The op before autograd: picks the differentiable form where gradients or tangents are asked for.

        While tracing, the kernels are chosen here, on fake tensors, and written into the graph by name.
        """
        tensors, numbers, (kernel,) = self.signature.public(arguments)
        training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if has_tangent(tensors):
            self.caller.arguments.check(tensors)
            policy = self.caller.policy(kernel)
            return self.caller.run(Phase.FORWARD_AD, tensors, numbers, policy, (*tensors, *numbers))
        traced = is_fake(tensors)
        backward = self._backward_kernel(tensors, numbers, kernel, traced) if training else ""
        if traced or (training and self._some_save_their_own):
            phase = Phase.TRAINING if training else Phase.INFERENCE
            kernel = self._choose(phase, tensors, numbers, kernel, traced=traced)
        if training:
            return _first(self.caller.torch_op("_forward")(*tensors, *numbers, kernel, backward))
        with below_autograd():
            return self.caller.torch_op()(*tensors, *numbers, kernel)

    def _transformed(self, *arguments: Any) -> Any:
        """The op under ``torch.func``'s transforms, which reach neither autocast's rule nor the one for autograd."""
        tensors, numbers, (kernel,) = self.signature.public(arguments)
        if self.contract.autocast == "promote" and torch.is_autocast_enabled(tensors[0].device.type):
            tensors = promoted(tensors)
        if has_tangent(tensors):
            return self.above_autograd(*tensors, *numbers, kernel)
        backward = ""
        if self._some_save_their_own:
            backward = self._backward_kernel(tensors, numbers, kernel, traced=False)
            kernel = self._choose(Phase.TRAINING, tensors, numbers, kernel, traced=False)
        return _first(self._forward_function.apply(*tensors, *numbers, kernel, backward))

    def _choose(
        self,
        phase: Phase,
        tensors: Sequence[Tensor],
        numbers: Sequence[float],
        kernel: str,
        *,
        traced: bool,
        saved_by: str | None = None,
    ) -> str:
        """The kernel for ``phase`` as a torch op's argument names it.

        For a traced graph it is chosen by the process's policy, because a graph outlives a context; for a call that is
        about to run it comes from the key table. Where some kernel saves in its own way, forward's name is strict:
        backward is chosen to read what that kernel saves, so that no other may run in its place.
        """
        self.caller.arguments.check(tensors)
        if traced:
            request = self.caller.arguments.request(tensors, numbers, phase, saved_by=saved_by)
            with self.caller.dispatcher.without_contexts():
                placement = self.caller.place(request, self.caller.policy(kernel))
        else:
            placement = self.caller.placed(phase, tensors, numbers, self.caller.policy(kernel), saved_by)
        paired = phase is Phase.TRAINING and self._some_save_their_own
        asked_for = phase is not Phase.BACKWARD and kernel.startswith(STRICT_MARK)
        return (STRICT_MARK if paired or asked_for else "") + placement.kernel.name

    def _backward_kernel(self, tensors: Sequence[Tensor], numbers: Sequence[float], kernel: str, traced: bool) -> str:
        """The backward kernel's name where it has to be chosen now, else an empty one.

        Backward may run in another thread, which does not see this one's context; a traced graph names its kernels; and
        what a kernel saves in its own way no other can read.
        """
        in_context = kernel.startswith(STRICT_MARK) or self.caller.dispatcher.context_layers.get()
        if self.contract.gradient != "kernel" or not (traced or in_context or self._some_save_their_own):
            return ""
        saved_by = None
        if self._some_save_their_own:
            saved_by = self._own_saver(self._choose(Phase.TRAINING, tensors, numbers, kernel, traced=traced))
        return self._choose(Phase.BACKWARD, tensors, numbers, kernel, traced=traced, saved_by=saved_by)

    def _own_saver(self, kernel: str) -> str | None:
        kernel = kernel.removeprefix(STRICT_MARK)
        known = self.caller.dispatcher.registry.kernels.get(kernel)
        return kernel if known is not None and known.saves == "own" else None

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, numbers, (kernel, backward_kernel) = self.signature.forward(inputs)
        saved = output[self.signature.outputs :]
        ctx.save_for_backward(*tensors, *saved)
        ctx.numbers, ctx.backward_kernel, ctx.saved_by = numbers, backward_kernel, self._own_saver(kernel) or ""
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)

    def _kernel_gradient(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given, count = grads[: self.signature.outputs], len(ctx.needs_input_grad)
        if all(grad is None for grad in given):
            return (None,) * count
        needs = list(ctx.needs_input_grad[: self.signature.tensors])
        backward = (
            self._backward_function.apply if innermost_transform() is not None else self.caller.torch_op("_backward")
        )
        found = backward(*given, *ctx.saved_tensors, *ctx.numbers, needs, ctx.backward_kernel, ctx.saved_by)
        gradients = [gradient if needed else None for gradient, needed in zip(found, needs, strict=True)]
        return (*gradients, *(None,) * (count - len(gradients)))

    def _identity_gradient(self, ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        return tuple(grad if needed and place < self.signature.tensors else None for place, needed in enumerate(needs))


def promoted(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Under autocast: arguments of different float dtypes, cast to the widest of them."""
    if not all(tensor.is_floating_point() for tensor in tensors):
        return tuple(tensors)
    widest = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return tuple(tensor.to(widest) for tensor in tensors)


def _keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """For gradients that need no tensors."""


def _refuse(text: str) -> Callable[..., Any]:
    def refuse(_ctx: Any, *_grads: Any) -> Any:
        raise DerivativeError(text)

    return refuse


def _function(forward: Callable[..., Any], setup: Callable[..., None], backward: Callable[..., Any]) -> Any:
    parts = {"forward": forward, "setup_context": setup, "backward": backward}
    members = {name: staticmethod(part) for name, part in parts.items()}
    return type("PortakernelFunction", (torch.autograd.Function,), members)


def _first(returned: Any) -> Any:
    return returned[0] if isinstance(returned, tuple) else returned
