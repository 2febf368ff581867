"""A request as one line of text, and back: what a failure is repeated with."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from portakernel.contract import Contract
from portakernel.contract.case import Case, Layout, Values
from portakernel.contract.parameter import LARGEST
from portakernel.contract.sizes import parse_size
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel.words.dtypes import DTYPES
from portakernel_kit.conformance.inputs import case_parameters, case_shape, is_present
from portakernel_kit.conformance.memory import layouts_of
from portakernel_kit.conformance.unit import Unit, drawn_case, drawn_unit

# Of a case, what stands for itself in JSON.
_PLAIN = ("dims", "layouts", "values", "backward")
_KEYS = ("kernel", "draw", "dtypes", "leading", "parameters", "present", "given", *_PLAIN, "seed")
# Of what is wrong, as many characters are said again.
_MOST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Request:
    """A case in given dtypes that is put to one kernel; ``seed`` draws its numbers."""

    kernel: str
    case: Case
    dtypes: Mapping[str, str]
    seed: int

    def __str__(self) -> str:
        case, default = self.case, Case("")
        draw = int(case.name.rpartition(" ")[2])
        data: dict[str, Any] = {"kernel": self.kernel, "draw": draw, "dtypes": dict(self.dtypes)}
        for field in fields(case):
            value = getattr(case, field.name)
            if field.name != "name" and value != getattr(default, field.name):
                data[field.name] = dict(value) if isinstance(value, Mapping) else value
        return json.dumps({**data, "seed": self.seed}, separators=(",", ":"))

    def unit(self, op: str) -> Unit:
        """What a suite runs."""
        return drawn_unit(op, self.case, self.dtypes)


def parse_request(text: str, kernels: Mapping[str, Kernel]) -> Request:
    """The request that ``text`` spells.

    Raises:
        ArgumentValueError: it is none, or one of something that there is not.
        ArgumentTypeError, UnknownNameError: a dtype, or a parameter's value, is none that the op takes.
    """
    data = _read(text)
    name = data["kernel"]
    if not isinstance(name, str):
        raise _wrong("kernel", "the name of a kernel", name)
    if name not in kernels:
        raise ArgumentValueError(f"--one asks kernel {name!r}, which is not installed; `portakernel list` names those")
    described = contract(kernels[name].op)
    optional = tuple(tensor.name for tensor in described.tensors if tensor.optional)
    values = data.get("values", "normal")
    if values not in get_args(Values):
        raise _wrong("values", f"one of {', '.join(get_args(Values))}", values)
    backward = data.get("backward", True)
    if not isinstance(backward, bool):
        raise _wrong("backward", "true or false", backward)
    present, given = data.get("present", []), _named("given", data, described.names, described)
    if not isinstance(present, list):
        raise _wrong("present", "a list of optional tensors' names", present)
    case = Case(
        drawn_case(_whole("draw", data.get("draw", 0), 0)),
        _numbers("leading", data.get("leading", []), 0),
        {dim: _whole(f"dims.{dim}", size, 0) for dim, size in _named("dims", data, described.dims, described).items()},
        _layouts(data, described),
        {one: described.value(one, _tuples(value)) for one, value in _object("parameters", data).items()},
        values,
        backward=backward,
        present=tuple(_known("present", one, optional, described) for one in present),
        given={one: _numbers(f"given.{one}", elements) for one, elements in given.items()},
    )
    dtypes = _dtypes(data, described, case)
    _check_tensors(described, case, dtypes)
    return Request(name, case, dtypes, _whole("seed", data["seed"]))


def _read(text: str) -> dict[str, Any]:
    """The JSON object that ``text`` is, with what every request has, and no key that none has."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits too
        raise ArgumentValueError(f"--one takes the JSON of a request, as a failure prints it: {error}") from error
    if not isinstance(data, dict) or not {"kernel", "dtypes", "seed"} <= data.keys():
        raise ArgumentValueError("--one takes a JSON object with kernel, dtypes and seed, as a failure prints it")
    if unknown := sorted(data.keys() - set(_KEYS)):
        raise ArgumentValueError(f"--one has no key {unknown[0]!r}; its keys are {', '.join(_KEYS)}")
    return data


