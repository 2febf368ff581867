"""Registers each op in ``torch.ops.portakernel``: implementation, fake, autograd, autocast, vmap.

Three torch ops make one of ours: ``<op>`` is the public one, ``<op>_forward`` also returns what backward needs and
carries the gradient formula, ``<op>_backward`` computes the gradients. Each takes kernels' full names, so that a compiled
graph says what it runs; an empty name means: decide by the policy in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from portakernel.call import OpCaller, argument_layer, torch_op
from portakernel.contract import Result
from portakernel.errors import DerivativeError, PortakernelError
from portakernel.request import Phase

NAMESPACE = "portakernel"
_AUTOCAST_KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")


class Bridge:
    """The registrations of one op; they last as long as the object."""

    def __init__(self, caller: OpCaller) -> None:
        self.caller = caller
        self.contract = caller.contract
        self.tensors = len(self.contract.tensors)
        self.numbers = len(self.contract.parameters)
        self.library = torch.library.Library(NAMESPACE, "FRAGMENT")
        self._define()
        self._implement()
        self._differentiate()
        self._vectorise()

    # --- schema ----------------------------------------------------------------------------------------------------

    def _define(self) -> None:
        contract, op = self.contract, self.contract.op
        tensors = [f"Tensor {tensor.name}" for tensor in contract.tensors]
        defaults = [f"float {parameter.name}={parameter.default!r}" for parameter in contract.parameters]
        numbers = [f"float {parameter.name}" for parameter in contract.parameters]
        saved = [f"Tensor {result.name}" for result in contract.saved]
        grads = [f"Tensor grad_{output.name}" for output in contract.outputs]
        schemas = {
            op: ([*tensors, *defaults, "str kernel=''"], len(contract.outputs)),
            f"{op}_forward": (
                [*tensors, *numbers, "str kernel", "str backward_kernel"],
                len(contract.outputs) + len(saved),
            ),
        }
        if contract.gradient == "kernel":
            arguments = [*grads, *tensors, *saved, *numbers, "bool[] needs", "str kernel", "str saved_by"]
            schemas[f"{op}_backward"] = (arguments, len(tensors))
        for name, (arguments, results) in schemas.items():
            returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
            self.library.define(f"{name}({', '.join(arguments)}) -> {returned}", tags=(torch.Tag.pt2_compliant_tag,))

    # --- implementations and their fakes ---------------------------------------------------------------------------

    def _implement(self) -> None:
        op = self.contract.op
        self.library.impl(op, self._inference, "CompositeExplicitAutograd")
        self.library.impl(f"{op}_forward", self._training, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{op}", self._fake(self.contract.outputs), lib=self.library)
        everything = (*self.contract.outputs, *self.contract.saved)
        torch.library.register_fake(f"{NAMESPACE}::{op}_forward", self._fake(everything), lib=self.library)
        if self.contract.gradient == "kernel":
            self.library.impl(f"{op}_backward", self._backward, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{NAMESPACE}::{op}_backward", self._fake_backward, lib=self.library)
        if self.contract.autocast == "promote":
            for key in _AUTOCAST_KEYS:
                self.library.impl(op, self._promote, key)

    def _split(self, arguments: Sequence[Any]) -> tuple[tuple[Tensor, ...], tuple[float, ...], tuple[Any, ...]]:
        tensors, rest = tuple(arguments[: self.tensors]), arguments[self.tensors :]
        # the dispatcher leaves trailing defaults away
        numbers = [*rest[: self.numbers], *(p.default for p in self.contract.parameters[len(rest[: self.numbers]) :])]
        return tensors, tuple(numbers), tuple(rest[self.numbers :])

    def _inference(self, *arguments: Any) -> Tensor:
        tensors, numbers, (kernel,) = self._split_named(arguments)
        self.caller.check_tensors(tensors)
        policy = self.caller.dispatcher.policy(argument_layer(self.caller.dispatcher, kernel))
        result: Tensor = self.caller.run(Phase.INFERENCE, tensors, numbers, policy, (*tensors, *numbers, None))
        return result

    def _split_named(self, arguments: Sequence[Any]) -> tuple[tuple[Tensor, ...], tuple[float, ...], tuple[str]]:
        tensors, numbers, rest = self._split(arguments)
        return tensors, numbers, (rest[0] if rest else "",)

    def _training(self, *arguments: Any) -> Any:
        tensors, numbers, (kernel, _) = self._split(arguments)
        self.caller.check_tensors(tensors)
        policy = self.caller.dispatcher.policy(argument_layer(self.caller.dispatcher, kernel))
        return self.caller.run(Phase.TRAINING, tensors, numbers, policy, (*tensors, *numbers))

    def _backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        before, after = len(self.contract.outputs), len(self.contract.saved)
        grads, rest = arguments[:before], arguments[before:]
        tensors, saved = rest[: self.tensors], rest[self.tensors : self.tensors + after]
        *numbers, needs, kernel, saved_by = rest[self.tensors + after :]
        policy = self.caller.dispatcher.policy(argument_layer(self.caller.dispatcher, kernel))
        given = (*grads, *tensors, *saved, *numbers, tuple(needs))
        found = self.caller.run(Phase.BACKWARD, tensors, numbers, policy, given, saved_by=saved_by or None)
        # a torch op returns tensors only: an unwanted gradient is an empty one
        return tuple(g if g is not None else t.new_empty(0) for g, t in zip(found, tensors, strict=True))

    def _fake(self, results: Sequence[Result]) -> Callable[..., Any]:
        names = [tensor.name for tensor in self.contract.tensors]

        def fake(*arguments: Any) -> Any:
            tensors = dict(zip(names, arguments[: self.tensors], strict=True))
            self.contract.check_dtypes({name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()})
            dims, leading = self.contract.bind_shapes({name: tuple(t.shape) for name, t in tensors.items()})
            made = []
            for result in results:
                like = tensors[result.like]
                shape = [
                    size
                    for name in result.shape
                    for size in ((leading or ()) if name.startswith("*") else (dims[name],))
                ]  # fmt: skip
                made.append(like.new_empty(shape, dtype=getattr(torch, result.dtype) if result.dtype else like.dtype))
            return made[0] if len(made) == 1 else tuple(made)

        return fake

    def _fake_backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        before = len(self.contract.outputs)
        tensors, needs = arguments[before : before + self.tensors], arguments[-3]
        return tuple(
            t.new_empty(t.shape) if needed else t.new_empty(0) for t, needed in zip(tensors, needs, strict=True)
        )  # fmt: skip

    def _promote(self, *arguments: Any) -> Tensor:
        """Under autocast, arguments of different float dtypes are cast to the widest of them."""
        tensors, numbers, (kernel,) = self._split_named(arguments)
        widest = tensors[0].dtype
        for tensor in tensors[1:]:
            widest = torch.promote_types(widest, tensor.dtype)
        with torch.autocast(tensors[0].device.type, enabled=False):
            result: Tensor = torch_op(self.contract.op)(*(t.to(widest) for t in tensors), *numbers, kernel)
        return result

    # --- derivatives -----------------------------------------------------------------------------------------------

    def _differentiate(self) -> None:
        op, forward = self.contract.op, f"{NAMESPACE}::{self.contract.op}_forward"
        self.library.impl(op, self._above_autograd, "Autograd")
        rules = {
            "identity": (self._identity_gradient, None),
            "kernel": (self._kernel_gradient, self._keep),
            "none": (self._refuse(f"{op} has no gradient"), None),
        }
        formula, keep = rules[self.contract.gradient]
        torch.library.register_autograd(forward, formula, setup_context=keep, lib=self.library)
        if self.contract.gradient == "kernel":
            refuse = self._refuse(
                f"{op} has a gradient, but no gradient of it: a double backward needs `portakernel.references.{op}`"
            )
            torch.library.register_autograd(f"{NAMESPACE}::{op}_backward", refuse, lib=self.library)

    def _refuse(self, text: str) -> Callable[..., Any]:
        def refuse(_ctx: Any, *_grads: Any) -> Any:
            raise DerivativeError(text)

        return refuse

    def _above_autograd(self, *arguments: Any) -> Tensor:
        """The op before autograd: picks the differentiable form where gradients or tangents are asked for.

        While tracing, the kernels are chosen here, on fake tensors, and written into the graph by name.
        """
        tensors, numbers, (kernel,) = self._split_named(arguments)
        training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if _has_tangent(tensors):
            policy = self.caller.dispatcher.policy(argument_layer(self.caller.dispatcher, kernel))
            self.caller.check_tensors(tensors)
            result: Tensor = self.caller.run(Phase.FORWARD_AD, tensors, numbers, policy, (*tensors, *numbers))
            return result
        traced = detect_fake_mode(tensors) is not None
        if traced:
            kernel = self._choose(Phase.TRAINING if training else Phase.INFERENCE, tensors, numbers, kernel)
        if training:
            backward = self._backward_kernel(tensors, numbers, kernel, traced)
            returned = torch_op(f"{self.contract.op}_forward")(*tensors, *numbers, kernel, backward)
            result = returned[0] if isinstance(returned, tuple) else returned
            return result
        with torch._C._AutoDispatchBelowAutograd():
            result = torch_op(self.contract.op)(*tensors, *numbers, kernel)
        return result

    def _choose(
        self,
        phase: Phase,
        tensors: Sequence[Tensor],
        numbers: Sequence[float],
        kernel: str,
        saved_by: str | None = None,
    ) -> str:
        """The name of the kernel for ``phase``, by the process's policy: a graph outlives a context manager."""
        dispatcher = self.caller.dispatcher
        if detect_fake_mode(tensors) is not None and dispatcher.context_layers.get():
            raise PortakernelError(
                f"{self.contract.op} is being traced inside a policy context, which a compiled graph cannot follow;"
                " use portakernel.set_policy(...) or the argument kernel=..."
            )
        policy = dispatcher.policy(argument_layer(dispatcher, kernel))
        self.caller.check_tensors(tensors)
        request = self.caller.request(tensors, numbers, phase, saved_by=saved_by)
        return self.caller.place(request, policy).kernel.name

    def _backward_kernel(self, tensors: Sequence[Tensor], numbers: Sequence[float], kernel: str, traced: bool) -> str:
        # Backward may run in another thread, where this thread's context is not: then choose now.
        dispatcher = self.caller.dispatcher
        if self.contract.gradient != "kernel" or not (traced or kernel or dispatcher.context_layers.get()):
            return ""
        own = (
            kernel
            if kernel in dispatcher.registry.kernels and dispatcher.registry.kernels[kernel].saves == "own"
            else None
        )
        return self._choose(Phase.BACKWARD, tensors, numbers, kernel, own)

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, numbers, (kernel, backward_kernel) = self._split(inputs)
        saved = output[len(self.contract.outputs) :]
        ctx.save_for_backward(*tensors, *saved)
        ctx.numbers, ctx.kernel, ctx.backward_kernel = numbers, kernel, backward_kernel
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)

    def _kernel_gradient(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = grads[: len(self.contract.outputs)]
        rest = len(ctx.needs_input_grad) - self.tensors
        if all(grad is None for grad in given):
            return (None,) * len(ctx.needs_input_grad)
        needs = list(ctx.needs_input_grad[: self.tensors])
        kernels = self.caller.dispatcher.registry.kernels
        saved_by = ctx.kernel if ctx.kernel in kernels and kernels[ctx.kernel].saves == "own" else ""
        backward = torch_op(f"{self.contract.op}_backward")
        found = backward(*given, *ctx.saved_tensors, *ctx.numbers, needs, ctx.backward_kernel, saved_by)
        gradients = [gradient if needed else None for gradient, needed in zip(found, needs, strict=True)]
        return (*gradients, *(None,) * rest)

    def _identity_gradient(self, ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        return tuple(grad if needed and place < self.tensors else None for place, needed in enumerate(needs))

    # --- vmap ------------------------------------------------------------------------------------------------------

    def _vectorise(self) -> None:
        op = self.contract.op
        torch.library.register_vmap(f"{NAMESPACE}::{op}", self._batched, lib=self.library)
        inner = [f"{op}_forward"] + ([f"{op}_backward"] if self.contract.gradient == "kernel" else [])
        for name in inner:
            torch.library.register_vmap(f"{NAMESPACE}::{name}", _looped(name), lib=self.library)

    def _batched(self, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        """A batch dimension is one more leading dimension where rows are independent; else one call per element."""
        tensors, rest = arguments[: self.tensors], arguments[self.tensors :]
        leading = [tensor.leading is not None for tensor in self.contract.tensors]
        if any(dim is not None and not free for dim, free in zip(in_dims, leading, strict=False)):
            return _looped(self.contract.op)(info, in_dims, *arguments)
        moved = [
            tensor.movedim(dim, 0)
            if dim is not None
            else tensor.expand(info.batch_size, *tensor.shape)
            if free
            else tensor
            for tensor, dim, free in zip(tensors, in_dims, leading, strict=False)
        ]
        return torch_op(self.contract.op)(*moved, *rest), 0


def _looped(name: str) -> Callable[..., tuple[Any, Any]]:
    """The vmap rule that calls the op once for each element of the batch."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        def element(i: int) -> Any:
            picked = [
                argument.select(dim, i) if isinstance(argument, Tensor) and dim is not None else argument
                for argument, dim in zip(arguments, in_dims, strict=True)
            ]
            return torch_op(name)(*picked)

        results = [element(i) for i in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])

    return rule


def _has_tangent(tensors: Sequence[Tensor]) -> bool:
    forward_ad = torch.autograd.forward_ad
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
