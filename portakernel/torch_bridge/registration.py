"""Registers an op in ``torch.ops.portakernel``: schema, implementation, fake, autocast.

Three torch ops make one of ours: ``<op>`` is the public one, ``<op>_forward`` also returns what backward needs and
carries the gradient formula, ``<op>_backward`` computes the gradients. Each takes kernels' full names, so that a
compiled graph says what it runs; an empty name, or a policy's token, means: decide by the policy in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.key_layout import PLAIN, CallKind
from portakernel.calling.observers import tell_process
from portakernel.claims.request import Phase
from portakernel.contract import Result, alternatives
from portakernel.host.as_written import as_written
from portakernel.torch_bridge.autocast import autocast
from portakernel.torch_bridge.derivatives import Derivatives, run_backward
from portakernel.torch_bridge.eager_training import EagerTraining, has_eager_training
from portakernel.torch_bridge.sharding import Sharding
from portakernel.torch_bridge.signature import Signature
from portakernel.torch_bridge.writing import Writing

_AUTOCAST_KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")


class Bridge:
    """The registrations of one op; they last as long as the object."""

    def __init__(self, caller: OpCaller) -> None:
        self.caller = caller
        self.contract = caller.contract
        self.signature = Signature(caller.contract)
        self.library = torch.library.Library(caller.namespace, "FRAGMENT")
        for schema in self.signature.schemas():
            self.library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self._implement()
        if self.contract.mutated:
            Writing(caller, self.signature).register(self.library)
            return
        derivatives = Derivatives(caller, self.signature)
        self._choice = derivatives.choice
        derivatives.register(self.library)
        if has_eager_training(self.contract):
            caller.train = EagerTraining(derivatives).apply
        caller.distributed = Sharding(caller, self.signature).applying

    def _implement(self) -> None:
        op = self.contract.op
        parts: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
            ("", self._inference, self._fake),
        ]
        if not self.contract.mutated:
            parts.append(("_forward", self._training, self._fake_forward))
        if self.contract.gradient == "kernel":
            parts.append(("_backward", self._backward, self._fake_backward))
        for suffix, implementation, fake in parts:
            self.library.impl(op + suffix, implementation, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{self.caller.namespace}::{op}{suffix}", fake, lib=self.library)
        if self.contract.autocast != "keep":
            for key in _AUTOCAST_KEYS:
                self.library.impl(op, self._autocast, key)

    @as_written
    def _inference(self, *arguments: Any) -> Any:
        if (result := self.caller.inference_hit(*arguments)) is not None:
            return result
        tensors, values, (kernel,) = self.signature.public(arguments)
        self.caller.arguments.check(tensors, values)
        policy = self.caller.policy(kernel)
        returned = self.caller.run(PLAIN, tensors, values, policy, (*tensors, *values, None))
        tell_process(self.contract, tensors, values)
        return self.caller.completed(returned, values, tensors[0])

    @as_written
    def _training(self, *arguments: Any) -> Any:
        if (result := self.caller.training_hit(*arguments)) is not None:
            return result
        tensors, values, (kernel, _) = self.signature.forward(arguments)
        self.caller.arguments.check(tensors, values)
        policy, given = self.caller.policy(kernel), (*tensors, *values)
        unpaired = self._choice.unpaired(kernel)
        kind = CallKind(Phase.TRAINING, below_autograd=self.caller.some_are_recorded, unpaired=unpaired)
        returned = self.caller.run(kind, tensors, values, policy, given)
        tell_process(self.contract, tensors, values, phase=Phase.TRAINING)
        return self.caller.completed(returned, values, tensors[0], saved=True)

    @as_written
    def _backward(self, *arguments: Any) -> Any:
        parts, given = self.signature.backward(arguments)
        (_, _, (_, kernel, _)) = parts
        gradients = run_backward(self.caller, parts, given, self.caller.policy(kernel))
        # a torch op returns tensors only: an unwanted gradient is an empty one
        first = parts[0][0]
        return _unwrapped(gradient if gradient is not None else first.new_empty(0) for gradient in gradients)

    def _fake(self, *arguments: Any) -> Any:
        tensors, values, _ = self.signature.public(arguments)
        return self._forms(tensors, values, saved=False)

    def _fake_forward(self, *arguments: Any) -> Any:
        tensors, values, _ = self.signature.forward(arguments)
        return self._forms(tensors, values, saved=True)

    def _forms(self, tensors: Sequence[Tensor], values: Sequence[Any], *, saved: bool) -> Any:
        made = self.caller.arguments.at(values)
        made.check_dtypes(self.caller.arguments.dtypes(tensors), self.caller.arguments.contract)
        forms = self.caller.arguments.results(tensors, values, saved=saved)
        like = tensors[0]
        results = tuple(like.new_empty(shape, dtype=dtype) for shape, dtype in forms.values())
        return self.caller.completed(results, values, like, saved=saved)

    def _fake_backward(self, *arguments: Any) -> Any:
        (tensors, values, (needs, _, _)), _ = self.signature.backward(arguments)
        made, first, empty = self.caller.arguments.at(values), tensors[0], (0,)
        dims, leading = made.bind_shapes(self.caller.arguments.shapes(tensors))
        dtypes, named = self.caller.arguments.dtypes(tensors), self.caller.arguments.named(values)
        gradients = []
        for argument, tensor, needed in zip(made.tensors, tensors, needs, strict=True):
            if not needed:
                gradients.append(first.new_empty(empty))
            elif tensor is not None:
                gradients.append(tensor.new_empty(tensor.shape))
            else:  # neither kept nor stood for: its form follows from the others'
                like = Result(argument.name, argument.sizes, like=alternatives(argument.dtypes)[0][0])
                shape, dtype = made.form(like, dims, leading or (), dtypes, named)
                gradients.append(first.new_empty(shape, dtype=getattr(torch, dtype)))
        return _unwrapped(gradients)

    @as_written
    def _autocast(self, *arguments: Any) -> Any:
        tensors, values, (kernel,) = self.signature.public(arguments)
        device = tensors[0].device.type
        with torch.autocast(device, enabled=False):
            return self.caller.torch_op()(*autocast(self.contract, tensors, values), *values, kernel)


def _unwrapped(tensors: Iterable[Tensor]) -> Any:
    """One tensor alone, or several in a tuple, as torch's schemas have them."""
    several = tuple(tensors)
    return several[0] if len(several) == 1 else several
