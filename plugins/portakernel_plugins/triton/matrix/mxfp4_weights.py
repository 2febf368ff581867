"""Weights of four bits with a power of two for each 32, as ``grouped_mm``'s products read and decode them.

A byte has two codes of e2m1, the even column's in its low four bits; a scale is an e8m0 code, one byte. Their product
is a number of bfloat16, exactly, unless it is beyond all of them.

On NVIDIA's devices a permutation of bytes looks up both bytes of a bfloat16 number by its code's last three bits: one
instruction for four codes. What they make of a byte is one register, which one operation scales. Each element of that
depends on its own byte and scale alone, however they are laid over lanes.

As the first operand of tensor cores, of four lanes each has four of every 16 terms of a row. Which terms these are is
nobody's matter, as long as they are the other operand's: ``term_in_place`` gives each lane 32 neighbours, which are 16
bytes and share a scale. What a lane reads it decodes, and multiplies: nothing goes through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.grouped_tiles import columns_at
from portakernel_plugins.triton.matrix.int4_words import fragment_slots, in_fragments, in_place
from portakernel_plugins.triton.quantize.float8 import widened, widened_power

# Columns that share a scale.
SHARED = tl.constexpr(32)
# Of four bytes ($4) and the pairs of scales of each ($5 to $8): the pairs of numbers that each byte stands for.
PAIRS = tl.constexpr(
    """
    {
    .reg .b32 m, n, q, h, l, s, t, u, v, w, sign;
    mov.b32 sign, 0x80008000;
    and.b32 m, $4, 0x77777777;
    shr.b32 n, m, 16;
    shl.b32 q, $4, 4;
    prmt.b32 h, 0x3f3f3f00, 0x40404040, m;
    prmt.b32 l, 0xc0800000, 0xc0804000, m;
    prmt.b32 t, l, h, 0x5140;
    prmt.b32 u, l, h, 0x7362;
    prmt.b32 h, 0x3f3f3f00, 0x40404040, n;
    prmt.b32 l, 0xc0800000, 0xc0804000, n;
    prmt.b32 v, l, h, 0x5140;
    prmt.b32 w, l, h, 0x7362;
    prmt.b32 s, q, $4, 0x4000;
    lop3.b32 t, s, sign, t, 0xea;
    prmt.b32 s, q, $4, 0x5010;
    lop3.b32 u, s, sign, u, 0xea;
    prmt.b32 s, q, $4, 0x6020;
    lop3.b32 v, s, sign, v, 0xea;
    prmt.b32 s, q, $4, 0x7030;
    lop3.b32 w, s, sign, w, 0xea;
    fma.rn.bf16x2 $0, t, $5, sign;
    fma.rn.bf16x2 $1, u, $6, sign;
    fma.rn.bf16x2 $2, v, $7, sign;
    fma.rn.bf16x2 $3, w, $8, sign;
    }
    """
)


@triton.jit
def read_scales(
    scales, expert, column, columns, inner, groups, expert_stride, column_stride, group_stride,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, PAIRED: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """``(BLOCK, BLOCK_K / 32)`` codes of the ``columns_at`` fragments' slots; outside some power of two's."""
    place = fragment_slots(tl.arange(0, BLOCK), WARPS)
    number, inside = columns_at(place, column, columns, BLOCK, PAIRED)
    group = inner // SHARED + tl.arange(0, BLOCK_K // SHARED)
    at = scales + tl.cast(expert, tl.int64) * expert_stride + (number.to(tl.int64) * column_stride)[:, None]
    at += (group.to(tl.int64) * group_stride)[None, :]
    return tl.load(at, mask=inside[:, None] & (group < groups)[None, :], other=0)


@triton.jit
def read_codes(
    b, expert, column, columns, inner, inner_bytes, expert_stride, column_stride, byte_stride,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PAIRED: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """``(BLOCK, BLOCK_K / 2)`` bytes of the same matrix, zeros outside."""
    place = fragment_slots(tl.arange(0, BLOCK), WARPS)
    number, inside = columns_at(place, column, columns, BLOCK, PAIRED)
    inside = inside[:, None]
    first, lane = inner // 2, tl.arange(0, BLOCK_K // 2)[None, :]
    if not EVEN:
        inside = inside & (first + lane < inner_bytes)
    b += tl.cast(expert, tl.int64) * expert_stride + tl.cast(first, tl.int64) * byte_stride
    return tl.load(
        b + (number.to(tl.int64) * column_stride)[:, None] + lane.to(tl.int64) * byte_stride, inside, other=0
    )


@triton.jit
def _twice(scales):
    """The numbers of bfloat16 that scales stand for, in both halves of 32 bits: 2**-127 is one without an exponent."""
    code = scales.to(tl.int32)
    bits = tl.where(code == 0, 0x0040, code << 7)
    bits = tl.where(code == 255, 0x7FC0, bits)
    return bits | (bits << 16)


@triton.jit
def decoded(
    codes, scales, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, NUMBERS: tl.constexpr, ASSEMBLY: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """``(BLOCK, BLOCK_K)`` weights as ``NUMBERS``, which with ``ASSEMBLY`` are bfloat16.

    Read by so many ``WARPS`` as a tile's fragments, they are in its order, and terms as ``term_in_place`` says.
    """
    GROUPS: tl.constexpr = BLOCK_K // SHARED
    if ASSEMBLY:
        spread = tl.broadcast_to(_twice(scales)[:, :, None], (BLOCK, GROUPS, SHARED // 2))
        operands = [codes, tl.reshape(spread, (BLOCK, BLOCK_K // 2))]
        pairs = tl.inline_asm_elementwise(
            PAIRS, "=&r,=&r,=&r,=&r,r,r,r,r,r", operands, dtype=tl.int32, is_pure=True, pack=4
        )
        low = pairs.to(tl.int16).to(tl.bfloat16, bitcast=True)
        high = (pairs >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
        w = tl.reshape(tl.join(low, high), (BLOCK, BLOCK_K))
    else:
        w = widened(tl.reshape(tl.join(codes & 0xF, codes >> 4), (BLOCK, BLOCK_K)), "float4_e2m1fn_x2", "bits")
        w = tl.reshape(w, (BLOCK, GROUPS, SHARED)) * widened_power(scales)[:, :, None]
        w = tl.reshape(w, (BLOCK, BLOCK_K)).to(NUMBERS)
    if WARPS > 0:
        pairs = tl.reshape(in_fragments(w, BLOCK, WARPS), (BLOCK, BLOCK_K // 128, 4, 8, 2, 2))
        w = in_place(tl.reshape(tl.permute(pairs, (0, 1, 3, 4, 2, 5)), (BLOCK, BLOCK_K)), ASSEMBLY)
    return w


@triton.jit
def term_in_place(place, WARPS: tl.constexpr):
    """Which of 128 terms is in which place, so that a lane's are neighbours. 0 warps: each in its own."""
    if WARPS > 0:
        lane, pair = place // 2 % 4, place // 8 % 16
        place = place // 128 * 128 + lane * 32 + pair * 2 + place % 2
        place = tl.max_contiguous(tl.multiple_of(place, 2), 2)
    return place
