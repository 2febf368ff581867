"""What ``portakernel doctor`` finds, one finding after the other: its state, what it is, and what to do about it.

To examine something else, write a function that yields findings, and list it in ``EXAMINATIONS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portakernel.claims.capability import ReasonCode
from portakernel.cli.advice import advice, pip_command
from portakernel.cli.doctor.absence import absence
from portakernel.cli.doctor.diagnosis import Coverage, Diagnosis, PhaseCoverage, Readiness, environment
from portakernel.cli.doctor.faults import location, remedy
from portakernel.cli.doctor.missing import resting_for
from portakernel.cli.doctor.stores import Holdings, holdings
from portakernel.config import VARIABLES, Config, unknown_variables
from portakernel.deciding.policies import Scope
from portakernel.deciding.process_wishes import DOUBT_REMEDY
from portakernel.deciding.readiness import installed_version
from portakernel.deciding.unmet import Unmet, is_near, unknown_names, unknown_plugins, unknown_switches
from portakernel.manifest.models import Requires
from portakernel.native.code_cache import cache
from portakernel.registry.plugin_manager import Package
from portakernel.tensors import torch_build
from portakernel.tuning.key import Regime
from portakernel.tuning.place import REMEDY, defaults_root, own_root, reading_trouble, writing_trouble
from portakernel.words.target import Device

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
    {
        ReasonCode.NOT_INSTALLED,
        ReasonCode.IMPORT_FAILED,
        ReasonCode.DISABLED,
        ReasonCode.NOT_ALLOWED,
        ReasonCode.NEEDS_BUILD,
    }
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
        versions = {"CUDA": build.cuda, "ROCm": build.hip, "XPU": build.xpu}
        kind = next((f"{name} {version}" for name, version in versions.items() if version), "CPU")
        yield Finding("healthy", f"torch {build.version}, built for {kind}")
        # of one that torch cannot use, although it is there, the device's own note says why
        if all(device.torch_device == "cpu" for device in diagnosis.devices) and (lack := absence(build)):
            yield Finding("attention", lack.what, lack.action)
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
    now = diagnosis.dispatcher
    absent = {b.name: now.process.why_off(b.package) for b in now.registry.backends.values() if b.vendor not in found}
    if unseen := [name for name, off in absent.items() if not off]:
        yield Finding("healthy", f"no device of {', '.join(unseen)} here")
    for off in dict.fromkeys(filter(None, absent.values())):
        names = [name for name, why in absent.items() if why == off]
        yield Finding("healthy", f"devices of {', '.join(names)} are not looked for: {off}")


def plugins(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Each plugin's kernels, and those that claim a device here but cannot be used on it."""
    manager = diagnosis.dispatcher.registry.manager
    ill = {broken.package for broken in diagnosis.broken}
    for package in dict.fromkeys(fault.package for fault in manager.broken_but_off):
        yield _off(package, diagnosis)
    for package, loaded in manager.plugins.values():
        lacks = [module for module in loaded.manifest.requires.modules if installed_version(module) is None]
        if manager.is_off(package):
            yield _off(package, diagnosis)
        elif package not in ill and (
            modules := resting_for(loaded.manifest, serves_here=diagnosis.serves_here(package))
        ):
            yield _resting(package, loaded.manifest.requires, modules)
        elif package not in ill and not lacks:
            yield _plugin(package, diagnosis)
        yield from _unusable(package, diagnosis, ill=package in ill)
        yield from _noted(package, diagnosis)
    # what is wrong with a package's own op is told of it: that its kernels rest follows
    of_ops = {broken.package for broken in diagnosis.broken if broken.stage == "ops"}
    for package, text in diagnosis.dispatcher.registry.resting_entries:
        if not manager.is_off(package) and package not in of_ops:
            what, _, advice = text.rpartition(": ")
            yield Finding("attention", f"plugin {package}: {what}", advice)


