"""Ops that write into their arguments, under autograd, transforms and tracing: they run, or say why they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import torch

from portakernel.calling.caller import OpCaller
from portakernel.calling.observers import tell_traced
from portakernel.claims.request import Phase
from portakernel.errors import ArgumentTypeError, DerivativeError, TransformError
from portakernel.host.as_written import as_written
from portakernel.tensors.torch_internals import below_autograd, has_tangent, is_fake, some_are_distributed
from portakernel.torch_bridge.kernel_choice import KernelChoice
from portakernel.torch_bridge.signature import Signature


class Writing:
    """One op's rules. Under ``torch.compile`` its schema, ``Tensor(a!)``, lets torch make a function of it."""

    def __init__(self, caller: OpCaller, signature: Signature) -> None:
        self.caller, self.signature = caller, signature
        self.choice = KernelChoice(caller)

    def register(self, library: torch.library.Library) -> None:
        """Enters the rules."""
        op = self.caller.contract.op
        library.impl(op, self._above_autograd, "Autograd")
        torch.library.register_vmap(f"{self.caller.namespace}::{op}", self._refuse_vmap, lib=library)
        self.caller.distributed = self._refuse_distributed

    @as_written
    def _above_autograd(self, *arguments: Any) -> None:
        """Before autograd: nothing of the call can be recorded.

        Raises:
            DerivativeError: gradients or tangents are asked for.
        """
        tensors, values, (kernel,) = self.signature.public(arguments)
        given = [tensor for tensor in tensors if tensor is not None]
        contract = self.caller.contract
        there = [name for name, tensor in zip(contract.names, tensors, strict=True) if tensor is not None]
        op, written = contract.op, " and ".join(name for name in contract.mutated if name in there)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            text = f"{op} writes into {written} and has no gradient; pass detach()ed tensors, or use torch.no_grad()"
            raise DerivativeError(text)
        if has_tangent(given):
            raise DerivativeError(f"{op} writes into {written} and has no derivative")
        traced = is_fake(given)
        if traced:
            tell_traced(op)
            kernel = self.choice.name(Phase.INFERENCE, tensors, values, kernel, traced=True)
        with below_autograd(), self.choice.naming(kernel) if traced else nullcontext():
            self.caller.torch_op()(*tensors, *values, kernel)

    def _refuse_vmap(self, *_: Any) -> NoReturn:
        written = " and ".join(self.caller.contract.mutated)
        text = f"{self.caller.contract.op} writes into {written}, which vmap cannot batch; call it for each element"
        raise TransformError(text)

    def _refuse_distributed(self, tensors: Sequence[Any]) -> Callable[..., Any] | None:
        if some_are_distributed(tensors):
            op = self.caller.contract.op
            raise ArgumentTypeError(f"{op} writes into its arguments; each rank calls it on its own part (to_local())")
        return None
