"""``portakernel diff``: which choices differ between two files of decisions, and which kernels came or went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.cli.decision_diff import Changed, Difference, Standing
    from portakernel.cli.output import Page


def command(
    # readable or not: what cannot be read is told in the words of other files
    old: Annotated[Path, typer.Argument(metavar="OLD", readable=False, help="The earlier file.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", readable=False, help="The later one.")],
    json: Json = False,
) -> None:
    """Say what differs between two files that `portakernel explain --all --json` wrote.

    For each op and target: another kernel that was chosen, kernels that appeared or disappeared, and those with other
    reasons against them. Run it before and after an upgrade, or on two machines.

    Exits with 0 when all chosen kernels are the same, 1 when one differs or NEW lacks a decision of OLD, 2 when a file
    holds no decisions or the two have none in common.

    For example:

        portakernel diff before.json after.json
        portakernel diff before.json after.json --json
    """
    from portakernel.cli.decision_diff import difference, read_sheet
    from portakernel.cli.output import page, print_json

    found = difference(read_sheet(old), read_sheet(new))
    if json:
        print_json(found.to_json())
    else:
        _print(page(), found)
    raise typer.Exit(1 if found.choices_differ else 0)


def _print(out: Page, found: Difference) -> None:
    other = [one for one in found.changed if one.chosen_differs]
    if other:
        out.heading("Another kernel is chosen")
        for one in other:
            place = f"{one.new.op} on {one.new.target} for {one.new.request.phase}"
            out.line(f"{place}: {one.old.chosen or 'none'} -> {one.new.chosen or 'none'}", "bad", indent=2)
            out.line(f"before: {one.old.why}", indent=4)
            out.line(f"now: {one.new.why}", indent=4)
    if rows := [row for one in found.changed for row in _rows(one)]:
        out.heading("Kernels that came, went, or stand otherwise")
        out.table(rows, ("op", "target", "kernel", "what changed"), indent=2)
    for questions, which in ((found.only_old, "first"), (found.only_new, "second")):
        if questions:
            out.heading(f"Only in the {which} file")
            out.table(questions, indent=2)
    if found.changed or found.only_old or found.only_new:
        out.line()
    total = found.same + len(found.changed)
    out.line(f"{total} decisions compared: {len(other)} chose another kernel, {found.same} are the same")


def _rows(one: Changed) -> Iterator[tuple[str, str, str, str]]:
    place = one.new.op, one.new.target
    if one.asked_differs:
        yield (*place, "", "was asked otherwise: other dtypes, sizes, formats or features")
    for standing in one.appeared:
        yield (*place, standing.kernel, f"appeared: {_told(standing)}")
    for standing in one.disappeared:
        yield (*place, standing.kernel, f"disappeared: {_told(standing)}")
    for old, new in one.reasons:
        yield (*place, new.kernel, f"was {_told(old)}; is {_told(new)}")


def _told(standing: Standing) -> str:
    if standing.status != "rejected":
        return "able to serve"
    return " and ".join(f"{reason.code} ({reason.text})" for reason in standing.rejections)
