"""A request as one line of text, and back: what a failure is repeated with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from portakernel.contract.case import Case, Layout, Values
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.unit import Unit, drawn_case, drawn_unit

# Of a case, what stands for itself in JSON.
_PLAIN = ("dims", "layouts", "values", "backward")
_KEYS = ("kernel", "draw", "dtypes", "leading", "parameters", "present", "given", *_PLAIN, "seed")


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
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentValueError(f"--one takes the JSON of a request, as a failure prints it: {error}") from error
    if not isinstance(data, dict) or not {"kernel", "dtypes", "seed"} <= data.keys():
        raise ArgumentValueError("--one takes a JSON object with kernel, dtypes and seed, as a failure prints it")
    if unknown := sorted(data.keys() - set(_KEYS)):
        raise ArgumentValueError(f"--one has no key {unknown[0]!r}; its keys are {', '.join(_KEYS)}")
    if data["kernel"] not in kernels:
        raise ArgumentValueError(f"--one asks kernel {data['kernel']!r}, which is not installed")
    described = contract(kernels[data["kernel"]].op)
    parameters = {name: described.value(name, _tuples(value)) for name, value in data.get("parameters", {}).items()}
    layouts, values = data.get("layouts", {}), data.get("values", "normal")
    wrong = [layout for layout in layouts.values() if layout not in get_args(Layout)]
    wrong += [values] if values not in get_args(Values) else []
    wrong += [name for name in (*data["dtypes"], *layouts) if name not in described.typed]
    wrong += [name for name in data.get("dims", {}) if name not in described.dims]
    if wrong:
        raise ArgumentValueError(f"--one: {described.op} knows no {wrong[0]!r}")
    case = Case(
        drawn_case(int(data.get("draw", 0))),
        tuple(map(int, data.get("leading", ()))),
        {name: int(size) for name, size in data.get("dims", {}).items()},
        layouts,
        parameters,
        values,
        backward=bool(data.get("backward", True)),
        present=tuple(data.get("present", ())),
        given={name: tuple(elements) for name, elements in data.get("given", {}).items()},
    )
    return Request(data["kernel"], case, data["dtypes"], int(data["seed"]))


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
