"""The state of an installation: what was found, what is missing, what is broken, and what to do about each."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from portakernel import __version__
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase
from portakernel.cli.doctor.faults import location, remedy
from portakernel.cli.doctor.missing import Missing, claims, find_compiler, missing
from portakernel.config import VARIABLES, Config, unknown_variables
from portakernel.contracts import contract, contracts, shipped
from portakernel.deciding.asking import ask
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import Layer, intern_policy, make_layer
from portakernel.deciding.readiness import installed_version
from portakernel.deciding.unmet import Unmet, skipped_preferences, unknown_names
from portakernel.errors import ConfigError, PortakernelError, UnknownNameError
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Broken, Package
from portakernel.runtime import dispatcher
from portakernel.tensors import torch_build
from portakernel.words.target import Device

_ELSEWHERE = {ReasonCode.VENDOR, ReasonCode.ARCH}
# Of a device's coverage; what forward-mode derivatives need is not counted.
PHASES = (Phase.INFERENCE, Phase.TRAINING, Phase.BACKWARD)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether one kernel can be used on one device, for some request."""

    kernel: str
    device: Device
    rejections: tuple[Rejection, ...]

    @property
    def is_buildable(self) -> bool:
        """Whether nothing but a build ahead of the calls stands between the kernel and them."""
        return {rejection.code for rejection in self.rejections} == {ReasonCode.NEEDS_BUILD}


