"""One decoded instruction, before and after it is packed for the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from portakernel.emulation import abi


@dataclass(slots=True)
class Record:
    """One instruction before it is packed; the fields are those of ``engine/abi.h``'s Op."""

    name: str
    offset: int
    size: int
    encoding: str = ""
    dst: int = abi.NO_OPERAND
    sdst: int = abi.NO_OPERAND
    src: list[int] = field(default_factory=lambda: [abi.NO_OPERAND] * 4)
    literal: int = 0
    imm: int = 0
    pair: int = -1
    flags: int = 0
    neg: int = 0
    abs: int = 0
    neg_hi: int = 0
    op_sel: int = 0
    op_sel_hi: int = 0
    clamp: int = 0
    omod: int = 0
    permute: int = 0
    dpp_ctrl: int = 0
    row_mask: int = 0
    bank_mask: int = 0
    counters: int = 0
    result_words: int = 0
    lane_select: int = 0
    sdwa: tuple[int, int, int, int] = (6, 0, 6, 6)
    cbsz: int = 0
    abid: int = 0
    blgp: int = 0
    cache: int = 0
    scale: tuple[int, int] = (abi.NO_OPERAND, abi.NO_OPERAND)
    raw: bytes = b""

    def pack(self, handler: int) -> bytes:
        """The record's bytes."""
        return abi.OP.pack(
            handler, self.size, self.offset, self.dst, self.sdst, *self.src, self.literal, self.imm, self.pair,
            self.flags, self.neg, self.abs, self.neg_hi, self.op_sel, self.op_sel_hi, self.clamp, self.omod,
            self.permute, self.dpp_ctrl, self.row_mask, self.bank_mask, self.counters, self.result_words,
            self.lane_select, *self.sdwa, self.cbsz, self.abid, self.blgp, self.cache, *self.scale,
        )  # fmt: skip
