"""How programs of the Hopper kernel share its tiles: whoever has done one takes the next of all.

A program's first tile has the program's number. The producer draws the others from a counter in global memory, and
tells the consumers through shared memory: it is ahead of them, and so nobody waits for the counter.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Gluon iterates over its ranges.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

# Numbers that the producer can be ahead.
_PLACES = gl.constexpr(2)


@gluon.jit
def queue_of(CONSUMERS: gl.constexpr):
    """Shared memory for numbers of tiles on their way from the producer to the consumers, with barriers."""
    numbers = gl.allocate_shared_memory(gl.int32, [_PLACES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [_PLACES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [_PLACES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(_PLACES):
        mbarrier.init(full.index(place), count=1)
        mbarrier.init(empty.index(place), count=CONSUMERS)
    return numbers, full, empty


@gluon.jit
def draw_tile(queue, taken, turn, total, QUEUED: gl.constexpr):
    """For the producer: the tile after the one of this ``turn``, which it tells the consumers; ``total``: none."""
    number = total
    if QUEUED:
        numbers, full, empty = queue
        number = gl.num_programs(0) + gl.atomic_add(taken, 1)
        place = turn % _PLACES
        mbarrier.wait(empty.index(place), (turn // _PLACES & 1) ^ 1)
        numbers.index(place).store(gl.full([1], number, gl.int32, layout=gl.BlockedLayout([1], [32], [1], [0])))
        mbarrier.arrive(full.index(place), count=1)
    return number


@gluon.jit
def drawn_tile(queue, turn, total, QUEUED: gl.constexpr):
    """For a consumer: what the producer drew in this ``turn``."""
    number = total
    if QUEUED:
        numbers, full, empty = queue
        place = turn % _PLACES
        mbarrier.wait(full.index(place), turn // _PLACES & 1)
        number = gl.max(numbers.index(place).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        mbarrier.arrive(empty.index(place), count=1)
    return number
