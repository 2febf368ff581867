"""What a process follows where no policy names a kernel: a plan, and what was measured on such devices.

Both speak of calls that a kernel is chosen for. What ``torch.compile`` dissolves into its graph, beside which a kernel's
own time says little, they leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from portakernel.claims.request import Request
from portakernel.deciding.policies import Wishes
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind

# A kind of device: its target, as text, and its units.
Place = tuple[str, int]


class Source(Protocol):
    """Where choices come from."""

    def places(self) -> tuple[Place, ...]:
        """The kinds of devices that there are choices for."""
        ...

    def choices(self, op: str, place: Place) -> Choices:
        """The choices for an op on one kind of device; none where nothing is known."""
        ...


class Plan(Source, Protocol):
    """A plan; ``name`` is how reasons name it. Where it is ``locked``, a call that it does not cover is an error."""

    @property
    def name(self) -> str: ...

    @property
    def locked(self) -> bool: ...


class Routes:
    """The plan and the measurements that one process follows, and what they say of a request."""

    def __init__(self, registry: Registry, plan: Plan | None = None, measured: Source | None = None) -> None:
        self._registry = registry
        self.plan, self.measured = plan, measured
        self._known: dict[tuple[Source, str, Place], Choices] = {}
        self._lock = make_lock()

    def set(self, plan: Plan | None, measured: Source | None) -> None:
        """Puts others in the place of those before; who keeps decisions has to make them anew."""
        with self._lock:
            self.plan, self.measured, self._known = plan, measured, {}

    def of(self, op: str) -> tuple[Choices, ...]:
        """All choices for ``op`` on what the installed torch reaches, of every source."""
        vendors = {b.vendor for b in self._registry.backends.values() if self._registry.reaches(b)}
        found = (
            self._choices(source, op, place)
            for source in (self.plan, self.measured)
            if source is not None
            for place in source.places()
            if place[0].partition(":")[0] in vendors
        )
        return tuple(filter(None, found))

    def follow(self, request: Request, wishes: Wishes) -> Wishes:
        """``wishes``, and what is followed where they name no kernel; a plan is strict, a measurement is not."""
        if wishes.use or wishes.prefer or request.compiled:
            return wishes
        if (plan := self.plan) is not None:
            choice = self._find(plan, request)
            if choice is not None:
                return replace(wishes, use={choice.kernel: choice.where}, words={choice.kernel: choice.kernel})
            if plan.locked:
                return replace(wishes, locked=plan.name)
        if self.measured is not None and (choice := self._find(self.measured, request)) is not None:
            where, words = {choice.kernel: choice.where}, {choice.kernel: choice.kernel}
            return replace(wishes, prefer=where, words=words, reason=choice.why)
        return wishes

    def _find(self, source: Source, request: Request) -> Choice | None:
        places = [place for place in source.places() if place[0] == str(request.target)]
        if not places:
            return None
        kernels = self._registry.for_op(request.op)
        for place in self._here(places, request):
            choices = self._choices(source, request.op, place)
            if choices and (found := choices.find(Kind.of(request, kernels), _sizes(request.dims))) is not None:
                return found
        return None

    def _here(self, places: list[Place], request: Request) -> Iterator[Place]:
        """The places that the request's device is one of; of absent hardware, the only one there is."""
        if request.device is None:
            yield from places if len(places) == 1 else ()
            return
        from portakernel.tensors.units import units_of  # asks torch, which a question about absent hardware spares

        units = units_of(request.device)
        yield from (place for place in places if place[1] == units)

    def _choices(self, source: Source, op: str, place: Place) -> Choices:
        key = source, op, place
        if (known := self._known.get(key)) is None:
            with self._lock:
                known = self._known[key] = source.choices(op, place)
        return known


def _sizes(dims: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that are numbers: a traced graph leaves some open."""
    return {name: size for name, size in dims.items() if type(size) is int}
