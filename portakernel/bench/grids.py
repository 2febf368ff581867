"""Which sizes of each op are measured unless others are asked for; no torch.

``core`` rows are those that a comparison of libraries on one H200 is kept of; the others are sizes that models use. To
add an op, add its rows, and a small size for what a launch costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """The shapes and keyword arguments of one request; tensors that are not named follow from those that are."""

    name: str
    shapes: Shapes
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    core: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """An op's rows, and a small one, on which a launch takes the host longer than the device."""

    rows: tuple[Row, ...]
    launch: Row


def grid(op: str) -> Grid | None:
    """The sizes of ``op``; None where nobody has chosen any."""
    return GRIDS.get(op)


def case_name(shapes: Shapes, values: Mapping[str, Any]) -> str:
    """A row's name where it has none: its shapes and keyword arguments."""
    texts = [f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()]
    return ", ".join([*texts, *(f"{name}={value}" for name, value in values.items())])


Matrix = tuple[int, int]
# Rows by columns. A decoder's batch and a prefill's, on hidden sizes from 2048 to 28672.
_CORE: tuple[Matrix, ...] = ((64, 4096), (4096, 4096), (8192, 5120), (16384, 8192), (4096, 32768))
_MORE: tuple[Matrix, ...] = ((1, 8192), (256, 8192), (8192, 2048), (8192, 6144), (8192, 16384), (4096, 28672))


def _matrices(
    sizes: Sequence[Matrix],
    *,
    core: bool = False,
    names: Sequence[str] = ("x",),
    width: int = 1,
    extra: str = "",
    **values: Any,
) -> tuple[Row, ...]:
    """A row for each size, of several tensors alike: ``width`` times as many columns, ``extra`` of one row's length."""
    return tuple(
        Row(
            f"{rows}×{columns}" + "".join(f" {value}" for value in values.values()),
            dict.fromkeys(names, (rows, width * columns)) | ({extra: (columns,)} if extra else {}),
            values,
            core,
        )
        for rows, columns in sizes
    )


def _grid(core: Sequence[Matrix], more: Sequence[Matrix], **how: Any) -> Grid:
    """The grid of an op on matrices, ``how`` being what ``_matrices`` takes."""
    rows = _matrices(core, core=True, **how) + _matrices(more, **how)
    return Grid(rows, _matrices(((4, 256),), **how)[0])


def _gated(**values: Any) -> Grid:
    """The grid of a gated activation, whose input is twice as wide as its result."""
    return _grid(((8192, 14336),), ((64, 14336), (4096, 11008), (8192, 28672), (16384, 4096)), width=2, **values)


def _attention(
    B: int, S: int, H: int, G: int, D: int, T: int | None = None, *, core: bool = False, **values: Any
) -> Row:
    keys = S if T is None else T
    length = f"S{S}" if T is None else f"S{S} T{T}"
    name = f"B{B} {length} H{H}/{G} D{D}" + "".join(f" {key}" for key, value in values.items() if value is True)
    return Row(name, {"q": (B, S, H, D), "k": (B, keys, G, D), "v": (B, keys, G, D)}, values, core)


def _varlen(B: int, length: int, H: int, G: int, D: int) -> Row:
    """``B`` sequences of one length."""
    tokens, ends = B * length, (B + 1,)
    shapes = {"q": (tokens, H, D), "k": (tokens, G, D), "v": (tokens, G, D), "cu_seqlens_q": ends, "cu_seqlens_k": ends}
    values = {"causal": True, "max_seqlen_q": length, "max_seqlen_k": length}
    return Row(f"{B} of {length} H{H}/{G} D{D} causal", shapes, values)


