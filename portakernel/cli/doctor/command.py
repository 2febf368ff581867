"""``portakernel doctor``: what was found, what is missing or broken, and what to do."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.cli.doctor.findings import Finding, State
    from portakernel.cli.output import Page, Style

_HEADINGS: Mapping[State, str] = {"healthy": "Healthy", "attention": "Needs attention", "sick": "Sick"}
_STYLES: Mapping[State, Style] = {"healthy": "good", "attention": "doubt", "sick": "bad"}


def command(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show more of what is healthy, and the tracebacks of what is sick.")
    ] = False,
    environment: Annotated[
        bool,
        typer.Option("--environment", help="Show every PORTAKERNEL_* variable instead: its value, what it means."),
    ] = False,
    json: Json = False,
) -> None:
    """Say what was found on this machine, what is missing, what is broken, and what to do about it.

    Exits with 1 when a plugin, a backend or the environment is broken (sick); what is merely missing, or slower than it
    could be, needs attention and is no failure.

    For example:

        portakernel doctor
        portakernel doctor --verbose
        portakernel doctor --environment
        portakernel doctor --json
    """
    from portakernel.cli.doctor.diagnosis import examine
    from portakernel.cli.doctor.findings import findings
    from portakernel.cli.output import page, print_json

    if environment:
        from portakernel.cli.doctor.variables import print_variables, variables_json

        told = variables_json()
        print_json(told) if json else print_variables(page(), told)
        raise typer.Exit(1 if told["error"] else 0)
    diagnosis = examine()
    found = findings(diagnosis)
    if json:
        print_json({**diagnosis.to_json(), "findings": [finding.to_json() for finding in found]})
    else:
        _print(page(), found, verbose=verbose)
    raise typer.Exit(0 if diagnosis.ok else 1)


def _print(out: Page, found: Sequence[Finding], *, verbose: bool) -> None:
    """Prints the healthy first, so that what needs an action stands last, where a terminal shows it."""
    from portakernel import __version__

    system = f"{platform.system()} {platform.machine()}"
    out.line(f"portakernel {__version__} on Python {platform.python_version()}, {system}", "strong")
    for state, heading in _HEADINGS.items():
        several = [finding for finding in found if finding.state == state]
        if several:
            out.heading(heading)
        for finding in several:
            _print_finding(out, finding, verbose=verbose)
    out.line()
    _print_counts(out, found)


def _print_finding(out: Page, finding: Finding, *, verbose: bool) -> None:
    out.line(finding.what, _STYLES[finding.state], indent=2)
    if verbose or finding.state != "healthy":
        for detail in finding.details:
            out.line(detail, indent=4)
    if finding.action:
        out.line(f"-> {finding.action}", indent=4)
    if verbose and finding.traceback:
        out.line(finding.traceback.rstrip(), "faint", indent=6)


def _print_counts(out: Page, found: Sequence[Finding]) -> None:
    number: Mapping[State, int] = {state: sum(one.state == state for one in found) for state in _HEADINGS}
    attention = f"{number['attention']} need{'s' * (number['attention'] == 1)} attention"
    worst: State = "sick" if number["sick"] else "attention" if number["attention"] else "healthy"
    out.line(f"{number['healthy']} healthy, {attention}, {number['sick']} sick.", _STYLES[worst])
