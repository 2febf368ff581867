"""``portakernel check --coverage``: which pairs of levels the drawn requests of each kernel ask for, and which not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from portakernel.cli.output import Cell, page, print_json
from portakernel.cli.progress import progress
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.runner import select_kernels
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Unavailable, find_venue

# Of the reasons why pairs cannot be, as many are shown for each kernel.
_MOST_REASONS = 3


def show(
    dispatcher: Dispatcher,
    *,
    plugin: str | None,
    op: str | None,
    names: Sequence[str] | None,
    device: Device | None,
    seed: int,
    json: bool,
) -> int:
    """Prints a line for each kernel, runs none, and returns the exit status: 0 unless pairs are left."""
    kernels = select_kernels(dispatcher, plugin, op, names)
    rows: list[dict[str, Any]] = []
    with progress("planning", len(kernels)) as tell:
        for kernel in kernels:
            tell(advance=1, description=kernel.name)
            rows += _planned(dispatcher, kernel, device, seed)
    if json:
        print_json({"seed": seed, "kernels": rows})
        return 0
    out = page()
    out.heading(f"Pairs of what may differ between two requests, seed {seed}")
    head = ("kernel", "requests", "pairs", "asked", "cannot be", "why")
    cells = [
        (
            row["kernel"],
            str(row["requests"]),
            str(row["pairs"]),
            Cell(f"{row['asked'] / max(row['pairs'] - row['refused'], 1):.1%}", "good" if not row["left"] else "bad"),
            str(row["refused"]),
            "; ".join(f"{count}: {why}" for why, count in row["why"].items()),
        )
        for row in rows
    ]
    out.table(cells, head, indent=2, right=(1, 2, 3, 4))
    return 0 if rows and not any(row["left"] for row in rows) else 1


def _planned(dispatcher: Dispatcher, kernel: Kernel, device: Device | None, seed: int) -> Iterator[dict[str, Any]]:
    """How many requests it takes until no pair is left, and what came of each pair; nothing where it cannot run."""
    venue = find_venue(dispatcher, kernel, device)
    if isinstance(venue, Unavailable) or kernel.build is not None:
        return
    requests = Requests(Suite(dispatcher, kernel, venue, seed))
    covering, count = requests.covering, 0
    pairs = covering.possible
    for _ in requests:
        count += 1
        if not covering.left:
            break
    why = Counter(text[:80] for text in covering.refused.values())
    yield {
        "kernel": kernel.name,
        "requests": count,
        "pairs": pairs,
        "asked": len(covering.asked),
        "refused": len(covering.refused),
        "left": len(covering.left),
        "why": dict(why.most_common(_MOST_REASONS)),
    }
