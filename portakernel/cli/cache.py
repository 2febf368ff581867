"""``portakernel cache``: the kernels compiled from C++ that are kept on disk."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json

if TYPE_CHECKING:
    from portakernel.cli.output import Cell, Page
    from portakernel.native.code_cache import Cache
    from portakernel.native.entry import Found


class Action(StrEnum):
    """What is done with the entries."""

    LIST = "list"
    CLEAR = "clear"
    VERIFY = "verify"


def command(
    action: Annotated[Action, typer.Argument(metavar="list|clear|verify", help="What to do with the entries.")],
    target: Annotated[
        str | None, typer.Option("--target", metavar="VENDOR:ARCH", help="Only those for this target.")
    ] = None,
    json: Json = False,
) -> None:
    """List, clear or verify the kernels compiled from C++ that are kept on disk.

    list shows each with its source, target, compiler, size and last use. verify reads every byte, compares digests, and
    discards what was cut short or altered, or what somebody else can write: it is built anew when it is needed. clear
    discards all. Both remove what killed processes left behind. The folder is PORTAKERNEL_CACHE_DIR, its size
    PORTAKERNEL_CACHE_MIB; one that somebody else can write is not read.

    Exits with 0; with 1 where verify found a broken entry, or one could not be discarded.

    For example:

        portakernel cache list --target nvidia:sm_90
        portakernel cache verify
        portakernel cache clear
    """
    from portakernel.cli.output import page, print_json
    from portakernel.native.code_cache import cache
    from portakernel.runtime import dispatcher

    kept = cache()
    only = None if target is None else str(dispatcher().registry.target(target))
    found = [one for one in kept.entries() if only is None or one.broken or one.target == only]
    doomed = {
        Action.LIST: [],
        Action.VERIFY: [one for one in found if one.broken],
        Action.CLEAR: [one for one in found if only is None or not one.broken],
    }[action]
    stuck = [one for one in doomed if not kept.discard(one.folder)]
    if action is not Action.LIST:
        kept.tidy()
    if json:
        answer = {
            "folder": str(kept.folder),
            "limit_bytes": kept.limit_bytes,
            "distrusted": kept.distrusted(),
            "entries": [one.to_json() for one in found],
            "discarded": [one.key for one in doomed if one not in stuck],
        }
        print_json(answer)
    else:
        _print(page(), action, kept, found, doomed, stuck)
    raise typer.Exit(1 if stuck or (action is Action.VERIFY and doomed) else 0)


def _print(out: Page, action: Action, kept: Cache, found: list[Found], doomed: list[Found], stuck: list[Found]) -> None:
    total, limit = sum(one.size_bytes for one in found) / 2**20, kept.limit_bytes / 2**20
    entries = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    out.line(f"{kept.folder}: {entries}, {total:.1f} MiB of {limit:.0f}")
    if distrusted := kept.distrusted():
        out.line(f"{distrusted}, and is not read; {kept.remedy}", "bad")
    if action is Action.LIST and found:
        _print_table(out, found)
    for one in found if action is not Action.CLEAR else []:
        if one.broken:
            fate = "" if action is Action.LIST else "; it is there still" if one in stuck else "; discarded"
            out.line(f"{one.key}: {one.broken}{fate}", "bad")
    if action is Action.VERIFY:
        out.line(f"{len(found) - len(doomed)} whole, {len(doomed)} broken", "bad" if doomed else "good")
    if action is Action.CLEAR:
        out.line(f"{len(doomed) - len(stuck)} discarded", "good")
    for one in stuck:
        out.line(f"{one.folder} cannot be discarded: it is another user's, or the folder is read-only", "bad")


def _print_table(out: Page, found: list[Found]) -> None:
    from datetime import datetime

    rows: list[tuple[str | Cell, ...]] = []
    for one in found:
        used: Any = datetime.fromtimestamp(one.used).astimezone().strftime("%Y-%m-%d") if one.used else ""
        name = ", ".join(one.names)
        # most files are called as their kernel
        name = name if one.source.partition(".")[0] in one.names else f"{one.source}: {name}"
        rows.append((one.key[:12], name, one.target, one.compiler, f"{one.size_bytes / 1024:.0f}", used))
    out.table(rows, ("key", "kernels", "target", "compiler", "KiB", "used"), right=(4,))
