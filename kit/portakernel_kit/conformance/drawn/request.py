"""One drawn request: a case like those of the contracts, and dtypes; nothing but the contract and the seed decide."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from portakernel.contract import Contract
from portakernel.contract.case import Case, Layout, Values
from portakernel.contract.shape_binding import unfit
from portakernel.words.dtypes import DTYPES, FLOAT64
from portakernel_kit.conformance.drawn.levels import (
    ABSENT,
    DEFAULT,
    LARGE,
    NUMBERS,
    RANK,
    SIZES,
    draw_value,
    factors,
    first_usual,
    neutral_features,
    numbers_of,
)
from portakernel_kit.conformance.drawn.sizes import sized
from portakernel_kit.conformance.inputs import case_shape, is_present, present_dims
from portakernel_kit.conformance.memory import layouts_of

# A gradient in which greater ones cancel is nothing but their rounding; one of what is divided by less, no number.
_ORDINARY = 1e6
# Of usual requests so many have one large dimension, where the op admits it: a vocabulary, a context, a batch.
_LARGE_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class Drawn:
    """A case, and the dtypes it comes in."""

    case: Case
    dtypes: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        return {**asdict(self.case), "dtypes": dict(self.dtypes)}


def draw_request(
    contract: Contract,
    seed: int,
    number: int,
    wishes: Mapping[str, str] | None = None,
    *,
    most: int | None = None,
    among: Mapping[str, Sequence[str]] | None = None,
    exact: Sequence[Mapping[str, int]] = ({},),
) -> Drawn:
    """The request with this number, at the levels wished for where it can be; equal ones for equal arguments.

    No tensor has more than ``most`` elements. Without wishes it is any request, of the levels ``among`` where given.
    Of ``exact`` dimensions, which no chance would hit, it has one set.
    """
    chance = random.Random(f"{seed} {number} {contract.op}")
    if wishes is None:
        wishes = any_wishes(contract, chance, factors(contract) if among is None else among)
    parameters = _fitting(contract, {p.name: draw_value(p, wishes, chance) for p in contract.parameters})
    optional = [tensor for tensor in contract.tensors if tensor.optional]
    present = tuple(t.name for t in optional if wishes.get(f"{t.name} lies", ABSENT) != ABSENT)
    dtypes = _dtypes(contract.at(parameters), parameters, wishes, chance)
    case = Case(f"drawn {number}", parameters=parameters, present=present, backward=False)
    case = sized(contract, case, dtypes, wishes, chance, most, chance.choice(exact))
    case = _with_pieces(contract, case, wishes, chance)
    values = _numbers(contract, case, wishes)
    if values != "normal":
        case = replace(case, parameters=_shown(contract, values, {**parameters, **case.parameters}, chance))
    case = replace(case, values=values, layouts=_layouts(contract.at(case.parameters), case, wishes))
    return Drawn(replace(case, backward=_has_gradient(contract, case, dtypes)), dtypes)


def _fitting(contract: Contract, parameters: dict[str, Any]) -> dict[str, Any]:
    """``parameters``, of which those have the first of their usual values that no dimensions would fit as they are."""
    for condition in contract.requirements:
        names = unfit(condition, {}, parameters)
        parameters |= {p.name: first_usual(p) for p in contract.parameters if p.name in names}
    return parameters


def any_wishes(contract: Contract, chance: random.Random, among: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A level of those ``among`` for each factor, whatever was asked for before: of every second one the neutral level.

    Of many requests few would be served otherwise, since kernels claim few features, and sizes that are multiples.
    """
    plain, stepped = chance.random() < 0.4, chance.random() < 0.5
    found: dict[str, str] = {}
    features = neutral_features(contract)
    large = chance.choice(list(contract.dims)) if chance.random() < _LARGE_SHARE else None
    for name, levels in among.items():
        if name in contract.dims:
            ordinary = ("8 * k", "2**k") if stepped else SIZES[1:-2]
            usual = [level for level in ordinary if level in levels] or levels
            largest = [level for level in levels if level.startswith("large")] or levels
            found[name] = chance.choice(largest if name == large else levels if chance.random() < 0.1 else usual)
        elif name.endswith(" dtype"):
            # of many dtypes kernels claim the first more often than the others, and of several which fit the others'
            found |= {name: levels[0]} if len(levels) == 1 else {}
        elif name == RANK:
            found[name] = chance.choice((*levels, "1", "1", "2"))
        elif name == NUMBERS:
            found[name] = chance.choice(levels) if chance.random() < 0.25 else "normal"
        elif plain and name in features:
            found[name] = features[name]
        else:
            neutral = features.get(name, "contiguous" if name.endswith(" lies") else DEFAULT)
            found[name] = neutral if neutral in levels and chance.random() < 0.5 else chance.choice(levels)
    return found


