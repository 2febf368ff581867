"""``portakernel explain --source``: the functions that a repeated call runs, generated ones and the kernel's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from portakernel.cli.output import Page

if TYPE_CHECKING:
    from portakernel.calling.call_steps import Step
    from portakernel.deciding.decision import Decision


def running_steps(decision: Decision) -> list[Step]:
    """What a call that the decision is about runs once it was seen; loads torch, and the chosen kernel's module."""
    from portakernel import ops
    from portakernel.calling.call_steps import steps
    from portakernel.runtime import caller

    op = decision.request.op
    return list(steps(caller(op), getattr(ops, op), decision))


def print_steps(page: Page, steps: Sequence[Step]) -> None:
    """Prints each function under a line that says what it is there for; sources are not wrapped."""
    for step in steps:
        page.heading(f"{step.name}: {step.role}")
        if step.missing:
            page.line(f"No source: {step.missing}.", "doubt", indent=2)
            continue
        page.line(f"{step.file}:{step.line}", "faint", indent=2)
        page.verbatim(step.source)
