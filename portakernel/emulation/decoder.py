"""A code object's .text as records that the engine executes: one pass, every word accounted for.

A record's operands stand in the order in which handlers take them, whatever the encoding: v_fmac's accumulator and
v_cndmask's mask are sources, a carry's VCC a destination. What no table knows becomes a record of one dword whose
handler is 0; a wave that reaches it reports its offset and bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from portakernel.emulation import abi
from portakernel.emulation.arch import Arch
from portakernel.emulation.encodings import Encoding, encodings, vopd_names
from portakernel.emulation.record import Record
from portakernel.emulation.waits import counted

_ACCUMULATING = ("v_fmac", "v_mac_", "v_pk_fmac", "v_dot2c", "v_dot4c", "v_dot8c", "v_dot2acc", "s_fmac")
_WITH_CARRY_IN = ("v_cndmask", "v_addc_co", "v_subb_co", "v_subbrev_co", "v_add_co_ci", "v_sub_co_ci", "v_subrev_co_ci")
_LITERAL_ALWAYS = ("fmamk", "fmaak", "madmk", "madak", "s_setreg_imm32")
_SDWA_CODE, _DPP16_CODE, _DPP8_CODES = 249, 250, (233, 234)
_VECTOR = frozenset(
    {"VOP1", "VOP1_SDST", "VOP2", "VOPC", "VOP3", "VOP3_SDST", "VOP3SD", "VOP3P", "VOP3P_MFMA", "VOP3PX2"}
)


def decode(text: bytes, arch: Arch) -> tuple[list[Record], list[Record]]:
    """The instructions in the order of ``text``, and the second halves of dual ones, which ``pair`` numbers.

    Raises:
        EmulationError: tinygrad is not installed.
    """
    flow: list[Record] = []
    halves: list[Record] = []
    at = 0
    while at + 4 <= len(text):
        record = _decode(text, at, arch, halves)
        flow.append(record)
        at += record.size
    for record in flow:
        if record.pair >= 0:
            record.pair += len(flow)
    return flow, halves


def _decode(text: bytes, at: int, arch: Arch, halves: list[Record]) -> Record:
    window = text[at : at + 20]
    raw = int.from_bytes(window, "little")
    for encoding in _candidates(arch.table, arch.name, raw >> 23 & 0x1FF):
        if len(window) >= encoding.size and encoding.matches(raw):
            break
    else:
        return Record("unknown", at, 4, raw=window[:4])
    name = vopd_names(arch.table).get(raw >> 22 & 15, "unknown") if encoding.opcode is None else ""
    if encoding.opcode is not None:
        name = encoding.names[encoding.opcode.of(raw)]
    record = Record(name, at, encoding.size, encoding.name)
    _FORMATS[encoding.name](_Word(raw, encoding, arch, record, halves))
    if at + record.size > len(text):
        return Record("unknown", at, 4, raw=window[:4])
    record.raw = window[: record.size]
    record.counters, record.result_words = counted(record, arch.table)
    return record


@functools.cache
def _candidates(table: str, arch: str, top: int) -> tuple[Encoding, ...]:
    """Those whose fixed bits agree with the nine topmost of the first word."""
    return tuple(e for e in encodings(table, arch) if not (top << 23 ^ e.fixed) & e.fixed_mask & 0xFF800000)


@dataclass(slots=True)
class _Word:
    """An instruction's bits, its encoding, and the record that is filled from them."""

    raw: int
    encoding: Encoding
    arch: Arch
    record: Record
    halves: list[Record]

    def has(self, name: str) -> bool:
        return name in self.encoding.fields

    def bits(self, name: str, default: int = 0) -> int:
        place = self.encoding.fields.get(name)
        return default if place is None else place.of(self.raw)

    def operand(self, name: str) -> int:
        """An operand's code, with M0 and NULL where every architecture has them here."""
        return self.normal(self.bits(name, abi.NO_OPERAND))

    def normal(self, code: int) -> int:
        if self.arch.table == "cdna" and code in (124, 125):
            return abi.M0 if code == 124 else abi.NULL
        return code

    def signed(self, name: str, bits: int) -> int:
        value = self.bits(name) & (1 << bits) - 1
        return value - (1 << bits) if value >> bits - 1 else value

    def take_literal(self, codes: list[int]) -> None:
        """The dword behind the instruction, where an operand or the opcode asks for one."""
        record = self.record
        if abi.LITERAL in codes or any(part in record.name for part in _LITERAL_ALWAYS):
            record.literal = self.raw >> 8 * record.size & 0xFFFFFFFF
            record.size += 4


def _no_scalar(word: _Word, code: int) -> bool:
    return code == (127 if word.arch.table == "cdna" else abi.NULL)


