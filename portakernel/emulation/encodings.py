"""The instruction tables of tinygrad's wheel, arranged for looking up: which encoding a word has, and its fields."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from portakernel.emulation.errors import NO_TABLES, EmulationError

# Most specific first, as encodings overlap: SOP2 and VOP2 have the shortest prefixes. Variants with a literal, DPP or
# SDWA have the same first word as their base, and are told apart by its operands.
_ORDER = (
    "VOP3PX2", "VOPD", "VOP3P_MFMA", "VOP3P", "VINTERP", "VOP3SD", "VOP3_SDST", "VOP3", "DS", "GLOBAL", "VGLOBAL",
    "SCRATCH", "VSCRATCH", "FLAT", "VFLAT", "MUBUF", "VBUFFER", "SMEM", "SOP1", "SOP1_LIT", "SOPC", "SOPC_LIT", "SOPP",
    "SOPK", "SOPK_LIT", "VOPC", "VOPC_LIT", "VOP1_SDST", "VOP1", "VOP1_LIT", "SOP2", "SOP2_LIT", "VOP2", "VOP2_LIT",
)  # fmt: skip

# Where gfx90a's opcodes are not those of the newer CDNA that the table is of; names are of what does the same there.
_GFX90A: Mapping[str, Mapping[int, str]] = {
    "VOP2": {0x16: "v_mac_f32", 0x17: "v_madmk_f32", 0x18: "v_madak_f32"},
    "VOP3": {0x116: "v_mac_f32", 0x1C0: "v_mad_legacy_f32", 0x1C1: "v_mad_f32"},
    "VOP3P_MFMA": {
        0x54: "v_mfma_i32_32x32x8_i8", 0x55: "v_mfma_i32_16x16x16_i8", 0x63: "v_mfma_f32_32x32x4_2b_bf16",
        0x64: "v_mfma_f32_16x16x4_4b_bf16", 0x65: "v_mfma_f32_4x4x4_16b_bf16", 0x66: "v_mfma_f32_32x32x8_bf16",
        0x67: "v_mfma_f32_16x16x16_bf16", 0x68: "v_mfma_f32_32x32x2_2b_bf16", 0x69: "v_mfma_f32_16x16x2_4b_bf16",
        0x6B: "v_mfma_f32_4x4x2_16b_bf16", 0x6C: "v_mfma_f32_32x32x4_bf16", 0x6D: "v_mfma_f32_16x16x8_bf16",
        0x6E: "v_mfma_f64_16x16x4_f64", 0x6F: "v_mfma_f64_4x4x4_4b_f64",
    },
    "MUBUF": {0x28: "buffer_wbl2", 0x29: "buffer_invl2", 0x3E: "buffer_wbinvl1", 0x3F: "buffer_wbinvl1_vol"},
}  # fmt: skip
_NOT_ON_GFX90A = (
    "smfmac", "xf32", "fp8", "bf8", "f8f6f4", "scalef32", "v_mfma_f32_16x16x32", "v_mfma_f32_32x32x16", "bitop3",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field lies, and what number its first register has among operand codes."""

    low: int
    mask: int
    base: int = 0
    shift: int = 0

    def of(self, raw: int) -> int:
        """The operand code or number that it holds."""
        return ((raw >> self.low & self.mask) << self.shift) + self.base


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoding: the fixed bits, the opcodes by number, the fields by name."""

    name: str
    size: int
    fixed_mask: int
    fixed: int
    opcode: Field | None
    names: dict[int, str]
    fields: dict[str, Field]

    def matches(self, raw: int) -> bool:
        """Whether these bytes are of this encoding, with an opcode that it knows."""
        return raw & self.fixed_mask == self.fixed and (self.opcode is None or self.opcode.of(raw) in self.names)


def plain_name(name: str) -> str:
    """A name as handlers have it: ``V_ADD_F32_E32`` is ``v_add_f32``."""
    return name.lower().removesuffix("_e32").removesuffix("_e64")


@functools.cache
def encodings(table: str, arch: str = "") -> tuple[Encoding, ...]:
    """The encodings of ``cdna``, ``rdna3`` or ``rdna4`` in the order in which they are tried.

    ``arch`` names one of the table's whose opcodes differ.

    Raises:
        EmulationError: tinygrad is not installed.
    """
    try:
        dsl = importlib.import_module("tinygrad.renderer.amd.dsl")
        module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{table}.ins")
    except ImportError as error:
        raise EmulationError(NO_TABLES) from error
    made = [_encoding(name, getattr(module, name), dsl) for name in _ORDER if hasattr(module, name)]
    return tuple(map(_of_gfx90a, made)) if arch == "gfx90a" else tuple(made)


def _of_gfx90a(encoding: Encoding) -> Encoding:
    kept = {number: name for number, name in encoding.names.items() if not any(p in name for p in _NOT_ON_GFX90A)}
    literal = encoding.name == "VOP2" and not any("cndmask" in name for name in kept.values())
    names = kept if literal else {**kept, **_GFX90A.get(encoding.name, {})}
    return replace(encoding, names=names)


@functools.cache
def vopd_names(table: str) -> dict[int, str]:
    """The halves of dual instructions by opcode: ``v_fmac_f32`` of ``V_DUAL_FMAC_F32``."""
    module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{table}.ins")
    return {one.value: plain_name(one.name).replace("v_dual_", "v_") for one in getattr(module, "VOPDOp", ())}


def _encoding(name: str, kind: Any, dsl: Any) -> Encoding:
    mask, fixed, opcode, names = 0, 0, None, {}
    fields: dict[str, Field] = {}
    for label, field in kind._fields:
        if isinstance(field, dsl.FixedBitField):
            mask |= field.mask << field.lo
            fixed |= field.default << field.lo
        elif isinstance(field, dsl.EnumBitField) and label == "op":
            opcode = Field(field.lo, field.mask)
            names = {one.value: plain_name(one.name) for one in (field.allowed or field._enum)}
        elif isinstance(field, dsl.AlignedSGPRField):
            fields[label] = Field(field.lo, field.mask, 0, {2: 1, 4: 2}[field._align])
        else:
            base = field._valid_range[0] if isinstance(field, dsl.SrcField) else 0
            fields[label] = Field(field.lo, field.mask, base)
    if name == "VOP3P_MFMA":  # the table has them elsewhere, without the fields of matrix instructions
        names |= {62: "v_mfma_f32_16x16x8_xf32", 63: "v_mfma_f32_32x32x4_xf32"}
    if name == "VOP3PX2":  # the first half is v_mfma_ld_scale_b32
        place = fields["x2encoding"]
        mask |= place.mask << place.low
        fixed |= 0xD3AC << place.low
    size = kind._base_size - (4 if name.endswith("_LIT") else 0)
    return Encoding(name.removesuffix("_LIT"), size, mask, fixed, opcode, names, fields)
