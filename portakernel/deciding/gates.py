"""The questions that a kernel passes before it may serve a request, in order; each adds the reasons against it.

A table, because the order is part of the answer: what costs an import or a probe is asked of a kernel that nothing else
speaks against, and what reads the claim's devices comes after the claim. A new question is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from portakernel.claims.capability import Capability, ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.claims.request_commands import warmup_call
from portakernel.contracts import contract
from portakernel.deciding.builds import Builds, without_promises
from portakernel.deciding.policies import Wishes
from portakernel.deciding.process_wishes import ProcessWishes
from portakernel.deciding.ranking import Candidate, form_of, is_recorded
from portakernel.deciding.readiness import Readiness
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
from portakernel.words.symbols import left_to_the_run
from portakernel.words.target import Device


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The sources of what gates find out: about kernels, policies, plugins' code, builds."""

    registry: Registry
    process: ProcessWishes
    readiness: Readiness
    builds: Builds


@dataclass(slots=True)
class Assessment:
    """What is known so far of one kernel for one request.

    ``variant`` and ``capability`` are the claim that covers the request, ``devices`` those it would run on.
    """

    kernel: Kernel
    request: Request
    wishes: Wishes
    cannot: Mapping[str, Rejection]
    rejections: list[Rejection] = field(default_factory=list[Rejection])
    assumed: list[str] = field(default_factory=list[str])
    variant: str = ""
    capability: Capability | None = None
    devices: tuple[Device, ...] = ()

    def candidate(self) -> Candidate:
        """The outcome, once every gate was asked."""
        request, wishes = self.request, self.wishes
        rejections = tuple(dict.fromkeys(without_promises(self.rejections)))
        target = request.target if self.capability is not None else None
        form = form_of(self.kernel, request, wishes)
        return Candidate(
            self.kernel,
            "rejected" if self.rejections else "eligible",
            self.kernel.priority_in(form, request),
            tuple(map(wishes.sourced, rejections)) if wishes.require else rejections,
            () if self.rejections else tuple(self.assumed),
            self.variant,
            self.devices[0].target if self.devices else target,
            form,
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """One question. Where it ``spares`` them, kernels that something speaks against already are not asked."""

    name: str
    question: str
    ask: Callable[[Knowledge, Assessment], Iterable[Rejection]]
    spares: bool = False


def assess(
    now: Knowledge, kernel: Kernel, request: Request, wishes: Wishes, cannot: Mapping[str, Rejection]
) -> Candidate:
    """``kernel`` with every reason why it cannot serve ``request``, or with what was taken for granted."""
    made = Assessment(kernel, request, wishes, cannot)
    for gate in GATES:
        if not (gate.spares and made.rejections):
            made.rejections += gate.ask(now, made)
    return made.candidate()


def _policy(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    kernel, wishes = asked.kernel, asked.wishes
    if is_recorded(kernel, asked.request):  # it has run, and nobody is chosen
        return
    if kernel.disabled is not None:
        yield Rejection(ReasonCode.DISABLED, f"switched off in its manifest: {kernel.disabled}")
    yield from now.process.switched_off(kernel, wishes.allow)
    if kernel.name in wishes.deny:
        yield Rejection(ReasonCode.DENIED_BY_POLICY, f"denied by {wishes.deny[kernel.name]}")
    if wishes.locked:
        text = f"{wishes.locked} is locked, and has no entry for such calls"
        yield Rejection(ReasonCode.NOT_IN_PLAN, f"{text}; {wishes.uncovered}" if wishes.uncovered else text)
    if wishes.use and kernel.name not in wishes.use and _use_binds(now.registry, asked.request, wishes):
        source = next(iter(wishes.use.values()))
        yield Rejection(ReasonCode.DENIED_BY_POLICY, f"{source} uses {', '.join(wishes.use)} strictly")
    inline = form_of(kernel, asked.request, wishes) == "inline"  # Inductor's kernels then, and no slow fallback
    if kernel.is_reference and wishes.reference == "forbid" and kernel.name not in wishes.use and not inline:
        yield Rejection(ReasonCode.DENIED_BY_POLICY, f"reference: forbid ({wishes.reference_source})", "reference")


def _use_binds(registry: Registry, request: Request, wishes: Wishes) -> bool:
    # A forward kernel without a backward leaves the gradient to whoever has one; naming it says nothing of that.
    if request.phase is not Phase.BACKWARD:
        return True
    return any(registry.kernels[name].backward is not None for name in wishes.use)


def _pairing(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    kernel, request = asked.kernel, asked.request
    if request.phase is not Phase.BACKWARD or request.saved_by == kernel.name:
        return
    saver = now.registry.kernels[request.saved_by] if request.saved_by is not None else None
    if saver is not None and saver.is_paired:
        recorded = f"is not called: PyTorch records the gradient of {saver.name}"
        text = recorded if saver.saves == "autograd" else f"cannot read what {saver.name} saved"
        yield Rejection(ReasonCode.BACKWARD_MISMATCH, text, "requires_grad")
    if kernel.saves == "own":
        yield Rejection(ReasonCode.BACKWARD_MISMATCH, "reads only what its own forward saves", "requires_grad")


def _claim(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    """The variant that fits, or every variant's rejections: of those for this hardware, where there are any."""
    kernel, request, spaces = asked.kernel, asked.request, now.registry.spaces
    here = [variant for variant in kernel.variants if variant[1].serving_target(request, spaces) is not None]
    rejections: list[Rejection] = []
    for name, capability in here or kernel.variants:
        reasons = capability.rejections(request, spaces)
        if is_recorded(kernel, request):
            reasons = tuple(rejection for rejection in reasons if rejection.code is not ReasonCode.NO_BACKWARD)
        if not reasons:
            asked.variant, asked.capability = name, capability
            asked.devices = _serving_devices(capability, request, now.registry)
            return
        rejections += (
            [replace(rejection, text=f"{name}: {rejection.text}") for rejection in reasons] if name else reasons
        )
    yield from (_explained(now, kernel, request, rejection) for rejection in rejections)


def _explained(now: Knowledge, kernel: Kernel, request: Request, rejection: Rejection) -> Rejection:
    """The rejection; where its vendor would be attached to the request's device and none was found, it says why."""
    if rejection.code is not ReasonCode.VENDOR or request.device is None:
        return rejection
    claimed = {vendor for _, capability in kernel.variants for vendor in capability.targets}
    torch_device = (request.device.torch_device or "").partition(":")[0]
    for backend in now.registry.backends.values():
        if backend.attach and backend.vendor in claimed and backend.torch_device == torch_device:
            if off := now.process.why_off(backend.package):
                text = f"the {backend.name} backend looks for no device here: {off}"
            elif now.registry.devices_of(backend):
                return rejection
            else:
                text = f"the {backend.name} backend finds no device here; see `portakernel doctor`"
            return replace(rejection, text=f"{rejection.text}: {text}")
    return rejection


def _serving_devices(capability: Capability, request: Request, registry: Registry) -> tuple[Device, ...]:
    """The request's own device where the claim covers it, else the attached ones that it covers."""
    target = capability.serving_target(request, registry.spaces)
    if target == request.target:
        return (request.device,) if request.device is not None else ()
    return tuple(device for device in request.attached if device.target == target)


def _attached(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    kernel, request, wishes = asked.kernel, asked.request, asked.wishes
    attached = asked.devices[0] if asked.devices and asked.devices[0].target != request.target else None
    if attached is not None and kernel.name not in (*wishes.use, *wishes.prefer):
        text = f"runs on {attached.target}, attached to {request.target}: only when a policy names it"
        yield Rejection(ReasonCode.ATTACHED_TARGET, text, "target")


def _declined(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    if asked.kernel.name in asked.cannot:
        yield asked.cannot[asked.kernel.name]


def _installed(now: Knowledge, asked: Assessment) -> Sequence[Rejection]:
    kernel = asked.kernel
    if asked.request.device is not None:
        return now.readiness.not_installed(kernel)
    asked.assumed += [f"{name} {version}".rstrip() + " is installed" for name, version in kernel.requires.items()]
    asked.assumed += ["the device passes the plugin's readiness probe"] if kernel.ready else []
    return ()


def _check(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    kernel, request = asked.kernel, asked.request
    if kernel.check is None:
        return
    values = {name: request.value(name) for name in kernel.check.reads}
    if request.device is None or None in values.values():
        asked.assumed.append(f"its check of {', '.join(values)} passes")
    elif later := [name for name, value in values.items() if left_to_the_run(value)]:
        text = f"its check asks for {', '.join(later)}, known only when the graph runs"
        yield Rejection(ReasonCode.LIMIT, text, later[0])
    elif rejection := now.readiness.check(kernel, values):
        yield rejection


def _probe(now: Knowledge, asked: Assessment) -> Sequence[Rejection]:
    if asked.request.device is None:
        return ()
    answers = [now.readiness.probe(asked.kernel, device) for device in asked.devices or (asked.request.device,)]
    return () if None in answers else [answer for answer in answers if answer is not None]


def _built(now: Knowledge, asked: Assessment) -> Iterator[Rejection]:
    kernel, request = asked.kernel, asked.request
    if kernel.built is not None and request.device is None:
        ahead = now.registry.units(kernel.plugin) is not None
        command = f"`portakernel build {kernel.plugin} --target {request.target}`"
        asked.assumed.append(f"it is built: {command if ahead else warmup_call(request)}")
    elif kernel.built is not None:
        if not asked.rejections and (unbuilt := now.readiness.built(kernel, request)):
            yield now.builds.failure(contract(request.op), kernel, request) or unbuilt
    # beside other reasons too: of a kernel that nobody built nobody expects anything
    elif kernel.build is not None and (unbuilt := now.builds.rejection(contract(request.op), kernel, request)):
        yield unbuilt


def _promises(now: Knowledge, asked: Assessment) -> Sequence[Rejection]:
    if asked.capability is not None:
        possible = _possible_dtypes(asked.request)
        asked.assumed += asked.capability.assumptions(asked.request, now.registry.spaces, possible)
    return ()


def _possible_dtypes(request: Request) -> Mapping[str, Sequence[str]]:
    """The dtypes that the op lets each argument have in calls with these values; scale formats among them decide."""
    made = contract(request.op).at(request.values)
    return {name: made.possible_dtypes(name) for name in made.typed if name not in request.dtypes}


GATES: tuple[Gate, ...] = (
    Gate("policy", "Do its manifest, the process and the policy let it serve?", _policy),
    Gate("pairing", "Of a backward: does it read what the kernel of forward saved?", _pairing),
    Gate("claim", "Does one of its variants claim the device, dtypes, sizes, layout, features and properties?", _claim),
    Gate("attached", "Where it runs on an attached device: does a policy name it?", _attached),
    Gate("declined", "Did it take such calls, when it was asked?", _declined),
    Gate("installed", "Is everything that it imports installed?", _installed),
    Gate("check", "Does its own check say yes?", _check, spares=True),
    Gate("probe", "Does the device pass its plugin's probe?", _probe, spares=True),
    Gate("built", "Is it built, where it has to be ahead of calls?", _built),
    Gate("promises", "What of the claim cannot be seen yet, and is taken for granted?", _promises, spares=True),
)
