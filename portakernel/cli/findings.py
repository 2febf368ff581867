"""What ``portakernel doctor`` finds, one finding after the other: its state, what it is, and what to do about it.

To examine something else, write a function that yields findings, and list it in ``EXAMINATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portakernel import torch_build
from portakernel.capability import ReasonCode
from portakernel.cli.advice import advice, pip_command
from portakernel.cli.diagnosis import Coverage, Diagnosis, environment, resting_for
from portakernel.cli.faults import location, remedy
from portakernel.config import VARIABLES, unknown_variables
from portakernel.manifest import Requires
from portakernel.native.code_cache import REMEDY, cache
from portakernel.plugin_manager import Package
from portakernel.readiness import installed_version
from portakernel.target import Device

# healthy    all is well
# attention  something would be faster, or there would be more, if somebody did something; the rest works
# sick       broken: a plugin, a backend or the environment; `portakernel doctor` ends with status 1
State = Literal["healthy", "attention", "sick"]

# What speaks against the one call that was asked about, in default values, and not against the kernel.
_OF_ONE_CALL = frozenset(
    {
        ReasonCode.DTYPE,
        ReasonCode.SCALE_FORMAT,
        ReasonCode.LAYOUT,
        ReasonCode.ALIGNMENT,
        ReasonCode.LIMIT,
        ReasonCode.FEATURE,
    }
)
# What another finding tells with its cause: the missing module, the broken plugin, the variable.
_TOLD_ELSEWHERE = frozenset(
    {ReasonCode.NOT_INSTALLED, ReasonCode.IMPORT_FAILED, ReasonCode.DISABLED, ReasonCode.NEEDS_BUILD}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined; ``action`` is empty where nothing is to be done, ``traceback`` where none is."""

    state: State
    what: str
    action: str = ""
    details: tuple[str, ...] = ()
    traceback: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready data; stable."""
        return {"state": self.state, "what": self.what, "action": self.action or None, "details": list(self.details)}


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """Everything that was found, in the order of the examinations."""
    return [finding for examine in EXAMINATIONS for finding in examine(diagnosis)]


def installation(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Torch, Triton and the C compiler, where they are there."""
    build = torch_build.installed()
    if build is not None:
        kind = f"CUDA {build.cuda}" if build.cuda else f"ROCm {build.hip}" if build.hip else "CPU"
        yield Finding("healthy", f"torch {build.version}, built for {kind}")
    if (triton := installed_version("triton")) is not None:
        yield Finding("healthy", f"triton {triton}")
    if diagnosis.compiler is not None:
        command, version = diagnosis.compiler
        yield Finding("healthy", f"C compiler {command}: {version}")