def _scalar(word: _Word) -> None:
    record = word.record
    record.dst = word.operand("sdst")
    record.src[0], record.src[1] = word.operand("ssrc0"), word.operand("ssrc1")
    record.imm = word.signed("simm16", 16)
    codes = record.src[:2]
    if record.name.startswith(_ACCUMULATING):
        record.src[2] = record.dst
    elif "fmamk" in record.name:
        record.src[1], record.src[2] = abi.LITERAL, record.src[1]
    elif "fmaak" in record.name:
        record.src[2] = abi.LITERAL
    word.take_literal(codes)


def _scalar_memory(word: _Word) -> None:
    record = word.record
    record.dst = word.operand("sdata")
    record.src[0] = word.operand("sbase")
    offset = word.operand("soffset")
    if word.arch.table == "cdna":
        immediate = word.bits("imm")
        record.imm = word.signed("offset", 21) if immediate else 0
        if word.bits("soffset_en"):
            record.src[1] = offset
        elif not immediate:
            record.src[1] = word.normal(word.bits("offset") & 0x7F)
    else:
        record.imm = word.signed("ioffset", 24) if word.has("ioffset") else word.signed("offset", 21)
        record.src[1] = abi.NO_OPERAND if offset == abi.NULL else offset


def _vector(word: _Word) -> None:
    record, short = word.record, word.encoding.name in ("VOP1", "VOP1_SDST", "VOP2", "VOPC")
    name = record.name
    record.flags |= abi.SHORT_FORM if short else abi.VOP3_FORM
    record.dst, record.sdst = word.operand("vdst"), word.operand("sdst")
    sources = [word.operand("src0"), word.operand("vsrc1" if short else "src1"), word.operand("src2")]
    record.neg, record.abs = word.bits("neg"), word.bits("abs")
    record.clamp, record.omod, record.op_sel = word.bits("clmp"), word.bits("omod"), word.bits("opsel")
    if word.encoding.name == "VOPC":
        record.dst = abi.EXEC if "cmpx" in name and word.arch.table != "cdna" else abi.VCC
    if word.encoding.name in ("VOP1_SDST", "VOP3_SDST") or name.startswith(("v_readfirstlane", "v_readlane")):
        record.dst = word.normal(record.dst - abi.VGPR if record.dst >= abi.VGPR else record.dst)
        record.flags |= abi.SCALAR_DST
    codes = list(sources)
    if name.startswith(_ACCUMULATING):
        sources[2] = record.dst
    elif short and "mk_" in name:
        sources[1], sources[2] = abi.LITERAL, sources[1]
    elif short and "ak_" in name:
        sources[2] = abi.LITERAL
    elif short and name.startswith(_WITH_CARRY_IN):
        sources[2] = abi.VCC
    if short and "_co_" in name:
        record.sdst = abi.VCC
    if name.startswith("v_bitop3"):
        record.imm = record.omod << 6 | record.abs << 3 | record.neg
        record.omod = record.abs = record.neg = 0
    if name.startswith("v_accvgpr_mov"):
        record.dst += abi.AGPR - abi.VGPR
        sources[0] += abi.AGPR - abi.VGPR
    record.src[:3] = sources
    if sources[0] in _DPP8_CODES and word.arch.table != "cdna":
        _dpp8(word)
    elif sources[0] == _DPP16_CODE:
        _dpp16(word)
    elif sources[0] == _SDWA_CODE and word.arch.table == "cdna" and short:
        _sdwa(word)
    else:
        word.take_literal(codes)


def _extra(word: _Word) -> int:
    extra = word.raw >> 8 * word.record.size & 0xFFFFFFFF
    word.record.size += 4
    word.record.src[0] = abi.VGPR + (extra & 0xFF)
    return extra


def _dpp8(word: _Word) -> None:
    inactive = word.record.src[0] == _DPP8_CODES[1]
    extra = _extra(word)
    word.record.permute, word.record.lane_select = abi.DPP8, extra >> 8
    word.record.flags |= abi.FETCH_INACTIVE if inactive else 0


def _dpp16(word: _Word) -> None:
    record, extra = word.record, _extra(word)
    record.permute, record.dpp_ctrl = abi.DPP16, extra >> 8 & 0x1FF
    record.flags |= (abi.FETCH_INACTIVE if extra >> 18 & 1 and word.arch.table != "cdna" else 0) | (
        abi.BOUND_CTRL if extra >> 19 & 1 else 0
    )
    if record.flags & abi.SHORT_FORM:  # VOP3 has modifiers of its own
        record.neg |= extra >> 20 & 1 | (extra >> 22 & 1) << 1
        record.abs |= extra >> 21 & 1 | (extra >> 23 & 1) << 1
    record.bank_mask, record.row_mask = extra >> 24 & 15, extra >> 28


