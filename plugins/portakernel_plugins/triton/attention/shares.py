"""Equal shares of all blocks of keys: what each of as many programs as the chip runs at once has to do.

A list is the blocks of keys that one tile of queries goes through. The lists of all sequences, one after the other, are
one row of blocks, and each program has an equal share of it, wherever lists begin and end. Every program finds its
share from the lengths, which it reads on the device: a captured graph may be replayed with others.
"""
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

# Lengths that a program reads at once.
MOST_SEQUENCES = 4096


@triton.jit
def lengths_of_all(starts, lengths, sequences, number):
    """Of each sequence its first row, how many queries it has, and how many keys; zeros where there is none."""
    there = number < sequences
    first_rows = tl.load(starts + number, mask=there, other=0)
    counts = tl.load(starts + number + 1, mask=there, other=0) - first_rows
    return first_rows, counts, tl.load(lengths + number, mask=there, other=0)


@triton.jit
def blocks_of(queries, keys, most, left, LEFT: tl.constexpr, BLOCK: tl.constexpr):
    """How many blocks of keys a sequence has, one at least, or none where it is not for this kernel; and the first."""
    first = keys * 0
    if LEFT:
        first = tl.maximum(keys - queries - left, 0) // BLOCK
    blocks = tl.maximum(tl.cdiv(keys, BLOCK) - first, 1)
    return tl.where((queries > 0) & (queries <= most), blocks, 0), first


@triton.jit
def shares_of(blocks, lists, programs, LEAST: tl.constexpr):
    """Where the ``lists`` of each sequence, of so many ``blocks`` each, end in the row of all; its length; a share."""
    ends = tl.cumsum(blocks * lists, 0)
    whole = tl.max(ends, 0)
    return ends, whole, tl.maximum(tl.cdiv(whole, programs), LEAST)


@triton.jit
def one_of(values, chosen):
    """The value at the one place that is chosen."""
    return tl.sum(tl.where(chosen, values, 0), 0)


@triton.jit
def list_at(block, end, lists, blocks):
    """Which of a sequence's lists, which ``end`` together, a block of the row belongs to; and where that one begins."""
    begin = end - blocks * lists
    number = (block - begin) // blocks
    return number.to(tl.int32), begin + number * blocks


@triton.jit
def sequence_of(sequence, starts, lengths, most, left, LEFT: tl.constexpr, BLOCK: tl.constexpr):
    """The first row of a sequence, its queries and keys, the blocks of each of its lists, and the first of them."""
    first_row = tl.load(starts + sequence)
    queries = tl.load(starts + sequence + 1) - first_row
    keys = tl.load(lengths + sequence)
    blocks, first_block = blocks_of(queries, keys, most, left, LEFT, BLOCK)
    return first_row, queries, keys, blocks, first_block
