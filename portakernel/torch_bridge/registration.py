"""Registers an op in ``torch.ops.portakernel``: schema, implementation, fake, autocast.

Three torch ops make one of ours: ``<op>`` is the public one, ``<op>_forward`` also returns what backward needs and
carries the gradient formula, ``<op>_backward`` computes the gradients. Each takes kernels' full names, so that a
compiled graph says what it runs; an empty name, or a policy's token, means: decide by the policy in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.call import OpCaller
from portakernel.contract import Result
from portakernel.request import Phase
from portakernel.torch_bridge.derivatives import Derivatives, promoted
from portakernel.torch_bridge.signature import Signature

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
        Derivatives(caller, self.signature).register(self.library)

    def _implement(self) -> None:
        op, outputs = self.contract.op, self.contract.outputs
        parts: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
            ("", self._inference, self._fake(outputs)),
            ("_forward", self._training, self._fake((*outputs, *self.contract.saved))),
        ]
        if self.contract.gradient == "kernel":
            parts.append(("_backward", self._backward, self._fake_backward))
        for suffix, implementation, fake in parts:
            self.library.impl(op + suffix, implementation, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{self.caller.namespace}::{op}{suffix}", fake, lib=self.library)
        if self.contract.autocast == "promote":
            for key in _AUTOCAST_KEYS:
                self.library.impl(op, self._promote, key)

    def _inference(self, *arguments: Any) -> Any:
        tensors, numbers, (kernel,) = self.signature.public(arguments)
        self.caller.arguments.check(tensors)
        policy = self.caller.policy(kernel)
        return self.caller.run(Phase.INFERENCE, tensors, numbers, policy, (*tensors, *numbers, None))

    def _training(self, *arguments: Any) -> Any:
        tensors, numbers, (kernel, _) = self.signature.forward(arguments)
        self.caller.arguments.check(tensors)
        policy = self.caller.policy(kernel)
        return self.caller.run(Phase.TRAINING, tensors, numbers, policy, (*tensors, *numbers))

    def _backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        tensors, numbers, (needs, kernel, saved_by) = self.signature.backward(arguments)
        policy = self.caller.policy(kernel)
        given = (*arguments[:-3], tuple(needs))
        found = self.caller.run(Phase.BACKWARD, tensors, numbers, policy, given, saved_by=saved_by or None)
        # a torch op returns tensors only: an unwanted gradient is an empty one
        return tuple(g if g is not None else t.new_empty(0) for g, t in zip(found, tensors, strict=True))

    def _fake(self, results: Sequence[Result]) -> Callable[..., Any]:
        names = [tensor.name for tensor in self.contract.tensors]

        def fake(*arguments: Any) -> Any:
            tensors = dict(zip(names, arguments[: len(names)], strict=True))
            self.contract.check_dtypes({name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()})
            dims, leading = self.contract.bind_shapes({name: tuple(t.shape) for name, t in tensors.items()})
            made = []
            for result in results:
                like, shape = tensors[result.like], list[int]()
                for name in result.shape:
                    shape += (leading or ()) if name.startswith("*") else (dims[name],)
                dtype = getattr(torch, result.dtype) if result.dtype else like.dtype
                made.append(like.new_empty(shape, dtype=dtype))
            return made[0] if len(made) == 1 else tuple(made)

        return fake

    def _fake_backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        tensors, _, (needs, _, _) = self.signature.backward(arguments)
        return tuple(t.new_empty(t.shape if needed else 0) for t, needed in zip(tensors, needs, strict=True))

    def _promote(self, *arguments: Any) -> Any:
        tensors, numbers, (kernel,) = self.signature.public(arguments)
        with torch.autocast(tensors[0].device.type, enabled=False):
            return self.caller.torch_op()(*promoted(tensors), *numbers, kernel)
