"""A call's arguments: checked against the contract, and turned into the request that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.contract import Contract
from portakernel.devices import find_device
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.layout import layout_facts
from portakernel.registry import Registry
from portakernel.request import Phase, Request


class Arguments:
    """What one op makes of the arguments that it is called with."""

    def __init__(self, contract: Contract, registry: Registry) -> None:
        self.contract = contract
        self.registry = registry
        self.names = tuple(tensor.name for tensor in contract.tensors)

    def numbers(self, values: Sequence[Any]) -> tuple[float, ...]:
        """The keyword arguments as plain numbers.

        Raises:
            ArgumentTypeError: one of them is not a number.
            ArgumentValueError: one is beyond what a float holds.
        """
        return tuple(self.contract.number(p.name, v) for p, v in zip(self.contract.parameters, values, strict=True))

    def check_kinds(self, arguments: Sequence[Any]) -> None:
        """Nothing, when every argument is a tensor.

        Raises:
            ArgumentTypeError: one is none.
        """
        for name, argument in zip(self.names, arguments, strict=True):
            if not isinstance(argument, Tensor):
                found = type(argument).__name__
                raise ArgumentTypeError(f"{self.contract.op}: {name} must be a tensor; this is {found}")

    def check(self, tensors: Sequence[Any]) -> None:
        """Nothing, when the arguments are tensors on one device that fit the contract together.

        Raises:
            ArgumentTypeError: one is no tensor, or of a dtype that the op does not accept.
            ArgumentValueError: ranks, shapes or devices do not fit together.
        """
        op, first = self.contract.op, tensors[0]
        self.check_kinds(tensors)
        for name, tensor in zip(self.names, tensors, strict=True):
            if tensor.device != first.device:
                text = f"{op}: {name} is on {tensor.device}, but {self.names[0]} is on {first.device}"
                raise ArgumentValueError(f"{text}; move them to one device")
            if tensor.layout is not torch.strided:
                raise ArgumentTypeError(f"{op}: {name} is {tensor.layout}; dense (torch.strided) tensors are accepted")
        self.contract.check_dtypes(self.dtypes(tensors))
        self.contract.bind_shapes(self.shapes(tensors))

    def like(self, tensors: Sequence[Tensor]) -> Tensor:
        """The argument whose form the output has."""
        return tensors[self.names.index(self.contract.outputs[0].like)]

    def dtypes(self, tensors: Sequence[Tensor]) -> dict[str, str]:
        """Each tensor's dtype by name."""
        return {
            name: str(tensor.dtype).removeprefix("torch.") for name, tensor in zip(self.names, tensors, strict=True)
        }

    def shapes(self, tensors: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
        """Each tensor's shape by name."""
        return {name: tuple(tensor.shape) for name, tensor in zip(self.names, tensors, strict=True)}

    def request(
        self,
        tensors: Sequence[Tensor],
        parameters: Sequence[float],
        phase: Phase,
        *,
        saved_by: str | None = None,
        requires: frozenset[str] = frozenset(),
    ) -> Request:
        """The request that this call makes."""
        contract = self.contract
        dims, _ = contract.bind_shapes(self.shapes(tensors))
        facts: dict[str, int] = {}
        for name, tensor in zip(self.names, tensors, strict=True):
            facts |= layout_facts(name, tensor)
        device = find_device(self.registry, tensors[0].device)
        pairs = zip(contract.parameters, parameters, strict=True)
        return Request(
            op=contract.op,
            target=device.target,
            dtypes=self.dtypes(tensors),
            dims=dims,
            facts=facts,
            features={p.name: value for p, value in pairs if p.feature and value != p.default},
            requires=requires,
            phase=phase,
            saved=tuple(saved.name for saved in contract.saved),
            saved_by=saved_by,
            attached=self.registry.attached_to(device.torch_device or ""),
            device=device,
        )
