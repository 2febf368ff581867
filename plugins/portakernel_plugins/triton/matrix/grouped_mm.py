"""``grouped_mm`` in Triton: the tiles of all experts' products, found from ``offsets`` on the device.

Each program adds up how many tiles the experts have, and takes tile after tile: of an expert all rows of a block of
columns, then those of the next, so that the matrices of experts come through the L2 cache once. Nothing about the
offsets is known on the host: a captured graph multiplies other pieces, and as many programs run as there may be tiles,
or as the device has room for.

Where the strides allow it, one descriptor is for all rows and one for the matrices of all experts: the hardware copies
whole tiles, of which rows that are the next expert's are not stored. With ``STORES`` it also writes those tiles whose
rows are all of one expert. With few rows an expert, matrices are the left
factor and rows the right one (``SWAP``), of which tensor cores take as few as there are.

Matrices of four bits (``mxfp4``, which ``moe_mlp`` alone has) are read through pointers and decoded in registers.
"""
# pyright: reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false
# Python's types do not see that Triton iterates over its ranges, nor that conditions are compiled alike twice.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import as_bytes, delivered
from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.matrix.grouped_tiles import (
    columns_of,
    gated,
    lane_of,
    put,
    read_matrix,
    read_rows,
    scaled,
    tiles_of_pieces,
    with_bias,
)
from portakernel_plugins.triton.matrix.in_flight import end_products
from portakernel_plugins.triton.matrix.mxfp4_weights import SHARED, decoded, read_codes, read_scales, term_in_place

# What TMA wants an address and all strides but the innermost to be divisible by, in bytes.
_ALIGNED = 16
# The columns, and the terms, that share a scale.
_SCALED = tl.constexpr(128)
# The configurations of narrow products.
_OF_FORMATS = {"row": "float8", "block": "float8_blocks", "mxfp4": "mxfp4"}


