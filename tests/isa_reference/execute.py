"""An instruction executed on a state by its pseudocode, with the operands' modifiers as the documents describe them."""

from __future__ import annotations

import re
from typing import Any

from isa_reference import floats
from isa_reference.evaluate import Evaluator, Modes, Value, signed
from isa_reference.floats import BF16, F16, F32, F64, Format
from isa_reference.state import EXEC, M0, SELECTS, VCC, Case, Operand, State
from isa_reference.syntax import parse

UNITS_FLUSH = tuple(
    f"{start}{unit}" for start in ("v_", "v_s_") for unit in ("exp_", "log_", "rcp_", "rsq_", "sqrt_", "sin_", "cos_")
)
# CDNA's 16-bit instructions of three sources, and the signed sums, leave the other half as it is (LLVM's
# zeroesHigh16BitsOfDest lists those that clear it).
KEEP_HIGH = frozenset(
    f"v_{what}" for what in (
        "bitop3_b16", "ashr_pk_i8_i32", "ashr_pk_u8_i32", "fma_f16", "mad_u16", "mad_i16", "mad_f16", "div_fixup_f16", "add_i16", "sub_i16",
        *(f"{part}3_{kind}" for part in ("min", "max", "med") for kind in ("f16", "i16", "u16")),
    )
)  # fmt: skip
_MEMORY = {"DS", "GLOBAL", "VGLOBAL", "FLAT", "VFLAT", "SCRATCH", "VSCRATCH", "MUBUF", "VBUFFER"}


class OutsideError(Exception):
    """A case reads or writes where it has no memory: the case is drawn wrongly."""


def execute(case: Case, state: State, other: Any) -> State:
    """The state after the instruction; ``other`` gives the pseudocode of instructions that pseudocode calls."""
    made = state.copy()
    if case.encoding in ("SOP1", "SOP2", "SOPC", "SOPK", "SMEM"):
        _scalar(case, state, made, other)
    elif case.encoding in _MEMORY and "VGPR[" not in case.pseudocode:
        _memory(case, state, made, other)
    elif (
        "VGPR[" in case.pseudocode and "VGPR[laneId]" not in re.sub("//[^\n]*", "", case.pseudocode)
    ) or case.name == "v_swap_b32":
        _once(case, state, made, other)
    else:
        _vector(case, state, made, other)
        if case.second is not None:
            _vector(case.second, state, made, other)
    return made


def modes(mode: int) -> Modes:
    return Modes(mode & 3, mode >> 2 & 3, *(bool(mode >> bit & 1) for bit in (4, 5, 6, 7)))


_BY_BITS = {16: F16, 32: F32, 64: F64}


def float_format(operand: Operand) -> Format:
    if "BF16" in operand.form:
        return BF16
    if "PK2_F16" in operand.form:
        return F16
    return (
        F32 if operand.bits < 16 or "F8" in operand.form or "FP8" in operand.form else _BY_BITS.get(operand.bits, F32)
    )


def constant(operand: Operand) -> int:
    """The bits of an inline constant or literal, of the operand's size."""
    if isinstance(operand.index, float):
        return floats.from_python(operand.index, float_format(operand))
    return int(operand.index) & ((1 << max(operand.bits, 16)) - 1)  # of float8: as of any 32 bits


def _plain(operand: Operand, state: State, lane: int) -> int:
    if operand.kind == "c":
        return constant(operand)
    if operand.kind == "s":
        return state.scalars(operand.index, operand.words)
    return state.vectors(operand.index, lane, operand.words)


def _modified(operand: Operand, bits: int) -> int:
    top = 1 << (operand.bits - 1)
    if operand.absolute:
        bits &= ~top
    return bits ^ top if operand.negative else bits


def _source(case: Case, name: str, state: State, lane: int) -> int:
    """A source's value in a lane: permuted, selected, then with abs and neg."""
    operand = case.operands[name]
    bits = _plain(operand, state, lane)
    if case.encoding == "VOP3P":
        return _packed_source(case, name, bits)
    if case.sdwa and name in ("src0", "src1", "vsrc1") and not selects_itself(case):
        bits = _selected(bits, case.sdwa[2 if name == "src0" else 3], operand.sext)
    if operand.bits == 16 and operand.kind != "c" and not selects_itself(case):
        bits = (bits >> 16 if operand.high else bits) & 0xFFFF
    return _modified(operand, bits)


