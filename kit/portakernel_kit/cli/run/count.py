"""What was executed, for people: a count, and no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel_kit.cli.run.call import Count

NO_TIME = "executed, counted by the emulator: this is no time, and says nothing of one by itself"


def print_count(out: Page, count: Count, title: str = "") -> None:
    """Instructions by class, bytes by the width of an access, LDS and waits."""
    out.line(f"{title}{': ' if title else ''}{NO_TIME}", "strong", indent=2)
    classes = ", ".join(f"{name} {number}" for name, number in sorted(count.instructions.items(), key=lambda one: -one[1]))
    rows = [
        ("instructions of waves", str(sum(count.instructions.values())), classes),
        ("instructions of lanes", str(count.lane_instructions), ""),
        ("bytes loaded", str(sum(count.loaded.values())), _widths(count.loaded)),
        ("bytes stored", str(sum(count.stored.values())), _widths(count.stored)),
        ("LDS bytes loaded, stored", f"{count.lds_loaded}, {count.lds_stored}", ""),
        ("LDS conflict cycles", str(count.lds_conflict_cycles), ""),
        ("waits", str(count.waits), ""),
        ("launches", str(count.launches), ""),
    ]
    out.table(rows, indent=4, right=(1,))


def _widths(by_width: dict[int, int]) -> str:
    return ", ".join(f"{bytes_} by {width}" for width, bytes_ in by_width.items())