@triton.jit(do_not_specialize=["rows", "experts"])
def _forward(
    a,  # (M, K), or what describes it
    b,  # (E, N, K), or bytes (E, N, K/2)
    offsets,
    bias,  # (E, N). None: there is none
    scale_a,  # (M, 1) or (M, blocks), and (E, N, 1), (E, blocks, blocks) or (E, N, groups). None: they have no scales
    scale_b,
    gather,  # (R,). None: the rows are a's own
    y,  # (M, N), or (R, N)
    whole_tiles,  # what describes y. None: it is written through pointers alone
    rows,
    columns,
    inners,
    inner_bytes,  # of a row of b, where two of its elements share one
    experts,
    steps,
    a_row,
    a_inner,
    b_expert,
    b_column,
    b_inner,
    offsets_stride,
    gather_stride,
    shared,  # so many numbers of gather, from 0 on, are the first row's, and so on
    bias_expert,
    bias_column,
    scale_a_row,
    scale_a_block,
    scale_b_expert,
    scale_b_column,
    scale_b_block,
    LANES: tl.constexpr,  # a power of two above E
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    CODES: tl.constexpr,  # of which float8 dtype, where a and b are codes to be widened
    PRECISION: tl.constexpr,
    FORMAT: tl.constexpr,
    SWAP: tl.constexpr,
    FLATTEN: tl.constexpr,
    REST: tl.constexpr,  # rows of no expert become zeros
    GATE: tl.constexpr,  # y is the activation of one half of the columns times the other, (R, N/2). None: it is not
    PAIRED: tl.constexpr,  # the halves lie one behind the other
    IN_TURN: tl.constexpr,  # 2: their columns lie in turn. 1: they do not
    ASSEMBLY: tl.constexpr,  # what decodes bytes is written for NVIDIA's devices
    WARPS: tl.constexpr,  # those of a program that reads bytes as tensor cores' fragments. 0: it does not
    ASYNCHRONOUS: tl.constexpr,  # what was decoded is an operand of Hopper's tensor cores, in registers
) -> None:
    WIDTH: tl.constexpr = BLOCK_N if GATE is None else BLOCK_N // 2
    begins, ends, heights = tiles_of_pieces(offsets, offsets_stride, experts, rows, LANES, BLOCK_M, REST)
    lane = tl.arange(0, LANES)
    across = tl.cdiv(columns, WIDTH)
    last = tl.cumsum(heights, axis=0) * across
    tiles = tl.sum(heights) * across
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        before = last <= tile
        expert = tl.sum(before.to(tl.int32))
        place = tile - tl.max(tl.where(before, last, 0))
        height, end = lane_of(heights, lane, expert), lane_of(ends, lane, expert)
        row = lane_of(begins, lane, expert) + place % height * BLOCK_M
        column = place // height * WIDTH
        numbers = (row + tl.arange(0, BLOCK_M)).to(tl.int64)
        is_row = numbers < end
        if gather is not None:
            numbers = tl.load(gather + numbers * gather_stride, mask=is_row, other=0).to(tl.int32) // shared
            numbers = numbers.to(tl.int64)
        terms = steps
        if REST:
            terms = tl.where(expert == experts, 0, steps)
        z = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
        groups = tl.cdiv(inners, SHARED)
        terms_read = term_in_place(tl.arange(0, BLOCK_K), WARPS)
        if FORMAT == "mxfp4":
            powers = read_scales(
                scale_b, expert, column * IN_TURN, columns * IN_TURN, 0, groups,
                scale_b_expert, scale_b_column, scale_b_block, BLOCK_N, BLOCK_K, PAIRED, WARPS,
            )  # fmt: skip
        for step in range(terms):
            left = read_rows(
                a, row, numbers, is_row, step * BLOCK_K, inners, a_row, a_inner, terms_read,
                BLOCK_K, FORM_A, EVEN, WIDEN, CODES,
            )  # fmt: skip
            if FORMAT == "mxfp4":
                codes = read_codes(
                    b, expert, column * IN_TURN, columns * IN_TURN, step * BLOCK_K, inner_bytes,
                    b_expert, b_column, b_inner, BLOCK_N, BLOCK_K, EVEN, PAIRED, WARPS,
                )  # fmt: skip
                # a step ahead: no copy of single bytes runs beside the products
                ahead = read_scales(
                    scale_b, expert, column * IN_TURN, columns * IN_TURN, (step + 1) * BLOCK_K, groups,
                    scale_b_expert, scale_b_column, scale_b_block, BLOCK_N, BLOCK_K, PAIRED, WARPS,
                )  # fmt: skip
                right = decoded(codes, powers, BLOCK_N, BLOCK_K, left.dtype, ASSEMBLY, WARPS)
                powers = ahead
                if not SWAP:
                    right = right.T
            else:
                right = read_matrix(
                    b, expert, column * IN_TURN, columns * IN_TURN, step * BLOCK_K, inners, b_expert, b_column, b_inner,
                    BLOCK_N, BLOCK_K, FORM_B, EVEN, WIDEN, CODES, not SWAP, PAIRED,
                )  # fmt: skip
            if SWAP:
                left, right = right, left.T
            if FORMAT == "row":
                # the tensor cores' own sums are of fewer bits: so many terms, and no more
                z += tl.dot(left, right)
            elif FORMAT != "block":
                z = tl.dot(left, right, z, input_precision=PRECISION)
                end_products(ASYNCHRONOUS)
            else:
                at = scale_a + numbers * scale_a_row + step * scale_a_block
                of_rows = tl.load(at, mask=is_row, other=0.0)
                at = scale_b + tl.cast(expert, tl.int64) * scale_b_expert + step * scale_b_block
                tl.static_assert(_SCALED % BLOCK_N == 0)
                if PAIRED:
                    number, inside = columns_of(column, columns, BLOCK_N, True)
                    at += (number // _SCALED).to(tl.int64) * scale_b_column
                    of_columns = tl.load(at, mask=inside, other=0.0)
                    part = tl.dot(left, right) * tl.expand_dims(of_rows, 0 if SWAP else 1)
                    z += part * tl.expand_dims(of_columns, 1 if SWAP else 0)
                else:  # all columns of a tile share one: a factor for each element, and not two
                    of_rows *= tl.load(at + tl.cast(column * IN_TURN // _SCALED, tl.int64) * scale_b_column)
                    z += tl.dot(left, right) * tl.expand_dims(of_rows, 0 if SWAP else 1)
        if SWAP:
            z = z.T
        if FORMAT == "row":
            z = scaled(
                z, scale_a, scale_b, expert, numbers, is_row, column * IN_TURN, columns * IN_TURN,
                scale_a_row, scale_b_expert, scale_b_column, PAIRED,
            )  # fmt: skip
        if bias is not None:
            z = with_bias(z, bias, expert, column * IN_TURN, columns * IN_TURN, bias_expert, bias_column, PAIRED)
        if GATE is not None:
            z = gated(z, GATE, PAIRED)
        put(z, y, whole_tiles, row, end, column, columns)


def power_above(number: int) -> int:
    """A power of two that is more than ``number``."""
    return 1 << number.bit_length()


def tiles_for(step: str, a: Tensor, rows: int, experts: int) -> Configuration:
    """How a step of the op is launched, by the mean number of rows of an expert."""
    kind = "float32" if a.dtype is torch.float32 else step
    return configuration(f"grouped_mm.{kind}", a.device, max(1, rows // max(experts, 1)))


def products_of(like: Tensor) -> dict[str, Any]:
    """``WIDEN``: operands are made float32 first. ``PRECISION``: what products of float32 numbers keep."""
    arch = processor(like.device).arch
    single = like.dtype is torch.float32 and arch.startswith("sm_")
    cut = single and torch.backends.cuda.matmul.fp32_precision == "tf32"
    # interpreted, products of bfloat16 numbers are wrong
    return {"WIDEN": arch == "interpreter", "PRECISION": "tf32" if cut else "ieee"}


def _described(x: Tensor, block: tuple[int, int], wanted: bool, *, paired: bool = False) -> tuple[Any, str]:
    """What a kernel takes for ``x``, whose last two dimensions are ``block`` at a time, and how it is read.

    By a descriptor along its ``inner`` or ``outer`` dimension, or by ``pointers``. Of a ``paired`` one the dimension
    before has two halves, which are read together.
    """
    step = _ALIGNED // x.element_size()
    if not wanted or not x.numel() or x.data_ptr() % _ALIGNED:
        return x, "pointers"
    last, ahead = x.dim() - 1, (*(1,) * (x.dim() - 3 if paired else x.dim() - 2),)
    two, dims = ((2,), (last - 2,)) if paired else ((), ())
    before = (*range(len(ahead)),)
    forms = (
        ("inner", (*before, *dims, last - 1, last), [*ahead, *two, *block]),
        ("outer", (*before, last, *dims, last - 1), [*ahead, block[1], *two, block[0]]),
    )
    for form, order, tile in forms:
        # strides of a dimension of one say nothing
        strides = [x.stride(place) if x.shape[place] > 1 else step for place in order[:-1]]
        along = order[-1]
        if (x.stride(along) == 1 or x.shape[along] == 1) and all(s > 0 and s % step == 0 for s in strides):
            return TensorDescriptor(x, [x.shape[place] for place in order], [*strides, 1], tile), form
    return x, "pointers"


def _in_halves(b: Tensor) -> Tensor:
    """``(E, 2, N/2, K)`` of ``b: (E, N, K)``."""
    experts, columns, inners = b.shape
    strides = b.stride()
    shape = (experts, 2, columns // 2, inners)
    return b.as_strided(shape, (strides[0], columns // 2 * strides[1], *strides[1:]))


def multiply(
    step: str,
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    y: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: str = "none",
    rest: bool = False,
    shared: int = 1,
    gate: str | None = None,
    halves: str = "concat",
) -> None:
    """Writes the products of pieces of ``a: (M, K)`` with ``b: (E, N, K)`` into ``y``, contiguous, a row for each.

    With ``rest``, rows of no expert become zeros. Of ``gather`` so many neighbouring numbers are ``shared`` by a row of
    ``a``. With ``gate``, an activation, y has that of one half of the columns times the other; ``halves`` says which.
    Of the format "mxfp4" ``b`` is ``(E, N, K/2)``, with ``scale_b: (E, N, ceil(K/32))``.
    """
    (rows, columns), experts, inners = y.shape, b.shape[0], a.shape[1]
    paired = gate is not None and halves == "concat"
    if not rows or not columns or not experts:
        return
    how = tiles_for(_OF_FORMATS.get(format, step), a, rows, experts)
    options = {"SWAP": False, "FLATTEN": False, **how.options}
    wanted, stored = options.pop("DESCRIPTORS", False), options.pop("STORES", False)
    products, codes = products_of(a), None
    narrow, arch = format == "mxfp4", processor(a.device).arch
    if narrow:
        assert scale_b is not None
        b, scale_b = as_bytes(b), as_bytes(scale_b)
    if products["WIDEN"] and a.element_size() == 1:  # the interpreter takes NaN of float8 for a number
        codes, a, b = str(a.dtype).removeprefix("torch."), as_bytes(a), as_bytes(b)
    block_m, block_n, block_k = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    # Hopper's copy engine gathers no rows
    left, form_a = _described(a, (block_m, block_k), wanted and gather is None)
    if paired:
        right, form_b = _described(_in_halves(b), (block_n // 2, block_k), wanted and not narrow, paired=True)
        right = b if form_b == "pointers" else right
    else:
        right, form_b = _described(b, (block_n, block_k), wanted and not narrow)
    width = block_n if gate is None else block_n // 2
    whole_tiles, form_y = _described(y, (block_m, width), stored)
    tiles = (cdiv(rows, block_m) + experts + rest) * cdiv(columns, width)
    of_bias = (0, 0) if bias is None else bias.stride()
    of_a, of_b = (0, 0) if scale_a is None else scale_a.stride(), (0, 0, 0) if scale_b is None else scale_b.stride()
    launch(
        _forward,
        (min(tiles, how.programs), 1),
        left,
        right,
        offsets,
        bias,
        scale_a,
        scale_b,
        gather,
        y,
        whole_tiles if form_y == "inner" else None,
        rows,
        columns,
        inners,
        b.shape[2] if narrow else 0,
        experts,
        cdiv(inners, block_k),
        *a.stride(),
        *b.stride(),
        offsets.stride(0),
        0 if gather is None else gather.stride(0),
        shared,
        *of_bias,
        *of_a,
        *of_b,
        LANES=power_above(experts),
        FORM_A=form_a,
        FORM_B=form_b,
        EVEN="pointers" not in (form_a, form_b) or inners % block_k == 0,
        FORMAT=format,
        REST=rest,
        CODES=codes,
        GATE=gate,
        PAIRED=paired,
        IN_TURN=1 if gate is None or paired else 2,
        ASSEMBLY=narrow and a.dtype is torch.bfloat16 and arch.startswith("sm_"),
        WARPS=how.warps if options.pop("FRAGMENTS", False) else 0,
        ASYNCHRONOUS=narrow and options["SWAP"] and arch.startswith("sm_9"),
        **products,
        **options,
    )


def check_scales(format: str, scale_a: Tensor | None, scale_b: Tensor | None) -> None:
    """Nothing, when there are scales where the format has them.

    Raises:
        ArgumentValueError: one is missing, or there is one too many.
    """
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if (scale is None) != (format == "none"):
            needed = "it must be given" if scale is None else "it must be left out"
            found = "None" if scale is None else "a tensor"
            raise ArgumentValueError(f"grouped_mm: {name} is {found} with format={format!r}; {needed}")


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: str = "none",
    out: Tensor | None = None,
) -> Tensor:
    """``y``: pieces of the rows of ``a: (M, K)``, or of those that ``gather`` names, each times its matrix of ``b``.

    ``b``: ``(E, N, K)``; float32, float16 or bfloat16, or float8 with scales; all of any strides, ``out`` too.
    ``offsets``: ``(E+1,)`` and ``gather``: ``(R,)``, int32 or int64.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says.
    """
    how: dict[str, Any] = {"bias": bias, "scale_a": scale_a, "scale_b": scale_b, "gather": gather, "format": format}
    return product(multiply, a, b, offsets, out, **how)


def product(
    multiplied: Callable[..., None], a: Tensor, b: Tensor, offsets: Tensor, out: Tensor | None, **how: Any
) -> Tensor:
    """``grouped_mm``, ``multiplied`` as ``multiply`` does."""
    check_scales(how["format"], how["scale_a"], how["scale_b"])
    dtype = a.dtype if how["format"] == "none" else torch.bfloat16
    whole = out if out is not None and out.is_contiguous() else None
    rows = a.shape[0] if how["gather"] is None else how["gather"].shape[0]
    y = a.new_empty((rows, b.shape[1]), dtype=dtype) if whole is None else whole
    multiplied("forward", a, b, offsets, y, **how)
    return delivered(y, out)
