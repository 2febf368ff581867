"""An op's derivatives: reverse mode through saved tensors, forward mode through the reference, ``torch.func``, vmap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.arguments import Tensors
from portakernel.call import OpCaller
from portakernel.capability import CannotRun
from portakernel.contract import Contract
from portakernel.errors import DerivativeError
from portakernel.key_table import Placement
from portakernel.naming import STRICT_MARK
from portakernel.request import Phase
from portakernel.torch_bridge.batching import Batching, looped
from portakernel.torch_bridge.signature import Signature
from portakernel.torch_internals import below_autograd, has_tangent, innermost_transform, is_fake

# float64 stays what it is, as in torch
_CAST_BY_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


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

        While tracing, the kernels are chosen here, on fake tensors, and written into the graph by name. A kernel made
        of torch operators runs here, so that PyTorch records its gradient.
        """
        tensors, values, (kernel,) = self.signature.public(arguments)
        given = [tensor for tensor in tensors if tensor is not None]
        training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        if has_tangent(given):
            self.caller.arguments.check(tensors, values)
            policy = self.caller.policy(kernel)
            found = self.caller.run(Phase.FORWARD_AD, tensors, values, policy, (*tensors, *values))
            return self.caller.completed(found, values, tensors[0])
        traced = is_fake(given)
        if traced:
            values = tuple(
                p.default if p.permission else v for p, v in zip(self.contract.parameters, values, strict=True)
            )
        if training and self.caller.some_are_recorded:
            recorded = self._recorded(tensors, values, kernel, traced=traced)
            if recorded is not None:
                return recorded
        backward = self._backward_kernel(tensors, values, kernel, traced) if training else ""
        if traced or (training and self._some_save_their_own):
            phase = Phase.TRAINING if training else Phase.INFERENCE
            kernel = self._choose(phase, tensors, values, kernel, traced=traced)
        if training:
            return self._outputs(self.caller.torch_op("_forward")(*tensors, *values, kernel, backward))
        with below_autograd():
            return self.caller.torch_op()(*tensors, *values, kernel)

    def _recorded(self, tensors: Tensors, values: Sequence[Any], kernel: str, *, traced: bool) -> Any:
        """The results of the chosen kernel, when it is one whose gradient PyTorch records; else None.

        One that declines the call at the last moment leaves it to kernels that save for portakernel's own gradient.
        """
        placement = self._placed(Phase.TRAINING, tensors, values, kernel, traced=traced)
        if placement.kernel.saves != "autograd":
            return None
        try:
            found = placement.run(*tensors, *values)
        except CannotRun:
            return None
        next(placement.calls)
        return self.caller.completed(found, values, tensors[0])

    def _outputs(self, returned: Any) -> Any:
        """The outputs of the form that returns saved tensors too."""
        outputs = self.signature.outputs
        if not isinstance(returned, tuple):
            return returned
        return returned[0] if outputs == 1 else returned[:outputs]

    def _transformed(self, *arguments: Any) -> Any:
        """The op under ``torch.func``'s transforms, which reach neither autocast's rule nor the one for autograd."""
        tensors, values, (kernel,) = self.signature.public(arguments)
        given = [tensor for tensor in tensors if tensor is not None]
        if self.contract.autocast != "keep" and torch.is_autocast_enabled(tensors[0].device.type):
            tensors = autocast(self.contract, tensors)
        if has_tangent(given):
            return self.above_autograd(*tensors, *values, kernel)
        if self.caller.some_are_recorded:
            recorded = self._recorded(tensors, values, kernel, traced=False)
            if recorded is not None:
                return recorded
        backward = ""
        if self._some_save_their_own:
            backward = self._backward_kernel(tensors, values, kernel, traced=False)
            kernel = self._choose(Phase.TRAINING, tensors, values, kernel, traced=False)
        return self._outputs(self._forward_function.apply(*tensors, *values, kernel, backward))

    def _placed(
        self,
        phase: Phase,
        tensors: Tensors,
        values: Sequence[Any],
        kernel: str,
        *,
        traced: bool,
        saved_by: str | None = None,
        below_autograd: bool = False,
    ) -> Placement:
        """What would run: for a traced graph by the process's policy, because a graph outlives a context."""
        asked: dict[str, Any] = {"saved_by": saved_by, "below_autograd": below_autograd}
        self.caller.arguments.check(tensors, values)
        if not traced:
            return self.caller.placed(phase, tensors, values, self.caller.policy(kernel), **asked)
        request = self.caller.arguments.request(tensors, values, phase, **asked)
        with self.caller.dispatcher.without_contexts():
            return self.caller.place(request, self.caller.policy(kernel))

    def _choose(
        self,
        phase: Phase,
        tensors: Tensors,
        values: Sequence[Any],
        kernel: str,
        *,
        traced: bool,
        saved_by: str | None = None,
    ) -> str:
        """The kernel for ``phase`` as a torch op's argument names it.

        Where some kernel saves in its own way, forward's name is strict: backward is chosen to read what that kernel
        saves, so that no other may run in its place.
        """
        below = phase is Phase.TRAINING and self.caller.some_are_recorded
        placement = self._placed(phase, tensors, values, kernel, traced=traced, saved_by=saved_by, below_autograd=below)
        paired = phase is Phase.TRAINING and self._some_save_their_own
        asked_for = phase is not Phase.BACKWARD and kernel.startswith(STRICT_MARK)
        return (STRICT_MARK if paired or asked_for else "") + placement.kernel.name

    def _backward_kernel(self, tensors: Tensors, values: Sequence[Any], kernel: str, traced: bool) -> str:
        """The backward kernel's name where it has to be chosen now, else an empty one.

        Backward may run in another thread, which does not see this one's context; a traced graph names its kernels; and
        what a kernel saves in its own way no other can read.
        """
        in_context = kernel.startswith(STRICT_MARK) or self.caller.dispatcher.context_layers.get()
        if self.contract.gradient != "kernel" or not (traced or in_context or self._some_save_their_own):
            return ""
        saved_by = None
        if self._some_save_their_own:
            saved_by = self._own_saver(self._choose(Phase.TRAINING, tensors, values, kernel, traced=traced))
        return self._choose(Phase.BACKWARD, tensors, values, kernel, traced=traced, saved_by=saved_by)

    def _own_saver(self, kernel: str) -> str | None:
        kernel = kernel.removeprefix(STRICT_MARK)
        known = self.caller.dispatcher.registry.kernels.get(kernel)
        return kernel if known is not None and known.saves == "own" else None

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, values, (kernel, backward_kernel) = self.signature.forward(inputs)
        returned = output if isinstance(output, tuple) else (output,)
        outputs, saved = returned[: self.signature.outputs], returned[self.signature.outputs :]
        named = dict(zip(self.contract.names, tensors, strict=True))
        named |= {result.name: tensor for result, tensor in zip(self.contract.outputs, outputs, strict=True)}
        # of what this call does not save, the torch op returned an empty tensor
        exist = {result.name for result in self.caller.arguments.at(values).saved}
        kept: list[Any] = [named[name] for name in self.contract.backward_inputs]
        kept += [t if r.name in exist else None for r, t in zip(self.contract.saved, saved, strict=True)]
        ctx.save_for_backward(*kept)
        ctx.values, ctx.backward_kernel, ctx.saved_by = values, backward_kernel, self._own_saver(kernel) or ""
        no_gradient = [t for r, t in zip(self.contract.outputs, outputs, strict=True) if not r.differentiable]
        ctx.mark_non_differentiable(*no_gradient, *saved)
        # where a gradient stands for an argument's form, there has to be one
        ctx.set_materialize_grads(any(name in self.signature.grads for name in self.contract.stands_for.values()))

    def _kernel_gradient(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = zip(grads, self.contract.outputs, strict=False)
        given, count = [grad for grad, output in pairs if output.differentiable], len(ctx.needs_input_grad)
        if all(grad is None for grad in given):
            return (None,) * count
        needs = list(ctx.needs_input_grad[: self.signature.tensors])
        backward = (
            self._backward_function.apply if innermost_transform() is not None else self.caller.torch_op("_backward")
        )
        found = backward(*given, *ctx.saved_tensors, *ctx.values, needs, ctx.backward_kernel, ctx.saved_by)
        found = found if isinstance(found, tuple) else (found,)
        gradients = [gradient if needed else None for gradient, needed in zip(found, needs, strict=True)]
        return (*gradients, *(None,) * (count - len(gradients)))

    def _identity_gradient(self, ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        return tuple(grad if needed and place < self.signature.tensors else None for place, needed in enumerate(needs))


def autocast(contract: Contract, tensors: Tensors) -> tuple[Tensor | None, ...]:
    """Under autocast: arguments of different float dtypes, cast to the widest of them, or all to autocast's dtype."""
    if contract.autocast == "promote":
        given = [tensor for tensor in tensors if tensor is not None]
        if not all(tensor.is_floating_point() for tensor in given):
            return tuple(tensors)
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in given))
        return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)
    first = contract.tensors[0]
    dtype = torch.get_autocast_dtype(next(tensor.device.type for tensor in tensors if tensor is not None))
    alike = [argument is first or argument.dtypes == (first.name,) for argument in contract.tensors]
    return tuple(
        tensor.to(dtype) if tensor is not None and cast and tensor.dtype in _CAST_BY_AUTOCAST else tensor
        for tensor, cast in zip(tensors, alike, strict=True)
    )


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
