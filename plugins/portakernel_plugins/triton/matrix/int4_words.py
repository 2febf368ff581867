"""Four-bit weights decoded in registers: blocks of 128 columns, as tensor cores take them for a first operand.

Words of a packed layout hold pairs of neighbouring columns in their halves, so that a shift and one operation on three
operands (LOP3) make two 16-bit numbers of the 32 bits: the nibbles become bits of mantissas beside an exponent. That
gives ``q`` and what ``raised_by`` says, exactly in both 16-bit dtypes. Where inline assembly does not exist, integer
operations make the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# (word & MASK) | MAGIC: of bfloat16 the last four bits, where those of one fourth are already; of float16 the four
# below its sign and exponent.
_MASK_BFLOAT16 = tl.constexpr(0x000F000F)
_MAGIC_BFLOAT16 = tl.constexpr(0x43004300)
_MASK_FLOAT16 = tl.constexpr(0x03C003C0)
_MAGIC_FLOAT16 = tl.constexpr(0x4C004C00)
# Where the nibble goes: bit 0 of 7, bit 6 of 10.
_PLACE_BFLOAT16 = tl.constexpr(0)
_PLACE_FLOAT16 = tl.constexpr(6)
_BFLOAT16 = tl.constexpr("lop3.b32 $0, $1, 0x000f000f, 0x43004300, 0xea;")
_FLOAT16 = tl.constexpr("lop3.b32 $0, $1, 0x03c003c0, 0x4c004c00, 0xea;")


@triton.constexpr_function
def raised_by(dtype: tl.dtype) -> float:
    """What every decoded number is too large by."""
    return 128.0 if dtype == tl.bfloat16 else 16.0


@triton.jit
def pairs_in_order(words, ROWS: tl.constexpr, MFMA: tl.constexpr):
    """Words ``(ROWS, 16)`` of a block from memory's order, 16 bytes to a lane, into that of the pairs in them."""
    if MFMA:
        return words.reshape(ROWS, 4, 2, 2).permute(0, 2, 1, 3).reshape(ROWS, 16)
    return words.reshape(ROWS, 4, 4).permute(0, 2, 1).reshape(ROWS, 16)


@triton.jit
def fragment_slots(row, WARPS: tl.constexpr):
    """Which row of a tile ``WARPS`` warps read in whose place, so that it is in the lane whose operand it is.

    A warp reads eight rows side by side, but multiplies two times eight: ``in_fragments`` puts them in order again,
    and no element leaves its register. 0 warps: each in its own place.
    """
    if WARPS > 0:
        row = row % 8 + row // 8 % WARPS * 16 + row // (8 * WARPS) % 2 * 8 + row // (16 * WARPS) * (16 * WARPS)
    return row


