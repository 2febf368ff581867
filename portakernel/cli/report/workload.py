"""What serves each kind of call of a recording, why, and what measurements and priorities would have served instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Request
from portakernel.claims.request_commands import explain_command
from portakernel.cli.advice import advice, of_nearest_variant
from portakernel.cli.explain.explanation import refused
from portakernel.cli.plan.call_requests import requests_of
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.explaining import decide_as_called, first_device
from portakernel.deciding.kernel_argument import layer_of, strictly
from portakernel.deciding.ranking import is_recorded
from portakernel.deciding.routes import Place, PlannedSource
from portakernel.errors import ArgumentValueError, PortakernelError, UnknownNameError
from portakernel.registry.kernel import Kernel
from portakernel.report.content import PassedOver, Served, Source, Workload
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Kind
from portakernel.warming.outcome import Call
from portakernel.words.target import Device, Target


class Recording(NamedTuple):
    """A file, the calls that it lists, and the ops of which graphs were made."""

    path: Path
    calls: Sequence[Call]
    traced: Sequence[str] = ()


def workload_of(
    now: Dispatcher, recording: Recording, elsewhere: tuple[str, int | None] | None, plan: PlannedSource | None
) -> Workload:
    """The calls of a recording, decided here, or by manifests for hardware ``elsewhere``.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: a call is none of its op, or on a device that is not
            here.
    """
    path, calls, traced = recording
    asked = [(call, request) for call in calls for request in _asked(now, path, call, elsewhere)]
    measured = now.routes.measured
    now.routes.set(None, None)
    by_priority = [_decide(now, call, request) for call, request in asked]
    now.routes.set(plan, measured)
    total = sum(call.count for call, _ in asked)
    served = tuple(
        _served(now, call, _decide(now, call, request), without, total)
        for (call, request), without in zip(asked, by_priority, strict=True)
    )
    return Workload(str(path), sum(call.count for call in calls), len(calls), tuple(traced), served)


def _asked(now: Dispatcher, path: Path, call: Call, elsewhere: tuple[str, int | None] | None) -> list[Request]:
    try:
        return _requests(now, path, call, elsewhere)
    except PortakernelError as error:
        if str(path) in str(error):
            raise
        raise ArgumentValueError(f"{path}: {call}: {error}") from error


def _requests(now: Dispatcher, path: Path, call: Call, elsewhere: tuple[str, int | None] | None) -> list[Request]:
    if elsewhere is not None:
        target, units = elsewhere
        return [replace(request, units=units) for request in requests_of(call, Target.parse(target))]
    device = _device(now, path, call)
    return requests_of(call, device.target, device)


def _device(now: Dispatcher, path: Path, call: Call) -> Device:
    if not call.device:
        return first_device(now.registry)
    try:
        return now.registry.device(call.device)
    except UnknownNameError as error:
        text = f"{path} has calls on {call.device}, and this machine has no such device: {error}"
        way_out = "where it was recorded elsewhere, name that hardware, as --target nvidia:sm_90/132"
        raise ArgumentValueError(f"{text}; {way_out}") from error


def _decide(now: Dispatcher, call: Call, request: Request) -> Decision:
    strict = strictly(now.registry, call.op, call.kernel)
    return decide_as_called(now, request, now.policy(layer_of(now.registry, call.op, strict)))


def _served(now: Dispatcher, call: Call, decision: Decision, without: Decision, total: int) -> Served:
    request = decision.request
    kernel, why_measured, stale = _measured(now, request)
    able = [one.kernel for one in decision.candidates if one.status in ("chosen", "eligible")]
    chosen = decision.chosen
    return Served(
        op=request.op,
        phase=str(request.phase),
        target=str(request.target),
        said=str(request),
        request=request.to_json(),
        calls=call.count,
        share=call.count / total,
        kernel=chosen.name if chosen is not None else None,
        why=decision.why,
        source=_source(now, call, decision),
        by_priority=without.chosen.name if without.chosen is not None else None,
        measured=kernel,
        measured_why=why_measured,
        stale=stale,
        notes=(*(shortfall.text for shortfall in decision.shortfalls), *_notes(now, decision)),
        passed_over=() if chosen is not None and is_recorded(chosen, request) else _passed_over(decision),
        rivals=sum(kernel.first_party and not kernel.is_reference for kernel in able),
        planned=_planned(now, request),
        slow_reference=chosen is not None and chosen.is_reference and not _free(now, request),
        explain=explain_command(request, decision.wishes if call.kernel else None),
    )


def _notes(now: Dispatcher, decision: Decision) -> list[str]:
    """What there is to say beside what measurements say, which has a place of its own."""
    measured = now.routes.notes(decision.request)
    return [note for note in decision.notes if note not in measured]


def _free(now: Dispatcher, request: Request) -> bool:
    """Whether the reference is no slower there than expected."""
    return request.target.vendor in now.reference_is_free


def _source(now: Dispatcher, call: Call, decision: Decision) -> Source:
    chosen, wishes = decision.chosen, decision.wishes
    if chosen is None:
        return "none"
    if call.kernel is not None:
        return "call"
    if wishes is not None and chosen.name in wishes.use:
        plan = now.routes.plan
        return "plan" if plan is not None and wishes.use[chosen.name].startswith(f"{plan.name}:") else "policy"
    if wishes is not None and chosen.name in wishes.prefer:
        return "measured" if chosen.name in wishes.reasons else "policy"
    return "priority"


def _passed_over(decision: Decision) -> tuple[PassedOver, ...]:
    return tuple(
        PassedOver(
            one.kernel.name,
            tuple(rejection.text for rejection in one.rejections),
            _action(one.kernel, one.rejections),
            all(rejection.code is ReasonCode.NEEDS_BUILD for rejection in one.rejections),
        )
        for one in refused(decision)
    )


# What another kernel that ran forward, or a call without gradients, would take away: no step of whoever deploys.
_OF_THE_CALL = frozenset({ReasonCode.BACKWARD_MISMATCH, ReasonCode.REQUIRES_GRAD, ReasonCode.NO_BACKWARD})


def _action(kernel: Kernel, rejections: Sequence[Rejection]) -> str:
    """What would take all reasons away; empty where another call alone would."""
    others = [rejection for rejection in rejections if rejection.code is not ReasonCode.NEEDS_BUILD]
    nearest = of_nearest_variant(kernel, others or rejections)
    if any(rejection.code in _OF_THE_CALL for rejection in nearest):
        return ""
    steps = dict.fromkeys(advice(kernel, one) for one in nearest)
    return "; ".join(steps) if all(steps) else ""


def _place(request: Request) -> Place | None:
    """The kind of device that a request is for; None where nobody says its units."""
    units = units_of(request.device) if request.device is not None else request.units
    return None if units is None else (str(request.target), units)


def _planned(now: Dispatcher, request: Request) -> bool | None:
    plan, place = now.routes.plan, _place(request)
    if plan is None:
        return None
    if place is None or place not in plan.places():
        return False
    kind = Kind.of(request, now.registry.for_op(request.op))
    return now.routes.choices(plan, request.op, place).find(kind, request.dims) is not None


def _measured(now: Dispatcher, request: Request) -> tuple[str | None, str, tuple[str, ...]]:
    """Which kernel measurements prefer, by how much or why none, and what is stale of them."""
    measured, place = now.routes.measured, _place(request)
    if measured is None:
        return None, "no measurement counts here: no store has any, or PORTAKERNEL_TUNING is off", ()
    if place is None:
        return None, "; ".join(now.routes.notes(request)) or f"nothing was measured on {request.target}", ()
    if place not in measured.places():
        return None, "; ".join(now.routes.notes(request)) or f"nothing was measured on {place[0]}/{place[1]}", ()
    kind = Kind.of(request, now.registry.for_op(request.op))
    driver = request.device.driver or "" if request.device is not None else ""
    notes = measured.notes(kind, request.dims, place, driver)
    choice = now.routes.choices(measured, request.op, place).find(kind, request.dims)
    if choice is None:
        return None, "; ".join(notes), ()
    until = f"; {choice.ready} until it is built" if choice.ready else ""
    return choice.kernel, f"{choice.where}: {choice.why}{until}", notes
