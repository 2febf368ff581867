"""How far each op is proven on each architecture: the support matrix as one picture, a cell for an op and an arch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from portakernel.matrix.page.rows import Row, rows
from portakernel.matrix.proofs import KINDS, Proof
from portakernel.matrix.table import OpSupport


class Level(NamedTuple):
    """How far something is proven: ``letter`` stands in a cell, ``proof`` is the kind of proof that it takes."""

    name: str
    letter: str
    words: str
    meaning: str
    proof: str = ""


RAN = Level("ran", "R", "ran", "a kernel ran on such hardware and was right", "ran")
EMULATED = Level("emulated", "E", "emulated", "a kernel's code ran in an emulator of the hardware", "emulated")
NATIVE = Level("native", "N", "native instruction", "its code has the instruction that the claim implies", "native")
COMPILED = Level("compiled", "C", "compiled", "its compiler makes code for the architecture", "compiled")
DECLARED = Level("declared", "d", "declared", "a kernel's manifest claims it, and nothing is proven")
REFERENCE = Level("reference", "r", "reference only", "no kernel claims it: the formula in plain torch serves")

# The best first: of several kernels, and several proofs of one, the best counts.
LEVELS = (RAN, EMULATED, NATIVE, COMPILED, DECLARED, REFERENCE)


def possible_levels() -> tuple[Level, ...]:
    """The levels that something can have here, the best first; not those whose proofs nothing here records."""
    return tuple(level for level in LEVELS if not level.proof or level.proof in KINDS)


class Column(NamedTuple):
    """An arch of a vendor; "" of a vendor's hardware of any arch."""

    vendor: str
    arch: str


@dataclass(frozen=True, slots=True)
class Levels:
    """The picture: what is proven of ``ops`` on ``columns``; of a pair that is in no ``cells`` nothing is claimed."""

    ops: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Level]

    @property
    def vendors(self) -> dict[str, int]:
        """The number of columns of each vendor, in order."""
        counts: dict[str, int] = {}
        for column in self.columns:
            counts[column.vendor] = counts.get(column.vendor, 0) + 1
        return counts


def levels(matrix: Sequence[OpSupport], proofs: Iterable[Proof] = ()) -> Levels:
    """How far ``proofs`` prove what is claimed, in any dtype and scale format; what is disabled counts for nothing."""
    known = tuple(proofs)
    return levels_of_rows({support.op: rows(support, known) for support in matrix}, matrix)


def levels_of_rows(by_op: Mapping[str, Sequence[Row]], matrix: Sequence[OpSupport]) -> Levels:
    """The same, of rows that are made already."""
    archs: dict[str, dict[Column, None]] = {}
    for support in matrix:
        for place in support.places:
            columns = (Column(place.vendor, arch) for arch in place.archs or ("",))
            archs.setdefault(place.vendor, {}).update(dict.fromkeys(columns))
    cells: dict[tuple[str, Column], Level] = {}
    for op, found in by_op.items():
        for row in found:
            if row.kernel.disabled is not None:
                continue
            level = _level(row)
            for arch in row.names or ("",):
                cell = op, Column(row.vendor, arch)
                cells[cell] = min(level, cells.get(cell, level), key=LEVELS.index)
    return Levels(tuple(by_op), tuple(column for several in archs.values() for column in several), cells)


def _level(row: Row) -> Level:
    if row.kernel.is_reference:
        return REFERENCE
    kinds = {str(proof.kind) for proof in row.proofs}
    return next((level for level in LEVELS if level.proof in kinds), DECLARED)