@dataclass(frozen=True, slots=True)
class PhaseCoverage:
    """The ops that have ``phase``, by what serves them: a kernel beside the reference as it is, or once built; none."""

    phase: Phase
    ready: tuple[str, ...]
    buildable: tuple[str, ...]
    reference_only: tuple[str, ...]
    unserved: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The coverage as JSON-ready data; stable."""
        lists = {name: list(getattr(self, name)) for name in ("ready", "buildable", "reference_only", "unserved")}
        return {"phase": str(self.phase), **lists}


@dataclass(frozen=True, slots=True)
class Coverage:
    """What serves the ops on one device beside the reference, phase by phase."""

    device: Device
    phases: tuple[PhaseCoverage, ...]

    @property
    def accelerated(self) -> tuple[str, ...]:
        """The ops with a kernel for inference that is ready, or can be built."""
        return tuple(op for op in contracts() if op in (*self.phases[0].ready, *self.phases[0].buildable))

    @property
    def reference_only(self) -> tuple[str, ...]:
        """The ops without such a kernel."""
        return self.phases[0].reference_only


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that ``portakernel doctor`` tells."""

    dispatcher: Dispatcher
    config_error: ConfigError | None
    devices: tuple[Device, ...]
    readiness: tuple[Readiness, ...]
    broken: tuple[Broken, ...]
    missing: tuple[Missing, ...]
    compiler: tuple[str, str] | None

    @property
    def ok(self) -> bool:
        """Whether nothing is broken; something may be missing."""
        return not self.broken and self.config_error is None and not any(self.refused())

    def refused(self) -> Iterator[tuple[Layer, Unmet]]:
        """What the policy uses on a device here, and nothing here has: calls that it is about raise an error."""
        registry = self.dispatcher.registry
        for layer in self.layers_here():
            for wish in unknown_names(layer, ("use",), registry):
                if not registry.find(wish.name):
                    yield layer, wish

    def skipped(self) -> Iterator[Unmet]:
        """The preferences that calls here warn of: they cannot be followed, or the policy itself rules them out."""
        now = self.dispatcher
        facts = now.registry, now.process.disabled, now.process.allow
        for target in dict.fromkeys(device.target for device in self.devices):
            for op in now.registry.ops:
                yield from skipped_preferences(now.process_policy, op, target, *facts)

    def layers_here(self) -> list[Layer]:
        """The process's layers that are about every target, or about that of a device here; strongest first."""
        spaces = self.dispatcher.registry.spaces
        targets = [device.target for device in self.devices]
        return [
            layer
            for layer in self.dispatcher.process.layers()
            if layer.scope.vendor is None
            or any(layer.scope.covers(layer.scope.op or "", target, spaces) for target in targets)
        ]

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON-ready data; stable."""
        registry, build = self.dispatcher.registry, torch_build.installed()
        return {
            "ok": self.ok,
            "portakernel": __version__,
            "python": {
                "version": platform.python_version(),
                "system": platform.system(),
                "machine": platform.machine(),
            },
            "torch": {"version": build.version, "cuda": build.cuda, "hip": build.hip} if build else None,
            "triton": installed_version("triton"),
            "compiler": {"command": self.compiler[0], "version": self.compiler[1]} if self.compiler else None,
            "backends": [
                {
                    "backend": backend.name,
                    "vendor": backend.vendor,
                    "summary": backend.summary,
                    **_package_json(backend.package),
                    "devices": [
                        {**asdict(device), "target": str(device.target)}
                        for device in self.devices
                        if device.target.vendor == backend.vendor
                    ],
                }
                for backend in registry.backends.values()
            ],
            "plugins": [
                {
                    "plugin": package.name,
                    "summary": loaded.manifest.summary,
                    **_package_json(package),
                    "kernels": [kernel.name for kernel in registry.kernels.values() if kernel.package == package],
                    "requires": [
                        {"module": module, "needs": needs, "found": installed_version(module)}
                        for module, needs in loaded.manifest.requires.modules.items()
                    ],
                    "readiness": [
                        _readiness_json(found) for found in self.readiness if found.kernel in self.kernels(package)
                    ],
                }
                for package, loaded in registry.manager.plugins.values()
            ],
            "broken": [
                {
                    "name": broken.package.name,
                    **_package_json(broken.package),
                    "stage": broken.stage,
                    "reason": broken.reason,
                    "remedy": remedy(broken),
                    "location": location(broken) or None,
                    "traceback": broken.traceback,
                }
                for broken in self.broken
            ],
            "missing": [{"what": missing.what, "remedy": missing.remedy} for missing in self.missing],
            "coverage": [
                {
                    "target": str(coverage.device.target),
                    "torch_device": coverage.device.torch_device,
                    "accelerated": list(coverage.accelerated),
                    "reference_only": list(coverage.reference_only),
                    "phases": [phase.to_json() for phase in coverage.phases],
                }
                for coverage in self.coverage()
            ],
            "environment": {
                "set": environment(),
                "unknown": list(unknown_variables()),
                "error": str(self.config_error) if self.config_error else None,
            },
        }

    def kernels(self, package: Package) -> tuple[str, ...]:
        """The names of a package's kernels."""
        return tuple(k.name for k in self.dispatcher.registry.kernels.values() if k.package == package)

    def serves_here(self, package: Package) -> bool:
        """Whether one of a package's kernels is for a device here, whatever else it needs."""
        names, now = self.kernels(package), self.dispatcher
        return any(claims(now, now.registry.kernels[name], device) for name in names for device in self.devices)

    def coverage(self) -> list[Coverage]:
        """Which ops have more than the reference, on each device that torch reaches."""
        reached = (device for device in self.devices if device.torch_device is not None)
        return [Coverage(device, tuple(self._covered(device, phase) for phase in PHASES)) for device in reached]

    def _covered(self, device: Device, phase: Phase) -> PhaseCoverage:
        kernels = self.dispatcher.registry.kernels
        able = [r for r in self.readiness if r.device is device and (not r.rejections or r.is_buildable)]
        serving = [
            (kernels[r.kernel], r.is_buildable)
            for r in able
            if kernels[r.kernel].serves(phase) and not self._waits(kernels[r.kernel], device)
        ]
        ready = {kernel.op for kernel, waits in serving if not waits and not kernel.is_reference}
        built = {kernel.op for kernel, waits in serving if waits and not kernel.is_reference} - ready
        there = {kernel.op for kernel in kernels.values() if kernel.serves(phase)}
        referred = {k.op for k, _ in serving if k.is_reference and self._may_serve(k, device)} - ready - built
        unserved = there - ready - built - referred
        ops = [tuple(op for op in contracts() if op in several) for several in (ready, built, referred, unserved)]
        return PhaseCoverage(phase, *ops)

    def _may_serve(self, reference: Kernel, device: Device) -> bool:
        """Whether what is wished for the whole process lets the reference serve."""
        now = self.dispatcher
        try:
            wishes = now.process_policy.wishes(reference.op, device.target, now.registry)
        except UnknownNameError:  # of a name that is used and not here: `refused` has it
            return True
        return wishes.reference != "forbid" and reference.name not in wishes.deny

    def _waits(self, kernel: Kernel, device: Device) -> bool:
        """Whether a kernel is a third party's, beside the reference, and nobody has named it."""
        now = self.dispatcher
        if device.attached or kernel.is_reference or kernel.first_party:
            return False
        return kernel.name not in now.process_policy.named(kernel.op, now.registry)