def _dtypes(data: Mapping[str, Any], described: Contract, case: Case) -> dict[str, str]:
    """The dtypes, of which each tensor that the case passes has one."""
    dtypes = _named("dtypes", data, described.typed, described)
    for name, dtype in dtypes.items():
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise _wrong(f"dtypes.{name}", f"one of {', '.join(described.possible_dtypes(name))}", dtype)
    made = described.at(case_parameters(described, case, dtypes))
    for tensor in made.tensors:
        if tensor.name not in dtypes and is_present(tensor, case):
            accepted = ", ".join(made.possible_dtypes(tensor.name))
            raise ArgumentValueError(f'--one: "dtypes" says none for {tensor.name}; it may be {accepted}')
    made.check_dtypes(dtypes, described)
    return dtypes


def _layouts(data: Mapping[str, Any], described: Contract) -> dict[str, Layout]:
    found = _named("layouts", data, described.names, described)
    for name, layout in found.items():
        if layout not in get_args(Layout):
            raise _wrong(f"layouts.{name}", f"one of {', '.join(get_args(Layout))}", layout)
    return found


def _check_tensors(described: Contract, case: Case, dtypes: Mapping[str, str]) -> None:
    """Nothing, where every size is known, and tensors can lie as the case says and have the elements that it gives."""
    made = described.at(case_parameters(described, case, dtypes))
    for tensor in (tensor for tensor in made.tensors if is_present(tensor, case)):
        for dim in (parse_size(size.lstrip("*")).name for size in tensor.sizes):
            if dim in made.fixed_dims and dim not in case.dims:
                raise ArgumentValueError(f'--one: "dims" gives no size for {dim}, which {tensor.name} has')
        shape, name = case_shape(tensor, case), tensor.name
        layouts: tuple[str, ...] = ("contiguous", *layouts_of(tensor, len(shape)))
        if (layout := case.layouts.get(name, "contiguous")) not in layouts:
            raise _wrong(f"layouts.{name}", f"one of {', '.join(layouts)} where its shape is {shape}", layout)
        elements = case.given.get(name)
        if elements is not None and len(elements) != math.prod(shape):
            raise _wrong(f"given.{name}", f"{math.prod(shape)} whole numbers, for its shape is {shape}", elements)


def _object(key: str, data: Mapping[str, Any]) -> dict[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        raise _wrong(key, "an object with names as its keys", found)
    return found


def _named(key: str, data: Mapping[str, Any], names: Collection[str], described: Contract) -> dict[str, Any]:
    """An object whose keys are some of ``names``."""
    return {_known(key, name, names, described): value for name, value in _object(key, data).items()}


def _known(key: str, name: Any, names: Collection[str], described: Contract) -> str:
    if name in tuple(names):
        return str(name)
    there = f"it knows {', '.join(names)}" if names else "it knows none, so leave that out"
    raise ArgumentValueError(f'--one: {described.op} knows no {name!r} in "{key}"; {there}')


def _numbers(key: str, found: Any, least: int = -LARGEST) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise _wrong(key, "a list of whole numbers, such as [2, 3]", found)
    return tuple(_whole(f"{key}[{place}]", value, least) for place, value in enumerate(found))


def _whole(key: str, value: Any, least: int = -LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise _wrong(key, "a whole number of 64 bits" + (", from 0" if least == 0 else ""), value)
    return value


def _wrong(key: str, accepted: str, found: Any) -> ArgumentValueError:
    shown = json.dumps(found)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
    return ArgumentValueError(f'--one: "{key}" takes {accepted}; this is {shown}')


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
