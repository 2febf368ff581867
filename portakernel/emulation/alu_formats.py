"""How scalar and vector arithmetic names its operands: SOP, VOP, DPP, SDWA, packed, matrix and dual formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from portakernel.emulation import abi
from portakernel.emulation.encodings import vopd_names
from portakernel.emulation.record import Record
from portakernel.emulation.word import ACCUMULATION, Word, has_literal

_ACCUMULATING = ("v_fmac", "v_mac_", "v_pk_fmac", "v_dot2c", "v_dot4c", "v_dot8c", "v_dot2acc", "s_fmac")
_WITH_CARRY_IN = ("v_cndmask", "v_addc_co", "v_subb_co", "v_subbrev_co", "v_add_co_ci", "v_sub_co_ci", "v_subrev_co_ci")
# How many sources VOP3's form has, of what takes fewer than its handler's kind; the other fields say nothing.
_SOURCES = {
    "v_readfirstlane_b32": 1, "v_readlane_b32": 2, "v_writelane_b32": 2, "v_permlane16_var_b32": 2,
    "v_permlanex16_var_b32": 2, "v_permlane64_b32": 1, "v_permlane16_swap_b32": 1, "v_permlane32_swap_b32": 1,
}  # fmt: skip
# What stands for the first source where a dword behind the instruction permutes lanes or selects bytes.
_SDWA_CODE, _DPP16_CODE, _DPP8_CODES = 249, 250, (233, 234)


def _scalar(word: Word) -> None:
    record = word.record
    record.dst = word.operand("sdst")
    record.src[0], record.src[1] = word.operand("ssrc0"), word.operand("ssrc1")
    record.imm = word.signed("simm16", 16)
    codes = record.src[:2]
    _imply_third_source(record, short=True)
    word.take_literal(codes)


def _imply_third_source(record: Record, *, short: bool) -> None:
    """The source that has no field: the accumulator, the literal or, in ``short`` forms, the carry or mask in VCC."""
    if record.name.startswith(_ACCUMULATING):
        record.src[2] = record.dst
        record.op_sel |= (record.op_sel >> 3 & 1) << 2  # the half that the result takes
    elif short and "mk_" in record.name:
        record.src[1], record.src[2] = abi.LITERAL, record.src[1]
    elif short and "ak_" in record.name:
        record.src[2] = abi.LITERAL
    elif short and record.name.startswith(_WITH_CARRY_IN):
        record.src[2] = abi.VCC


def _vector(word: Word) -> None:
    record, short = word.record, word.encoding.name in ("VOP1", "VOP1_SDST", "VOP2", "VOPC")
    name = record.name
    record.flags |= abi.SHORT_FORM if short else abi.VOP3_FORM
    record.dst, record.sdst = word.operand("vdst"), word.operand("sdst")
    record.src[:3] = word.operand("src0"), word.operand("vsrc1" if short else "src1"), word.operand("src2")
    codes = record.src[:3]
    record.neg, record.abs = word.bits("neg"), word.bits("abs")
    record.clamp, record.omod, record.op_sel = word.bits("clmp"), word.bits("omod"), word.bits("opsel")
    if word.encoding.name == "VOPC":
        record.dst = abi.EXEC if "cmpx" in name and not word.cdna else abi.VCC
    if word.encoding.name in ("VOP1_SDST", "VOP3_SDST") or name.startswith(("v_readfirstlane", "v_readlane")):
        record.dst = word.normal(record.dst - abi.VGPR if record.dst >= abi.VGPR else record.dst)
        record.flags |= abi.SCALAR_DST
    _imply_third_source(record, short=short)
    if not short:
        count = 1 if name.startswith("v_s_") else _SOURCES.get(name, 3)
        record.src[count:3] = [abi.NO_OPERAND] * (3 - count)
    if short and "_co_" in name:
        record.sdst = abi.VCC
    if name.startswith("v_bitop3"):
        record.imm = record.omod << 6 | record.abs << 3 | record.neg
        record.omod = record.abs = record.neg = 0
    if name.startswith("v_accvgpr_mov"):
        record.dst += ACCUMULATION
        record.src[0] += ACCUMULATION
    if record.src[0] in (_SDWA_CODE, _DPP16_CODE, *_DPP8_CODES) and has_literal(name):
        record.name = "unknown"  # one dword cannot be both
    elif record.src[0] == _SDWA_CODE and word.cdna and short:
        _sdwa(word)
    else:
        _permutation_or_literal(word, codes)


def _permutation_or_literal(word: Word, codes: Sequence[int]) -> None:
    """What the dword behind the instruction is, where there is one."""
    if word.record.src[0] == _DPP16_CODE:
        _dpp16(word)
    elif word.record.src[0] in _DPP8_CODES and not word.cdna:
        _dpp8(word)
    else:
        word.take_literal(codes)


def _extra(word: Word) -> int:
    """The dword that permutes lanes or selects bytes; the first source is the vector register that it names."""
    extra = word.next_dword()
    word.record.src[0] = abi.VGPR + (extra & 0xFF)
    return extra


def _dpp8(word: Word) -> None:
    inactive = word.record.src[0] == _DPP8_CODES[1]
    extra = _extra(word)
    word.record.permute, word.record.lane_select = abi.DPP8, extra >> 8
    word.record.flags |= abi.FETCH_INACTIVE if inactive else 0


def _dpp16(word: Word) -> None:
    record, extra = word.record, _extra(word)
    record.permute, record.dpp_ctrl = abi.DPP16, extra >> 8 & 0x1FF
    record.flags |= (abi.FETCH_INACTIVE if extra >> 18 & 1 and not word.cdna else 0) | (
        abi.BOUND_CTRL if extra >> 19 & 1 else 0
    )
    if record.flags & abi.SHORT_FORM:  # VOP3 has modifiers of its own
        record.neg |= extra >> 20 & 1 | (extra >> 22 & 1) << 1
        record.abs |= extra >> 21 & 1 | (extra >> 23 & 1) << 1
    record.bank_mask, record.row_mask = extra >> 24 & 15, extra >> 28


def _sdwa(word: Word) -> None:
    record, extra = word.record, _extra(word)
    record.permute = abi.SDWA
    if extra >> 23 & 1:  # a scalar one after all
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


def _packed(word: Word) -> None:
    record = word.record
    record.flags |= abi.PACKED_FORM
    record.dst = word.operand("vdst")
    record.src[:3] = [word.operand("src0"), word.operand("src1"), word.operand("src2")]
    record.neg, record.neg_hi = word.bits("neg"), word.bits("neg_hi")
    record.clamp, record.op_sel = word.bits("clmp"), word.bits("opsel")
    record.op_sel_hi = word.bits("opsel_hi") | word.bits("opsel_hi2") << 2
    if record.name.startswith(("v_accvgpr_read", "v_accvgpr_write")):
        if record.name.startswith("v_accvgpr_write"):
            record.dst += ACCUMULATION
        elif record.src[0] >= abi.VGPR:
            record.src[0] += ACCUMULATION
        record.neg = record.neg_hi = 0
        return
    codes = record.src[:3]
    _imply_third_source(record, short=False)
    _permutation_or_literal(word, codes)


def _matrix(word: Word) -> None:
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
    for i in (0, 1):
        if word.bits("acc") >> i & 1 and record.src[i] >= abi.VGPR:
            record.src[i] += ACCUMULATION
    if word.bits("acc_cd"):
        record.dst += ACCUMULATION
        if record.src[2] >= abi.VGPR:
            record.src[2] += ACCUMULATION


def _dual(word: Word) -> None:
    """VOPD: this record is the first half; the second one lies behind all instructions."""
    record, names = word.record, vopd_names(word.arch.table)
    second = Record(names.get(word.raw >> 17 & 31, "unknown"), record.offset, record.size, "VOPD")
    vdst_x = word.operand("vdstx") if word.encoding.fields["vdstx"].base else abi.VGPR + word.bits("vdstx")
    vdst_y = abi.VGPR + ((word.raw >> 49 & 0x7F) << 1 | (vdst_x & 1 ^ 1))
    needs_literal = False
    for half, letter, dst in ((record, "x", vdst_x), (second, "y", vdst_y)):
        half.flags |= abi.SHORT_FORM
        half.dst = dst
        half.src[:2] = word.operand(f"src{letter}0"), word.operand(f"vsrc{letter}1")
        needs_literal |= half.src[0] == abi.LITERAL or has_literal(half.name)
        _imply_third_source(half, short=True)
    if needs_literal:
        record.literal = second.literal = word.next_dword()
    record.pair = len(word.halves)
    word.halves.append(second)


FORMATS: Mapping[str, Callable[[Word], None]] = {
    **dict.fromkeys(("SOP1", "SOP2", "SOPC", "SOPK", "SOPP"), _scalar),
    **dict.fromkeys(("VOP1", "VOP1_SDST", "VOP2", "VOPC", "VOP3", "VOP3_SDST", "VOP3SD", "VINTERP"), _vector),
    **dict.fromkeys(("VOP3P_MFMA", "VOP3PX2"), _matrix),
    "VOP3P": _packed,
    "VOPD": _dual,
}