def examine() -> Diagnosis:
    """Looks at everything: finds devices, imports every kernel that applies to one, runs the plugins' probes."""
    config_error: ConfigError | None = None
    try:
        now = dispatcher()
    except (ConfigError, PortakernelError) as error:
        # the rest is examined as if the environment said nothing
        config_error = error if isinstance(error, ConfigError) else ConfigError(str(error))
        now = Dispatcher(config=Config())
    devices = now.registry.devices
    readiness = tuple(
        found
        for device in devices
        if device.torch_device is not None
        for kernel in now.registry.kernels.values()
        if (found := _readiness(now, kernel, device)) is not None
    )
    _import_references(now)
    _call_commands(now)
    compiler = find_compiler()
    broken = tuple(now.registry.manager.broken)
    return Diagnosis(now, config_error, devices, readiness, broken, tuple(missing(now, devices, compiler)), compiler)


def environment() -> dict[str, str]:
    """The ``PORTAKERNEL_*`` variables that are set and known."""
    return {variable.name: os.environ[variable.name] for variable in VARIABLES if os.environ.get(variable.name)}


def _readiness(now: Dispatcher, kernel: Kernel, device: Device) -> Readiness | None:
    """Whether ``kernel`` is installed and usable on ``device``; None where its claims do not reach."""
    # Naming the kernel makes it the winner if it can be one, so that it is imported too. Nobody's wishes enter.
    policy = intern_policy((make_layer("doctor", use=(kernel.name,)),))
    rejections = now.rejections(kernel.name, ask(contract(kernel.op), device.target, device=device), policy)
    if any(rejection.code in _ELSEWHERE for rejection in rejections):
        return None
    return Readiness(kernel.name, device, rejections)


def _import_references(now: Dispatcher) -> None:
    """Imports the formulas of ops that plugins ship: of one that fails, its plugin is then known as broken."""
    if torch_build.installed() is None:
        return
    for op, found in shipped().items():
        plugin, kernel = now.registry.manager.plugins.get(found.plugin), now.registry.kernels.get(f"reference.{op}")
        if plugin is not None and kernel is not None:
            now.readiness.load(replace(kernel, plugin=found.plugin, package=plugin[0]), kernel.entry)


def _call_commands(now: Dispatcher) -> None:
    """Lets plugins add commands to an app that nobody runs: one that fails is then known as broken."""
    import typer

    now.registry.manager.call("portakernel_cli", app=typer.Typer())


def _package_json(package: Package) -> dict[str, Any]:
    return {
        "module": package.module,
        "distribution": package.distribution,
        "version": package.version,
        "first_party": package.first_party,
    }


def _readiness_json(readiness: Readiness) -> dict[str, Any]:
    return {
        "kernel": readiness.kernel,
        "target": str(readiness.device.target),
        "torch_device": readiness.device.torch_device,
        "ready": not readiness.rejections,
        "rejections": [{"code": str(r.code), "text": r.text, "parameter": r.parameter} for r in readiness.rejections],
    }