def _rotary(tokens: int, H: int, G: int, D: int, *, core: bool = False, positions: int = 0) -> Row:
    table = positions or tokens
    shapes: dict[str, tuple[int, ...]] = {
        "q": (tokens, H, D),
        "k": (tokens, G, D),
        "cos": (table, D // 2),
        "sin": (table, D // 2),
    }
    if positions:
        shapes["positions"] = (tokens,)
    return Row(f"{tokens} tokens H{H}/{G} D{D}" + (" positions" if positions else ""), shapes, core=core)


def _linear(M: int, N: int, K: int, activation: str, *, core: bool = False) -> Row:
    shapes = {"x": (M, K), "weight": (N, K), "bias": (N,)}
    return Row(f"{M}×{N}×{K} {activation}", shapes, {"activation": activation}, core)


def _loss(M: int, V: int, K: int) -> Row:
    return Row(f"{M}×{V}×{K}", {"x": (M, K), "weight": (V, K)})


def _scaled(M: int, N: int, K: int, format_a: str, format_b: str, *, core: bool = False) -> Row:
    packed = 2 if format_a in ("mxfp4", "nvfp4") else 1
    shapes = {"a": (M, K // packed), "b": (N, K // packed)}
    values = {"format_a": format_a, "format_b": format_b}
    return Row(f"{M}×{N}×{K} {format_a}" + (f"/{format_b}" if format_a != format_b else ""), shapes, values, core)


def _bags(bags: int, each: int, V: int, N: int, *, core: bool = False) -> Row:
    shapes = {"weight": (V, N), "indices": (bags * each,), "offsets": (bags,)}
    return Row(f"{bags} bags of {each} V{V} D{N}", shapes, core=core)


def _dequantize(rows: int, columns: int, format: str) -> Row:
    packed = 2 if format in ("mxfp4", "nvfp4") else 1
    return Row(f"{rows}×{columns} {format}", {"q": (rows, columns // packed)}, {"format": format})


def _quantising(sizes: Sequence[Matrix], **how: Any) -> Grid:
    """The grid of an op that quantises what it computes; the first of ``sizes`` is the core row."""
    rows = _grid(sizes[:1], sizes[1:], granularity="row", **how)
    return Grid(rows.rows + _matrices(sizes, granularity="block_1x128", **how), rows.launch)


_QUANTISED: tuple[Matrix, ...] = ((8192, 8192),)
_SMALLER: tuple[Matrix, ...] = ((64, 4096), (8192, 14336))
_NORMALISED: tuple[Matrix, ...] = ((16384, 8192), (64, 4096), (4096, 4096), (8192, 5120), (4096, 32768))
_GATED: tuple[Matrix, ...] = ((8192, 14336), (64, 14336), (16384, 4096), (8192, 28672))

GRIDS: Mapping[str, Grid] = MappingProxyType(
    {
        "add": _grid(_CORE, _MORE, names=("x", "y")),
        "rms_norm": _grid(_CORE, _MORE),
        "add_rms_norm": _grid(_CORE, _MORE, names=("x", "residual")),
        "layer_norm": _grid(_CORE, _MORE, extra="bias"),
        "add_layer_norm": _grid(_CORE, _MORE, names=("x", "residual"), extra="bias"),
        "silu_and_mul": _gated(),
        "gelu_and_mul": _gated(approximate="tanh"),
        "softmax": _grid(((8192, 32768),), ((64, 4096), (32768, 1024), (4096, 4096), (2048, 131072))),
        "cross_entropy": _grid(
            ((8192, 131072),), ((8192, 32000), (4096, 151936), (2048, 262144)), names=("logits",)
        ),
        "linear_cross_entropy": Grid(
            (_loss(8192, 128256, 4096), _loss(16384, 32000, 2048), _loss(4096, 262144, 2304)), _loss(16, 64, 64)
        ),
        "rotary_embedding": Grid(
            (
                _rotary(8192, 32, 8, 128, core=True),
                _rotary(8192, 32, 32, 64),
                _rotary(16384, 64, 8, 128),
                _rotary(64, 32, 8, 128, positions=8192),
            ),
            _rotary(4, 4, 2, 64),
        ),
        "quantize_fp8": Grid(
            (
                *_matrices(_QUANTISED, core=True, granularity="row"),
                *_matrices(_SMALLER, granularity="row"),
                *_matrices(_QUANTISED, granularity="tensor"),
                *_matrices(_QUANTISED, granularity="block_1x128"),
                *_matrices(_QUANTISED, granularity="block_128x128"),
            ),
            _matrices(((4, 256),), granularity="row")[0],
        ),
        "rms_norm_quantize": _quantising(_NORMALISED),
        "add_rms_norm_quantize": _quantising(_NORMALISED, names=("x", "residual")),
        "silu_and_mul_quantize": _quantising(_GATED, width=2),
        "quantize_fp4": Grid(
            (
                *_matrices(_QUANTISED, format="nvfp4"),
                *_matrices(_QUANTISED, format="mxfp4"),
                *_matrices(_SMALLER, format="nvfp4"),
            ),
            _matrices(((4, 256),), format="mxfp4")[0],
        ),
        "quantize_mxfp8": _grid((), _QUANTISED + _SMALLER),
        "dequantize": Grid(
            tuple(_dequantize(8192, 8192, name) for name in ("row", "block_1x128", "mxfp8", "mxfp4", "nvfp4")),
            _dequantize(4, 256, "row"),
        ),
        "embedding_bag": Grid(
            (
                _bags(8192, 32, 1_000_000, 128, core=True),
                _bags(8192, 1, 1_000_000, 128),
                _bags(65536, 8, 1_000_000, 64),
                _bags(4096, 128, 200_000, 256),
            ),
            _bags(4, 4, 64, 64),
        ),
        "attention": Grid(
            (
                _attention(16, 1024, 16, 16, 64, core=True, causal=True),
                _attention(4, 4096, 32, 8, 128, core=True, causal=True),
                _attention(1, 16384, 32, 8, 128, core=True, causal=True),
                _attention(4, 4096, 32, 8, 128),
                _attention(4, 4096, 16, 16, 256, causal=True),
                _attention(8, 2048, 32, 4, 96, causal=True),
                _attention(64, 1, 32, 8, 128, 4096, causal=True),
            ),
            _attention(1, 16, 2, 2, 64, causal=True),
        ),
        "attention_varlen": Grid(
            (_varlen(4, 4096, 32, 8, 128), _varlen(16, 1024, 16, 16, 64), _varlen(64, 256, 32, 8, 128)),
            _varlen(2, 16, 2, 2, 64),
        ),
        "linear_act": Grid(
            (
                _linear(8192, 14336, 4096, "gelu", core=True),
                _linear(64, 14336, 4096, "gelu", core=True),
                _linear(8192, 4096, 14336, "none"),
                _linear(4096, 8192, 8192, "silu"),
                _linear(1, 14336, 4096, "none"),
            ),
            _linear(16, 64, 64, "gelu"),
        ),
        "scaled_mm": Grid(
            (
                _scaled(4096, 4096, 4096, "row", "row", core=True),
                _scaled(8192, 8192, 8192, "row", "row", core=True),
                _scaled(8192, 14336, 4096, "tensor", "tensor"),
                _scaled(64, 14336, 4096, "row", "row"),
                _scaled(8192, 8192, 8192, "block_1x128", "block_128x128"),
                _scaled(8192, 8192, 8192, "mxfp8", "mxfp8"),
                _scaled(8192, 8192, 8192, "nvfp4", "nvfp4"),
            ),
            _scaled(16, 64, 64, "row", "row"),
        ),
    }
)  # fmt: skip