def selects_itself(case: Case) -> bool:
    """Whether the pseudocode itself reads which part of a register is meant."""
    return "OPSEL" in case.pseudocode or "SDWA_SRC0_SEL" in case.pseudocode


def _packed_source(case: Case, name: str, bits: int) -> int:
    """op_sel chooses what the low result reads, op_sel_hi what the high one reads; neg and neg_hi turn signs."""
    operand, at = case.operands[name], int(name[-1])
    low, high = case.select >> at & 1, case.select_high >> at & 1
    if "mix" in case.name or "OPSEL" in case.pseudocode:
        return bits  # whose pseudocode reads op_sel itself
    size = 32 if operand.bits == 64 else 16
    if not operand.form.startswith("FMT_NUM_PK2"):
        return bits
    mask = (1 << size) - 1
    parts = [bits >> size * low & mask, bits >> size * high & mask]
    if operand.is_float:
        parts[0] ^= (case.neg_low >> at & 1) << (size - 1)
        parts[1] ^= (case.neg_high >> at & 1) << (size - 1)
    return parts[0] | parts[1] << size


def _selected(bits: int, select: str, sext: bool) -> int:
    size, _, at = select.partition("_")
    width = {"BYTE": 8, "WORD": 16, "DWORD": 32}[size]
    part = bits >> width * int(at or 0) & ((1 << width) - 1)
    return signed(part, width) & 0xFFFFFFFF if sext else part


def permuted_lane(case: Case, lane: int) -> int | None:
    """The lane that DPP reads, None for one that is not there."""
    assert case.dpp is not None
    control, amount = case.dpp
    row, at = lane - lane % 16, lane % 16
    if control == "quad_perm":
        return lane - lane % 4 + (amount >> 2 * (lane % 4) & 3)
    if control == "dpp8":
        return lane - lane % 8 + (amount >> 3 * (lane % 8) & 7)
    if control == "row_shl":
        return lane + amount if at + amount < 16 else None
    if control == "row_shr":
        return lane - amount if at >= amount else None
    if control == "row_ror":
        return row + (at - amount) % 16
    if control == "row_mirror":
        return row + 15 - at
    if control == "row_half_mirror":
        return lane - lane % 8 + 7 - lane % 8
    if control in ("row_share", "row_newbcast"):
        return row + amount
    if control == "row_xmask":
        return row + (at ^ amount)
    if control == "row_bcast":  # 15: of each row to the next; 31: of the first half to the second
        if amount == 15:
            return row - 1 if row else None
        return 31 if lane >= 32 else None
    steps = {"wave_shl": lane + 1, "wave_shr": lane - 1}
    if control in steps:
        return steps[control] if 0 <= steps[control] < case.lanes else None
    return (lane + (1 if control == "wave_rol" else -1)) % case.lanes


