"""How loads, stores and atomics name their operands: scalar, LDS, global, scratch, flat and buffer formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from portakernel.emulation import abi
from portakernel.emulation.word import Word


def _scalar_memory(word: Word) -> None:
    record = word.record
    record.dst = word.operand("sdata")
    record.src[0] = word.operand("sbase")
    offset = word.operand("soffset")
    if word.cdna:
        immediate = word.bits("imm")
        record.imm = word.signed("offset", 21) if immediate else 0
        if word.bits("soffset_en"):
            record.src[1] = offset
        elif not immediate:
            record.src[1] = word.normal(word.bits("offset") & 0x7F)
    else:
        record.imm = word.signed("ioffset", 24) if word.has("ioffset") else word.signed("offset", 21)
        record.src[1] = abi.NO_OPERAND if offset == abi.NULL else offset


def _lds(word: Word) -> None:
    record, acc = word.record, word.accumulation
    record.dst = word.operand("vdst") + acc
    record.src[:3] = [word.operand("addr"), word.operand("data0") + acc, word.operand("data1") + acc]
    record.imm = word.bits("offset0") | word.bits("offset1") << 8
    record.flags |= abi.RETURNS if "_rtn" in record.name else 0
    if word.bits("gds"):
        record.name = f"{record.name} gds"


def _memory(word: Word) -> None:
    record, acc = word.record, word.accumulation
    record.dst = word.operand("vdst") + acc
    address = word.operand("vaddr" if word.has("vaddr") else "addr")
    scalar = word.normal(word.bits("saddr"))
    without = scalar == (127 if word.cdna else abi.NULL)
    record.src[:3] = [
        address, abi.NO_OPERAND if without else scalar, word.operand("vsrc" if word.has("vsrc") else "data") + acc,
    ]  # fmt: skip
    scratch, flat = word.encoding.name.endswith("SCRATCH"), word.encoding.name.endswith("FLAT")
    if scratch:
        enabled = without if word.arch.name == "gfx90a" else bool(word.bits("sve"))
        if not enabled:
            record.src[0] = abi.NO_OPERAND
    elif flat and word.cdna:
        record.src[1] = abi.NO_OPERAND  # those of CDNA have no scalar address
    if word.arch.name == "gfx90a" and not scratch and word.bits("sve"):
        record.name = record.name.replace("_load_", "_load_lds_")
    if word.has("ioffset"):
        record.imm = word.signed("ioffset", 24)
    else:
        record.imm = word.bits("offset") & 0xFFF if flat and word.cdna else word.signed("offset", 13)
    # set where other waves are to see the access: atomic loads and stores
    record.cache = word.bits("sc0") | word.bits("sc1") | word.bits("glc") | word.bits("scope")
    record.flags |= abi.RETURNS if word.returns else 0


def _buffer(word: Word) -> None:
    record = word.record
    record.dst = word.operand("vdata") + word.accumulation
    record.src[0] = word.operand("vaddr")
    record.src[1] = word.operand("srsrc" if word.has("srsrc") else "rsrc")
    scalar = word.operand("soffset")
    record.src[2] = abi.NO_OPERAND if scalar == abi.NULL else scalar
    record.src[3] = record.dst
    record.imm = word.signed("ioffset", 24) if word.has("ioffset") else word.bits("offset")
    record.flags |= (abi.OFFSET_ENABLE if word.bits("offen") else 0) | (abi.INDEX_ENABLE if word.bits("idxen") else 0)
    record.flags |= abi.TO_LDS if word.bits("lds") else 0
    record.flags |= abi.RETURNS if word.returns else 0


FORMATS: Mapping[str, Callable[[Word], None]] = {
    **dict.fromkeys(("GLOBAL", "VGLOBAL", "SCRATCH", "VSCRATCH", "FLAT", "VFLAT"), _memory),
    **dict.fromkeys(("MUBUF", "VBUFFER"), _buffer),
    "SMEM": _scalar_memory,
    "DS": _lds,
}
