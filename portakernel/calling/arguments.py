"""A call's arguments: checked against the contract, and turned into the request that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from portakernel.calling.devices import find_device
from portakernel.claims.request import Phase, Request, asked_features, format_values, typed_values
from portakernel.contract import Contract
from portakernel.contract.near_misses import BY_HEAD, NORMALISED, NOT_GIVEN, answer
from portakernel.contract.parts import TensorArgument
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.registry.registry import Registry
from portakernel.tensors.layout import layout_facts
from portakernel.tensors.torch_internals import is_jagged, some_are_distributed

Tensors = Sequence[Tensor | None]
# The last dimensions of queries, keys and values.
_HEADS = (("H", "D"), ("G", "D"), ("G", "E"))


class Arguments:
    """One op's arguments, its tensors and then its parameters: checks, names, shapes, the request of a call."""

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

    def refuse(self, unknown: Mapping[str, object], third: object) -> NoReturn:
        """A public call with arguments that the op has not, or with too many by position (``third`` is the first).

        Raises:
            ArgumentTypeError: says of each what it is called here, or what to do.
        """
        op, by_position = self.contract.op, [tensor.name for tensor in self.contract.tensors if not tensor.keyword]
        # an op that writes into its arguments has no results to put anywhere
        known = (*self.names, *self.parameters, *(() if self.contract.mutated else ("out",)), "kernel")
        texts = [f"unknown argument {name!r}; {answer(op, name, known)}" for name in unknown]
        if third is not ...:
            shown = "a tensor" if isinstance(third, Tensor) else repr(third)
            text = f"only {', '.join(by_position)} can be given by position, and {shown} was given after"
            first = next(iter((*self.parameters, "out")))
            texts.append(f"{text}; the rest goes by name, as in {first}=...")
            if type(third) is int:
                texts.append(f"if it is a dimension, {answer(op, 'dim', known)}")
            if isinstance(third, Tensor) and "norm" in op:
                texts.append(f"if a normalized_shape stands before it, leave that out: {NORMALISED}")
        raise ArgumentTypeError(f"{op}: {'; '.join(texts)}")

    def check_kinds(self, arguments: Sequence[Any]) -> None:
        """Nothing, when every argument is a tensor that has strides or is a wrapper of such, or None where it may be.

        Raises:
            ArgumentTypeError: one is neither.
        """
        for tensor, argument in zip(self.contract.tensors, arguments, strict=True):
            if not isinstance(argument, Tensor) and not (tensor.optional and argument is None):
                raise ArgumentTypeError(f"{self.contract.op}: {complaint(self.contract, tensor, argument)}")
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
        contract.check_dtypes(self.dtypes(tensors), self.contract)
        shapes = self.shapes(tensors)
        try:
            contract.bind_shapes(shapes, self.named(values))
        except ArgumentValueError as error:
            if self._fits_by_head(contract, shapes):
                text = f"with heads before positions, (B, H, S, D), they would fit: {BY_HEAD}"
                raise ArgumentValueError(f"{error}; {text}") from error
            raise

    def _fits_by_head(self, contract: Contract, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether tensors of (B, S, H, D) would fit, were their middle dimensions the other way round."""
        by_head = [t.name for t in contract.tensors if len(t.sizes) == 4 and t.sizes[2:] in _HEADS]
        if not by_head or any(len(shapes[name]) != 4 for name in by_head):
            return False
        swapped = {name: (shape[0], shape[2], shape[1], shape[3]) for name, shape in shapes.items() if name in by_head}
        try:
            contract.bind_shapes({**shapes, **swapped})
        except ArgumentValueError:
            return False
        return True

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
        forms: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for result in (*contract.outputs, *(contract.saved if saved else ())):
            shape, dtype = contract.form(result, dims, leading or (), dtypes, named)
            forms[result.name] = shape, getattr(torch, dtype)
        return forms

    def request(
        self,
        tensors: Tensors,
        values: Sequence[Any],
        phase: Phase,
        *,
        saved_by: str | None = None,
        requires: frozenset[str] = frozenset(),
        below_autograd: bool = False,
        unpaired: bool = False,
        compiled: bool = False,
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
            unpaired=unpaired,
            compiled=compiled,
            attached=self.registry.attached_to(device.torch_device or ""),
            device=device,
        )


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as contracts name it."""
    return str(dtype).removeprefix("torch.")


def complaint(contract: Contract, tensor: TensorArgument, argument: object) -> str:
    """The complaint about ``argument`` in a tensor's place, with how to make a tensor of it."""
    kind = type(argument)
    root, name = kind.__module__.partition(".")[0], f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    wanted = f"{tensor.name} must be a tensor{' or None' if tensor.optional else ''}"
    if argument is NOT_GIVEN:
        return f"{tensor.name} is not given"
    if argument is None:
        return f"{wanted}; this is None"
    if root == "numpy" and name == "numpy.ndarray":
        return f"{wanted}; this is {name}: torch.from_numpy({tensor.name}) makes one that shares its memory"
    if hasattr(argument, "__dlpack__"):
        return f"{wanted}; this is {name}: torch.from_dlpack({tensor.name}) makes one that shares its memory"
    if isinstance(argument, torch.nn.Module):
        return f"{wanted}; this is the module {name}: pass its parameter, as in {tensor.name}=module.weight"
    if _is_shape(argument) and tensor.name == "weight" and "norm" in contract.op:
        return f"{wanted}; this is {name}: there is no normalized_shape here, {NORMALISED}"
    if isinstance(argument, (list, tuple)) and argument and all(isinstance(part, torch.Tensor) for part in argument):
        return f"{wanted}; this is a {name} of tensors: torch.stack({tensor.name}) makes one"
    if isinstance(argument, (list, tuple, range)):
        return f"{wanted}; this is {name}: {_of_list(contract, tensor)} makes one, best once and not in each call"
    if isinstance(argument, (bool, int, float, complex)) or root == "numpy":
        return f"{wanted}; this is {name}{_of_number(contract, tensor)}"
    return f"{wanted}; this is {name}"


def _is_shape(argument: object) -> bool:
    sizes = argument if isinstance(argument, (list, tuple)) else (argument,)
    return len(sizes) > 0 and all(type(size) is int for size in sizes)


def _of_list(contract: Contract, tensor: TensorArgument) -> str:
    """The code that makes a list of numbers a tensor of the dtype that ``tensor`` takes, on the first one's device."""
    first, words = contract.names[0], [tensor.name]
    if tensor.name != first:
        possible = contract.possible_dtypes(tensor.name)
        if possible == contract.possible_dtypes(first):
            words.append(f"dtype={first}.dtype")
        elif "int64" not in possible:  # which torch makes of integers by itself
            words.append(f"dtype=torch.{possible[0]}")
        words.append(f"device={first}.device")
    return f"torch.tensor({', '.join(words)})"


def _of_number(contract: Contract, tensor: TensorArgument) -> str:
    """A clause on how a number becomes a tensor of ``tensor``'s shape, which is the first one's, its rows' or other."""
    first, shape = contract.tensors[0], tensor.shape
    once = "makes one, best once and not in each call"
    if tensor.name == first.name:
        return ""
    if not isinstance(shape, tuple) or not shape:  # a scale, which for a whole tensor is one number
        return f": {_of_list(contract, tensor)} {once}"
    if not isinstance(first.shape, tuple):
        return ""
    if shape == first.shape:
        return f": torch.full_like({first.name}, {tensor.name}) {once}"
    if shape == first.shape[-1:] and not shape[0].startswith("*"):
        return f": {first.name}.new_full({first.name}.shape[-1:], {tensor.name}) {once}"
    return f"; its shape is ({', '.join(shape)})"
