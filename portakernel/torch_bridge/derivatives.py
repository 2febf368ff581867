"""An op's derivatives: reverse mode through saved tensors, forward mode through the reference, ``torch.func``, vmap."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

from portakernel.calling.arguments import Tensors
from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.key_layout import CallKind
from portakernel.calling.observers import tell_blocks, tell_process, tell_traced
from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.deciding.kernel_argument import GRAPH_MARK, SETTLED_MARK, TOKEN_MARK, unmarked
from portakernel.deciding.policies import Policy
from portakernel.errors import DerivativeError, PortakernelError
from portakernel.host.as_written import as_written
from portakernel.tensors.torch_internals import (
    SingleLevelFunction,
    below_autograd,
    has_tangent,
    innermost_transform,
    is_fake,
    on_this_level,
    only_vmap,
    some_forward_mode,
    some_functionalize,
)
from portakernel.torch_bridge.autocast import autocast, outside_autocast
from portakernel.torch_bridge.batching import Batching, looped
from portakernel.torch_bridge.kernel_choice import KernelChoice
from portakernel.torch_bridge.second_derivatives import SecondDerivatives
from portakernel.torch_bridge.signature import Parts, Signature

# How torch names the operator that it cannot differentiate.
_WITHOUT_FORWARD_MODE = re.compile(r"forward AD with (\S+) that does not support it")


class Derivatives:
    """One op under autograd, ``torch.func`` and tracing.

    ``torch.library``'s own registration of a gradient does not work under ``torch.func``'s transforms, and an
    ``autograd.Function`` does; both are made from the same formulas.
    """

    def __init__(self, caller: OpCaller, signature: Signature) -> None:
        self.caller = caller
        self.contract = caller.contract
        self.signature = signature
        self.choice = KernelChoice(caller)

    def register(self, library: torch.library.Library) -> None:
        """Enters the rules for the op and its parts."""
        op, name = self.contract.op, f"{self.caller.namespace}::{self.contract.op}"
        library.impl(op, self.above_autograd, "Autograd")
        torch.library.register_torch_dispatch(name, FunctionalTensorMode, self._functional, lib=library)
        rules: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
            "identity": (self.identity_gradient, keep_nothing),
            "kernel": (self.kernel_gradient, self._keep),
            "none": (_refuse(f"{op} has no gradient"), keep_nothing),
        }
        gradient, keep = rules[self.contract.gradient]
        torch.library.register_autograd(f"{name}_forward", gradient, setup_context=keep, lib=library)
        batching = Batching(self.caller)
        no_tangents = _refuse(f"{op} has no derivative")
        self._forward_function = _function(self.caller.torch_op("_forward"), keep, gradient, jvp=no_tangents)
        self._graph_function = _function(self._in_graph, keep, gradient)
        self._level_function = _function(self._below, keep, gradient, SingleLevelFunction)
        self._forward_function.vmap = staticmethod(batching.of_forward(self._forward_function.apply))
        torch.library.register_vmap(name, batching.of_op, lib=library)
        torch.library.register_vmap(f"{name}_forward", looped(self.caller.torch_op("_forward")), lib=library)
        if self.contract.gradient == "kernel":
            twice = SecondDerivatives(self.caller, self.signature)
            torch.library.register_autograd(f"{name}_backward", twice.gradient, setup_context=twice.keep, lib=library)
            self._backward_function = _function(self.caller.torch_op("_backward"), twice.keep, twice.gradient)
            self._level_backward = _function(self._backward_below, twice.keep, twice.gradient, SingleLevelFunction)
            self._backward_function.vmap = staticmethod(looped(self._backward_function.apply))
            torch.library.register_vmap(f"{name}_backward", looped(self.caller.torch_op("_backward")), lib=library)
        self.caller.transformed = self._transformed

    @as_written
    def above_autograd(self, *arguments: Any) -> Any:
        """The op before autograd: picks the differentiable form where gradients or tangents are asked for.

        While tracing, the kernels are chosen here, on fake tensors, and written into the graph by name. A kernel made
        of torch operators runs here, so that PyTorch records its gradient.
        """
        if (result := self.caller.inference_hit(*arguments)) is not None:
            return result
        tensors, values, (kernel,) = self.signature.public(arguments)
        given = [tensor for tensor in tensors if tensor is not None]
        distributed = self.caller.distributed(given) if self.caller.distributed is not None else None
        if distributed is not None:
            return distributed(*arguments)
        training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        if self._follows_tangents(given):
            return self._forward_derivative(tensors, values, kernel)
        traced = is_fake(given)
        if traced:
            tell_traced(self.contract.op)
            values = self._without_permissions(values)
        if training and self.caller.some_are_recorded:
            recorded = self.choice.recorded(tensors, values, kernel, traced=traced)
            if recorded is not None:
                return recorded
        backward = self.choice.backward(tensors, values, kernel, traced) if training else ""
        if traced or (training and self.choice.some_save_their_own):
            phase = Phase.TRAINING if training else Phase.INFERENCE
            kernel = self.choice.name(phase, tensors, values, kernel, traced=traced)
        with self.choice.naming(kernel, backward) if traced else nullcontext():
            if training:
                return self._outputs(self._trained(*tensors, *values, kernel, backward))
            with below_autograd():
                return self._inferred(tensors, values, kernel)

    def _functional(
        self, mode: Any, func: Any, types: Any, arguments: tuple[Any, ...], given: dict[str, Any] | None = None
    ) -> Any:
        """The op where AOTAutograd traces it: in inference mode, in which nobody was before autograd, chosen here.

        torch.compile leaves that mode before it compiles, the ``aot_compile`` of its functions does not (torch 2.13).
        """
        tensors, values, (kernel,) = self.signature.public(arguments)
        if torch.is_inference_mode_enabled() and kernel[:1] in ("", TOKEN_MARK):
            tell_traced(self.contract.op)
            values = self._without_permissions(values)
            kernel = self.choice.name(Phase.INFERENCE, tensors, values, kernel, traced=True)
            with self.choice.naming(kernel), mode:
                return self._inferred(tensors, values, kernel)
        return mode.__torch_dispatch__(func, types, arguments, given)

    def _trained(self, *arguments: Any) -> Any:
        """The form that returns saved tensors too, with its gradient recorded."""
        *_, kernel, _ = arguments
        if kernel.startswith(GRAPH_MARK):
            return self._graph_function.apply(*arguments)
        if innermost_transform() is None:
            return self.caller.torch_op("_forward")(*arguments)
        # a graph that goes through a transform, or a torch op called inside one, comes here once for each level
        with on_this_level():
            return self._level_function.apply(*arguments)

    def _inferred(self, tensors: Tensors, values: Sequence[Any], kernel: str) -> Any:
        """The outputs, below autograd: those of the op, or of what stands in a graph in its place."""
        if kernel.startswith(GRAPH_MARK):
            returned = self.choice.in_graph(Phase.INFERENCE, kernel, (*tensors, *values, None))
            if returned is not None:
                return self.caller.completed(returned, values, tensors[0])
            kernel = unmarked(kernel)
        return self.caller.torch_op()(*tensors, *values, kernel)

    @as_written
    def _in_graph(self, *arguments: Any) -> Any:
        """The form that returns saved tensors too, as the nodes of a compiled graph that its kernel makes."""
        tensors, values, (kernel, backward_kernel) = self.signature.forward(arguments)
        returned = self.choice.in_graph(Phase.TRAINING, kernel, (*tensors, *values))
        if returned is None:
            return self._below(*tensors, *values, self.choice.called(kernel), backward_kernel)
        return self.caller.completed(returned, values, tensors[0], saved=True)

    @as_written
    def _below(self, *arguments: Any) -> Any:
        """The form that returns saved tensors too, below this level's autograd."""
        with below_autograd():
            return self.caller.torch_op("_forward")(*arguments)

    @as_written
    def _backward_below(self, *arguments: Any) -> Any:
        """The gradients, below this level's autograd."""
        with below_autograd():
            return self.caller.torch_op("_backward")(*arguments)

    def _follows_tangents(self, given: Sequence[Tensor]) -> bool:
        """Whether the reference follows tangents: below the innermost transform, where none can be seen, always."""
        if has_tangent(given):
            return True
        return self.contract.gradient != "none" and innermost_transform() is not None and some_forward_mode()

    def _forward_derivative(self, tensors: Tensors, values: Sequence[Any], kernel: str) -> Any:
        """The results of forward-mode duals, tangents included: of a kernel made of what torch differentiates so.

        Such a call is of a phase of its own, whether tensors require gradients or not. In a graph nothing of it is
        called.
        """
        op = self.contract.op
        if self.contract.gradient == "none":
            raise DerivativeError(f"{op} has no derivative")
        self.caller.arguments.check(tensors, values)
        policy, kind = self.caller.policy(kernel), CallKind(Phase.FORWARD_AD)
        traced = is_fake([tensor for tensor in tensors if tensor is not None])
        try:
            if traced:
                tell_traced(op)
                request = replace(self.caller.request(kind, tensors, values), traced=True)
                returned = self.caller.place(request, policy).launch(*tensors, *values)
            else:
                returned = self.caller.run(kind, tensors, values, policy, (*tensors, *values))
        except NotImplementedError as error:
            if isinstance(error, PortakernelError):
                raise
            named = _WITHOUT_FORWARD_MODE.search(str(error))
            if named is None:
                raise
            raise DerivativeError(
                f"{op} has gradients, but no forward-mode derivative: its reference is made of {named[1]}, of which"
                " PyTorch has none"
            ) from error
        if not traced:
            tell_process(self.contract, tensors, values, phase=Phase.FORWARD_AD)
            tell_blocks(self.contract, tensors, values, phase=Phase.FORWARD_AD)
        return self.caller.completed(returned, values, tensors[0])

    def _outputs(self, returned: Any) -> Any:
        """The outputs of the form that returns saved tensors too."""
        outputs = self.signature.outputs
        if not isinstance(returned, tuple):
            return returned
        return returned[0] if outputs == 1 else returned[:outputs]

    def _transformed(self, *arguments: Any) -> Any:
        """The op under ``torch.func``'s transforms, which reach neither autocast's rule nor the one for autograd."""
        tensors, values, (kernel,) = self.signature.public(arguments)
        if some_functionalize():
            return self.caller.torch_op()(*arguments)
        given = [tensor for tensor in tensors if tensor is not None]
        device = tensors[0].device.type
        if self.contract.autocast != "keep" and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._transformed(*autocast(self.contract, tensors, values), *values, kernel)
        if self._follows_tangents(given):
            return self._forward_derivative(tensors, values, kernel)
        if only_vmap():
            # nothing is differentiated here; what is outside is, above autograd, once the batch is unfolded
            return self.caller.torch_op()(*tensors, *values, kernel)
        if self.caller.some_are_recorded:
            recorded = self.choice.recorded(tensors, values, kernel, traced=False)
            if recorded is not None:
                return recorded
        backward = ""
        if self.choice.some_save_their_own:
            backward = self.choice.backward(tensors, values, kernel, traced=False)
            kernel = self.choice.name(Phase.TRAINING, tensors, values, kernel, traced=False)
        return self._outputs(self._forward_function.apply(*tensors, *values, kernel, backward))

    def _without_permissions(self, values: Sequence[Any]) -> tuple[Any, ...]:
        pairs = zip(self.contract.parameters, values, strict=True)
        return tuple(parameter.default if parameter.permission else value for parameter, value in pairs)

    @as_written
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
        ctx.kernel = unmarked(kernel)
        # checkpointing replaces what is kept by what a second forward keeps: among it, which kernel that was
        paired = self.choice.some_save_their_own and ctx.kernel in self.choice.kernels
        ctx.marked = paired and innermost_transform() is None and not is_fake([tensors[0]])
        mark = [self.choice.mark(ctx.kernel)] if ctx.marked else []
        ctx.save_for_backward(*kept, *mark)
        ctx.values, ctx.backward_kernel, ctx.saved_by = values, backward_kernel, self.choice.own_saver(kernel) or ""
        no_gradient = [t for r, t in zip(self.contract.outputs, outputs, strict=True) if not r.differentiable]
        ctx.mark_non_differentiable(*no_gradient, *saved)
        # where a gradient stands for an argument's form, there has to be one
        ctx.set_materialize_grads(any(name in self.signature.grads for name in self.contract.stands_for.values()))

    @as_written
    def kernel_gradient(
        self, ctx: Any, *grads: Tensor | None, kept: tuple[Tensor | None, ...] | None = None
    ) -> tuple[Tensor | None, ...]:
        """The gradients by the op's backward part, which itself can be differentiated, traced and transformed.

        ``kept`` is what forward kept, where that was unpacked already.
        """
        pairs = zip(grads, self.contract.outputs, strict=False)
        given, count = [grad for grad, output in pairs if output.differentiable], len(ctx.needs_input_grad)
        if all(grad is None for grad in given):
            return (None,) * count
        kept = self.kept(ctx) if kept is None else kept
        if has_tangent([tensor for tensor in (*given, *kept) if tensor is not None]):
            raise DerivativeError(
                f"{self.contract.op}'s gradient has no forward-mode derivative at a dual level; torch.func.jvp of"
                " torch.func.grad has one"
            )
        needs = list(ctx.needs_input_grad[: self.signature.tensors])
        backward = self._backward_on_this_level if some_functionalize() else self._backward_on_all_levels
        # a second derivative needs the arguments as they were
        values = self._without_permissions(ctx.values) if torch.is_grad_enabled() else ctx.values
        arguments = (*given, *kept, *values, needs, ctx.backward_kernel, ctx.saved_by)
        if ctx.backward_kernel.startswith(GRAPH_MARK) and (found := self._gradients_in_graph(*arguments)) is not None:
            return for_each_input(found, needs, count)
        named = ctx.backward_kernel
        kernel = named if named.startswith(SETTLED_MARK) else unmarked(named)
        gradients = backward(*given, *kept, *values, needs, kernel, ctx.saved_by)
        return for_each_input(gradients if isinstance(gradients, tuple) else (gradients,), needs, count)

    def _gradients_in_graph(self, *arguments: Any) -> Sequence[Tensor | None] | None:
        """The gradients as nodes of a compiled graph; None where the kernel declines."""
        (_, _, (needs, kernel, _)), given = self.signature.backward(arguments)
        gradients: Sequence[Tensor | None] | None = self.choice.in_graph(Phase.BACKWARD, kernel, given)
        if gradients is not None:
            check_gradients(self.contract, gradients, needs)
        return gradients

    def _backward_on_all_levels(self, *arguments: Any) -> Any:
        if innermost_transform() is None:
            return self.caller.torch_op("_backward")(*arguments)
        return self._backward_function.apply(*arguments)

    def _backward_on_this_level(self, *arguments: Any) -> Any:
        with on_this_level():
            return self._level_backward.apply(*arguments)

    def kept(self, ctx: Any, saved: tuple[Tensor | None, ...] | None = None) -> tuple[Tensor | None, ...]:
        """The tensors that forward kept for backward; ``saved`` is what is unpacked already.

        Raises:
            DerivativeError: another kernel kept it than the one that backward was chosen for.
        """
        kept: tuple[Tensor | None, ...] = ctx.saved_tensors if saved is None else saved
        if not ctx.marked:
            return kept
        *kept_by_forward, mark = kept
        other = ctx.kernel if mark is None else self.choice.kernels[int(mark)]
        if other != ctx.kernel:
            raise DerivativeError(
                f"{self.contract.op} ran as {ctx.kernel}, and in activation checkpointing's second forward as {other},"
                " under another policy; what they save differs. Put the policy's `with` block inside the checkpointed"
                " function, or use portakernel.set_policy"
            )
        return tuple(kept_by_forward)

    @as_written
    def identity_gradient(self, ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """The result's gradient, for each argument that needs one."""
        needs = ctx.needs_input_grad
        return tuple(grad if needed and place < self.signature.tensors else None for place, needed in enumerate(needs))


def run_backward(caller: OpCaller, parts: Parts, given: Sequence[Any], policy: Policy) -> Sequence[Tensor | None]:
    """A gradient for each tensor argument, by the kernel for what ``Signature.backward`` took apart.

    Raises:
        DerivativeError: one is needed that the op does not have.
    """
    tensors, values, (needs, _, saved_by) = parts
    kind = CallKind(Phase.BACKWARD, saved_by=saved_by or None)
    with outside_autocast(tensors):  # where a backward pass may still be
        gradients: Sequence[Tensor | None] = caller.run(kind, tensors, values, policy, given)
    check_gradients(caller.contract, gradients, needs)
    return gradients


def check_gradients(contract: Contract, gradients: Sequence[Tensor | None], needs: Sequence[bool]) -> None:
    """Nothing, when every gradient is there that is needed.

    Raises:
        DerivativeError: one is not.
    """
    for name, gradient, needed in zip(contract.names, gradients, needs, strict=True):
        if needed and gradient is None:
            raise DerivativeError(f"{contract.op} has no gradient for {name}; pass {name}.detach()")


def for_each_input(gradients: Sequence[Tensor | None], needs: Sequence[bool], count: int) -> tuple[Tensor | None, ...]:
    """An autograd node's result for its ``count`` inputs: the needed gradients, and None for all else."""
    wanted = [gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)]
    return (*wanted, *(None,) * (count - len(wanted)))


def keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """For gradients that need no tensors."""


def _refuse(text: str) -> Callable[..., Any]:
    def refuse(_ctx: Any, *_grads: Any) -> Any:
        raise DerivativeError(text)

    return refuse


def _function(
    forward: Callable[..., Any],
    setup: Callable[..., None],
    backward: Callable[..., Any],
    base: Any = torch.autograd.Function,
    **more: Callable[..., Any],
) -> Any:
    parts = {"forward": forward, "setup_context": setup, "backward": backward, **more}
    members = {name: staticmethod(part) for name, part in parts.items()}
    return type("PortakernelFunction", (base,), members)