def variables(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The ``PORTAKERNEL_*`` variables: those in force, those that mean nothing, and a value that is not accepted."""
    summaries = {variable.name: variable.summary for variable in VARIABLES}
    if diagnosis.config_error is None:
        for name, value in environment().items():
            yield Finding("healthy", f"{name}={value} is in force", details=(summaries[name],))
        kept = cache()
        if trouble := kept.trouble():
            yield Finding("attention", f"{trouble}; a private one serves each process in its place", kept.remedy)
    else:
        action = "correct or unset it: until then portakernel refuses to work"
        yield Finding("sick", str(diagnosis.config_error), action)
    for sentence in unknown_variables():
        yield Finding("attention", sentence, "correct its name, or unset it")


def policies(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The policy files in force, and the names in them and in variables that nothing here has."""
    process, registry = diagnosis.dispatcher.process, diagnosis.dispatcher.registry
    for file in process.files:
        yield Finding("healthy", f"policy file {file.path} is in force", details=file.sentences())
        for doubt in file.doubts:
            yield Finding("attention", doubt, DOUBT_REMEDY)
    for layer, wish in diagnosis.refused():
        yield Finding("sick", f"{wish} Every call {_about(layer.scope)} is refused", wish.remedy)
    skipped = {(wish.where, wish.name): wish for wish in diagnosis.skipped()}
    for layer in diagnosis.layers_here():
        unknown = (*unknown_names(layer, ("prefer", "deny"), registry), *unknown_plugins(layer, registry))
        for wish in unknown:
            yield _unmet(skipped.pop((wish.where, wish.name), wish) if wish.key == "prefer" else wish)
    yield from map(_unmet, skipped.values())
    for error in unknown_switches(sorted(process.disabled), registry):
        yield _fulfilled(str(error), near=is_near(error))


def measurements(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What the stores of measurements hold, how much of it decides here, and the lines in them that are no records."""
    if diagnosis.config_error is not None:
        return
    config = Config.from_environment()
    named = config.tuning_dir
    root = own_root(named)
    there = os.path.exists(root)
    # one that is not there is not made, and the default one that cannot be is told of the cache: nobody asked for it
    trouble = writing_trouble(root) if there else reading_trouble(root) if named else ""
    if trouble:
        what = f"the store of measurements {root} {trouble}: `portakernel tune` can keep nothing there"
        yield Finding("attention", what, REMEDY)
    regime = Regime(config.tuning) if config.tuning != "off" else None
    for store, where in ((root, f", in {root}"), (defaults_root(), "")):
        found = holdings(store, diagnosis.dispatcher, regime)
        what = f"tuning records{'' if where else ' that ship with portakernel'}: {found.told()}"
        details = tuple(found.details())
        if lost := found.passed_over():
            remedies = ["`portakernel tune --compact` leaves such lines out"] if found.kept.passed_over else []
            remedies += ["move files that cannot be read out of the store"] if found.kept.unread else []
            action = "; ".join([*remedies, "`tune` measures again what is lost"])
            yield Finding("attention", f"{what}; {lost}{where}", action, details)
        elif where and found.other_units:
            yield Finding("attention", f"{what}{where}", _other_units(found), details)
        elif found.kept.records:
            yield Finding("healthy", f"{what}{where}", details=details)


def _other_units(found: Holdings) -> str:
    """What to do where all was measured with other units than this machine has."""
    here = ", ".join(f"{target}/{units}" for target, units in found.here)
    of_a_cpu = any(target.startswith("cpu:") for target, _ in found.other_units)
    threads = "; a CPU's units are torch's threads (OMP_NUM_THREADS)" if of_a_cpu else ""
    return f"`portakernel tune` measures for {here}, which this machine is now{threads}"


def impostors(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Packages that call themselves portakernel, and do not lie where portakernel's own do."""
    for package in diagnosis.dispatcher.registry.manager.packages:
        if package.is_impostor:
            what = f"{package} calls itself portakernel, but lies in {package.folder}: it counts as a third party's"
            yield Finding("attention", what, "find out who installed it; its kernels wait until a policy names them")


def slow(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The hooks for which everybody waits who asks what is there."""
    for found in diagnosis.dispatcher.registry.manager.slow:
        what = f"{found.package}: {found.hook} took {found.seconds:.1f} s, for which every process waits"
        action = f"upgrade {found.package.distribution}, or do without: PORTAKERNEL_DISABLE={found.package.name}"
        yield Finding("attention", what, action)


def unreadable(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The distributions of which nobody can say whether they register something with portakernel."""
    for one in diagnosis.dispatcher.registry.manager.unreadable:
        what = f"what {one.path.name} registers cannot be read: entry_points.txt {one.reason}"
        yield Finding("attention", what, f"reinstall or remove that distribution ({one.path.parent})")


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
    policies,
    measurements,
    impostors,
    slow,
    unreadable,
    broken,
)


def _about(scope: Scope) -> str:
    """The calls that a layer is about: ``of add on cpu``, ``on cpu``."""
    return f"of {scope}" if scope.op else f"on {scope}"


def _unmet(wish: Unmet) -> Finding:
    if wish.key == "prefer":
        return Finding("attention", f"{wish} The preference is left out", wish.remedy)
    return _fulfilled(str(wish), near=wish.near)


def _fulfilled(text: str, *, near: bool) -> Finding:
    """What is denied, switched off or allowed, and not here: as wished, unless the name is misspelt."""
    if near:
        return Finding("attention", text, "correct the name, or leave it as it is if it is meant for other machines")
    return Finding("healthy", f"{text.removesuffix('.')}: nothing is to be done for it here")


def _device(coverage: Coverage, diagnosis: Diagnosis) -> Finding:
    device = coverage.device
    what = f"{device.torch_device}: {device.name} ({device.target}){_particulars(device)}"
    if device.attached:
        served = ", ".join(coverage.accelerated) or "no op"
        return Finding("healthy", f"{what}; attached, serves {served} where a policy names its kernels")
    beside = "beside the reference, " if any(phase.reference_only for phase in coverage.phases) else ""
    what += f"; {beside}kernels serve {', '.join(map(_counted, coverage.phases))}"
    details = [f"only the reference, in {p.phase}: {', '.join(p.reference_only)}" for p in coverage.phases]
    details = [detail for detail, phase in zip(details, coverage.phases, strict=True) if phase.reference_only]
    details += [f"nothing, in {p.phase}: {', '.join(p.unserved)}" for p in coverage.phases if p.unserved]
    if any(phase.unserved for phase in coverage.phases):
        advice = "calls of what nothing serves raise NoKernelError; let the reference serve, or name kernels for them"
        return Finding("attention", what, advice, tuple(details))
    if not details or device.target.vendor in diagnosis.dispatcher.reference_is_free:
        return Finding("healthy", what, details=tuple(details))
    advice = f"expect those to be slow; `portakernel matrix --vendor {device.target.vendor}` shows what there is"
    return Finding("attention", what, advice, tuple(details))


def _counted(covered: PhaseCoverage) -> str:
    """How many of the ops that have the phase are served in it."""
    ready, built = len(covered.ready), len(covered.buildable)
    later = f" ({built} more once built)" if built else ""
    every = ready + built + len(covered.reference_only) + len(covered.unserved)
    return f"{ready} of {every} ops in {covered.phase}{later}"


def _particulars(device: Device) -> str:
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes is not None else ""
    driver = f"driver {device.driver}" if device.driver else ""
    return "".join(f", {part}" for part in (memory, driver, device.uuid or "", device.note) if part)


def _plugin(package: Package, diagnosis: Diagnosis) -> Finding:
    names = diagnosis.kernels(package)
    states: dict[tuple[str, str], list[str]] = {}
    for found in diagnosis.readiness:
        if found.kernel in names:
            place = f"{found.device.torch_device} ({found.device.target})"
            states.setdefault((_state(found), place), []).append(found.kernel)
    counted = f"{len(names)} kernel{'s' * (len(names) != 1)}"
    here = ", ".join(f"{len(several)} {state} on {place}" for (state, place), several in states.items())
    if not here:
        here = "all for other devices than those here" if diagnosis.devices else "and no device here"
    details = tuple(f"{state} on {place}: {', '.join(several)}" for (state, place), several in states.items())
    return Finding("healthy", f"plugin {package}: {counted}, {here}", details=details)


def _off(package: Package, diagnosis: Diagnosis) -> Finding:
    """That the package may not be imported, and who says so; whether it could be is nobody's matter then."""
    now = diagnosis.dispatcher
    if package.name in now.registry.manager.disabled:
        return Finding("healthy", f"plugin {package} is switched off by PORTAKERNEL_DISABLE")
    lists = " and ".join(where for names, where in now.process.allow if package.name not in names)
    return Finding("healthy", f"plugin {package} is left out: {lists} does not allow it")


def _state(readiness: Readiness) -> str:
    """What a kernel's readiness on a device comes to, in words."""
    codes = {rejection.code for rejection in readiness.rejections}
    if not codes:
        return "ready"
    if readiness.is_buildable:
        return "to be built"
    if codes <= _OF_ONE_CALL:
        return "ready for calls with other values than the defaults"
    if ReasonCode.NOT_INSTALLED in codes:
        return "waiting for a module"
    return "switched off" if ReasonCode.DISABLED in codes else "not usable"


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
