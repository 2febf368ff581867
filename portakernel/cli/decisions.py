"""A decision as a table: one among several in a report. ``portakernel explain`` tells one in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from portakernel.cli.output import Cell, Page, Style

if TYPE_CHECKING:
    from portakernel.decision import Decision, Status


def print_decision(page: Page, decision: Decision, *, indent: int = 0) -> None:
    """Prints every candidate, winner first, with its reasons."""
    if decision.chosen is None:
        page.line(f"none: {decision.why}", "bad", indent=indent)
    page.table(list(_rows(decision)), indent=indent, right=(2,))


def _rows(decision: Decision) -> Iterator[tuple[Cell, str, str, str]]:
    styles: dict[Status, Style] = {"chosen": "good", "eligible": "", "rejected": "faint"}
    for candidate in decision.candidates:
        reasons = [f"{rejection.code}: {rejection.text}" for rejection in candidate.rejections]
        if candidate.status == "chosen":
            variant = f"; variant {candidate.variant}" if candidate.variant else ""
            place = f"; on {decision.target}" if decision.target != decision.request.target else ""
            reasons = [decision.why + variant + place]
        name, priority = candidate.kernel.name, str(candidate.priority)
        status = Cell(candidate.status, styles[candidate.status])
        for i, reason in enumerate(reasons or [""]):
            yield (status, name, priority, reason) if i == 0 else (Cell(""), "", "", reason)