def _sdwa(word: _Word) -> None:
    record, extra = word.record, _extra(word)
    record.permute = abi.SDWA
    if not extra >> 23 & 1:
        pass  # a vector register, as _extra took it
    else:
        record.src[0] = word.normal(extra & 0xFF)
    if extra >> 31 and record.src[1] != abi.NO_OPERAND:
        record.src[1] = word.normal(record.src[1] - abi.VGPR)
    compare = word.encoding.name == "VOPC"
    dst_sel, unused = (6, 0) if compare else (extra >> 8 & 7, extra >> 11 & 3)
    record.sdwa = (dst_sel, unused, extra >> 16 & 7, extra >> 24 & 7)
    record.flags |= (abi.SDWA_SEXT0 if extra >> 19 & 1 else 0) | (abi.SDWA_SEXT1 if extra >> 27 & 1 else 0)
    record.neg |= extra >> 20 & 1 | (extra >> 28 & 1) << 1
    record.abs |= extra >> 21 & 1 | (extra >> 29 & 1) << 1
    if compare:
        if extra >> 15 & 1:
            record.dst = word.normal(extra >> 8 & 0x7F)
    else:
        record.clamp, record.omod = extra >> 13 & 1, extra >> 14 & 3


def _packed(word: _Word) -> None:
    record = word.record
    record.flags |= abi.PACKED_FORM
    record.dst = word.operand("vdst")
    record.src[:3] = [word.operand("src0"), word.operand("src1"), word.operand("src2")]
    record.neg, record.neg_hi = word.bits("neg"), word.bits("neg_hi")
    record.clamp, record.op_sel = word.bits("clmp"), word.bits("opsel")
    record.op_sel_hi = word.bits("opsel_hi") | word.bits("opsel_hi2") << 2
    if record.name.startswith(("v_accvgpr_read", "v_accvgpr_write")):
        to_acc = record.name.startswith("v_accvgpr_write")
        if to_acc:
            record.dst += abi.AGPR - abi.VGPR
        elif record.src[0] >= abi.VGPR:
            record.src[0] += abi.AGPR - abi.VGPR
        record.neg = record.neg_hi = 0
        return
    codes = record.src[:3]
    if record.name.startswith(_ACCUMULATING):
        record.src[2] = record.dst
    if record.src[0] == _DPP16_CODE:
        _dpp16(word)
    elif record.src[0] in _DPP8_CODES and word.arch.table != "cdna":
        _dpp8(word)
    else:
        word.take_literal(codes)


def _matrix(word: _Word) -> None:
    """MFMA: accumulation registers are named by acc (sources 0 and 1) and acc_cd (source 2 and the result)."""
    record = word.record
    record.flags |= abi.PACKED_FORM
    record.dst = word.operand("vdst")
    record.src[:3] = [word.operand("src0"), word.operand("src1"), word.operand("src2")]
    record.cbsz, record.abid, record.blgp = word.bits("cbsz"), word.bits("abid"), word.bits("blgp")
    record.neg, record.neg_hi = word.bits("neg"), word.bits("neg_hi")
    if word.encoding.name == "VOP3PX2":
        record.op_sel, record.op_sel_hi = word.bits("opsel"), word.bits("opsel_hi")
        record.scale = (word.normal(word.bits("scale_src0")), word.normal(word.bits("scale_src1")))
    accumulate = abi.AGPR - abi.VGPR
    for i in (0, 1):
        if word.bits("acc") >> i & 1 and record.src[i] >= abi.VGPR:
            record.src[i] += accumulate
    if word.bits("acc_cd"):
        record.dst += accumulate
        if record.src[2] >= abi.VGPR:
            record.src[2] += accumulate


def _dual(word: _Word) -> None:
    """VOPD: this record is the first half; the second one lies behind all instructions."""
    record, names = word.record, vopd_names(word.arch.table)
    second = Record(names.get(word.raw >> 17 & 31, "unknown"), record.offset, record.size, "VOPD")
    vdst_x = word.operand("vdstx") if word.encoding.fields["vdstx"].base else abi.VGPR + word.bits("vdstx")
    vdst_y = abi.VGPR + ((word.raw >> 49 & 0x7F) << 1 | (vdst_x & 1 ^ 1))
    needs = False
    for half, letter, dst in ((record, "x", vdst_x), (second, "y", vdst_y)):
        half.flags |= abi.SHORT_FORM
        half.dst = dst
        sources = [word.operand(f"src{letter}0"), word.operand(f"vsrc{letter}1"), abi.NO_OPERAND]
        needs |= sources[0] == abi.LITERAL or any(part in half.name for part in _LITERAL_ALWAYS)
        if half.name.startswith(_ACCUMULATING):
            sources[2] = dst
        elif "mk_" in half.name:
            sources[1], sources[2] = abi.LITERAL, sources[1]
        elif "ak_" in half.name:
            sources[2] = abi.LITERAL
        elif half.name.startswith("v_cndmask"):
            sources[2] = abi.VCC
        half.src[:3] = sources
    if needs:
        record.literal = second.literal = word.raw >> 64 & 0xFFFFFFFF
        record.size += 4
    record.pair = len(word.halves)
    word.halves.append(second)


