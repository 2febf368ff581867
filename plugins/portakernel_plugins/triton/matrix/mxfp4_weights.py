"""Weights of four bits with a power of two for each 32, as ``grouped_mm``'s products read and decode them.

A byte has two codes of e2m1, the even column's in its low four bits; a scale is an e8m0 code, one byte. Their product
is a number of bfloat16, exactly, unless it is beyond all of them.

On NVIDIA's devices a permutation of bytes looks up both bytes of a bfloat16 number by its code's last three bits: one
instruction for four codes. What they make of a byte is one register, which one operation scales. Each element of that
depends on its own byte and scale alone, however they are laid over lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.matrix.grouped_tiles import columns_of
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
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """``(BLOCK, BLOCK_K / 32)`` codes of the ``columns_of`` an expert's matrix; outside some power of two's."""
    number, inside = columns_of(column, columns, BLOCK, PAIRED)
    group = inner // SHARED + tl.arange(0, BLOCK_K // SHARED)
    at = scales + tl.cast(expert, tl.int64) * expert_stride + (number.to(tl.int64) * column_stride)[:, None]
    at += (group.to(tl.int64) * group_stride)[None, :]
    return tl.load(at, mask=inside[:, None] & (group < groups)[None, :], other=0)


@triton.jit
def read_codes(
    b, expert, column, columns, inner, inner_bytes, expert_stride, column_stride, byte_stride,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """``(BLOCK, BLOCK_K / 2)`` bytes of the same matrix, zeros outside."""
    number, inside = columns_of(column, columns, BLOCK, PAIRED)
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
    codes, scales, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, NUMBERS: tl.constexpr, ASSEMBLY: tl.constexpr
):  # fmt: skip
    """``(BLOCK, BLOCK_K)`` weights as ``NUMBERS``, which with ``ASSEMBLY`` are bfloat16."""
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
    return w
