"""Explaining a call in words: an op on a target or a device of this machine, with as much of the call as is known."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from portakernel.claims.capability import Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.kernel_argument import layer_of, strictly
from portakernel.deciding.policies import Policy, intern_policy, make_layer
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.registry.registry import Registry
from portakernel.words.target import Device, Target


def explain_in_words(
    now: Dispatcher,
    op: str,
    *,
    target: str | None = None,
    units: int | None = None,
    device: str | None = None,
    dtype: Mapping[str, str] | str | None = None,
    shape: Mapping[str, Sequence[int]] | None = None,
    format: Mapping[str, str] | str | None = None,
    parameters: Mapping[str, Any] | None = None,
    facts: Mapping[str, int] | None = None,
    phase: Phase = Phase.INFERENCE,
    saved_by: str | None = None,
    compiled: bool = False,
    kernel: str | None = None,
) -> Decision:
    """The decision for a call in words, under the policy in force.

    ``units`` are the target's multiprocessors or compute units: for what a plan, and measurements, say of such devices.
    ``parameters`` are the op's own, ``facts`` what is not plain about its tensors' memory (``{"x.alignment": 2}``),
    ``saved_by`` is the kernel that ran forward, for the phase backward; ``compiled``: a compiled graph is to hold it.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: the words make no call of the op.
    """
    strict = strictly(now.registry, op, kernel)
    asked, here, attached = _asked_target(now.registry, target, device)
    request = ask(
        contract(op),
        asked,
        dtypes=dtype,
        shapes=shape,
        formats=format,
        values=parameters,
        facts=facts,
        phase=phase,
        saved_by=saved_by,
        device=here,
        attached=attached,
    )
    request = replace(request, compiled=compiled, units=units if target is not None else None)
    check_saved_by(now.registry, request)
    return decide_as_called(now, request, now.policy(layer_of(now.registry, op, strict)))


_BLOCK = "with policy block"


def decide_as_called(
    now: Dispatcher, request: Request, policy: Policy, cannot: Mapping[str, Rejection] | None = None
) -> Decision:
    """The decision for ``request``, with what measurements say of it; a gradient is that of a whole training call.

    What a compiled graph calls goes by the plan, as it does when the graph runs. Unless it is known who ran forward, it
    is asked who would: what that one saves in its own way it alone reads, and a gradient that PyTorch records calls no
    kernel.

    Raises:
        ArgumentValueError: it is for a backward that the op does not have.
    """
    if request.compiled and (called := _why_called(now, request)):
        policy = intern_policy((make_layer(called, compiled="call"), *policy.layers))
        own = called == _BLOCK and request.phase is Phase.TRAINING
        request = replace(request, below_autograd=True, unpaired=own)
    decide = now.decide_in_graph if request.compiled else functools.partial(now.decide, cannot=cannot)
    if request.phase is not Phase.BACKWARD:
        return _noted(now, decide(request, policy))
    gradient = contract(request.op).gradient
    if gradient == "none":
        raise ArgumentValueError(f"{request.op} has no gradient, so that no kernel serves it for backward")
    if gradient == "identity":
        raise ArgumentValueError(
            f"{request.op} needs no kernel for backward: the gradient of its output is passed on as it is; ask for the"
            " phase training to see who runs forward"
        )
    if request.saved_by is None:
        forward = decide(replace(request, phase=Phase.TRAINING), policy)
        if forward.chosen is not None and forward.chosen.is_paired:
            request = replace(request, saved_by=forward.chosen.name)
        if forward.form in ("inline", "kernel"):
            decide = now.decide  # of a call that is dissolved the plan speaks in no part
    return _noted(now, decide(request, policy))


def _noted(now: Dispatcher, decision: Decision) -> Decision:
    found = (*now.routes.notes(decision.request), *_on_plan(now, decision))
    return replace(decision, notes=(*decision.notes, *found)) if found else decision


def _on_plan(now: Dispatcher, decision: Decision) -> Iterator[str]:
    """When the plan is asked of a call in a compiled graph, if at all."""
    plan, request = now.routes.plan, decision.request
    if plan is None or not request.compiled or not (plan.locked or now.routes.has_part(plan, request)):
        return
    used = decision.wishes.use if decision.wishes is not None else {}
    if decision.form in ("inline", "kernel") and (decision.chosen is None or decision.chosen.name not in used):
        yield f"{plan.name} speaks of calls, and not of what a compiled graph dissolves: compiled='call' has it called"
    elif (
        request.phase in (Phase.TRAINING, Phase.BACKWARD) and now.chooses_together(request.op) and not request.unpaired
    ):
        text = "is asked when the graph is traced, and its bounds guard the graph: forward and backward are one choice"
        yield f"{plan.name} {text}"
    else:
        yield f"{plan.name} is asked when the graph runs"


def _why_called(now: Dispatcher, request: Request) -> str:
    """What has a compiled graph hold calls alone of the request's op: they look at blocks, or values, as they run."""
    if now.context_layers.get():
        return _BLOCK
    return "PORTAKERNEL_CHECKS" if now.checks_values and contract(request.op).has_rules else ""


