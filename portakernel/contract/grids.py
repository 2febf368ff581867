"""Which sizes of an op are measured unless others are asked for: the rows of its contract's ``grid``.

``core`` rows are those that a comparison of libraries on one H200 is kept of; the others are sizes that models use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class GridRow:
    """The shapes and keyword arguments of one request; tensors that are not named follow from those that are.

    ``given`` are elements of integer tensors, such as lengths that differ; what is not given is drawn. ``dtypes`` are
    those of tensors that do not have the dtype in which an op is measured.
    """

    name: str
    shapes: Shapes
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    core: bool = False
    given: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Grid:
    """An op's rows, and a small one, on which a launch takes the host longer than the device."""

    rows: tuple[GridRow, ...]
    launch: GridRow


Matrix = tuple[int, int]
# Rows by columns. A decoder's batch and a prefill's, on hidden sizes from 2048 to 28672.
CORE: tuple[Matrix, ...] = ((64, 4096), (4096, 4096), (8192, 5120), (16384, 8192), (4096, 32768))
MORE: tuple[Matrix, ...] = ((1, 8192), (256, 8192), (8192, 2048), (8192, 6144), (8192, 16384), (4096, 28672))
# What quantising ops are measured on: the sizes of an op that does nothing else, and of one that normalises first.
QUANTISED: tuple[Matrix, ...] = ((8192, 8192),)
SMALLER: tuple[Matrix, ...] = ((64, 4096), (8192, 14336))
NORMALISED: tuple[Matrix, ...] = ((16384, 8192), (64, 4096), (4096, 4096), (8192, 5120), (4096, 32768))


def matrices(
    sizes: Sequence[Matrix],
    *,
    core: bool = False,
    names: Sequence[str] = ("x",),
    width: int = 1,
    extra: str = "",
    **values: Any,
) -> tuple[GridRow, ...]:
    """A row for each size, of several tensors alike: ``width`` times as many columns, ``extra`` of one row's length."""
    return tuple(
        GridRow(
            f"{rows}×{columns}" + "".join(f" {value}" for value in values.values()),
            dict.fromkeys(names, (rows, width * columns)) | ({extra: (columns,)} if extra else {}),
            values,
            core,
        )
        for rows, columns in sizes
    )


def matrix_grid(core: Sequence[Matrix], more: Sequence[Matrix], **how: Any) -> Grid:
    """The grid of an op on matrices, ``how`` being what ``matrices`` takes."""
    rows = matrices(core, core=True, **how) + matrices(more, **how)
    return Grid(rows, matrices(((4, 256),), **how)[0])


def gated_grid(**values: Any) -> Grid:
    """The grid of a gated activation, whose input is twice as wide as its result."""
    return matrix_grid(((8192, 14336),), ((64, 14336), (4096, 11008), (8192, 28672), (16384, 4096)), width=2, **values)


def quantising_grid(sizes: Sequence[Matrix], **how: Any) -> Grid:
    """The grid of an op that quantises what it computes; the first of ``sizes`` is the core row."""
    rows = matrix_grid(sizes[:1], sizes[1:], granularity="row", **how)
    return Grid(rows.rows + matrices(sizes, granularity="block_1x128", **how), rows.launch)