def missing(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What is not there and would let more run: modules, backends, builds of torch, a compiler."""
    for lack in diagnosis.missing:
        yield Finding("attention", lack.what, lack.remedy)


def devices(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What runs on each device that torch reaches, and the vendors of which there is none."""
    for coverage in diagnosis.coverage():
        yield _device(coverage, diagnosis)
    found = {device.target.vendor for device in diagnosis.devices}
    absent = [b.name for b in diagnosis.dispatcher.registry.backends.values() if b.vendor not in found]
    if absent:
        yield Finding("healthy", f"no device of {', '.join(absent)} here")


def plugins(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Each plugin's kernels, and those that claim a device here but cannot be used on it."""
    manager = diagnosis.dispatcher.registry.manager
    ill = {broken.package for broken in diagnosis.broken}
    for package, loaded in manager.plugins.values():
        lacks = [module for module in loaded.manifest.requires.modules if installed_version(module) is None]
        if package.name in manager.disabled:
            yield Finding("healthy", f"plugin {package} is switched off by PORTAKERNEL_DISABLE")
        elif package not in ill and (modules := resting_for(loaded.manifest)):
            yield _resting(package, loaded.manifest.requires, modules)
        elif package not in ill and not lacks:
            yield _plugin(package, diagnosis)
        yield from _unusable(package, diagnosis, ill=package in ill)
        yield from _noted(package, diagnosis)


def variables(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The ``PORTAKERNEL_*`` variables: those in force, those that mean nothing, and a value that is not accepted."""
    summaries = {variable.name: variable.summary for variable in VARIABLES}
    if diagnosis.config_error is None:
        for name, value in environment().items():
            yield Finding("healthy", f"{name}={value} is in force", details=(summaries[name],))
        if trouble := cache().trouble():
            yield Finding("attention", f"{trouble}; a private one serves each process in its place", REMEDY)
    else:
        action = "correct or unset it: until then portakernel refuses to work"
        yield Finding("sick", str(diagnosis.config_error), action)
    for sentence in unknown_variables():
        yield Finding("attention", sentence, "correct its name, or unset it")


def slow(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The hooks for which everybody waits who asks what is there."""
    for found in diagnosis.dispatcher.registry.manager.slow:
        what = f"{found.package}: {found.hook} took {found.seconds:.1f} s, for which every process waits"
        action = f"upgrade {found.package.distribution}, or do without: PORTAKERNEL_DISABLE={found.package.name}"
        yield Finding("attention", what, action)


def broken(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What failed, where, and how to go on."""
    for fault in diagnosis.broken:
        at = location(fault)
        details = (f"at {at}",) if at else ()
        what = f"{fault.package} is broken at {fault.stage}: {fault.reason}"
        yield Finding("sick", what, remedy(fault), details, fault.traceback)


EXAMINATIONS: tuple[Callable[[Diagnosis], Iterator[Finding]], ...] = (
    installation,
    devices,
    plugins,
    missing,
    variables,
    slow,
    broken,
)


def _device(coverage: Coverage, diagnosis: Diagnosis) -> Finding:
    device, total = coverage.device, len(coverage.accelerated) + len(coverage.reference_only)
    what = f"{device.torch_device}: {device.name} ({device.target}){_particulars(device)}"
    if device.attached:
        served = ", ".join(coverage.accelerated) or "no op"
        return Finding("healthy", f"{what}; attached, serves {served} where a policy names its kernels")
    what += f"; {len(coverage.accelerated)} of {total} ops have an accelerated kernel"
    if not coverage.reference_only:
        return Finding("healthy", what)
    what += f", only the reference serves {', '.join(coverage.reference_only)}"
    if device.target.vendor in diagnosis.dispatcher.reference_is_free:
        return Finding("healthy", what)
    advice = f"expect those to be slow; `portakernel matrix --vendor {device.target.vendor}` shows what there is"
    return Finding("attention", what, advice)


def _particulars(device: Device) -> str:
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes is not None else ""
    driver = f"driver {device.driver}" if device.driver else ""
    return "".join(f", {part}" for part in (memory, driver, device.uuid or "", device.note) if part)


def _plugin(package: Package, diagnosis: Diagnosis) -> Finding:
    names = diagnosis.kernels(package)
    ready: dict[str, list[str]] = {}
    for found in diagnosis.readiness:
        if found.kernel in names and not found.rejections:
            ready.setdefault(f"{found.device.torch_device} ({found.device.target})", []).append(found.kernel)
    counted = f"{len(names)} kernel{'s' * (len(names) != 1)}"
    here = ", ".join(f"{len(several)} ready on {place}" for place, several in ready.items())
    details = tuple(f"ready on {place}: {', '.join(several)}" for place, several in ready.items())
    return Finding("healthy", f"plugin {package}: {counted}, {here or 'none for a device here'}", details=details)


def _resting(package: Package, requires: Requires, modules: Sequence[str]) -> Finding:
    """That the package waits for a library, and how to install that."""
    names = {module: requires.distributions.get(module, module) for module in modules}
    commands = " and ".join(pip_command(name, requires.modules[module]) for module, name in names.items())
    return Finding("healthy", f"plugin {package} rests until its library is there: {commands}")


def _noted(package: Package, diagnosis: Diagnosis) -> Iterator[Finding]:
    """What the package's probe says of devices that can be used; the sentences' second half is what to do."""
    now, names = diagnosis.dispatcher, diagnosis.kernels(package)
    probed = ((now.registry.kernels[name], device) for name in names for device in diagnosis.devices)
    for note in dict.fromkeys(note for kernel, device in probed for note in now.readiness.notes(kernel, device)):
        what, _, action = note.rpartition("; ") if "; " in note else (note, "", "")
        action = action or f"see the README of plugin {package.name}"
        yield Finding("attention", f"plugin {package.name}: {what}", action)


def _unusable(package: Package, diagnosis: Diagnosis, *, ill: bool) -> Iterator[Finding]:
    """The package's kernels that claim a device but are not ready on it, those with one reason together."""
    kernels, names = diagnosis.dispatcher.registry.kernels, diagnosis.kernels(package)
    grouped: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for found in diagnosis.readiness:
        # a probe that raised stands among what is broken
        told = _OF_ONE_CALL | _TOLD_ELSEWHERE | ({ReasonCode.PROBE_FAILED} if ill else set[ReasonCode]())
        rejections = [rejection for rejection in found.rejections if rejection.code not in told]
        if found.kernel not in names or not rejections:
            continue
        reasons = "; ".join(f"{rejection.code}: {rejection.text}" for rejection in rejections)
        steps = dict.fromkeys(filter(None, (advice(kernels[found.kernel], rejection) for rejection in rejections)))
        several, places = grouped.setdefault((reasons, "; ".join(steps)), ({}, {}))
        several[found.kernel] = None
        places[f"{found.device.torch_device} ({found.device.target})"] = None
    for (reasons, action), (several, places) in grouped.items():
        what = f"{', '.join(several)} cannot be used on {', '.join(places)}: {reasons}"
        yield Finding("attention", what, action or f"see the README of plugin {package.name}")
    waiting = dict.fromkeys(r.kernel for r in diagnosis.readiness if r.kernel in names and r.is_buildable)
    if waiting:
        yield Finding("healthy", f"{', '.join(waiting)} can serve once portakernel.warmup has built them")
