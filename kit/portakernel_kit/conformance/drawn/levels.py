"""What may differ between two requests of an op: factors, each with levels, which every request has one of."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import Any

from portakernel.contract import Contract, Parameter, alternatives
from portakernel.contract.case import Case, Values
from portakernel_kit.conformance.claims import piece_counts
from portakernel_kit.conformance.drawn.covering import Together
from portakernel_kit.conformance.inputs import case_parameters, is_present
from portakernel_kit.conformance.memory import layouts_of

ABSENT = "absent"
DEFAULT = "default"
# Leading dimensions: their number, and what a request holds (`Values`).
RANK, NUMBERS = "rank", "numbers"
MOST_LEADING = 5

# --- sizes -----------------------------------------------------------------------------------------------------------

LARGE = 1 << 12
SIZES = ("0", "1", "2**k", "2**k - 1", "2**k + 1", "8 * k", "other", "large 8 * k", "large other")


def size_level(size: int) -> str:
    """Which of SIZES a dimension's is."""
    if size < 2:
        return str(size)
    for level, power in (("2**k", size), ("2**k - 1", size + 1), ("2**k + 1", size - 1)):
        if power & (power - 1) == 0 and size <= LARGE:
            return level
    step = "8 * k" if size % 8 == 0 else "other"
    return step if size <= LARGE else f"large {step}"


# --- values ----------------------------------------------------------------------------------------------------------

# Far from 1, and still numbers in float32 when multiplied with a few dozen drawn ones and log2(e).
TINY, HUGE = 1e-30, 1e30
_BEYOND = 1 << 20  # no sequence is as long
_FLOATS = {"0": 0.0, "-0": -0.0, "tiny": TINY, "-tiny": -TINY, "huge": HUGE, "-huge": -HUGE}
_SIDES = {"all": -1, "0": 0, "1": 1, "beyond": _BEYOND}
_INTS = {"0": 0, "1": 1, "-1": -1, "2**31 - 1": (1 << 31) - 1}


def parameter_factors(parameter: Parameter) -> dict[str, tuple[str, ...]]:
    """A parameter's factors: one, or one for each side of a window."""
    name = parameter.name
    if known := parameter.possible():
        return {name: tuple(map(str, known))}
    if parameter.kind == "window":
        return {f"{name} {side}": (*_SIDES, "some") for side in ("before", "after")}
    if parameter.bounds:
        return {name: (DEFAULT, "exact", "more")}
    if parameter.usual:
        return {name: tuple(map(str, parameter.usual))}
    if parameter.kind == "int":
        return {name: (DEFAULT, *_INTS)}
    levels = [] if parameter.is_required else [DEFAULT]
    levels += [level for level, v in _FLOATS.items() if parameter.least <= v <= parameter.most]
    if parameter.default == 0.0:
        levels.remove("0")
    levels += ["above 0"] if parameter.most > 0 else []
    levels += ["below 0"] if parameter.least < 0 else []
    levels += [name for name in ("least", "most") if math.isfinite(end := getattr(parameter, name)) and end != 0.0]
    return {name: tuple(levels)}


def draw_value(parameter: Parameter, wishes: Mapping[str, str], chance: random.Random) -> Any:
    """A value of the levels that are wished for; the default where none is, or the bound of pieces not yet cut."""
    name = parameter.name
    if known := parameter.possible():
        return next((value for value in known if str(value) == wishes.get(name)), parameter.default)
    if parameter.usual:
        return next((value for value in parameter.usual if str(value) == wishes.get(name)), first_usual(parameter))
    if parameter.kind == "window":
        sides = (wishes.get(f"{name} {side}", "all") for side in ("before", "after"))
        return tuple(_SIDES[side] if side in _SIDES else chance.randint(2, 300) for side in sides)
    level = wishes.get(name, "above 0" if parameter.is_required else DEFAULT)
    if level == DEFAULT:
        return parameter.default
    if parameter.kind == "int":
        return _INTS.get(level, parameter.default)  # what bounds pieces is known once they are cut
    if level in _FLOATS:
        return _FLOATS[level]
    if level in ("least", "most"):
        return getattr(parameter, level)
    # of any magnitude that a model has, or as likely as any number up to 2
    size = (
        math.exp(chance.uniform(math.log(1e-6), math.log(4.0))) if chance.random() < 0.5 else chance.uniform(0.0, 2.0)
    )
    value = min(size, parameter.most) if level == "above 0" else max(-size, parameter.least)
    # as kernels take it, so that nothing which cancels shows how it was rounded
    return struct.unpack("f", struct.pack("f", value))[0]


def first_usual(parameter: Parameter) -> Any:
    """The value of a parameter of which nothing is wished for: the default, or the first that is usual."""
    return parameter.usual[0] if parameter.is_required and parameter.usual else parameter.default


