"""What was executed, for people: a count, and no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel_kit.cli.run.call import Count

NO_TIME = "executed, counted by the emulator: this is no time, and says nothing of one by itself"


def print_count(out: Page, count: Count, *, indent: int) -> None:
    """Instructions by class, bytes by the width of an access, LDS and waits."""
    classes = sorted(count.instructions.items(), key=lambda one: -one[1])
    told = ", ".join(f"{name} {number}" for name, number in classes)
    launches = f"{count.launches} launch{'' if count.launches == 1 else 'es'}"
    out.line(f"{launches}, {sum(count.instructions.values())} instructions of waves: {told}", indent=indent)
    out.line(f"{count.lane_instructions} instructions of lanes, {count.waits} waits", indent=indent)
    out.line(f"{_widths(count.loaded)} loaded, {_widths(count.stored)} stored", indent=indent)
    lds = f"{count.lds_loaded} bytes loaded, {count.lds_stored} stored, {count.lds_conflict_cycles} cycles of conflicts"
    out.line(f"LDS: {lds}", indent=indent)


def _widths(by_width: dict[int, int]) -> str:
    parts = ", ".join(f"{number} by {width}" for width, number in by_width.items())
    return f"{sum(by_width.values())} bytes{f' ({parts})' if parts else ''}"
