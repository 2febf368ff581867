"""Matrix instructions whose opcodes the architectures of CDNA give different meanings; the table is that of gfx950."""

from __future__ import annotations

from collections.abc import Mapping

# Of gfx90a: int8 with a smaller K, bfloat16 in its first and its later form (``_1k``).
_GFX90A: Mapping[int, str] = {
    84: "v_mfma_i32_32x32x8_i8", 85: "v_mfma_i32_16x16x16_i8", 99: "v_mfma_f32_32x32x4_2b_bf16",
    100: "v_mfma_f32_16x16x4_4b_bf16", 101: "v_mfma_f32_4x4x4_16b_bf16", 102: "v_mfma_f32_32x32x8_bf16",
    103: "v_mfma_f32_16x16x16_bf16", 104: "v_mfma_f32_32x32x2_2b_bf16", 105: "v_mfma_f32_16x16x2_4b_bf16",
    107: "v_mfma_f32_4x4x2_16b_bf16", 108: "v_mfma_f32_32x32x4_bf16", 109: "v_mfma_f32_16x16x8_bf16",
}  # fmt: skip
_XF32: Mapping[int, str] = {62: "v_mfma_f32_16x16x8_xf32", 63: "v_mfma_f32_32x32x4_xf32"}
_GFX90A_HAS = {*range(64, 67), 68, 69, *range(72, 75), 76, 77, *range(80, 83), 110, 111, *_GFX90A}
# Beside them gfx942 has no other form than the table's, but not these of gfx950.
_GFX950_ONLY = {45, 46, *range(53, 62), 67, 70, 71, 75, 78, 79, 83, 84, 85, 90, 91}

MATRIX_OPCODES: Mapping[int, str] = {**{code: "unknown" for code in _GFX90A if code not in (84, 85)}, **_XF32}


def matrix_name(arch: str, opcode: int, name: str) -> str:
    """What an opcode of VOP3P's matrix instructions is called on an architecture; ``unknown`` where it has none."""
    if arch == "gfx90a":
        return _GFX90A.get(opcode, name) if opcode in _GFX90A_HAS else "unknown"
    if opcode in _XF32:
        return name if arch == "gfx942" else "unknown"
    return "unknown" if arch == "gfx942" and opcode in _GFX950_ONLY else name
