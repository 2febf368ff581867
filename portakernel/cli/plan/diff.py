"""``portakernel plan diff``: the calls for which two plans have other kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        _print(page(), (old, before), (new, after), changed, sources)
    raise typer.Exit(1 if changed or sources or locks else 0)


def _print(
    out: Page,
    earlier: tuple[Path, Plan],
    later: tuple[Path, Plan],
    changed: Sequence[Changed],
    sources: Sequence[str],
) -> None:
    (old, before), (new, after) = earlier, later
    if changed:
        out.heading("Another kernel, or none")
        rows = [(str(one.place), one.op, one.call(), _told(one.old), _told(one.new)) for one in changed]
        out.table(rows, ("target", "op", "calls", "before", "now"), indent=2)
    if sources:
        out.heading("Another source")
        out.table([(name, before.pins[name].source, after.pins[name].source) for name in sources], indent=2)
    if before.lock != after.lock:
        out.line(f"lock: {before.lock} before, {after.lock} now", "bad")
    differ = list(_differ(before, after, changed, sources))
    entries = sum(1 for _ in after.entries())
    said = "; ".join(differ) or f"the same, {entries} entr{'ies' if entries != 1 else 'y'}"
    names = (before.name, after.name) if before.name != after.name else (str(old), str(new))
    out.line(f"{' and '.join(names)}: {said}", "bad" if differ else "good")


def _differ(before: Plan, after: Plan, changed: Sequence[Changed], sources: Sequence[str]) -> Iterator[str]:
    """In what the plans differ, counted."""
    gone, new = sum(one.new is None for one in changed), sum(one.old is None for one in changed)
    for count, text in (
        (len(changed) - gone - new, "another kernel"),
        (gone, "no kernel any more"),
        (new, "a kernel that had none"),
    ):
        if count:
            yield f"{count} kind{'s' * (count != 1)} of calls and sizes ha{'ve' if count != 1 else 's'} {text}"
    if sources:
        yield f"{len(sources)} kernel{'s' * (len(sources) != 1)} ha{'ve' if len(sources) != 1 else 's'} another source"
    if before.lock != after.lock:
        yield "the lock is another one"


def _told(entry: Entry | None) -> str:
    if entry is None:
        return "none"
    return f"{entry.kernel} ({entry.comment})" if entry.comment else entry.kernel
