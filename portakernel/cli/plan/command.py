"""``portakernel plan``: files that say what kernel serves which calls, made, judged, compared and completed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from portakernel.cli.plan import check, diff, export, lock

# Its commands by name; each module's docstring and function are as those of any other command.
ACTIONS: Mapping[str, Callable[..., None]] = {
    "export": export.command,
    "check": check.command,
    "diff": diff.command,
    "lock": lock.command,
}


def command() -> None:
    """Plans: files that people review, which say what kernel serves which calls, on which hardware.

    PORTAKERNEL_PLAN, or portakernel.load_plan, has a process follow one. docs/plans.md describes the file.

    For example:

        portakernel plan export -o plan.yaml
        portakernel plan check plan.yaml
        portakernel plan diff old.yaml plan.yaml
        portakernel plan lock plan.yaml --calls service.yaml
    """