@triton.jit
def in_fragments(words, ROWS: tl.constexpr, WARPS: tl.constexpr):
    """``(ROWS, columns)`` that were read by ``fragment_slots``, in the order of the tile's rows."""
    if WARPS > 0:
        COLUMNS: tl.constexpr = words.shape[1]
        words = words.reshape(ROWS // (16 * WARPS), 2, WARPS, 8, COLUMNS)
        words = words.permute(0, 2, 1, 3, 4).reshape(ROWS, COLUMNS)
    return words


@triton.jit
def _fourth(words, FOURTH: tl.constexpr, dtype: tl.constexpr, ASSEMBLY: tl.constexpr, WIDEN: tl.constexpr):
    """``q``, raised, of one fourth of the columns, ``(ROWS, 16, 2)``: both halves of the pairs."""
    place: tl.constexpr = (_PLACE_BFLOAT16 if dtype == tl.bfloat16 else _PLACE_FLOAT16) - 4 * FOURTH
    words = words << place if place > 0 else words >> -place
    if ASSEMBLY:
        both = [tl.join(words, words)]
        if dtype == tl.bfloat16:
            found = tl.inline_asm_elementwise(_BFLOAT16, "=r,r,r", both, dtype=tl.bfloat16, is_pure=True, pack=2)
        else:
            found = tl.inline_asm_elementwise(_FLOAT16, "=r,r,r", both, dtype=tl.float16, is_pure=True, pack=2)
    else:
        if dtype == tl.bfloat16:
            words = (words & _MASK_BFLOAT16) | _MAGIC_BFLOAT16
        else:
            words = (words & _MASK_FLOAT16) | _MAGIC_FLOAT16
        low = (words & 0xFFFF).to(tl.int16).to(dtype, bitcast=True)
        high = (words >> 16).to(tl.int16).to(dtype, bitcast=True)
        found = tl.join(low, high)
    if WIDEN:
        found = found.to(tl.float32)
    return found


@triton.jit
def _joined(first, second, third, fourth, ROWS: tl.constexpr):
    """Four fourths ``(ROWS, 16, 2)`` of a block's columns, in order: ``(ROWS, 128)``."""
    halves = tl.join(tl.join(first, third), tl.join(second, fourth))
    return halves.permute(0, 3, 4, 1, 2).reshape(ROWS, 128)


@triton.jit
def raised_weights(words, ROWS: tl.constexpr, dtype: tl.constexpr, ASSEMBLY: tl.constexpr, WIDEN: tl.constexpr):
    """``q``, raised, ``(ROWS, 128)``, of a block's words whose pairs are in order."""
    return _joined(
        _fourth(words, 0, dtype, ASSEMBLY, WIDEN),
        _fourth(words, 1, dtype, ASSEMBLY, WIDEN),
        _fourth(words, 2, dtype, ASSEMBLY, WIDEN),
        _fourth(words, 3, dtype, ASSEMBLY, WIDEN),
        ROWS,
    )


@triton.jit
def _weights_of_fourth(
    words,
    factors,
    FOURTH: tl.constexpr,
    PARTS: tl.constexpr,
    SCALED: tl.constexpr,
    dtype: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WIDEN: tl.constexpr,
):
    PART: tl.constexpr = FOURTH * PARTS // 4
    found = _fourth(words, FOURTH, dtype, ASSEMBLY, WIDEN) - factors[2 * PART + 1][:, None, None]
    if SCALED:
        scale = factors[2 * PART]
        if scale.dtype == found.dtype:
            found = found * scale[:, None, None]
        else:
            found = found.to(tl.float32) * scale.to(tl.float32)[:, None, None]
        found = found.to(dtype)
        found = found.to(tl.float32) if WIDEN else found
    return found


@triton.jit
def weights(
    words,
    factors,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    SCALED: tl.constexpr,
    dtype: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """``q - z`` of a block, ``(ROWS, 128)``, exactly; ``SCALED``: times the scale, rounded once to ``dtype``.

    ``factors`` are those of each of ``PARTS`` parts of the columns: 1, 2 or 4 times ``factors_of``.
    """
    return _joined(
        _weights_of_fourth(words, factors, 0, PARTS, SCALED, dtype, ASSEMBLY, WIDEN),
        _weights_of_fourth(words, factors, 1, PARTS, SCALED, dtype, ASSEMBLY, WIDEN),
        _weights_of_fourth(words, factors, 2, PARTS, SCALED, dtype, ASSEMBLY, WIDEN),
        _weights_of_fourth(words, factors, 3, PARTS, SCALED, dtype, ASSEMBLY, WIDEN),
        ROWS,
    )


@triton.jit
def in_place(w, FIXED: tl.constexpr):
    """The same, as a product's first operand; ``FIXED``: in the lanes where it is.

    Triton has a lane hold more neighbours than mma's two where it sees that an operand was joined, or once was bytes.
    Behind this assembly, which moves nothing, it does not see it.
    """
    if FIXED:
        w = tl.inline_asm_elementwise("mov.b16 $0, $1;", "=h,h", [w], dtype=w.dtype, is_pure=False, pack=1)
    return w


@triton.jit
def factors_of(
    scales,  # (groups, N)
    zeros,  # (groups, N) bytes. None: 8
    group,
    group_of_row,
    n,
    N,
    groups,
    WHOLE: tl.constexpr,
    ZERO: tl.constexpr,
    dtype: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """The scale of each row ``n`` in group ``group + group_of_row``, and ``z``, raised like ``q``, in weights' dtype.

    Outside, unless all are inside (``WHOLE``), scales are zero.
    """
    start = tl.cast(group, tl.int64) * N
    offset = group_of_row.to(tl.int64) * N + n
    inside = ((n < N) & (group + group_of_row < groups)) | WHOLE
    scale = tl.load(scales + start + offset, mask=inside, other=0.0)
    if zeros is None:
        zero = tl.full(n.shape, raised_by(dtype) + 8.0, tl.float32)
    else:
        more = raised_by(dtype) + (1.0 if ZERO == "stored_plus_one" else 0.0)
        zero = tl.load(zeros + start + offset, mask=inside, other=0).to(tl.float32) + more
    return scale, zero if WIDEN else zero.to(dtype)
