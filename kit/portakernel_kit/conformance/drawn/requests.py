"""The drawn requests of one kernel, one after the other, and which pairs of levels they have asked for."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from portakernel.claims.capability import Capability, Limit
from portakernel.contract import Contract
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel_kit.conformance.claims import dtype_combinations
from portakernel_kit.conformance.drawn.covering import Covering, Together
from portakernel_kit.conformance.drawn.levels import SIZES, apart, factors, levels_of, neutral_features, size_level
from portakernel_kit.conformance.drawn.request import draw_request
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Unit, drawn_case, drawn_unit

# Once every pair was asked for, so many draws in a row that the kernel does not claim are the end.
_MOST_REFUSED = 400
_MOST_REFUSED_OF_USUAL = 40


class Requests:
    """Units of a suite that hold drawn requests, which its kernel claims; equal ones for an equal seed.

    The first ones ask for every pair of levels that can be, then for whatever comes. Nothing is run to know them.
    """

    def __init__(self, suite: Suite) -> None:
        self.suite, self.contract = suite, suite.contract
        self.claimed = claimed_levels(self.contract, suite.variants)
        self.exact = exact_sizes(self.contract, suite.variants)
        open_ones = {name: levels for name, levels in self.claimed.items() if len(levels) > 1}
        features = {name: level for name, level in neutral_features(self.contract).items() if name in open_ones}
        self.covering = Covering(open_ones, features, apart(self.contract))
        self._units, self._known = self._drawn(), list[Unit]()
        self._last_asked = dict[Together, int]()

    def at(self, place: int, *, all_pairs: bool = False, deadline: float = math.inf) -> Unit | None:
        """The request at this place; None where there are not as many, or where ``all_pairs`` took fewer.

        None too where those before it are not drawn by the ``deadline``, which ``time.monotonic`` tells.
        """
        while len(self._known) <= place and not (all_pairs and not self.covering.left):
            unit = next(self._units, None) if time.monotonic() <= deadline else None
            if unit is None:
                break
            self._known.append(unit)
        return self._known[place] if place < len(self._known) else None

    def __iter__(self) -> Iterator[Unit]:
        place = 0
        while (unit := self.at(place)) is not None:
            yield unit
            place += 1

    def _drawn(self) -> Iterator[Unit]:
        seed, kernel = self.suite.seed, self.suite.kernel.name
        chance, refused, place = random.Random(f"{seed} {kernel}"), 0, 0
        for number in itertools.count():
            # every second request is a usual one: where many things are rare at once, few have gradients
            usual = place % 2 == 1 and refused <= _MOST_REFUSED_OF_USUAL
            wishes = {} if usual else self.covering.wishes(chance)
            most = self.suite.venue.max_elements
            drawn = draw_request(
                self.contract, seed, number, wishes or None, most=most, among=self.claimed, exact=self.exact
            )
            levels = levels_of(self.contract, drawn.case, drawn.dtypes)
            unit = drawn_unit(self.contract.op, replace(drawn.case, name=drawn_case(place)), drawn.dtypes)
            why = self.refusal(unit)
            if why:
                if wishes:
                    self.covering.missed(why)
                refused += 1
                if not self.covering.left and refused > _MOST_REFUSED:
                    return
                continue
            is_new = self.covering.took(levels)
            if wishes:
                self.covering.missed(f"{self.contract.op} has no such call")
                if not is_new:
                    continue
            pairs = self.covering.within(levels)
            self._last_asked |= {together: place for together in pairs if together in self.covering.asked}
            refused, place = 0, place + 1
            yield unit

    def pairs_from(self, place: int) -> int:
        """How many pairs are asked for by the requests that are drawn so far, from this place on."""
        return sum(last >= place for last in self._last_asked.values())

    def refusal(self, unit: Unit) -> str:
        """Why the op, or the kernel, does not serve a request; empty where both do."""
        try:
            return self.suite.why_refused(unit)
        except (ArgumentTypeError, ArgumentValueError) as error:
            return str(error)
        except OpFault as fault:
            return str(fault.__cause__ or fault)


@cache
def _sizes_of_level() -> dict[str, tuple[int, ...]]:
    """Some sizes of each level, among them all that are small and the multiples of large powers of two."""
    found: dict[str, list[int]] = {level: [] for level in SIZES}
    for size in (
        *range(300),
        *(power + more for power in (1 << k for k in range(9, 19)) for more in (-1, 0, 1, 8, 24)),
    ):
        found[size_level(size)].append(size)
    return {level: tuple(sizes) for level, sizes in found.items()}


def _admit(limits: Sequence[Limit], level: str) -> bool:
    return any(all(limit.admits(size) for limit in limits) for size in _sizes_of_level()[level])


def exact_sizes(contract: Contract, variants: Sequence[Capability]) -> tuple[dict[str, int], ...]:
    """Of each variant the dimensions that it claims some sizes of and no others, in all combinations."""
    found: list[dict[str, int]] = []
    for variant in variants:
        listed = {one.parameter: one.one_of for one in variant.limits if one.one_of and one.parameter in contract.dims}
        found += [dict(zip(listed, sizes, strict=True)) for sizes in itertools.product(*listed.values())]
    return tuple(found) or ({},)


def claimed_levels(contract: Contract, variants: Sequence[Capability]) -> dict[str, tuple[str, ...]]:
    """The factors of the op's requests, each with the levels that some variant may claim."""
    found = dict(factors(contract))
    neutral = neutral_features(contract)
    features = frozenset[str]().union(*(variant.features for variant in variants))
    absent = {p.name for p in contract.features} - features
    for name, level in neutral.items():
        if name.removesuffix(" lies").removesuffix(" before").removesuffix(" after") in absent:
            found[name] = (level,)
    claimed: dict[str, set[str]] = {}
    for variant in variants:
        for combination in dtype_combinations(contract, variant):
            for name, dtype in combination.items():
                claimed.setdefault(f"{name} dtype" if name in contract.names else name, set()).add(dtype)
    for parameter in contract.parameters:
        if parameter.kind == "format":
            formats = [variant.formats.get(parameter.of or parameter.name) for variant in variants]
            if all(known is not None for known in formats):
                claimed[parameter.name] = {str(one) for known in formats for one in known or ()}
        values = [variant.values.get(parameter.name) for variant in variants]
        if all(known is not None for known in values):
            claimed[parameter.name] = {str(one) for known in values for one in known or ()}
    for name in contract.dims:
        limits = [[limit for limit in variant.limits if limit.parameter == name] for variant in variants]
        if all(limits):
            claimed[name] = {level for level in SIZES if any(_admit(one, level) for one in limits)}
    for name, levels in claimed.items():
        if name in found:
            found[name] = tuple(level for level in found[name] if level in levels)
    return found