def value_levels(parameter: Parameter, value: Any) -> dict[str, str]:
    """The levels that a value has."""
    name = parameter.name
    if parameter.possible() or parameter.usual:
        return {name: str(value)}
    if parameter.kind == "window":
        known = {number: level for level, number in _SIDES.items()}
        pairs = zip(("before", "after"), value, strict=True)
        return {f"{name} {side}": known.get(number, "some") for side, number in pairs}
    if value == parameter.default and _sign(value) == _sign(parameter.default):
        return {name: DEFAULT}
    if parameter.kind == "int":
        known = {number: level for level, number in _INTS.items()}
        return {name: known.get(value, "more")} if not parameter.bounds else {}
    return {name: _float_level(parameter, value)}


def _float_level(parameter: Parameter, value: float) -> str:
    for level, number in _FLOATS.items():
        if value == number and _sign(value) == _sign(number):
            return level
    for level in ("least", "most"):
        if value == getattr(parameter, level):
            return level
    return "above 0" if value > 0 else "below 0"


def _sign(value: Any) -> float:
    return math.copysign(1.0, value) if isinstance(value, float) else 1.0


# --- a request -------------------------------------------------------------------------------------------------------


def numbers_of(contract: Contract) -> tuple[Values, ...]:
    """The kinds of numbers that some case of the op shows, columns of zeros, and rows of several kinds."""
    return tuple(dict.fromkeys(["normal", "sparse", "mixed", *(case.values for case in contract.cases)]))


@cache
def factors(contract: Contract) -> Mapping[str, tuple[str, ...]]:
    """Every factor of an op's requests, with its levels."""
    found: dict[str, tuple[str, ...]] = {}
    for parameter in contract.parameters:
        found |= parameter_factors(parameter)
    for name in contract.names:
        found[f"{name} dtype"] = tuple(sorted(contract.possible_dtypes(name)))
    for tensor in contract.tensors:
        ranks = (
            len(shape) + (MOST_LEADING - 1) * shape[0].startswith("*") for shape in alternatives(tensor.shape) if shape
        )
        absent = (ABSENT,) if tensor.optional else ()
        found[f"{tensor.name} lies"] = (*absent, "contiguous", *layouts_of(tensor, max(ranks, default=0)))
    pieces = piece_counts(contract)
    # references go through pieces one by one
    found |= {name: SIZES[:-2] if name in pieces else SIZES for name in contract.dims}
    if _rows(contract):
        found[RANK] = tuple(map(str, range(MOST_LEADING + 1)))
    found[NUMBERS] = numbers_of(contract)
    return {name: levels for name, levels in found.items() if len(levels) > 1}


def apart(contract: Contract) -> frozenset[Together]:
    """Levels that exclude each other: what is absent has no dtype, and no leading dimension is one row."""
    absent = (
        ((f"{tensor.name} lies", ABSENT), (f"{tensor.name} dtype", dtype))
        for tensor in contract.tensors
        for dtype in contract.possible_dtypes(tensor.name)
    )
    many = (((RANK, "0"), (name, size)) for name in _rows(contract) for size in SIZES if size != "1")
    return frozenset((min(pair), max(pair)) for pair in chain(absent, many))


def neutral_features(contract: Contract) -> dict[str, str]:
    """The factors that are features of the op, each with its neutral level: three of them may meet in one mask."""
    found: dict[str, str] = {}
    for parameter in contract.parameters:
        if (parameter.feature or parameter.kind == "bool") and not parameter.permission:
            found |= value_levels(parameter, parameter.default)
    return found | {f"{tensor.name} lies": ABSENT for tensor in contract.tensors if tensor.feature}


def _rows(contract: Contract) -> set[str]:
    """The names of products of leading dimensions."""
    sizes = (shape[0] for tensor in contract.tensors for shape in alternatives(tensor.shape) if shape)
    return {size[1:] for size in sizes if size.startswith("*")}


def levels_of(contract: Contract, case: Case, dtypes: Mapping[str, str]) -> dict[str, str]:
    """The level of each factor that a request has."""
    values = case_parameters(contract, case, dtypes)
    made, found = contract.at(values), dict[str, str]()
    for parameter in contract.parameters:
        found |= value_levels(parameter, values[parameter.name])
    for tensor in contract.tensors:
        there = tensor.name in made.names and is_present(tensor, case)
        found[f"{tensor.name} lies"] = case.layouts.get(tensor.name, "contiguous") if there else ABSENT
        if there and tensor.name in dtypes:
            found[f"{tensor.name} dtype"] = dtypes[tensor.name]
    rows = math.prod(case.leading)
    for name in contract.dims:
        found[name] = size_level(case.dims.get(name, rows))
    found[RANK] = str(len(case.leading))
    found[NUMBERS] = case.values
    return found
