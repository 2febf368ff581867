"""One drawn request: a case like those of the contracts, and dtypes; nothing but the contract and the seed decide."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from types import CodeType
from typing import Any

from portakernel.contract import Contract, Parameter
from portakernel.contract.case import Case, Layout, Values
from portakernel.contract.sizes import DIMENSION, parse_size
from portakernel.words.dtypes import DTYPES
from portakernel_kit.conformance.claims import elements, possible
from portakernel_kit.conformance.inputs import case_shape, is_present
from portakernel_kit.conformance.memory import layouts_of

# The truth is computed on the CPU, in float64: up to here that takes some milliseconds.
_MOST_ELEMENTS, _MOST_FLOPS = (1 << 11, 1 << 14, 1 << 16), 50_000_000
_LARGEST_SIZE = 12.0
# Far from 1, and still numbers in float32 when multiplied with a few dozen drawn ones and log2(e).
_TINY, _HUGE = 1e-30, 1e30
# Equal terms are the worst to add up one by one: tolerances are for as many as the ops' own cases have.
_MOST_EQUAL_TERMS = 128
# A gradient in which greater ones cancel is nothing but their rounding; one of what is divided by less, no number.
_ORDINARY = 1e6


@dataclass(frozen=True, slots=True)
class Drawn:
    """A case, the dtypes it comes in, and how the gradients of its outputs lie."""

    case: Case
    dtypes: Mapping[str, str]
    gradient: Layout

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        return {**asdict(self.case), "dtypes": dict(self.dtypes), "gradient": self.gradient}


def draw_request(contract: Contract, seed: int, number: int) -> Drawn:
    """The request with this number; equal ones for equal arguments."""
    chance = random.Random(f"{seed} {number} {contract.op}")
    plain = chance.random() < 0.4
    parameters = _parameters(contract, chance, plain)
    optional = [t for t in contract.tensors if t.optional and not (plain and t.feature)]
    present = tuple(t.name for t in optional if chance.random() < 0.35)
    dtypes = _dtypes(contract.at(parameters), parameters, chance)
    case = Case(f"drawn {number}", parameters=parameters, present=present, backward=False)
    case = _sized(contract, case, dtypes, chance)
    case = _with_pieces(contract, case, chance)
    kinds: list[Values] = [c.values for c in contract.cases if c.values != "normal"]
    far = any(not 1 / _ORDINARY <= size <= _ORDINARY for size in _magnitudes(contract, case))
    values = chance.choice(kinds) if kinds and chance.random() < 0.25 and not far else "normal"
    if values != "normal":
        case = replace(case, parameters={**parameters, **_shown(contract, values, chance)})
    case = replace(case, values=values, layouts=_layouts(contract.at(case.parameters), case, chance))
    case = replace(case, backward=_has_gradient(contract, case))
    layouts: tuple[Layout, ...] = ("contiguous", "expanded", "transposed")
    # and where rows are compared with a formula that sums in another order, it may hit by chance what cancels
    many = math.prod(case.leading) > _MOST_EQUAL_TERMS or contract.tolerance.rule == "plain"
    return Drawn(case, dtypes, chance.choice([layout for layout in layouts if layout != "expanded" or not many]))


# --- values and dtypes ------------------------------------------------------------------------------------------------


def _parameters(contract: Contract, chance: random.Random, plain: bool) -> dict[str, Any]:
    """Every parameter's value: half of them neutral, the others anywhere in what is defined; ``plain``: no features.

    What a parameter permits shows in no result.
    """
    found: dict[str, Any] = {}
    for parameter in contract.parameters:
        neutral = chance.random() < 0.5 and parameter.kind not in ("dtype", "format")
        neutral = neutral or parameter.permission or (plain and parameter.feature)
        found[parameter.name] = parameter.default if neutral else _value(parameter, chance)
    formats = [p for p in contract.parameters if p.kind == "format"]
    # both operands in one format is what most kernels are for
    if len(formats) > 1 and chance.random() < 0.6:
        found |= {p.name: found[formats[0].name] for p in formats}
    return found


def _value(parameter: Parameter, chance: random.Random) -> Any:
    if known := parameter.possible():
        return chance.choice(known)
    if parameter.kind == "int":
        return chance.choice((0, 1, -1, (1 << 31) - 1))
    if parameter.kind == "window":
        return tuple(chance.choice((-1, 0, 1, chance.randint(2, 300), 1 << 20)) for _ in range(2))
    ordinary = chance.uniform(max(parameter.least, -2.0), min(parameter.most, 2.0))
    tried = [0.0, -0.0, _TINY, -_TINY, _HUGE, -_HUGE, parameter.least, parameter.most, ordinary, -ordinary, -1.0]
    return chance.choice([v for v in tried if parameter.least <= v <= parameter.most and math.isfinite(v)])


def _shown(contract: Contract, values: Values, chance: random.Random) -> dict[str, Any]:
    """The words with which some case of the op shows such numbers: an activation may be undefined at infinity."""
    case = chance.choice([case for case in contract.cases if case.values == values])
    words = [p.name for p in contract.parameters if p.kind == "text" and p.name not in contract.choosers]
    return {name: case.parameters.get(name, contract.parameter(name).default) for name in words}


def _dtypes(contract: Contract, parameters: Mapping[str, Any], chance: random.Random) -> dict[str, str]:
    """A dtype for everything that has one; ``contract`` has no choice left open."""
    found: dict[str, str] = {}
    for name in contract.typed:
        if name not in contract.names:
            found[name] = parameters[name]
            continue
        accepted = [dtype for dtype in contract.accepted_dtypes(name, found) if dtype in DTYPES]
        # of many dtypes kernels claim the first more often than the others
        found[name] = accepted[0] if len(accepted) > 3 and chance.random() < 0.5 else chance.choice(accepted)
    return found


def _has_gradient(contract: Contract, case: Case) -> bool:
    """Whether the op has a gradient that numbers like these do not bury in what cancels."""
    shown = any(c.backward for c in contract.cases if c.values == case.values)
    ordinary = all(size == 0.0 or 1 / _ORDINARY <= size <= _ORDINARY for size in _magnitudes(contract, case))
    return contract.gradient != "none" and shown and ordinary


def _magnitudes(contract: Contract, case: Case) -> list[float]:
    """How large the parameters are that are numbers and not the default."""
    pairs = ((case.parameters[p.name], p.default) for p in contract.parameters if p.kind == "float")
    return [abs(value) for value, default in pairs if value is not None and value != default]


# --- sizes and layouts ------------------------------------------------------------------------------------------------


def _sized(contract: Contract, case: Case, dtypes: Mapping[str, str], chance: random.Random) -> Case:
    """``case`` with dimensions that the op admits, of tensors that are small enough."""
    steps = chance.choice((1, 1, 2, 8, 16, 64))
    leading = {size[1:] for t in contract.at(case.parameters).tensors for size in t.sizes if size.startswith("*")}
    # not the same ones are the large ones each time
    tops = {name: chance.uniform(1.0, _LARGEST_SIZE) for name in contract.dims}
    dims = {name: _size(chance, top, steps, empty=_may_be_empty(contract, name)) for name, top in tops.items()}
    most = chance.choice(_MOST_ELEMENTS)
    while True:
        failing = _failing(contract, dims)
        if failing:
            for name in failing:
                dims[name] = _size(chance, tops[name], steps, empty=_may_be_empty(contract, name))
            if len(failing) == 2 and chance.random() < 0.8:
                dims[failing[0]] = dims[failing[1]] * chance.randint(1, 8)
            continue
        rows = next((dims[name] for name in leading), 1)
        fixed = {name: size for name, size in dims.items() if name not in leading}
        made = replace(case, dims=fixed, leading=_split(rows, chance) if leading else ())
        if (size := _too_large(contract, made, dims, dtypes, most)) or not possible(contract, made):
            name = max(dims, key=lambda n: (dims[n] if size else 1, chance.random()))
            tops[name] = max(tops[name] - 0.5, 1.0)
            dims[name] = _size(chance, tops[name], steps, empty=_may_be_empty(contract, name))
            continue
        return made


@cache
def _may_be_empty(contract: Contract, name: str) -> bool:
    """Whether some case of the op says what is true where the dimension is 0."""
    leads = any(t.leading == name for t in contract.at(contract.values()).tensors)
    return any(case.dims.get(name) == 0 or (leads and 0 in case.leading) for case in contract.cases)


def _size(chance: random.Random, top: float, step: int, *, empty: bool) -> int:
    """One, about a power of two, or anything up to ``2**top``, most often a multiple of ``step``; perhaps 0."""
    # where sizes are multiples, most are: a claim refuses what has one odd size
    kind = chance.random() if step < 8 or chance.random() < 0.2 else 1.0
    if kind < 0.04 and empty:
        return 0
    if kind < 0.12:
        return 1
    size = int(2 ** chance.uniform(0.0, top))
    if kind < 0.3:
        return max(0 if empty else 1, (1 << size.bit_length() - 1) + chance.choice((-1, 0, 1)))
    return size if kind < 0.35 else max(step, size // step * step)


def _failing(contract: Contract, dims: Mapping[str, int]) -> list[str]:
    """The dimensions of a requirement that does not hold, or of pieces or indices that cannot be."""
    for condition in contract.requirements:
        names, code = _compiled(condition)
        if not eval(code, {"__builtins__": {}}, {name: dims[name] for name in names}):
            return list(names)
    for tensor in contract.tensors:
        kind, below = tensor.draw.kind, tensor.draw.below
        if kind not in ("segments", "index"):
            continue
        count = parse_size(tensor.sizes[0].removeprefix("*")).name
        # what belongs to no piece has no result, and of nothing there is no index
        empty, full = (count, below) if kind == "segments" else (below, count)
        if empty is not None and full is not None and dims[empty] == 0 and dims[full] > 0:
            return [empty, full]
    return []


@cache
def _compiled(condition: str) -> tuple[tuple[str, ...], CodeType]:
    """The dimensions that a condition is over, and its code."""
    return tuple(dict.fromkeys(DIMENSION.findall(condition))), compile(condition, condition, "eval")


def _too_large(contract: Contract, case: Case, dims: Mapping[str, int], dtypes: Mapping[str, str], most: int) -> bool:
    # the formulas compute what masks hide too, and of an empty dimension the others are in memory all the same
    itemsizes = {name: DTYPES[dtype].itemsize for name, dtype in dtypes.items()}
    choosing = {name: case.parameters[name] for name in contract.choosers}
    full = replace(
        case,
        leading=tuple(max(size, 1) for size in case.leading),
        dims={name: max(size, 1) for name, size in case.dims.items()},
    )
    cost = contract.cost({name: max(size, 1) for name, size in dims.items()}, itemsizes, contract.values(choosing))
    return elements(contract, full) > most or cost.flops > _MOST_FLOPS


def _split(rows: int, chance: random.Random) -> tuple[int, ...]:
    """Leading dimensions whose product is ``rows``; none at all for one row, now and then."""
    if rows == 1 and chance.random() < 0.5:
        return ()
    whole = [size for size in range(1, min(rows, 64) + 1) if rows % size == 0]
    if rows == 0 or chance.random() < 0.5:
        return (rows,)
    first = chance.choice(whole)
    return (first, rows // first) if chance.random() < 0.7 else (first, 1, rows // first)


def _with_pieces(contract: Contract, case: Case, chance: random.Random) -> Case:
    """``case`` with the ends of the pieces that a dimension is cut into, and the parameters that bound these."""
    given, parameters = dict(case.given), dict(case.parameters)
    for tensor in (tensor for tensor in contract.tensors if tensor.draw.kind == "segments"):
        whole, count = case.dims[tensor.draw.below], case_shape(tensor, case)[0] - 1
        inner = sorted(chance.choice((0, whole, chance.randint(0, whole))) for _ in range(count - 1))
        ends = (0, *inner, whole) if count else (0,)
        given[tensor.name] = ends
        longest = max((b - a for a, b in pairwise(ends)), default=0)
        for parameter in contract.parameters:
            if parameter.bounds == tensor.name and parameters[parameter.name] is not None:
                parameters[parameter.name] = longest + chance.choice((0, 0, 1, 100))
    return replace(case, given=given, parameters=parameters)


def _layouts(contract: Contract, case: Case, chance: random.Random) -> dict[str, Layout]:
    found: dict[str, Layout] = {}
    for tensor in contract.tensors:
        if not is_present(tensor, case) or chance.random() < 0.65:
            continue
        layouts = layouts_of(len(case_shape(tensor, case)))
        # what is stored once cannot ascend, and a row of one number has no spread to be divided by
        spread = tensor.leading is not None and "eps" in case.parameters
        one = (spread or tensor.draw.kind in ("segments", "offsets")) and len(case_shape(tensor, case)) == 1
        found[tensor.name] = chance.choice([layout for layout in layouts if not (one and layout == "expanded")])
    return found
