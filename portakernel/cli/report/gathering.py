"""Everything that a report tells, gathered: devices, workload, plan, stores, what is broken, and what would help."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from portakernel import __version__
from portakernel.cli.doctor.diagnosis import Diagnosis, examine
from portakernel.cli.doctor.faults import remedy
from portakernel.cli.doctor.findings import findings
from portakernel.cli.doctor.stores import holdings
from portakernel.cli.report.plan_state import plan_state
from portakernel.cli.report.workload import Recording, workload_of
from portakernel.config import Config
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.readiness import installed_version
from portakernel.report.content import Broken, DeviceFacts, Report, StoreState
from portakernel.report.improvements import improvements
from portakernel.report.losses import Losses
from portakernel.tensors import torch_build
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Regime
from portakernel.tuning.place import defaults_root, own_root, reading_trouble


def gather(
    now: Dispatcher,
    recording: Recording | None,
    plan_file: Path | None,
    elsewhere: tuple[str, int | None] | None,
    target: str | None,
) -> Report:
    """The report; ``target`` is what the command line says of the hardware ``elsewhere``.

    Raises:
        PortakernelError: a call is none of its op or on a device that is not here, or there is no such plan.
    """
    diagnosis = examine()
    state, plan = plan_state(now, plan_file, target) if plan_file is not None else (None, None)
    workload = workload_of(now, recording, elsewhere, plan) if recording is not None else None
    if state is not None and plan is not None and workload is not None:
        state = replace(state, uncovered=sum(one.calls for one in workload.decisions if not one.planned))
    broken = tuple(Broken(str(one.package), one.stage, one.reason, remedy(one)) for one in diagnosis.broken)
    told = tuple(one.to_json() for one in findings(diagnosis) if one.state != "healthy")
    roots = (own_root(Config.from_environment().tuning_dir), defaults_root())
    return Report(
        __version__,
        datetime.now(UTC).isoformat(timespec="seconds"),
        {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()},
        _versions(diagnosis),
        None if elsewhere is None else "/".join(str(part) for part in elsewhere if part is not None),
        (*_devices(diagnosis), *_asked_about(now, elsewhere)),
        workload,
        state,
        tuple(_stores(now, roots)),
        broken,
        improvements(workload, state, broken, told, Losses(roots)),
        told,
    )


def _versions(diagnosis: Diagnosis) -> dict[str, str | None]:
    build = torch_build.installed()
    built = {"CUDA": build.cuda, "ROCm": build.hip, "XPU": build.xpu} if build is not None else {}
    kind = next((f" for {name} {text}" for name, text in built.items() if text), " for CPUs")
    compiler = diagnosis.compiler[1] if diagnosis.compiler is not None else None
    return {
        "torch": f"{build.version}, built{kind}" if build is not None else None,
        "triton": installed_version("triton"),
        "C compiler": compiler,
    }


def _devices(diagnosis: Diagnosis) -> list[DeviceFacts]:
    return [
        DeviceFacts(
            str(device.target),
            device.name,
            units_of(device) if device.torch_device is not None and not device.attached else None,
            device.torch_device,
            device.driver,
            device.memory_bytes,
            note=device.note,
        )
        for device in diagnosis.devices
    ]


def _asked_about(now: Dispatcher, elsewhere: tuple[str, int | None] | None) -> list[DeviceFacts]:
    if elsewhere is None:
        return []
    target, units = elsewhere
    vendor, _, arch = target.partition(":")
    backend = next(backend for backend in now.registry.backends.values() if backend.vendor == vendor)
    facts = backend.archs.get(arch)
    note = "judged from manifests: what is installed there, and built, is taken for granted"
    return [DeviceFacts(target, facts.name if facts is not None else arch, units, here=False, note=note)]


def _stores(now: Dispatcher, roots: Sequence[Path]) -> list[StoreState]:
    config, states = Config.from_environment(), list[StoreState]()
    regime = Regime(config.tuning) if config.tuning != "off" else None
    for root in roots:
        found = holdings(root, now, regime)
        ships = root == defaults_root()
        states.append(
            StoreState(
                str(root) if not ships else "ships with portakernel",
                ships,
                found.kept.records,
                found.decided,
                found.undecided.total(),
                sum(found.elsewhere.values()),
                tuple(found.details()),
                found.passed_over(),
                "" if ships else reading_trouble(root),
            )
        )
    return states
