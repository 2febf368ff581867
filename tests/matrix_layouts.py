"""How matrices lie in the registers of a wave, as the ISA documents draw them; and their products in numpy.

Written for the tests alone, lane by lane and register by register: nothing here is the engine's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_NAME = re.compile(
    r"v_mfma_(?P<out>\w\d+)_(?P<m>\d+)x\d+x(?P<k>\d+)(_(?P<b>\d+)b)?_(?P<a>xf32|bf16|[fi]\d+|[bf]+p?8)(_(?P<c>\w+))?"
)


@dataclass(frozen=True, slots=True)
class Mfma:
    """What an instruction's name says."""

    name: str
    m: int
    k: int
    blocks: int
    a: str
    b: str
    out: str

    @classmethod
    def of(cls, name: str) -> Mfma:
        found = _NAME.fullmatch(name)
        assert found is not None, name
        a = found["a"]
        return cls(name, int(found["m"]), int(found["k"]), int(found["b"] or 1), a, found["c"] or a, found["out"])

    @property
    def items(self) -> int:
        """Elements of A that a lane holds."""
        return self.m * self.k * self.blocks // 64

    @property
    def results(self) -> int:
        """Elements of D that a lane holds."""
        return self.m * self.m * self.blocks // 64

    def operand_at(self, lane: int, item: int) -> tuple[int, int, int]:
        """The block, row (of B: column) and k of an element."""
        group = lane // self.m
        if self.blocks > 1 and self.blocks * self.m == 64:
            return group, lane % self.m, item
        if self.blocks > 1:  # 4x4x4_4b of float64
            return group % self.blocks, lane % self.m, group // self.blocks
        return 0, lane % self.m, group * self.items + item

    def result_at(self, lane: int, item: int) -> tuple[int, int, int]:
        """The block, row and column of an element of C and D."""
        column = lane % self.m
        if self.a == "f64":
            return (0, 4 * item + lane // 16, column) if self.m == 16 else (lane // 16, lane // 4 % 4, column)
        if self.m == 32:
            return item // 16, 8 * (item % 16 // 4) + 4 * (lane // 32) + item % 4, column
        if self.m == 16:
            return item // 4, 4 * (lane // 16) + item % 4, column
        return lane // 4, item, column

    def gfx90a_name(self) -> str:
        """The name in gfx90a's assembly, which says nothing of blocks."""
        later = "_1k" if self.a == "bf16" and self.items == 4 else ""
        return f"v_mfma_{self.out}_{self.m}x{self.m}x{self.k}{self.a}{later}"


def dense(mfma: Mfma, lanes: Array) -> Array:
    """Elements by lane and item as ``(blocks, rows, k)``."""
    made = np.zeros((mfma.blocks, mfma.m, mfma.k), lanes.dtype)
    for lane in range(64):
        for item in range(mfma.items):
            made[mfma.operand_at(lane, item)] = lanes[lane, item]
    return made


def results(mfma: Mfma, lanes: Array) -> Array:
    """C or D by lane and item as ``(blocks, rows, columns)``."""
    made = np.zeros((mfma.blocks, mfma.m, mfma.m), lanes.dtype)
    for lane in range(64):
        for item in range(mfma.results):
            made[mfma.result_at(lane, item)] = lanes[lane, item]
    return made


def registers(values: Array) -> list[Array]:
    """Elements by lane and item as registers: uint32 by lane."""
    words = np.ascontiguousarray(values).view(np.uint32)
    return [words[:, at] for at in range(words.shape[1])]


def product(a: Array, b: Array, c: Array) -> Array:
    """``c + a @ b^T`` of each block, in float64 with the products in the order of k."""
    total = c.astype(np.float64)
    with np.errstate(all="ignore"):
        for k in range(a.shape[-1]):
            total = total + a[:, :, None, k].astype(np.float64) * b[:, None, :, k].astype(np.float64)
    return total