def _lds(word: _Word) -> None:
    record, acc = word.record, abi.AGPR - abi.VGPR if word.bits("acc") else 0
    record.dst = word.operand("vdst") + acc
    record.src[:3] = [word.operand("addr"), word.operand("data0") + acc, word.operand("data1") + acc]
    record.imm = word.bits("offset0") | word.bits("offset1") << 8
    record.flags |= abi.RETURNS if "_rtn" in record.name else 0
    if word.bits("gds"):
        record.name = f"{record.name} gds"


def _memory(word: _Word) -> None:
    record, cdna = word.record, word.arch.table == "cdna"
    acc = abi.AGPR - abi.VGPR if word.bits("acc") else 0
    record.dst = word.operand("vdst") + acc
    address = word.operand("vaddr" if word.has("vaddr") else "addr")
    scalar = word.normal(word.bits("saddr"))
    without = _no_scalar(word, scalar)
    record.src[:3] = [
        address, abi.NO_OPERAND if without else scalar, word.operand("vsrc" if word.has("vsrc") else "data") + acc,
    ]  # fmt: skip
    scratch, flat = word.encoding.name.endswith("SCRATCH"), word.encoding.name.endswith("FLAT")
    if scratch:
        enabled = without if word.arch.name == "gfx90a" else bool(word.bits("sve"))
        if not enabled:
            record.src[0] = abi.NO_OPERAND
    elif flat and cdna:
        record.src[1] = abi.NO_OPERAND  # those of CDNA have no scalar address
    if word.arch.name == "gfx90a" and not scratch and word.bits("sve"):
        record.name = record.name.replace("_load_", "_load_lds_")
    if word.has("ioffset"):
        record.imm = word.signed("ioffset", 24)
    else:
        record.imm = word.bits("offset") & 0xFFF if flat and cdna else word.signed("offset", 13)
    # set where other waves are to see the access: atomic loads and stores
    record.cache = word.bits("sc0") | word.bits("sc1") | word.bits("glc") | word.bits("scope")
    returns = word.bits("th") & 1 if word.has("th") else word.bits("sc0") | word.bits("glc")
    record.flags |= abi.RETURNS if returns else 0


def _buffer(word: _Word) -> None:
    record, acc = word.record, abi.AGPR - abi.VGPR if word.bits("acc") else 0
    record.dst = word.operand("vdata") + acc
    record.src[0] = word.operand("vaddr")
    record.src[1] = word.operand("srsrc" if word.has("srsrc") else "rsrc")
    scalar = word.operand("soffset")
    record.src[2] = abi.NO_OPERAND if scalar == abi.NULL else scalar
    record.src[3] = record.dst
    record.imm = word.signed("ioffset", 24) if word.has("ioffset") else word.bits("offset")
    record.flags |= (abi.OFFSET_ENABLE if word.bits("offen") else 0) | (abi.INDEX_ENABLE if word.bits("idxen") else 0)
    record.flags |= abi.TO_LDS if word.bits("lds") else 0
    returns = word.bits("th") & 1 if word.has("th") else word.bits("sc0") | word.bits("glc")
    record.flags |= abi.RETURNS if returns else 0


_FORMATS: dict[str, Callable[[_Word], None]] = {
    **dict.fromkeys(("SOP1", "SOP2", "SOPC", "SOPK", "SOPP"), _scalar),
    **dict.fromkeys(("VOP1", "VOP1_SDST", "VOP2", "VOPC", "VOP3", "VOP3_SDST", "VOP3SD", "VINTERP"), _vector),
    **dict.fromkeys(("GLOBAL", "VGLOBAL", "SCRATCH", "VSCRATCH", "FLAT", "VFLAT"), _memory),
    **dict.fromkeys(("MUBUF", "VBUFFER"), _buffer),
    **dict.fromkeys(("VOP3P_MFMA", "VOP3PX2"), _matrix),
    "SMEM": _scalar_memory, "VOP3P": _packed, "VOPD": _dual, "DS": _lds,
}  # fmt: skip