def without_use(now: Dispatcher, decision: Decision) -> Decision | None:
    """The decision for the same request, did the policy in force use no kernel strictly; None where it uses none."""
    if not decision.strict:
        return None
    layers = tuple(replace(layer, use=()) for layer in now.policy().layers)
    return now.decide(decision.request, intern_policy(layers))


def check_saved_by(registry: Registry, request: Request) -> None:
    """Nothing, when ``request.saved_by`` is not given, or is a kernel that can have run forward.

    Raises:
        UnknownNameError: no kernel is called that.
        ArgumentValueError: it is a plugin, a kernel of another op or one that saves nothing, or the request is for
            another phase than backward.
    """
    op, name = request.op, request.saved_by
    if name is None:
        return
    if request.phase is not Phase.BACKWARD:
        raise ArgumentValueError(
            f"saved_by={name!r} says who ran forward, for the phase backward; this is for {request.phase}"
        )
    savers = [kernel.name for kernel in registry.for_op(op) if kernel.saves != "none" or not request.saved]
    those = f"those that can have run forward are {', '.join(savers)}"
    if name in savers:
        return
    if name in registry.plugins():
        raise ArgumentValueError(f"{op}: saved_by names one kernel, and {name!r} is a plugin; {those}")
    if (kernel := registry.kernels.get(name)) is None:
        raise UnknownNameError("kernel", name, savers, where=f"{op}: saved_by")
    if kernel.op != op:
        raise ArgumentValueError(f"{op}: saved_by names {name}, which is a kernel of {kernel.op}; {those}")
    saved = ", ".join(request.saved)
    raise ArgumentValueError(f"{op}: saved_by names {name}, which does not save {saved} for backward; {those}")


def first_device(registry: Registry, remedy: str = "`portakernel doctor` says why") -> Device:
    """This machine's first device that torch reaches; an accelerator goes before the CPU.

    Raises:
        ArgumentValueError: there is none; ``remedy`` ends its message.
    """
    usable = [d for d in registry.reachable_devices() if d.torch_device is not None and not d.attached]
    if not usable:
        off = [f"{b.name} ({why})" for b in registry.backends.values() if (why := registry.manager.why_off(b.package))]
        switched = f". Backends that are off: {', '.join(off)}" if off else ""
        raise ArgumentValueError(f"no backend found a device that torch reaches; {remedy}{switched}")
    return min(usable, key=lambda device: device.torch_device == "cpu")


def _asked_target(
    registry: Registry, text: str | None, device: str | None
) -> tuple[Target, Device | None, tuple[Device, ...]]:
    """The target that is asked about, its device where readiness shall be probed, and what is attached to it.

    A question about an attached target is one about calls on the torch device that it shares.
    """
    if device is not None and text is not None:
        raise ArgumentTypeError(f"explain takes a target ({text}) or a device of this machine ({device}), not both")
    if text is None:
        if device is None:
            here = first_device(registry, "name a target, such as nvidia:sm_90")
        else:
            here = registry.device(device)
        return here.target, here, registry.attached_to(here.torch_device or "")
    target = registry.target(text)
    backend = next(backend for backend in registry.backends.values() if backend.vendor == target.vendor)
    if not backend.attach:
        return target, None, registry.attached_to(backend.torch_device)
    hosts = registry.devices_on(backend.torch_device)
    host = next((d for d in hosts if d.torch_device == backend.torch_device), None)
    if host is None:
        raise ArgumentValueError(f"{target} is attached to torch's {backend.torch_device}, which no backend finds here")
    return host.target, host, registry.attached_to(backend.torch_device)
