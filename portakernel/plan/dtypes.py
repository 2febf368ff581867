"""One dtype in a plan for all tensors that share it, as one names a call: what it stands for, and where it will do.

What is written must be what is read: the dtypes that one name stands for follow from the op's contract alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Contract
from portakernel.errors import UnknownNameError
from portakernel.words.dtypes import DTYPES, FLOAT64


def values_of(contract: Contract, features: Mapping[str, Any], formats: Mapping[str, str]) -> dict[str, Any]:
    """The values of the op's parameters that a kind's features and scale formats say.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: the op has no such parameter, format or value.
    """
    holders = {p.of or p.name: p for p in contract.parameters if p.kind == "format"}
    values = {name: contract.value(name, value) for name, value in features.items()}
    for name, value in formats.items():
        if name not in holders:
            raise UnknownNameError("tensor with a scale format", name, holders, where=contract.op)
        values[holders[name].name] = holders[name].canonical(contract.op, value)
    return values


def spread(contract: Contract, dtype: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The dtypes of a call whose tensors have ``dtype`` where they can; tensors that may be left out are not there.

    A tensor that cannot have it has what another's dtype, or its contract, leaves it. Empty where none can have it.
    """
    made = contract.at(values)
    typed = {p.name: str(values.get(p.name, p.default)) for p in contract.parameters if p.kind == "dtype"}
    fitted = False
    for tensor in made.tensors:
        if tensor.optional:
            continue
        accepted = made.accepted_dtypes(tensor.name, typed)
        if dtype in accepted or (dtype == FLOAT64 and tensor.name == made.in_float64):
            typed[tensor.name], fitted = dtype, True
        elif accepted and accepted[0] in DTYPES and (accepted[0] in typed.values() or len(accepted) == 1):
            typed[tensor.name] = accepted[0]
    return typed if fitted else {}


def gathered(contract: Contract, dtypes: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
    """The one dtype that stands for these; None where none does."""
    for dtype in dict.fromkeys(dtypes.values()):
        if spread(contract, dtype, values) == dict(dtypes):
            return dtype
    return None
