"""``portakernel doctor``: what was found, what is missing or broken, and what to do."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.cli.diagnosis import Diagnosis
    from portakernel.cli.output import Page
    from portakernel.plugin_manager import Package
    from portakernel.target import Device


def command(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the tracebacks of what is broken.")] = False,
    json: Json = False,
) -> None:
    """Say what was found on this machine, what is missing, what is broken, and what to do about it.

    Exits with 1 when a plugin, a backend or the environment is broken; what is merely missing is no failure.

    For example:

        portakernel doctor
        portakernel doctor --verbose
        portakernel doctor --json
    """
    from portakernel.cli.diagnosis import examine
    from portakernel.cli.output import page, print_json

    diagnosis = examine()
    if json:
        print_json(diagnosis.to_json())
    else:
        _print(page(), diagnosis, verbose=verbose)
    raise typer.Exit(0 if diagnosis.ok else 1)


def _print(out: Page, diagnosis: Diagnosis, *, verbose: bool) -> None:
    from portakernel import __version__, torch_build
    from portakernel.readiness import installed_version

    system = f"{platform.system()} {platform.machine()}"
    out.line(f"portakernel {__version__} on Python {platform.python_version()}, {system}", "strong")
    build = torch_build.installed()
    kind = f"CUDA {build.cuda}" if build and build.cuda else f"ROCm {build.hip}" if build and build.hip else "CPU"
    compiler = f"{diagnosis.compiler[0]}: {diagnosis.compiler[1]}" if diagnosis.compiler else "none"
    out.table(
        [
            ("torch", f"{build.version} ({kind} build)" if build else "not installed"),
            ("triton", installed_version("triton") or "not installed"),
            ("C compiler", compiler),
        ],
        indent=2,
    )
    out.heading("Backends and devices")
    out.table(list(_devices(diagnosis)), indent=2)
    out.heading("Plugins")
    for package, loaded in diagnosis.dispatcher.registry.manager.plugins.values():
        out.line(f"{package}: {loaded.manifest.summary}", indent=2)
        out.table(list(_plugin(diagnosis, package)), indent=4)
    _print_environment(out, diagnosis)
    if diagnosis.missing:
        out.heading("Missing")
        for missing in diagnosis.missing:
            out.line(missing.what, "doubt", indent=2)
            out.line(f"-> {missing.remedy}", indent=4)
    _print_broken(out, diagnosis, verbose=verbose)
    out.line()
    if diagnosis.ok:
        out.line("Nothing is broken.", "good")
    else:
        out.line("Something is broken; the rest works without it.", "bad")


def _devices(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    for backend in diagnosis.dispatcher.registry.backends.values():
        devices = [device for device in diagnosis.devices if device.target.vendor == backend.vendor]
        for device in devices:
            yield backend.name, str(device.target), _described(device)
        if not devices:
            yield backend.name, "-", "no device found"


def _described(device: Device) -> str:
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes is not None else ""
    parts = (
        device.name,
        f"torch device {device.torch_device}" if device.torch_device else "",
        memory,
        f"driver {device.driver}" if device.driver else "",
        device.uuid or "",
        "attached" if device.attached else "",
        device.note,
    )
    return ", ".join(filter(None, parts))


def _plugin(diagnosis: Diagnosis, package: Package) -> Iterator[tuple[str, str]]:
    from portakernel.readiness import installed_version

    manager, kernels = diagnosis.dispatcher.registry.manager, diagnosis.kernels(package)
    loaded = manager.plugins[package.name][1]
    yield "kernels", ", ".join(kernels) or "none"
    for module, needs in loaded.manifest.requires.modules.items():
        version = installed_version(module)
        yield "requires", f"{module} {needs}; {f'{version} is installed' if version else 'it is not installed'}"
    if package.name in manager.disabled:
        yield "disabled", "by PORTAKERNEL_DISABLE"
    for device in diagnosis.devices:
        states: dict[str, list[str]] = {}
        for found in diagnosis.readiness:
            if found.device is device and found.kernel in kernels:
                reasons = "; ".join(f"{rejection.code}: {rejection.text}" for rejection in found.rejections)
                states.setdefault(reasons or "ready", []).append(found.kernel)
        for state, names in states.items():
            yield f"on {device.torch_device}", f"{', '.join(names)} ({device.target}): {state}"
        if device.torch_device is not None and not states:
            yield f"on {device.torch_device}", f"no kernel for {device.target}"


def _print_environment(out: Page, diagnosis: Diagnosis) -> None:
    from portakernel.cli.diagnosis import environment
    from portakernel.config import VARIABLES, unknown_variables

    values, unknown = environment(), unknown_variables()
    if not values and not unknown and diagnosis.config_error is None:
        return
    out.heading("Environment")
    if values:
        summaries = {variable.name: variable.summary for variable in VARIABLES}
        out.table([(f"{name}={value}", summaries[name]) for name, value in values.items()], indent=2)
    for sentence in unknown:
        out.line(sentence, "doubt", indent=2)
    if diagnosis.config_error is not None:
        out.line(str(diagnosis.config_error), "bad", indent=2)
        out.line("-> correct or unset the variable: until then portakernel refuses to work", indent=4)


def _print_broken(out: Page, diagnosis: Diagnosis, *, verbose: bool) -> None:
    from portakernel.cli.diagnosis import remedy

    if not diagnosis.broken:
        return
    out.heading("Broken")
    for broken in diagnosis.broken:
        out.line(f"{broken.package}, at {broken.stage}:", "bad", indent=2)
        out.line(broken.reason, indent=4)
        out.line(f"-> {remedy(broken)}", indent=4)
        if verbose and broken.traceback:
            out.line(broken.traceback.rstrip(), "faint", indent=6)
