"""Whether a kernel can serve the calls that an entry of a plan gives it, here or by manifests."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from portakernel.claims.capability import ReasonCode
from portakernel.cli.plan.entry_requests import asked_of, breaking, corners
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import PortakernelError
from portakernel.plan.plan import Entry, Place, Plan
from portakernel.tuning.choices import Choice
from portakernel.words.target import Target


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that an entry covers and its kernel cannot serve.

    ``between``: the dimension of which the ends of the interval would do; empty where one of them is at fault.
    ``unbuilt``: nothing is against it but that the kernel has to be built ahead of calls, and is not in this process.
    """

    dims: Mapping[str, int]
    reasons: tuple[str, ...]
    between: str = ""
    unbuilt: bool = False

    @property
    def sizes(self) -> str:
        """The call's sizes, for people."""
        return ", ".join(f"{name}={size}" for name, size in self.dims.items())


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry whose kernel cannot serve calls that it covers: an example of them, and why."""

    place: Place
    op: str
    entry: Entry
    sizes: str
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The refusal as JSON-ready data; stable."""
        place = {"target": str(self.place), "op": self.op, "line": self.entry.line, "kernel": self.entry.kernel}
        return {**place, "sizes": self.sizes, "reasons": list(self.reasons)}


def refusals(now: Dispatcher, entry: Entry, op: str, place: Place) -> Iterator[Refusal]:
    """What ``entry``'s kernel cannot serve, an example for each reason to be: under the policy in force."""
    registry, policy = now.registry, now.policy()
    kernel = registry.kernels[entry.kernel]
    here = (device for device in registry.reachable_devices() if str(device.target) == place.target)
    try:
        asked = asked_of(entry, op, Target.parse(place.target), registry, next(here, None))
    except PortakernelError as error:
        yield Refusal({}, (str(error),))
        return

    def refusal(dims: Mapping[str, int], between: str = "") -> Iterator[Refusal]:
        if found := now.rejections(kernel.name, replace(asked, dims=dims), policy):
            unbuilt = all(rejection.code is ReasonCode.NEEDS_BUILD for rejection in found)
            yield Refusal(dims, tuple(rejection.text for rejection in found), between, unbuilt)

    for dims in corners(entry.bounds):
        yield from refusal(dims)
    for name, dims in breaking(entry.bounds, kernel):
        yield from refusal(dims, name)


def servable(now: Dispatcher, choices: Iterable[Choice], place: Place) -> tuple[list[Choice], int]:
    """The choices whose kernels can serve all that they cover, and how many were left out because one cannot.

    Of an interval that has sizes which its kernel cannot serve between ends that it can, such as widths that 8 does
    not divide, the two ends are kept: a plan is strict, and there priorities decide.
    """
    kept, left_out = list[Choice](), 0
    for choice in choices:
        found = [one for one in refusals(now, Entry.of(choice), choice.kind.op, place) if not one.unbuilt]
        if any(not refusal.between for refusal in found):
            left_out += 1
            continue
        ends = [
            [(bounds[0], bounds[0]), (bounds[1], bounds[1])] if any(one.between == name for one in found) else [bounds]
            for name, bounds in choice.bounds.items()
        ]
        for bounds in itertools.product(*ends):
            kept.append(replace(choice, bounds=dict(zip(choice.bounds, bounds, strict=True))))
    return kept, left_out


def refused_entries(now: Dispatcher, plan: Plan, places: Collection[Place]) -> tuple[list[Refused], list[str]]:
    """The entries whose kernels cannot serve, and a note for each kernel that has to be built before it can."""
    refused, unbuilt = list[Refused](), dict[str, None]()
    for place, op, entry in plan.entries():
        if place not in places:
            continue
        found = list(refusals(now, entry, op, place))
        if any(one.unbuilt for one in found):
            unbuilt[
                f"{entry.kernel} is built ahead of calls: have `portakernel warmup` do it where the plan is followed"
            ] = None
        if against := next((one for one in found if not one.unbuilt), None):
            refused.append(Refused(place, op, entry, against.sizes, against.reasons))
    return refused, list(unbuilt)
