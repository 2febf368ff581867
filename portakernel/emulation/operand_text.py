"""Instructions and registers in short, as findings name them."""

from __future__ import annotations

from portakernel.emulation import abi
from portakernel.emulation.record import Record

# Operand codes: trap registers from here on, whole numbers from 0 to 64 and then from -1 to -16, and those with names.
_TTMP, _ZERO = 108, 128
_NAMED = {
    abi.VCC: "vcc", abi.VCC + 1: "vcc_hi", abi.NULL: "null", abi.M0: "m0", abi.EXEC: "exec", abi.EXEC + 1: "exec_hi",
}  # fmt: skip
_CONSTANTS = {
    240: "0.5", 241: "-0.5", 242: "1.0", 243: "-1.0", 244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0", 248: "1/(2*pi)",
    253: "scc",
}  # fmt: skip
_DPP_ROWS = {0x100: "row_shl", 0x110: "row_shr", 0x120: "row_ror", 0x150: "row_share", 0x160: "row_xmask"}
_DPP_WHOLE = {
    0x130: "wave_shl:1", 0x134: "wave_rol:1", 0x138: "wave_shr:1", 0x13C: "wave_ror:1", 0x140: "row_mirror",
    0x141: "row_half_mirror", 0x142: "row_bcast:15", 0x143: "row_bcast:31",
}  # fmt: skip


def describe(record: Record) -> str:
    """An instruction in short: its name, operands and how it permutes lanes; or the bytes that no table knows."""
    if record.name == "unknown":
        return f"unknown bytes {record.raw.hex()}"
    operands = [_operand(record, code) for code in (record.dst, record.sdst, *record.src) if code != abi.NO_OPERAND]
    text = f"{record.name} {', '.join(operands)}".rstrip()
    permuted = _permuted(record)
    if permuted:
        text = f"{text} {permuted}"
    return f"{text} offset:{record.imm}" if record.imm else text


def register(code: int) -> str:
    """A register's name by its code."""
    if code >= abi.AGPR:
        return f"a{code - abi.AGPR}"
    if code >= abi.VGPR:
        return f"v{code - abi.VGPR}"
    if code in _NAMED:
        return _NAMED[code]
    return f"s{code}" if code < abi.VCC else f"ttmp{code - _TTMP}"


def _operand(record: Record, code: int) -> str:
    if code == abi.LITERAL:
        return f"{record.literal:#x}"
    if code < _ZERO or code >= abi.VGPR:
        return register(code)
    if code in _CONSTANTS:
        return _CONSTANTS[code]
    if code <= _ZERO + 64:
        return str(code - _ZERO)
    return str(_ZERO + 64 - code) if code <= _ZERO + 80 else f"src{code}"


def _permuted(record: Record) -> str:
    """The DPP controls, in the words of assembly."""
    if record.permute == abi.DPP8:
        return f"dpp8:[{','.join(str(record.lane_select >> 3 * i & 7) for i in range(8))}]"
    if record.permute != abi.DPP16:
        return ""
    control = record.dpp_ctrl
    if control < 0x100:
        text = f"quad_perm:[{','.join(str(control >> 2 * i & 3) for i in range(4))}]"
    elif control & 0x1F0 in _DPP_ROWS:
        text = f"{_DPP_ROWS[control & 0x1F0]}:{control & 15}"
    else:
        text = _DPP_WHOLE.get(control, f"dpp_ctrl:{control:#x}")
    text += f" row_mask:{record.row_mask:#x} bank_mask:{record.bank_mask:#x}"
    return f"{text} bound_ctrl:1" if record.flags & abi.BOUND_CTRL else text
