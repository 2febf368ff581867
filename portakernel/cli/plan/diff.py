"""``portakernel plan diff``: the calls for which two plans have other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.options import Json
from portakernel.cli.plan.apart import dispatcher_apart

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel.plan import Entry, Plan
    from portakernel.plan.difference import Changed


def command(
    # readable or not: what cannot be read is told in the words of other files
    old: Annotated[Path, typer.Argument(metavar="OLD", readable=False, help="The earlier plan.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", readable=False, help="The later one.")],
    json: Json = False,
) -> None:
    """Say for which calls two plans have other kernels, or one of them has none, and whose sources differ.

    Exits with 0 when they decide the same, 1 when they do not, 2 when one is no plan.

    For example:

        portakernel plan diff before.yaml after.yaml
    """
    from portakernel.cli.output import page, print_json
    from portakernel.plan.difference import differences
    from portakernel.plan.reading import read_form

    dispatcher_apart()  # whose plugins may ship ops, which say what one dtype stands for
    before, after = read_form(old), read_form(new)
    changed = tuple(differences(before, after))
    sources = sorted(
        name for name in before.pins.keys() & after.pins.keys() if before.pins[name].source != after.pins[name].source
    )
    locks = before.lock != after.lock
    if json:
        answer = {
            "choices_differ": bool(changed),
            "changed": [one.to_json() for one in changed],
            "sources": [
                {"kernel": name, "old": before.pins[name].source, "new": after.pins[name].source} for name in sources
            ],
            "lock": {"old": before.lock, "new": after.lock},
            "digest": {"old": before.digest, "new": after.digest},
        }
        print_json(answer)
    else:
        _print(page(), before, after, changed, sources)
    raise typer.Exit(1 if changed or sources or locks else 0)


def _print(out: Page, before: Plan, after: Plan, changed: Sequence[Changed], sources: Sequence[str]) -> None:
    if changed:
        out.heading("Another kernel")
        rows = [(str(one.place), one.op, one.call(), _told(one.old), _told(one.new)) for one in changed]
        out.table(rows, ("target", "op", "calls", "before", "now"), indent=2)
    if sources:
        out.heading("Another source")
        out.table([(name, before.pins[name].source, after.pins[name].source) for name in sources], indent=2)
    if before.lock != after.lock:
        out.line(f"lock: {before.lock} before, {after.lock} now", "bad")
    same = not changed and not sources and before.lock == after.lock
    entries = sum(1 for _ in after.entries())
    said = f"the same in all {entries} entries" if same else f"{len(changed)} kinds and sizes have another kernel"
    out.line(f"{before.name} and {after.name}: {said}", "good" if same else "bad")


def _told(entry: Entry | None) -> str:
    if entry is None:
        return "none"
    return f"{entry.kernel} ({entry.comment})" if entry.comment else entry.kernel
