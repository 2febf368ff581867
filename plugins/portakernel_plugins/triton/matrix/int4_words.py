"""Four-bit weights decoded in registers: blocks of 128 columns, as tensor cores take them for a first operand.

Words of a packed layout hold pairs of neighbouring columns in their halves, so that a shift and one operation on three
operands (LOP3) make two 16-bit numbers of the 32 bits: the nibbles become the leading bits of mantissas beside the
exponent of 16, which gives ``16 + q``, exactly in both 16-bit dtypes. Where inline assembly does not exist, integer
operations make the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# (word & MASK) | MAGIC: of bfloat16 the four bits below its sign and exponent, and of float16.
_MASK_BFLOAT16 = tl.constexpr(0x00780078)
_MAGIC_BFLOAT16 = tl.constexpr(0x41804180)
_MASK_FLOAT16 = tl.constexpr(0x03C003C0)
_MAGIC_FLOAT16 = tl.constexpr(0x4C004C00)
# Where the nibble goes: bit 3 of 7, bit 6 of 10.
_PLACE_BFLOAT16 = tl.constexpr(3)
_PLACE_FLOAT16 = tl.constexpr(6)
_BFLOAT16 = tl.constexpr("lop3.b32 $0, $1, 0x00780078, 0x41804180, 0xea;")
_FLOAT16 = tl.constexpr("lop3.b32 $0, $1, 0x03c003c0, 0x4c004c00, 0xea;")
# What every decoded number is too large by.
RAISED = tl.constexpr(16.0)


@triton.jit
def pairs_in_order(words, ROWS: tl.constexpr, MFMA: tl.constexpr):
    """Words ``(ROWS, 16)`` of a block from memory's order, 16 bytes to a lane, into that of the pairs in them."""
    if MFMA:
        return words.reshape(ROWS, 4, 2, 2).permute(0, 2, 1, 3).reshape(ROWS, 16)
    return words.reshape(ROWS, 4, 4).permute(0, 2, 1).reshape(ROWS, 16)


@triton.jit
def _fourth(words, FOURTH: tl.constexpr, dtype: tl.constexpr, ASSEMBLY: tl.constexpr, WIDEN: tl.constexpr):
    """``16 + q`` of one fourth of the columns, ``(ROWS, 16, 2)``: both halves of the pairs."""
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
def raised_weights(
    words,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    dtype: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """``16 + q``, ``(ROWS, 128 // PARTS)``: one of 1, 2 or 4 parts of a block's columns, whose pairs are in order."""
    if PARTS == 4:
        found = _fourth(words, PART, dtype, ASSEMBLY, WIDEN).reshape(ROWS, 32)
    elif PARTS == 2:
        first = _fourth(words, 2 * PART, dtype, ASSEMBLY, WIDEN)
        second = _fourth(words, 2 * PART + 1, dtype, ASSEMBLY, WIDEN)
        found = tl.join(first, second).permute(0, 3, 1, 2).reshape(ROWS, 64)
    else:
        even = tl.join(_fourth(words, 0, dtype, ASSEMBLY, WIDEN), _fourth(words, 2, dtype, ASSEMBLY, WIDEN))
        odd = tl.join(_fourth(words, 1, dtype, ASSEMBLY, WIDEN), _fourth(words, 3, dtype, ASSEMBLY, WIDEN))
        found = tl.join(even, odd).permute(0, 3, 4, 1, 2).reshape(ROWS, 128)
    return found


@triton.jit
def raised_zeros(zeros, group, groups, n, N, ZERO: tl.constexpr, dtype: tl.constexpr, WIDEN: tl.constexpr):
    """``16 + z`` of each row ``n`` in one group, in the dtype of the weights; ``zeros``: (groups, N) bytes, or None."""
    if zeros is None:
        found = tl.full(n.shape, RAISED + 8.0, tl.float32)
    else:
        more: tl.constexpr = RAISED + (1.0 if ZERO == "stored_plus_one" else 0.0)
        inside = (n < N) & (group < groups)
        found = tl.load(zeros + tl.cast(group, tl.int64) * N + n, mask=inside, other=0).to(tl.float32) + more
    return found if WIDEN else found.to(dtype)