def _shown(contract: Contract, values: Values, parameters: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    """``parameters`` with the words that some case of the op has for such numbers: not all are defined at infinity."""
    extreme = [c for c in contract.cases if c.values in ("large", "tiny", "zeros")] or list(contract.cases)
    case = chance.choice([c for c in contract.cases if c.values == values] or extreme)
    words = {p.name: case.parameters.get(p.name, p.default) for p in contract.parameters if p.kind == "text"}
    found = {**parameters, **words}
    if contract.at(found).tensors != contract.at(parameters).tensors:  # whose sizes are already drawn
        found |= {name: parameters[name] for name in contract.choosers}
    return found


def _dtypes(
    contract: Contract, parameters: Mapping[str, Any], wishes: Mapping[str, str], chance: random.Random
) -> dict[str, str]:
    """A dtype for everything that has one; ``contract`` has no choice left open."""
    found: dict[str, str] = {}
    for name in contract.typed:
        if name not in contract.names:
            found[name] = parameters[name]
            continue
        accepted = [dtype for dtype in contract.accepted_dtypes(name, found) if dtype in DTYPES]
        accepted = [dtype for dtype in accepted if dtype != FLOAT64]  # which the reference serves
        # of many dtypes kernels claim the first more often than the others
        some = accepted[0] if len(accepted) > 3 and chance.random() < 0.5 else chance.choice(accepted)
        found[name] = wish if (wish := wishes.get(f"{name} dtype")) in accepted else some
    return found


def _has_gradient(contract: Contract, case: Case, dtypes: Mapping[str, str]) -> bool:
    """Whether the op has a gradient that numbers like these do not bury in what cancels; nothing of 8 bits has one."""
    if DTYPES[dtypes[contract.names[0]]].bits < 16:
        return False
    kinds = ("large", "tiny", "zeros") if case.values == "mixed" else (case.values,)
    without = {c.values for c in contract.cases} - {c.values for c in contract.cases if c.backward}
    shown = not without.intersection(kinds)
    ordinary = all(size == 0.0 or 1 / _ORDINARY <= size <= _ORDINARY for size in _magnitudes(contract, case))
    # a plain formula's distance from the truth says how large an error is, not how large the terms are that cancel
    told = contract.tolerance.rule != "plain" or max((*case.dims.values(), *case.leading), default=0) <= LARGE
    # a row of one number has no spread, beside which a large one is beyond all that float32 holds
    spread = "eps" not in case.parameters or case.values == "normal" or 1 not in case.dims.values()
    return contract.gradient != "none" and shown and ordinary and told and spread


def _magnitudes(contract: Contract, case: Case) -> list[float]:
    """How large the parameters are that are numbers and not the default."""
    pairs = ((case.parameters[p.name], p.default) for p in contract.parameters if p.kind == "float")
    return [abs(value) for value, default in pairs if value is not None and value != default]


# --- pieces and layouts -----------------------------------------------------------------------------------------------


def _with_pieces(contract: Contract, case: Case, wishes: Mapping[str, str], chance: random.Random) -> Case:
    """``case`` with the ends of the pieces that a dimension is cut into, and the parameters that bound these."""
    given, parameters = dict(case.given), dict(case.parameters)
    for tensor in (tensor for tensor in contract.tensors if tensor.draw.kind == "segments"):
        (cut,) = tensor.draw.factors(present_dims(contract.at(case.parameters), case))
        whole, count = case.dims[cut], case_shape(tensor, case)[0] - 1
        inner = sorted(chance.choice((0, whole, chance.randint(0, whole))) for _ in range(count - 1))
        ends = (0, *inner, whole) if count else (0,)
        given[tensor.name] = ends
        longest = max((b - a for a, b in pairwise(ends)), default=0)
        for parameter in contract.parameters:
            if parameter.bounds == tensor.name and wishes.get(parameter.name, DEFAULT) != DEFAULT:
                more = 0 if wishes[parameter.name] == "exact" else chance.choice((1, 100))
                parameters[parameter.name] = longest + more
    return replace(case, given=given, parameters=parameters)


def _layouts(contract: Contract, case: Case, wishes: Mapping[str, str]) -> dict[str, Layout]:
    """How tensors lie, where that is not contiguous, as far as their ranks allow what is wished for."""
    found: dict[str, Layout] = {}
    for tensor in contract.tensors:
        shape = case_shape(tensor, case)
        # what is stored once cannot ascend, and a row of one number has no spread to be divided by
        spread = tensor.leading is not None and "eps" in case.parameters
        one = (spread or tensor.draw.kind in ("segments", "offsets")) and len(shape) == 1
        for layout in layouts_of(tensor, len(shape)):
            if is_present(tensor, case) and layout == wishes.get(f"{tensor.name} lies"):
                found |= {} if one and layout == "expanded" else {tensor.name: layout}
    return found


def _numbers(contract: Contract, case: Case, wishes: Mapping[str, str]) -> Values:
    """The kind of numbers wished for, where the op's cases show it and no parameter is far from 1."""
    far = any(not 1 / _ORDINARY <= size <= _ORDINARY for size in _magnitudes(contract, case))
    shown: dict[str, Values] = {str(kind): kind for kind in numbers_of(contract)}
    return "normal" if far else shown.get(wishes.get(NUMBERS, ""), "normal")
