"""A call's arguments: checked against the contract, and turned into the request that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.contract import Contract
from portakernel.devices import find_device
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.layout import layout_facts
from portakernel.registry import Registry
from portakernel.request import Phase, Request, asked_features, format_values, typed_values
from portakernel.torch_internals import is_jagged, some_are_distributed

Tensors = Sequence[Tensor | None]


class Arguments:
    """What one op makes of the arguments that it is called with: its tensors, then its parameters."""

    def __init__(self, contract: Contract, registry: Registry) -> None:
        self.contract = contract
        self.registry = registry
        self.names = contract.names
        self.choosers = contract.choosers
        self.parameters = tuple(parameter.name for parameter in contract.parameters)

    def canonical(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The parameters' values in the form that kernels and keys have.

        Raises:
            ArgumentTypeError, ArgumentValueError, UnknownNameError: one of them is not accepted.
        """
        return tuple(
            parameter.canonical(self.contract.op, value)
            for parameter, value in zip(self.contract.parameters, values, strict=True)
        )

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """The parameters' values by name."""
        return dict(zip(self.parameters, values, strict=True))

    def at(self, values: Sequence[Any]) -> Contract:
        """The contract as it is for these values of the parameters."""
        return self.contract.at(self.named(values)) if self.choosers else self.contract

    def check_kinds(self, arguments: Sequence[Any]) -> None:
        """Nothing, when every argument is a tensor that has strides or is a wrapper of such, or None where it may be.

        Raises:
            ArgumentTypeError: one is neither.
        """
        for tensor, argument in zip(self.contract.tensors, arguments, strict=True):
            if not isinstance(argument, Tensor) and not (tensor.optional and argument is None):
                found, none = type(argument).__name__, " or None" if tensor.optional else ""
                raise ArgumentTypeError(f"{self.contract.op}: {tensor.name} must be a tensor{none}; this is {found}")
            # a subclass may be whatever it says; of the plain type a nested one has no strides to ask for
            if type(argument) is Tensor and argument.is_nested:
                text = f"{self.contract.op}: {tensor.name} is nested; dense (torch.strided) tensors are accepted"
                raise ArgumentTypeError(text)
            if is_jagged(argument):
                text = "is torch.jagged; dense (torch.strided) tensors are accepted, as its values() are"
                raise ArgumentTypeError(f"{self.contract.op}: {tensor.name} {text}")

    def check(self, tensors: Sequence[Any], values: Sequence[Any]) -> None:
        """Nothing, when the arguments are tensors on one device that fit the contract together.

        Raises:
            ArgumentTypeError: one is no tensor, or of a dtype that the op does not accept.
            ArgumentValueError: ranks, shapes or devices do not fit together.
        """
        op, first = self.contract.op, tensors[0]
        self.check_kinds(tensors)
        for name, tensor in self.given(tensors).items():
            if tensor.device != first.device:
                text = f"{op}: {name} is on {tensor.device}, but {self.names[0]} is on {first.device}"
                raise ArgumentValueError(f"{text}; move them to one device")
            if tensor.layout is not torch.strided:
                raise ArgumentTypeError(f"{op}: {name} is {tensor.layout}; dense (torch.strided) tensors are accepted")
        contract = self.at(values)
        contract.check_dtypes(self.dtypes(tensors))
        contract.bind_shapes(self.shapes(tensors))

    def given(self, tensors: Sequence[Any]) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        return {name: tensor for name, tensor in zip(self.names, tensors, strict=True) if tensor is not None}

    def dtypes(self, tensors: Tensors) -> dict[str, str]:
        """Each tensor's dtype by name."""
        return {name: dtype_name(tensor.dtype) for name, tensor in self.given(tensors).items()}

    def shapes(self, tensors: Tensors) -> dict[str, tuple[int, ...]]:
        """Each tensor's shape by name."""
        return {name: tuple(tensor.shape) for name, tensor in self.given(tensors).items()}

    def results(
        self, tensors: Tensors, values: Sequence[Any], *, saved: bool = False
    ) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each output of this call, and of what it saves; those that do not exist are left out."""
        contract = self.at(values)
        dims, leading = contract.bind_shapes(self.shapes(tensors))
        dtypes, named = self.dtypes(tensors), self.named(values)
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for result in (*contract.outputs, *(contract.saved if saved else ())):
            shape, dtype = contract.form(result, dims, leading or (), dtypes, named)
            found[result.name] = shape, getattr(torch, dtype)
        return found

    def request(
        self,
        tensors: Tensors,
        values: Sequence[Any],
        phase: Phase,
        *,
        saved_by: str | None = None,
        requires: frozenset[str] = frozenset(),
        below_autograd: bool = False,
    ) -> Request:
        """The request that this call makes."""
        contract, named, given = self.contract, self.named(values), self.given(tensors)
        if some_are_distributed(tensors):
            raise ArgumentTypeError(
                f"{contract.op}: each rank decides on its own part of a DTensor; ask about the part (to_local())"
            )
        made = self.at(values)
        dims, _ = made.bind_shapes(self.shapes(tensors))
        facts: dict[str, int] = {}
        for name, tensor in given.items():
            facts |= layout_facts(name, tensor)
        device = find_device(self.registry, given[self.names[0]].device)
        return Request(
            op=contract.op,
            target=device.target,
            dtypes=self.dtypes(tensors) | typed_values(contract, named),
            dims=dims,
            facts=facts,
            features=asked_features(contract, named, given),
            formats=format_values(contract, named),
            values=named,
            absent=frozenset(self.names).difference(given),
            requires=requires,
            phase=phase,
            saved=tuple(saved.name for saved in made.saved),
            saved_by=saved_by,
            below_autograd=below_autograd,
            attached=self.registry.attached_to(device.torch_device or ""),
            device=device,
        )


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as contracts name it."""
    return str(dtype).removeprefix("torch.")
