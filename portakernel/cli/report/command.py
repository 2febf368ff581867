"""``portakernel report``: one HTML file that says what a deployment runs on, and what would help most."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.registry.registry import Registry
    from portakernel.report.content import Report

DEFAULT = "report.html"


def command(
    calls: Annotated[
        Path | None,
        typer.Option("--calls", metavar="FILE", help="The workload: calls as `portakernel record` writes them."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="The plan [default: PORTAKERNEL_PLAN's, if any].")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="VENDOR:ARCH[/UNITS]",
            help="Judge the calls for this hardware, from manifests, in place of the devices that they are on.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help=f"The page to write [default: {DEFAULT}].")
    ] = None,
    json: Json = False,
) -> None:
    """Write one HTML page on a deployment: devices, what serves its calls and why, and what would help most.

    It holds the decisions for a workload that `portakernel record` has written, with reasons and shares of calls, what
    measurements prefer beside what priorities do, fallbacks, the plan and what it refuses, the stores of measurements,
    and what is broken. What would help is ordered by calls × estimated loss, each with the command to run. Without
    --calls nothing is said of what serves calls. The page loads nothing from elsewhere. With --json it is written only
    where -o names it.

    For example:

        portakernel report --calls calls.yaml -o report.html
        portakernel report --calls calls.yaml --plan plan.yaml --target nvidia:sm_90/132 -o there.html
        portakernel report --calls calls.yaml --json
    """
    from portakernel.cli.calls_file import load_recording
    from portakernel.cli.output import page, print_json
    from portakernel.cli.plan.apart import dispatcher_apart
    from portakernel.cli.report.gathering import gather
    from portakernel.cli.report.workload import Recording
    from portakernel.cli.target_words import target_and_units
    from portakernel.errors import ArgumentValueError
    from portakernel.report.page import check_jinja

    file = None if json and output is None else _file(output if output is not None else DEFAULT)
    if file is not None:
        check_jinja()
    followed = os.environ.get("PORTAKERNEL_PLAN")
    now = dispatcher_apart()
    elsewhere = None if target is None else target_and_units(target, now.registry)
    if elsewhere is not None:
        _refuse_attached(elsewhere[0], now.registry)
    if calls is not None and not calls.exists():
        record = f"`portakernel record -o {calls} -- PROGRAM` writes one"
        raise ArgumentValueError(f"report: {calls} is not there; {record}, with the calls that PROGRAM makes")
    recording = None if calls is None else Recording(calls, *load_recording(calls))
    named = plan if plan is not None else Path(followed).expanduser() if followed else None
    report = gather(now, recording, named, elsewhere, target)
    if file is not None:
        _write(report, file, output if output is not None else DEFAULT)
    if json:
        print_json(report.to_json())
        return
    out = page()
    out.line(f"wrote {output if output is not None else DEFAULT}", "good")
    for place, one in enumerate(report.help[:3], 1):
        out.line(f"{place}. {one.what}", indent=2)
        out.line(f"-> {one.action}", indent=5)


def _refuse_attached(target: str, registry: Registry) -> None:
    """Nothing, where calls are made on such a device.

    Raises:
        ArgumentValueError: it is attached to another, on which calls are made.
    """
    from portakernel.errors import ArgumentValueError

    vendor = target.partition(":")[0]
    backend = next(backend for backend in registry.backends.values() if backend.vendor == vendor)
    if backend.attach:
        text = f"report: --target {target} is attached to torch's {backend.torch_device}, on which calls are made"
        raise ArgumentValueError(f"{text}; name that one's target, or leave --target out")


def _file(output: str) -> Path:
    """The file to write: a link stays, and what it names is written.

    Raises:
        ArgumentValueError: there can be no such file.
    """
    from portakernel.errors import ArgumentValueError
    from portakernel.host.output_file import obstacle

    if not output:
        raise ArgumentValueError(f"report: -o is empty; give the page to write, such as -o {DEFAULT}")
    file = Path(os.path.realpath(output))
    if why := obstacle(file):
        raise ArgumentValueError(f"report: {output} {why}")
    return file


def _write(report: Report, file: Path, output: str) -> None:
    from portakernel.errors import ArgumentValueError
    from portakernel.host.output_file import write_at_once
    from portakernel.report.page import page

    try:
        write_at_once(file, page(report))
    except OSError as error:
        text = f"report: {output} cannot be written: {error.strerror or error}"
        raise ArgumentValueError(f"{text}; what was there stays; give another file with -o") from error
