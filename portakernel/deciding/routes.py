"""What a process follows where no policy names a kernel: a plan, and what was measured on such devices.

Both speak of calls that a kernel is chosen for. They leave alone what ``torch.compile`` dissolves into its graph, where
a kernel's own time says little. Of what a graph keeps whole a plan is asked when it runs, or where the trace has to fix
the kernel, then (``Dispatcher.decide_traced``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.deciding.policies import Wishes
from portakernel.errors import PortakernelError
from portakernel.host.locks import make_lock
from portakernel.registry.registry import Registry
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind
from portakernel.tuning.nearest import Known, nearest
from portakernel.tuning.served import any_phase
from portakernel.tuning.silences import Silence

# A kind of device: its target, as text, and its units.
Place = tuple[str, int]


class Source(Protocol):
    """Where choices come from."""

    def places(self) -> Sequence[Place]:
        """The kinds of devices that there are choices for."""
        ...

    def choices(self, op: str, place: Place) -> Choices:
        """The choices for an op on one kind of device; none where nothing is known."""
        ...


class PlannedSource(Source, Protocol):
    """A plan."""

    @property
    def name(self) -> str:
        """How reasons name it."""
        ...

    @property
    def locked(self) -> bool:
        """Whether a call that it does not cover is an error."""
        ...

    @property
    def digest(self) -> str:
        """What two that decide the same have in common."""
        ...


class MeasuredSource(Source, Protocol):
    """What was measured."""

    def notes(self, kind: Kind, dims: Mapping[str, int], place: Place, driver: str) -> tuple[str, ...]:
        """What there is to say of a call beside its choice: why there is none, whether it is stale."""
        ...

    def wrong(self, op: str, place: Place) -> Mapping[str, Mapping[str, str]]:
        """By kind of call (``any_phase``) the kernels that were wrong while they served, each with what was found."""
        ...

    def silence(self, kind: Kind, dims: Mapping[str, int], place: Place) -> Silence:
        """Why measurements decide nothing of a call, in a word; empty where they do."""
        ...


class Routes:
    """The plan and the measurements that one process follows, and what they say of a request."""

    def __init__(
        self, registry: Registry, plan: PlannedSource | None = None, measured: MeasuredSource | None = None
    ) -> None:
        self._registry = registry
        self.plan, self.measured = plan, measured
        self._frozen_by = ""
        self._known: dict[tuple[Source, str, Place], Choices] = {}
        self._lock = make_lock()

    def set(self, plan: PlannedSource | None, measured: MeasuredSource | None, *, for_good: str = "") -> None:
        """Puts others in the place of those before; who keeps decisions has to make them anew.

        ``for_good`` names who does so for as long as the process lives.

        Raises:
            PortakernelError: somebody has done so for good.
        """
        with self._lock:
            if self._frozen_by and self._frozen_by == for_good:
                raise PortakernelError(
                    f"{for_good} was called before, and what this process follows stays as it is until it ends: call it"
                    " once"
                )
            if self._frozen_by:
                raise PortakernelError(
                    f"what this process follows was set by {self._frozen_by} and stays as it is until it ends: load"
                    f" plans and measurements before {self._frozen_by}"
                )
            self.plan, self.measured, self._frozen_by, self._known = plan, measured, for_good, {}

    def of(self, op: str) -> tuple[Choices, ...]:
        """All choices for ``op`` on what the installed torch reaches, of every source."""
        vendors = {b.vendor for b in self._registry.backends.values() if self._registry.reaches(b)}
        found = (
            self.choices(source, op, place)
            for source in (self.plan, self.measured)
            if source is not None
            for place in source.places()
            if place[0].partition(":")[0] in vendors
        )
        return tuple(filter(None, found))

    def follow(self, request: Request, wishes: Wishes, below: Wishes | None = None) -> Wishes:
        """``wishes``, and what is followed where they name no kernel; a plan is strict, a measurement is not.

        ``below`` are the wishes without what a trace chose, which plans go before. What is traced is not a plan's.
        """
        if request.compiled or self._is_settled(request):
            return wishes
        below = wishes if below is None else below
        planned = below if request.traced else self.planned(request, below)
        if planned is not below:
            return planned
        if wishes.use or wishes.prefer:
            return wishes
        if self.measured is not None and (choice := self._find(self.measured, request)) is not None:
            where, words = dict.fromkeys(choice.kernels, choice.where), {name: name for name in choice.kernels}
            reasons = {choice.kernel: f"{choice.where} prefers it: {choice.why}"}
            if choice.ready:
                reasons[choice.ready] = f"{choice.where} prefers it until {choice.kernel} is built"
            return replace(wishes, prefer=where, words=words, reasons=reasons, followed="measured")
        return wishes

    def planned(self, request: Request, wishes: Wishes, among: Collection[str] | None = None) -> Wishes:
        """``wishes``, and what the plan says where they name no kernel.

        With ``among`` its entries for these kernels alone are asked, and not whether it is locked. A compiled graph
        calls what a plan names. Of a call that autograd is through with, entries for kernels whose gradient PyTorch
        records are passed over: nobody records there.
        """
        plan = self.plan
        if plan is None or wishes.use or wishes.prefer or self._is_settled(request):
            return wishes
        choice = self._find(plan, request, among)
        if choice is not None:
            if request.below_autograd and self._registry.kernels[choice.kernel].saves == "autograd":
                return wishes
            form: Mapping[str, Any] = {"compiled": "call", "compiled_source": choice.where} if request.compiled else {}
            use, words = {choice.kernel: choice.where}, {choice.kernel: choice.kernel}
            return replace(wishes, use=use, words=words, followed="plan", **form)
        if not plan.locked or among is not None:
            return wishes
        return replace(wishes, locked=plan.name, uncovered=self._uncovered(plan, request))

    def has_part(self, source: Source, request: Request) -> bool:
        """Whether a source has choices for the request's op, on such devices."""
        places = [place for place in source.places() if place[0] == str(request.target)]
        return any(self.choices(source, request.op, place) for place in self._here(places, request))

    def traced(self, ops: Collection[str]) -> list[object]:
        """What of the plan decides when calls of ``ops`` are traced, as data: another plan is another graph."""
        plan = self.plan
        if plan is None:
            return []
        from portakernel.tensors.units import units_of_cpu  # as in `_here`

        found: list[object] = [plan.locked, units_of_cpu()]  # torch keeps graphs by GPU, and not by a CPU's threads
        for place in plan.places():
            for op in sorted(ops):
                entries = self.choices(plan, op, place).all
                found.append((place, [(c.kernel, c.kind.text, sorted(c.bounds.items())) for c in entries]))
        return found

    def notes(self, request: Request) -> tuple[str, ...]:
        """What measurements say of a request beside the kernel that they prefer, if any."""
        measured = self.measured
        if measured is None or request.compiled or self._is_settled(request):
            return ()
        places = [place for place in measured.places() if place[0] == str(request.target)]
        if not places:
            return ()
        units = self._units(request)
        if units is None:
            several = sorted({units for _, units in places})
            return (f"measured on such devices with {' and '.join(map(str, several))} units, which may decide there",)
        kind, dims = Kind.of(request, self._registry.for_op(request.op)), _sizes(request.dims)
        place = str(request.target), units  # what was measured with other units alone is told too
        if (
            request.device is None
            and (choice := self.choices(measured, request.op, place).find(kind, dims)) is not None
        ):
            return (f"with {units} units {choice.where} prefers {choice.kernel}: {choice.why}",)
        return measured.notes(kind, dims, place, request.device.driver or "" if request.device is not None else "")

    def unmeasured(self, request: Request, wishes: Wishes) -> Silence:
        """Why measurements did not choose for a request that priorities decided; empty where they were not to.

        ``wishes`` are those that it was decided by: what a policy or a plan names is nothing that was to be measured.
        """
        if wishes.use or wishes.prefer or wishes.locked or request.compiled or self._is_settled(request):
            return ""
        measured = self.measured
        if measured is None or all(target != str(request.target) for target, _ in measured.places()):
            return "no_record"
        if (units := self._units(request)) is None:
            return "no_record"
        kind = Kind.of(request.without_symbols(), self._registry.for_op(request.op))
        return measured.silence(kind, _sizes(request.dims), (str(request.target), units))

    def wrong(self, request: Request) -> Mapping[str, Rejection]:
        """The kernels that a process found wrong while they served such calls on such a device, each with the reason.

        As measurements do, they speak of calls that a kernel is chosen for, and not of what a graph dissolves.
        """
        measured = self.measured
        if measured is None or request.compiled or request.traced or request.device is None:
            return {}
        if request.phase is Phase.BACKWARD:  # which reads what forward saved
            return {}
        places = [place for place in measured.places() if place[0] == str(request.target)]
        by_kind = [kinds for place in self._here(places, request) if (kinds := measured.wrong(request.op, place))]
        if not by_kind:
            return {}
        kind = any_phase(Kind.of(request.without_symbols(), self._registry.for_op(request.op)))
        return {
            name: Rejection(ReasonCode.SHADOW_MISMATCH, f"shadow verification in another process found {detail}")
            for kinds in by_kind
            for name, detail in kinds.get(kind, {}).items()
        }

    def choices(self, source: Source, op: str, place: Place) -> Choices:
        """A source's choices, read once."""
        key = source, op, place
        if (known := self._known.get(key)) is None:
            with self._lock:
                known = self._known[key] = source.choices(op, place)
        return known

    def _is_settled(self, request: Request) -> bool:
        """Whether it is for a backward that was chosen with its forward, which alone knows what it saved."""
        saver = self._registry.kernels.get(request.saved_by or "")
        return request.phase is Phase.BACKWARD and saver is not None and saver.is_paired

    def _find(self, source: Source, request: Request, among: Collection[str] | None = None) -> Choice | None:
        places = [place for place in source.places() if place[0] == str(request.target)]
        # measurements of absent hardware are no promise: `notes` mentions them
        if not places or (request.device is None and source is self.measured):
            return None
        for place in self._here(places, request):
            choices = self.choices(source, request.op, place)
            if choices:
                kind = Kind.of(request.without_symbols(), self._registry.for_op(request.op))
                # a trace's open sizes are compared with a plan's bounds, which guards the graph
                dims = request.dims if source is self.plan else _sizes(request.dims)
                return choices.find(kind, dims, among)
        return None

    def _uncovered(self, plan: PlannedSource, request: Request) -> str:
        """What a plan that does not cover a request has instead."""
        places = [place for place in plan.places() if place[0] == str(request.target)]
        here = list(self._here(places, request))
        if not here:
            parts = ", ".join(f"{target}/{units}" for target, units in plan.places()) or "nothing"
            return f"it has parts for {parts}, and none for this hardware"
        kind = Kind.of(request, self._registry.for_op(request.op))
        known = [
            Known(choice.kind, choice.bounds, choice.where)
            for place in here
            for choice in self.choices(plan, request.op, place).all
        ]
        return nearest(known, kind, _sizes(request.dims)) or f"it has none for {request.op} there"

    def _here(self, places: Sequence[Place], request: Request) -> Iterator[Place]:
        """The place that the request's device is one of; of absent hardware without units, the only one there is."""
        if not places:
            return
        if (units := self._units(request)) is not None:
            yield from (place for place in places if place[1] == units)
        elif request.device is None and len(places) == 1:
            yield from places

    def _units(self, request: Request) -> int | None:
        """The units of the request's device, or of the hardware that is asked about; None where nobody says them."""
        if request.device is None:
            return request.units
        from portakernel.tensors.units import units_of  # asks torch, which a question of absent hardware spares

        return units_of(request.device)


def _sizes(dims: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that are numbers: a traced graph leaves some open."""
    return {name: size for name, size in dims.items() if type(size) is int}
