"""What a process follows as data that ranks can compare and take over (``portakernel.agreement``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from portakernel.agreement import Decisions
from portakernel.deciding.routes import Routes, Source
from portakernel.plan.plan import Entry, Place
from portakernel.registry.registry import Registry
from portakernel.tensors.units import units_of
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind, canonical
from portakernel.tuning.silences import Silence
from portakernel.tuning.sources import source_digest
from portakernel.words.target import Device

_BY = "portakernel.agree"
# Where an op's name would stand: what is said of all ops.
_ALL_OPS = ""


class Following:
    """What one rank follows on its device, and how it takes over what another does.

    ``lost_lock`` then says that this rank's own plan was locked and what it follows now is not; else it is empty.
    """

    def __init__(self, registry: Registry, routes: Routes, device: Device) -> None:
        self._registry, self._routes = registry, routes
        self._place = Place(str(device.target), units_of(device) or 0)
        self.lost_lock = ""

    @property
    def target(self) -> str:
        """The kind of device that this rank computes on, such as ``nvidia:sm_90/132``."""
        return str(self._place)

    def decisions(self) -> Decisions:
        """What is followed, by kind of device and op; of entries it is said whether they are strict."""
        found: dict[str, dict[str, list[Any]]] = {}
        plan, measured = self._routes.plan, self._routes.measured
        sources: list[Source] = [source for source in (plan, measured) if source is not None]
        for source in sources:
            for place in source.places():
                of_place = found.setdefault(str(Place(*place)), {})
                for op in self._registry.ops:
                    entries = [_data(one, strict=source is plan) for one in self._routes.choices(source, op, place).all]
                    if entries:
                        of_place.setdefault(op, []).extend(entries)
        if plan is not None:
            for place in plan.places():
                found[str(Place(*place))][_ALL_OPS] = [{"locked": plan.locked}]
        return found

    def sources(self) -> Mapping[str, str]:
        """The digest of each kernel that is here."""
        return {name: source_digest(kernel) for name, kernel in self._registry.kernels.items()}

    def adopt(self, decisions: Decisions) -> None:
        """Follows these, and nothing else, until the process ends."""
        strict, soft = (_Agreed(decisions, strict=strict) for strict in (True, False))
        mine = self._routes.plan
        self._routes.set(strict if strict.places() else None, soft if soft.places() else None, for_good=_BY)
        if mine is not None and mine.locked and not strict.locked:
            text = "what it does not cover is no longer refused here; give all ranks the same plan (PORTAKERNEL_PLAN)"
            self.lost_lock = f"agree: {mine.name} is locked, and rank 0, which is followed, has no locked plan: {text}"


class _Agreed:
    """The strict ones of decisions, as a plan, or the others, as measurements."""

    name = "what the first rank follows"

    def __init__(self, decisions: Decisions, *, strict: bool) -> None:
        self._entries: dict[Place, dict[str, list[Choice]]] = {}
        self.locked = False
        for written, ops in decisions.items():
            place = Place.parse(written)
            for op, entries in ops.items():
                if op == _ALL_OPS:
                    if strict:
                        self._entries.setdefault(place, {})
                        self.locked = self.locked or any(entry["locked"] for entry in entries)
                    continue
                of_kind = [_choice(op, entry) for entry in entries if entry["strict"] is strict]
                if of_kind:
                    self._entries.setdefault(place, {})[op] = of_kind
        whole = canonical({"locked": self.locked, "decisions": decisions})
        self.digest = f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"

    def places(self) -> Sequence[Place]:
        """The kinds of devices that the first rank knows choices for."""
        return tuple(self._entries)

    def choices(self, op: str, place: tuple[str, int]) -> Choices:
        """The choices for an op on one kind of device."""
        return Choices(self._entries.get(Place(*place), {}).get(op, ()))

    def notes(self, kind: Kind, dims: Mapping[str, int], place: tuple[str, int], driver: str) -> tuple[str, ...]:
        """Nothing beside the choices was agreed on."""
        del kind, dims, place, driver
        return ()

    def wrong(self, op: str, place: tuple[str, int]) -> Mapping[str, Mapping[str, str]]:
        """None: ranks agree on who serves."""
        del op, place
        return {}

    def silence(self, kind: Kind, dims: Mapping[str, int], place: tuple[str, int]) -> Silence:
        """Whether the choices cover other sizes of such a call, or none of its kind."""
        choices = self.choices(kind.op, place)
        if choices.find(kind, dims) is not None:
            return ""
        return "gap" if any(choice.kind.text == kind.text for choice in choices.all) else "no_record"


def _data(choice: Choice, *, strict: bool) -> dict[str, Any]:
    about = {"strict": strict, "where": choice.where, "why": choice.why, "ready": choice.ready}
    return {"entry": Entry.of(choice).to_data(), **about}


def _choice(op: str, data: Mapping[str, Any]) -> Choice:
    entry = Entry.from_data(data["entry"])
    where = f"rank 0: {data['where']}"
    return Choice(entry.kernel, entry.kind(op), entry.bounds, where, data["why"], data["ready"])
