"""Registers and memory of one wave, and an instruction to execute on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

VCC, M0, EXEC = 106, 125, 126
SELECTS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")  # SDWA's, as it numbers them
Words = npt.NDArray[np.uint32]


@dataclass(slots=True)
class State:
    """``vector``: 64 lanes of each register; ``scalar`` by code, VCC, M0 and EXEC included; ``memory`` at ``base``."""

    lanes: int
    vector: Words
    scalar: Words
    scc: int = 0
    memory: bytearray = field(default_factory=bytearray)
    base: int = 0
    lds: bytearray = field(default_factory=bytearray)
    private: list[bytearray] = field(default_factory=list)

    def copy(self) -> State:
        return State(
            self.lanes, self.vector.copy(), self.scalar.copy(), self.scc, bytearray(self.memory), self.base,
            bytearray(self.lds), [bytearray(one) for one in self.private],
        )  # fmt: skip

    def scalars(self, index: int, words: int) -> int:
        """Scalar registers as one number."""
        return sum(int(self.scalar[index + i]) << 32 * i for i in range(words))

    def set_scalars(self, index: int, words: int, value: int) -> None:
        for i in range(words):
            self.scalar[index + i] = value >> 32 * i & 0xFFFFFFFF

    def vectors(self, index: int, lane: int, words: int) -> int:
        """A lane's registers as one number."""
        return sum(int(self.vector[index + i, lane]) << 32 * i for i in range(words))

    def set_vectors(self, index: int, lane: int, words: int, value: int) -> None:
        for i in range(words):
            self.vector[index + i, lane] = value >> 32 * i & 0xFFFFFFFF

    @property
    def exec(self) -> int:
        return self.scalars(EXEC, self.lanes // 32)

    @property
    def vcc(self) -> int:
        return self.scalars(VCC, self.lanes // 32)


@dataclass(frozen=True, slots=True)
class Operand:
    """``kind``: v, s, or c for a constant, whose ``index`` is an int or a float; ``form`` is the documents' name."""

    kind: str
    index: Any
    bits: int
    form: str
    high: bool = False
    negative: bool = False
    absolute: bool = False
    sext: bool = False

    @property
    def words(self) -> int:
        return max(1, (self.bits + 31) // 32)

    @property
    def has_sign(self) -> bool:
        """Whether neg and abs mean something of the whole operand: not of pairs, of which no document says what."""
        return self.is_float and "_PK" not in self.form and self.bits >= 16

    @property
    def is_float(self) -> bool:
        return "_F" in self.form or "_BF" in self.form


@dataclass(slots=True)
class Case:
    """One instruction: what the assembler may be given (the first text that it takes), and what it is to do."""

    arch: str
    name: str
    encoding: str
    pseudocode: str
    texts: list[str]
    operands: dict[str, Operand]
    clamp: bool = False
    omod: int = 0
    select: int = 0
    select_high: int = 7
    neg_low: int = 0
    neg_high: int = 0
    dpp: tuple[str, int] | None = None
    masks: tuple[int, int] = (15, 15)
    bound_zero: bool = False
    fetch_inactive: bool = False
    sdwa: tuple[str, str, str, str] | None = None
    offset: int = 0
    offsets: tuple[int, int] = (0, 0)
    immediate: int = 0
    literal: int = 0
    bitop: int = 0
    second: Case | None = None
    variant: str = "plain"
    mode: int = 0xF0
    exec_mask: int = -1
    seed: int = 0
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def cdna(self) -> bool:
        return self.arch.startswith("gfx9")

    @property
    def lanes(self) -> int:
        return 64 if self.cdna else 32
