"""What a launch executed: counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from portakernel.emulation.build import family
from portakernel.emulation.record import Record

_WIDTHS = {
    "byte": 1, "ubyte": 1, "sbyte": 1, "u8": 1, "i8": 1, "b8": 1, "short": 2, "ushort": 2, "sshort": 2, "u16": 2,
    "i16": 2, "b16": 2, "dword": 4, "b32": 4, "dwordx2": 8, "b64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16,
    "b128": 16, "dwordx8": 32, "b256": 32, "dwordx16": 64, "b512": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """Executed instructions by class (of waves), lane instructions, and traffic in bytes by the width of an access."""

    instructions: dict[str, int]
    lane_instructions: int
    loaded: dict[int, int]
    stored: dict[int, int]
    lds_loaded: int
    lds_stored: int
    lds_conflict_cycles: int
    waits: int

    @property
    def total(self) -> int:
        """All executed instructions of all waves."""
        return sum(self.instructions.values())

    @property
    def loaded_bytes(self) -> int:
        """Bytes that vector and scalar loads asked for."""
        return sum(self.loaded.values())

    @property
    def stored_bytes(self) -> int:
        """Bytes that stores wrote."""
        return sum(self.stored.values())


def counted(
    records: Sequence[Record], handlers: Sequence[int], executed: Sequence[int], lanes: Sequence[int],
    conflicts: Sequence[int], moved: Sequence[int], lds_moved: Sequence[int],
) -> Counts:  # fmt: skip
    """The sums over what each instruction did."""
    classes: Counter[str] = Counter()
    loaded: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    lds_loaded = lds_stored = 0
    for record, number, count, memory, lds in zip(records, handlers, executed, moved, lds_moved, strict=True):
        if not count:
            continue
        classes[family(number)] += count
        stores = "_store_" in record.name or "_write" in record.name
        if memory:
            width = next((size for part in record.name.split("_") if (size := _WIDTHS.get(part))), 0)
            (stored if stores or "_atomic_" in record.name else loaded)[width] += memory
        if stores or memory:  # what a load brings into LDS is stored there
            lds_stored += lds
        else:
            lds_loaded += lds
    return Counts(
        dict(classes), sum(lanes), dict(loaded), dict(stored), lds_loaded, lds_stored, sum(conflicts), classes["wait"]
    )
