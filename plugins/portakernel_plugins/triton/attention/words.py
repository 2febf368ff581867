"""Float8 values as words of four codes, which hardware makes float16 of where products want the numbers.

A product takes, of each thread, two keys' numbers side by side in a register, and of neighbouring threads neighbouring
columns. Codes of one key are side by side in memory, and bytes are what shared memory is slow at. But sums go over keys
in any order, and columns can be put in order once, when all is summed up: keys and columns are numbered so that a word
is read by the thread that multiplies all of its four codes, and nothing but registers is between it and the product.

Rows of queries become float16 in units of a power of two: it has all of bfloat16's digits, but not its exponents.
"""
# pyright: reportGeneralTypeIssues=false
# Tuples grow by concatenation, the one way that Triton knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.attention.head_parts import load_columns

# Codes of a row that are read together: rows of more lie where threads that read side by side want the same banks.
_TOGETHER: tl.constexpr = tl.constexpr(64)
WIDTHS = (64, 128)


@triton.jit
def key_of_row(row):
    """Which key of a block each row of words is: of eight, threads that stand side by side have every second one."""
    return (row & ~7) | ((row & 3) << 1) | ((row >> 2) & 1)


@triton.jit
def load_words(source, rows, lane_stride, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The words of rows of up to ``BLOCK`` codes, in one block or two; ``source`` points to int32."""
    words = (load_columns(source, rows, lane_stride, 0, _TOGETHER // 4, WIDTH // 4),)
    if BLOCK > _TOGETHER:
        words = words + (load_columns(source, rows, lane_stride, _TOGETHER // 4, _TOGETHER // 4, WIDTH // 4),)
    return words


@triton.constexpr_function
def _assembly(dtype: str) -> str:
    kind = "e4m3x2" if "e4m3" in dtype else "e5m2x2"
    return (
        "{ .reg .b16 low, high; .reg .b32 first, last; mov.b32 {low, high}, $4;"
        f"cvt.rn.f16x2.{kind} first, low; cvt.rn.f16x2.{kind} last, high;"
        "mov.b32 {$0, $1}, first; mov.b32 {$2, $3}, last; }"
    )


@triton.jit
def _numbers_of_block(words, FORMAT: tl.constexpr):
    ROWS: tl.constexpr = words.shape[0]
    a, b, c, d = tl.inline_asm_elementwise(
        _assembly(FORMAT), "=h,=h,=h,=h,r", [words], (tl.float16, tl.float16, tl.float16, tl.float16), True, 1
    )
    numbers = tl.join(tl.join(a, c), tl.join(b, d)).reshape(ROWS // 8, 2, 4, 8, _TOGETHER // 32, 4)
    return numbers.permute(0, 2, 1, 4, 5, 3).reshape(ROWS, _TOGETHER)


@triton.jit
def numbers_of_words(words, BLOCK: tl.constexpr, FORMAT: tl.constexpr):
    """The float16 numbers of ``load_words``: rows are the block's keys in turn, columns as ``in_order`` undoes."""
    numbers = _numbers_of_block(words[0], FORMAT)
    if BLOCK > _TOGETHER:
        both = tl.join(numbers, _numbers_of_block(words[1], FORMAT))
        numbers = both.permute(0, 2, 1).reshape(numbers.shape[0], BLOCK)
    return numbers


@triton.jit
def in_order(sums):
    """Sums over keys with their columns in order: the last three bits of each place said which words it was in."""
    ROWS: tl.constexpr = sums.shape[0]
    BLOCK: tl.constexpr = sums.shape[1]
    blocks = sums.reshape(ROWS, BLOCK // _TOGETHER, _TOGETHER // 8, 8)
    return blocks.permute(0, 1, 3, 2).reshape(ROWS, BLOCK)


@triton.jit
def halves(parts, REST: tl.constexpr):
    """Rows as float16, each in units of a power of two that brings its largest element below 2 ** 15; and the units.

    What is lost is below 2 ** -39 of that element: sums of products in float32 lose more.
    """
    largest = tl.max(tl.abs(parts[0].to(tl.float32)), axis=1)
    if REST > 0:
        largest = tl.maximum(largest, tl.max(tl.abs(parts[1].to(tl.float32)), axis=1))
    exponent = tl.minimum(2 * 127 + 14 - (largest.to(tl.int32, bitcast=True) >> 23), 253)
    factor = (exponent << 23).to(tl.float32, bitcast=True)[:, None]
    found = ((parts[0].to(tl.float32) * factor).to(tl.float16),)
    if REST > 0:
        found = found + ((parts[1].to(tl.float32) * factor).to(tl.float16),)
    return found, ((254 - exponent) << 23).to(tl.float32, bitcast=True)