def _common(case: Case, state: State, other: Any, lane: int) -> Evaluator:
    names = {
        "laneId": Value("i", 32, lane), "laneID": Value("i", 32, lane), "VCC": Value("b", 64, state.vcc),
        "EXEC": Value("b", 64, state.exec), "SCC": Value("u", 1, state.scc),
        "M0": Value("b", 32, int(state.scalar[M0])), "WAVE_MODE.IEEE": Value("u", 1, 0),
        "WAVE32": Value("u", 1, int(state.lanes == 32)), "WAVE64": Value("u", 1, int(state.lanes == 64)),
        "wave32": Value("u", 1, int(state.lanes == 32)), "MODE.IEEE": Value("u", 1, 0),
        "ROUND_MODE": Value("u", 8, 4), "ROUND_NEAREST_EVEN": Value("u", 8, 0), "ROUND_TOWARD_ZERO": Value("u", 8, 3),
        "OFFSET": Value("u", 16, case.offset), "OPSEL": Value("u", 4, case.select), "NEG": Value("u", 3, case.neg_low),
        "SDWA_SRC0_SEL": Value("u", 3, SELECTS.index(case.sdwa[2]) if case.sdwa else 6),
        **{f"BYTE{i}": Value("u", 3, i) for i in range(4)}, "WORD1": Value("u", 3, 5),
        "OPSEL_HI": Value("u", 3, case.select_high & 7), "SIMM32": Value("b", 32, case.literal),
        "SIMM16": Value("b", 16, case.immediate & 0xFFFF), "TTBL": Value("b", 8, case.bitop),
        "INST.OMOD": Value("u", 2, case.bitop >> 6), "INST.ABS": Value("u", 3, case.bitop >> 3 & 7),
        "INST.NEG": Value("u", 3, case.bitop & 7), "OFFSET0": Value("u", 8, case.offsets[0]),
        "OFFSET1": Value("u", 8, case.offsets[1]), "DENORM.f32": Value("f", 32, 1),
    }  # fmt: skip
    e = Evaluator(modes(case.mode), names, {}, other, fnuz=case.arch == "gfx942", limits=bool(case.mode >> 23 & 1))
    if case.name.startswith("v_dot") and "sum_of_products" in case.pseudocode:
        e.modes = Modes(0, 0, *[case.arch != "gfx90a"] * 4)
    if case.name.startswith(UNITS_FLUSH) and case.name.endswith("f32"):  # units that know no subnormals
        e.modes = Modes(e.modes.round32, e.modes.round16_64, False, False, e.modes.keep_in16_64, e.modes.keep_out16_64)
    return e


