"""Which sizes of an op are measured: the rows of its contract's ``grid``, and what is drawn from what models use.

``core`` rows are those that a comparison of libraries on one H200 is kept of; the others are sizes that models use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from portakernel.contract.production import CLASSES, DECODERS, ENCODERS, HEADS, RANKS, Production

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class GridRow:
    """The shapes and keyword arguments of one request; tensors that are not named follow from those that are.

    ``given`` are elements of integer tensors, such as lengths that differ; what is not given is drawn. ``dtypes`` are
    those of tensors that do not have the dtype in which an op is measured. ``trained`` is False of what inference alone
    asks for, such as a step of decoding: of drawn ones no gradient is measured.
    """

    name: str
    shapes: Shapes
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    core: bool = False
    given: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    trained: bool = True


@dataclass(frozen=True, slots=True)
class Grid:
    """An op's rows, and a small one, on which a launch takes the host longer than the device.

    ``drawn`` makes a row of what models use; without it nothing can be drawn.
    """

    rows: tuple[GridRow, ...]
    launch: GridRow
    drawn: Callable[[Production], GridRow] | None = None


Matrix = tuple[int, int]
Sizes = Callable[[Production], Matrix]
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


def hidden_rows(production: Production) -> Matrix:
    """What layers pass on: a row for each token, or for each head of each."""
    if production.at_times(0.2):
        return production.tokens() * production.share(production.one_of(DECODERS).heads), production.one_of(HEADS)
    if production.at_times(0.2):
        encoder, lengths = production.one_of(ENCODERS)
        return production.one_of((1, 8, 32)) * production.one_of(lengths), encoder.hidden
    return production.tokens(), production.model.hidden


def normalised_rows(production: Production) -> Matrix:
    """As ``hidden_rows``, some of them pruned."""
    rows, columns = hidden_rows(production)
    return rows, production.pruned(columns)


def gate_rows(production: Production) -> Matrix:
    """Half of what a gated activation reads, and something quantises for the next product."""
    return production.tokens(), production.share(production.model.intermediate)


def gated_rows(production: Production) -> Matrix:
    """As ``gate_rows``, some of them pruned."""
    rows, columns = gate_rows(production)
    return rows, production.pruned(columns)


def logit_rows(production: Production) -> Matrix:
    """Tokens by vocabulary, or what is told apart by classes."""
    if production.at_times(0.15):
        return production.one_of((1, 32, 256, 1024, 4096)), production.one_of(CLASSES)
    return production.tokens(), production.vocabulary()


def layer_rows(production: Production) -> Matrix:
    """What a layer's products read, and what is quantised for them."""
    return hidden_rows(production) if production.at_times(0.5) else gate_rows(production)


def layer_products(production: Production) -> tuple[int, int, int]:
    """Tokens, outputs and inputs of a linear layer, split or not: of attention, of what follows it, or the last one.

    Inputs are wide, and no number is odd but the last layer's.
    """
    model, tokens = production.model, production.tokens()
    heads, key_heads = production.heads()
    width = production.share(model.intermediate)
    outputs, inputs = production.one_of(
        (
            ((heads + 2 * key_heads) * model.head, model.hidden),
            (model.hidden, heads * model.head),
            (width, model.hidden),
            (2 * width, model.hidden),
            (model.hidden, width),
            (production.vocabulary(), model.hidden),
        )
    )
    return tokens, outputs, inputs


def adapted_products(production: Production) -> tuple[int, int, int]:
    """As ``layer_products``, or those of a low-rank adapter beside one, of a pruned one, or of a classifier."""
    tokens, outputs, inputs = layer_products(production)
    kind, rank = production.random.random(), production.one_of(RANKS)
    if kind < 0.1:
        return tokens, rank, inputs
    if kind < 0.2:
        return tokens, outputs, rank
    if kind < 0.3:
        return production.one_of((1, 32, 256, 1024)), production.one_of(CLASSES), inputs
    return tokens, production.pruned(outputs), inputs


def drawn_matrices(
    sizes: Sizes, choices: Mapping[str, Sequence[Any]] | None = None, **how: Any
) -> Callable[[Production], GridRow]:
    """Draws a matrix of ``sizes``, and a value of each of ``choices``; ``how`` being what ``matrices`` takes."""

    def row(production: Production) -> GridRow:
        values = {name: production.one_of(known) for name, known in (choices or {}).items()}
        return matrices((sizes(production),), **how, **values)[0]

    return row


def matrix_grid(core: Sequence[Matrix], more: Sequence[Matrix], sizes: Sizes = normalised_rows, **how: Any) -> Grid:
    """The grid of an op on matrices, ``how`` being what ``matrices`` takes; others are drawn of ``sizes``."""
    rows = matrices(core, core=True, **how) + matrices(more, **how)
    return Grid(rows, matrices(((4, 256),), **how)[0], drawn_matrices(sizes, **how))


def gated_grid(**values: Any) -> Grid:
    """The grid of a gated activation, whose input is twice as wide as its result."""
    more = ((64, 14336), (4096, 11008), (8192, 28672), (16384, 4096))
    return matrix_grid(((8192, 14336),), more, gated_rows, width=2, **values)


def quantising_grid(sizes: Sequence[Matrix], drawn: Sizes = hidden_rows, **how: Any) -> Grid:
    """The grid of an op that quantises what it computes; the first of ``sizes`` is the core row."""
    rows = matrix_grid(sizes[:1], sizes[1:], granularity="row", **how)
    draw = drawn_matrices(drawn, {"granularity": ("row", "block_1x128")}, **how)
    return Grid(rows.rows + matrices(sizes, granularity="block_1x128", **how), rows.launch, draw)