def _vector(case: Case, old: State, new: State, other: Any) -> None:
    """Lane by lane; results that are masks are gathered, zero in lanes that are not active."""
    statements = parse(case.pseudocode)
    result, mask_out = case.operands.get("vdst"), case.operands.get("sdst")
    compares = case.name.startswith("v_cmp")
    gathered = {"VCC": 0, "D0": 0, "EXEC": 0}
    for lane in range(case.lanes):
        if not old.exec >> lane & 1:
            continue
        sources = _lane_sources(case, old, lane)
        if sources is None:
            continue
        e = _common(case, old, other, lane)
        if "class" in case.name:
            e.flushed = frozenset()
        names = e.names
        for i, (name, bits) in enumerate(sources.items()):
            width = max(32, case.operands[name].words * 32)
            names[f"S{i}"] = Value("b", width, bits)
        if "mix" in case.name:
            e.flushed |= {"S"}
            e.arrays["S"] = {i: names[f"S{i}"] for i in range(3)}
            for i, name in enumerate(sources):
                e.arrays["S"][i] = _mixed(case, name, i, names[f"S{i}"])
        if "src2" in case.operands and case.operands["src2"].form == "FMT_NUM_M64":
            names["VCC"] = Value("b", 64, _plain(case.operands["src2"], old, lane))
        carried = mask_out is not None or "VCC.u64[laneId] =" in case.pseudocode
        wrote: list[int] = []
        before = 0
        if compares:
            names["EXEC"] = Value("b", 64, 0)
        names["SRC0"] = Value(
            "u",
            32,
            case.operands["src0"].index if case.operands.get("src0") and case.operands["src0"].kind == "v" else 0,
        )
        e.hooks["read_vgpr"] = lambda at, register: Value("b", 32, int(old.vector[register.value, at.value]))
        if result is not None and result.kind == "s":
            names["D0"] = Value("b", 32, 0)
        elif result is not None and not compares:
            before = old.vectors(result.index, lane, result.words)
            names["D0"] = Value("b", 32 * result.words, before >> 16 if result.high else before)
            e.hooks["wrote"] = wrote.append
        else:
            names["D0"] = Value("b", 64, 0)
        names["D1"] = Value("b", 64, 0)
        names.setdefault("S2", names["D0"])  # of instructions that accumulate
        if case.clamp and not case.omod:
            e.clamped = ("D0", "tmp") if case.encoding == "VOP3P" else ("D0",)
            e.hooks["clamp"] = lambda value, kind: _clamped(value, kind, packed=case.encoding == "VOP3P")
        if case.name.startswith("v_div_scale"):
            names["VCC"] = Value("b", 64, 0)
        e.run(statements)
        if compares:
            gathered["D0"] |= names["EXEC" if case.name.startswith("v_cmpx") else "D0"].value & 1 << lane
            continue
        if result is not None and result.kind == "s":
            bits = names["D0"].value
            form, width = (F16, 16) if case.name.endswith("_f16") else (F32, 32)
            bits = _scaled(case, bits, form) if case.omod else bits
            if case.omod and case.clamp:
                bits = _clamped(Value("f", width, bits), f"f{width}", packed=False).bits
            new.set_scalars(result.index, 1, bits)
            return
        if carried:
            bit = names["VCC"].value & 1 if case.name.startswith("v_div_scale") else names["VCC"].value >> lane & 1
            if "D1" in case.pseudocode:
                bit = names["D1"].value & 1
            gathered["VCC"] |= bit << lane
        if result is not None:
            _write(case, result, new, lane, before, names["D0"].value, max(wrote, default=0))
    if compares:
        _write_compare(case, new, gathered["D0"])
    elif mask_out is not None:
        new.set_scalars(mask_out.index, case.lanes // 32, gathered["VCC"])
    elif "VCC.u64[laneId] =" in case.pseudocode:
        new.set_scalars(VCC, case.lanes // 32, gathered["VCC"])


def _mixed(case: Case, name: str, at: int, value: Value) -> Value:
    """Sources of mixed precision: neg_hi is their abs, neg their neg, of the size that op_sel_hi says."""
    size = 16 if case.select_high >> at & 1 else 32
    bits, shift = value.bits, 16 if size == 16 and case.select >> at & 1 else 0
    top = 1 << (shift + size - 1)
    if case.neg_high >> at & 1:
        bits &= ~top
    if case.neg_low >> at & 1:
        bits ^= top
    return Value("b", 32, bits)


def _lane_sources(case: Case, old: State, lane: int) -> dict[str, int] | None:
    """The sources in order; None where DPP keeps the lane from being written."""
    made: dict[str, int] = {}
    for name in ("src0", "src1", "vsrc1", "src2"):
        if name not in case.operands:
            continue
        if name == "src0" and case.dpp is not None:
            if not case.masks[0] >> (lane // 16 & 3) & 1 or not case.masks[1] >> (lane // 4 & 3) & 1:
                return None
            at = permuted_lane(case, lane)
            if at is not None and not old.exec >> at & 1 and not case.fetch_inactive:
                at = None
            if at is None and not case.bound_zero and case.dpp[0] != "dpp8":
                return None
            operand = case.operands[name]
            made[name] = _source(case, name, old, at) if at is not None else _modified(operand, 0)
        else:
            made[name] = _source(case, name, old, lane)
    return made


def _clamped(value: Value, kind: str, *, packed: bool) -> Value:
    if kind[0] == "f" or kind == "bf16":
        form = value.form
        if floats.is_nan(value.bits, form) or value.bits & form.sign or value.bits == 0:
            return Value(value.kind, value.width, 0)
        one = floats.from_python(1.0, form)
        return Value(value.kind, value.width, min(value.bits, one))
    width = int(kind[1:])
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "i" else (0, (1 << width) - 1)
    return Value(value.kind, value.width, max(low, min(high, value.value)))


def _write(case: Case, result: Operand, new: State, lane: int, before: int, after: int, wrote: int) -> None:
    if wrote <= 16 and (result.bits == 16 or (wrote and result.words == 1)):
        after &= 0xFFFF
        if case.omod:
            after = _scaled(case, after, F16)
        after = _clamped(Value("f", 16, after), "f16", packed=False).bits if case.clamp and case.omod else after
        if case.sdwa:
            _write_sdwa(case, result, new, lane, before, after, 16)
            return
        if result.high:
            after = before & 0xFFFF | after << 16
        elif case.cdna and not _keeps_high(case):
            pass
        else:
            after |= before & 0xFFFF0000
    else:
        if case.omod:
            after = _scaled(case, after, F64 if result.words == 2 else F32)
            if case.clamp:
                after = _clamped(Value("f", 32 * result.words, after), f"f{32 * result.words}", packed=False).bits
        if case.sdwa:
            _write_sdwa(case, result, new, lane, before, after, 32)
            return
    new.set_vectors(result.index, lane, result.words, after)


def _keeps_high(case: Case) -> bool:
    """CDNA clears the other half of 16-bit results, but for those whose documents say that it is preserved."""
    return (
        case.name in KEEP_HIGH or "preserved" in case.pseudocode or "mixlo" in case.name or bool(case.select >> 3 & 1)
    )


def _scaled(case: Case, bits: int, form: Format) -> int:
    factor = floats.from_python({1: 2.0, 2: 4.0, 3: 0.5}[case.omod], form)
    mode = modes(case.mode)
    return mode.given(floats.multiply(bits, factor, form, mode.rounding(form)), form)


def _write_sdwa(case: Case, result: Operand, new: State, lane: int, before: int, after: int, width: int) -> None:
    assert case.sdwa is not None
    select, unused = case.sdwa[:2]
    size, _, at = select.partition("_")
    bits = {"BYTE": 8, "WORD": 16, "DWORD": 32}[size]
    if bits == 32:
        new.set_vectors(result.index, lane, 1, after)
        return
    low = bits * int(at)
    mask = ((1 << bits) - 1) << low
    made = after << low & mask
    if unused == "UNUSED_PRESERVE":
        made |= before & ~mask
    elif unused == "UNUSED_SEXT" and made >> (low + bits - 1) & 1:
        made |= 0xFFFFFFFF >> (low + bits) << (low + bits)
    new.set_vectors(result.index, lane, 1, made)


def _write_compare(case: Case, new: State, mask: int) -> None:
    words = case.lanes // 32
    if case.name.startswith("v_cmpx"):
        new.set_scalars(EXEC, words, mask)
        if not case.cdna:
            return
    target = case.operands.get("sdst")
    new.set_scalars(VCC if target is None else target.index, words, mask)


def _scalar(case: Case, old: State, new: State, other: Any) -> None:
    e = _common(case, old, other, 0)
    names = e.names
    to = case.operands.get("sdst") or case.operands.get("sdata")
    for i, name in enumerate(("ssrc0", "ssrc1")):
        if name in case.operands:
            names[f"S{i}"] = Value("b", max(32, case.operands[name].bits), _plain(case.operands[name], old, 0))
    if case.encoding == "SOPK":
        value = Value("b", 16, case.immediate & 0xFFFF)
        if case.name.startswith("s_cmpk"):
            assert to is not None
            names["S0"], names["S1"] = Value("b", 32, old.scalars(to.index, 1)), value
        else:
            names["S0"] = value
    if case.encoding == "SMEM":
        base = old.scalars(case.operands["sbase"].index, 2) & (1 << 48) - 1
        address = base + case.offset
        e.hooks.update(load=_reader(old), CalcScalarGlobalAddr=lambda *_: Value("u", 64, address))
        e.hooks.update(CalcScalarBufferAddr=lambda *_: Value("u", 64, address))
        e.hooks.update(
            CalcGlobalAddr=lambda *_: Value("u", 64, address), CalcBufferAddr=lambda *_: Value("u", 64, address)
        )
        names.update(ADDR=Value("u", 64, address), SBASE=Value("b", 64, 0), SOFFSET=Value("b", 64, 0))
        names.update(sgpr_base=Value("b", 64, 0), offset=Value("b", 64, 0))
    if to is not None:
        names["D0"] = names["SDATA"] = Value("b", to.words * 32, old.scalars(to.index, to.words))
    names["EXEC"] = Value("b", 64 if case.lanes == 64 else 32, old.exec)
    names["VCC"] = Value("b", 64, old.vcc)
    e.hooks["read_sgpr"] = lambda at: Value("b", 64, old.scalars(at.value, 2))
    e.hooks["write_sgpr"] = lambda at, v: new.set_scalars(at.value, v.width // 32, v.bits)
    names["SRC0"] = (
        Value("u", 32, case.operands["ssrc0"].index)
        if "ssrc0" in case.operands and (case.operands["ssrc0"].kind == "s")
        else Value("u", 32, 0)
    )
    names["DST"] = Value("u", 32, to.index if to else 0)
    e.run(parse(case.pseudocode))
    exec_wrote = ("EXEC.u" in case.pseudocode and "EXEC.u64 =" in case.pseudocode) or "EXEC.u32 =" in case.pseudocode
    if exec_wrote:
        new.set_scalars(EXEC, case.lanes // 32, names["EXEC"].value)
    new.scc = int(names["SCC"].truth)
    new.scalar[M0] = names["M0"].bits
    if to is not None and not case.name.startswith(("s_cmpk", "s_movreld")):
        new.set_scalars(to.index, to.words, names["SDATA" if case.encoding == "SMEM" else "D0"].value)


def _reader(state: State) -> Any:
    def load(address: int, width: int) -> int:
        at = address - state.base
        if not 0 <= at <= len(state.memory) - width // 8:
            raise OutsideError(f"{address:#x}")
        return int.from_bytes(state.memory[at : at + width // 8], "little")

    return load


def _once(case: Case, old: State, new: State, other: Any) -> None:
    """Instructions whose pseudocode goes over lanes itself."""
    e = _common(case, old, other, 0)
    names, ops = e.names, case.operands

    def read(lane: Value, register: Value) -> Value:
        return Value("b", 32, int(new.vector[register.value, lane.value % case.lanes]))

    def write(lane: Value, register: Value, value: Value) -> None:
        new.vector[register.value, lane.value % case.lanes] = value.value & 0xFFFFFFFF

    e.hooks.update(read_vgpr=read, write_vgpr=write, s_nop=lambda *_: Value("u", 1, 0))
    for i, name in enumerate(("src0", "src1", "src2")):
        if name in ops:
            names[f"SRC{i}"] = Value("u", 32, ops[name].index if ops[name].kind == "v" else 0)
            names[f"S{i}"] = Value("b", 32, _plain(ops[name], old, 0))
    for field, name, at in (("VDST", "vdst", 32), ("ADDR", "addr", 56), ("DATA0", "data0", 40)):
        names[field] = Value("u", 32, ops[name].index if name in ops else at)
    names["EXEC_LO"] = Value("b", 32, old.exec & 0xFFFFFFFF)
    if case.name == "v_swap_b32":
        a, b = ops["vdst"].index, ops["src0"].index
        for lane in range(case.lanes):
            if old.exec >> lane & 1:
                new.vector[a, lane], new.vector[b, lane] = old.vector[b, lane], old.vector[a, lane]
        return
    names["D0"] = Value("b", 32, 0)
    e.run(parse(case.pseudocode))
    to = ops.get("vdst")
    if to is not None and to.kind == "s":
        new.set_scalars(to.index, 1, names["D0"].value)


def _memory(case: Case, old: State, new: State, other: Any) -> None:
    statements = parse(case.pseudocode)
    ops = case.operands
    to = ops.get("vdst") or ops.get("vdata")
    data = ops.get("data0") or ops.get("data") or ops.get("vsrc") or ops.get("vdata")
    for lane in range(case.lanes):
        if not old.exec >> lane & 1:
            continue
        e = _common(case, old, other, lane)
        names = e.names
        raw, memory, base, limit = _address(case, old, new, lane)
        direct = "Calc" not in case.pseudocode and "OFFSET" not in case.pseudocode
        plain = raw + (case.offset if direct else 0)

        def load(address: int, width: int, memory: Any = memory, base: int = base, limit: int = limit) -> int:
            at = address - base
            if at >= limit:
                return 0
            if not 0 <= at <= len(memory) - width // 8:
                raise OutsideError(f"{case.text}: {address:#x}")
            return int.from_bytes(memory[at : at + width // 8], "little")

        def store(
            address: int, width: int, bits: int, memory: Any = memory, base: int = base, limit: int = limit
        ) -> None:
            at = address - base
            if at >= limit:
                return
            if not 0 <= at <= len(memory) - width // 8:
                raise OutsideError(f"{case.text}: {address:#x}")
            memory[at : at + width // 8] = bits.to_bytes(width // 8, "little")

        def ds_address(address: Value, *offsets: Value, raw: int = raw) -> Value:
            constants = all(part.kind == "b" and part.value == 0 and part.width == 32 for part in offsets)
            return Value("u", 64, raw if constants else raw + case.offset)

        whole = lambda *_, raw=raw: Value("u", 64, raw + case.offset)  # noqa: E731
        e.hooks.update(load=load, store=store, CalcDsAddr=ds_address)
        for name in ("CalcGlobalAddr", "CalcFlatAddr", "CalcScratchAddr", "CalcBufferAddr"):
            e.hooks[name] = whole
        address = Value("u", 64, plain)
        for name in ("ADDR", "ADDR_BASE", "vgpr_a", "v_addr", "VADDR"):
            names[name] = address
        for name in ("SADDR", "s_saddr", "SRSRC", "SOFFSET", "sgpr_o", "flat_scratch", "v_addr_off", "s_saddr_off"):
            names[name] = Value("b", 64, 0)
        names["offset"] = Value("u", 16, case.offset)
        names["OFFSET0"], names["OFFSET1"] = (Value("u", 8, one) for one in case.offsets)
        if data is not None:
            value = old.vectors(data.index, lane, data.words)
            for name in ("DATA", "DATA0", "VDATA"):
                names[name] = Value("b", 32 * data.words, value)
        if "data1" in ops:
            names["DATA2"] = names["DATA1"] = Value(
                "b", 32 * ops["data1"].words, old.vectors(ops["data1"].index, lane, ops["data1"].words)
            )
        before = 0
        if to is not None:
            before = old.vectors(to.index, lane, to.words)
            names["RETURN_DATA"] = Value("b", 32 * to.words, before)
            if "RETURN_DATA" not in case.pseudocode:
                names["VDATA"] = Value("b", 32 * to.words, before)
        e.run(statements)
        if to is not None and ("RETURN_DATA" in case.pseudocode or "store" not in case.name):
            if "RETURN_DATA" in case.pseudocode:
                if case.encoding != "DS" and "glc" not in case.variant:
                    continue
                new.set_vectors(to.index, lane, _returned_words(case, to), names["RETURN_DATA"].value)
            else:
                new.set_vectors(to.index, lane, to.words, names["VDATA"].value)


def _returned_words(case: Case, to: Operand) -> int:
    """Compare-and-swap of buffers takes twice as much as it returns."""
    return to.words // 2 if "cmpswap" in case.name and case.encoding in ("MUBUF", "VBUFFER") else to.words


def _address(case: Case, old: State, new: State, lane: int) -> tuple[int, Any, int, int]:
    """The address without the instruction's offset, the memory that it is in, its base, the bytes that count."""
    ops = case.operands
    far = 1 << 62
    if case.encoding == "DS":
        return old.vectors(ops["addr"].index, lane, 1), new.lds, 0, far
    if case.encoding in ("MUBUF", "VBUFFER"):
        resource = ops["rsrc"].index
        base, records = old.scalars(resource, 2) & (1 << 48) - 1, old.scalars(resource + 2, 1)
        offset = old.vectors(ops["vaddr"].index, lane, 1) if "vaddr" in ops else 0
        scalar = old.scalars(ops["soffset"].index, 1) if "soffset" in ops else 0
        return base + offset + scalar, new.memory, base, records
    if case.encoding in ("SCRATCH", "VSCRATCH"):
        offset = old.vectors(ops["vaddr"].index, lane, 1) if "vaddr" in ops else 0
        scalar = old.scalars(ops["saddr"].index, 1) if "saddr" in ops else 0
        return offset + scalar, new.private[lane], 0, far
    if "saddr" in ops:
        return old.scalars(ops["saddr"].index, 2) + old.vectors(ops["vaddr"].index, lane, 1), new.memory, new.base, far
    return old.vectors(ops["vaddr"].index, lane, 2), new.memory, new.base, far
