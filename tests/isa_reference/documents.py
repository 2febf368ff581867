"""Instructions, their operands and pseudocode, as tinygrad's wheel has them from AMD's ISA documents."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass

TABLES = {"gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna", "gfx1100": "rdna3", "gfx1201": "rdna4"}
ENCODINGS = (
    "VOP1", "VOP2", "VOP3", "VOP3SD", "VOPC", "VOP3P", "SOP1", "SOP2", "SOPC", "SOPK", "SMEM", "DS", "GLOBAL",
    "VGLOBAL", "FLAT", "VFLAT", "SCRATCH", "VSCRATCH", "MUBUF", "VBUFFER",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """``fields``: by name the documents' format, bits and kind of operand."""

    name: str
    text: str
    encoding: str
    pseudocode: str
    fields: dict[str, tuple[str, int, str]]


@functools.cache
def instructions(table: str) -> tuple[Instruction, ...]:
    """Every instruction that has pseudocode, in each of its encodings."""
    code = importlib.import_module(f"tinygrad.runtime.autogen.amd.{table}.str_pcode").PCODE
    operands = importlib.import_module(f"tinygrad.runtime.autogen.amd.{table}.operands").OPERANDS
    made = []
    for op, text in code.items():
        encoding = type(op).__name__.removesuffix("Op")
        if encoding not in ENCODINGS:
            continue
        fields = {
            name.replace("vsrc0", "src0"): (fmt.name, bits, kind.name)
            for name, (fmt, bits, kind) in operands.get(op, {}).items()
        }
        name = plain_name(op.name)
        made.append(Instruction(name, op.name.lower(), encoding, corrected(name, table, text), fields))
    return tuple(made)


@functools.cache
def pseudocode(table: str) -> dict[str, str]:
    """By name, for pseudocode that calls other instructions."""
    return {one.name: one.pseudocode for one in instructions(table)}


def plain_name(name: str) -> str:
    return re.sub(r"_e(32|64)$", "", name.lower())


# Where the documents' pseudocode is wrong or loose: why, and what is evaluated instead. ``{t}`` is the type.
_ROUND = ("its formula loses -0 and rounds twice; the words say nearest, ties to even", "D0.{t} = round_even(S0.{t})")
_FRACT = (
    "the sum rounds to 1.0 for small negative numbers; the unit stays below 1",
    (
        "if !isNAN(S0.{t}) && abs(S0.{t}) != INF.{t} then\ntmp = S0.{t} + -floor(S0.{t});\n"
        "D0.{t} = tmp < 1.0 ? tmp : most_below_one(S0.{t})\nelse\nD0.{t} = NAN.{t}\nendif"
    ),
)
_EXPONENT = (
    "exponent() of a subnormal is that of its first one, as LLVM's frexp relies on",
    "if isNAN(S0.{t}) || abs(S0.{t}) == INF.{t} then\nD0.i32 = 0\nelse\nD0.i32 = normal_exponent(S0.{t})\nendif",
)
_FMAS = (
    "2**32 undoes no scale of v_div_scale (2**64): the factor is 2**64 or 2**-64 by the third source, rounded once",
    (
        "if VCC.u64[laneId] then\nD0.{t} = fma_scaled(S0.{t}, S1.{t}, S2.{t})\nelse\n"
        "D0.{t} = fma(S0.{t}, S1.{t}, S2.{t})\nendif"
    ),
)
_SIN = ("2 pi is rounded in the formula; the unit takes turns", "D0.{t} = sin_turns(S0.{t})")
_COS = ("as of the sine", "D0.{t} = cos_turns(S0.{t})")
CORRECTIONS: dict[str, tuple[str, str]] = {
    **{f"{start}_rndne_{t}": _ROUND for start in "vs" for t in ("f16", "f32", "f64")},
    **{f"v_fract_{t}": _FRACT for t in ("f16", "f32", "f64")},
    **{f"v_frexp_exp_{i}_{t}": _EXPONENT for i, t in (("i32", "f32"), ("i32", "f64"))},
    **{f"v_div_fmas_{t}": _FMAS for t in ("f32", "f64")},
    **{f"v_sin_{t}": _SIN for t in ("f16", "f32")},
    **{f"v_cos_{t}": _COS for t in ("f16", "f32")},
    **{
        f"v_rsq_{t}": ("it rounds the root before the inverse", "D0.{t} = inverse_root(S0.{t})")
        for t in ("f16", "f32", "f64")
    },
    "v_s_rsq_f32": ("as of v_rsq_f32", "D0.f32 = inverse_root(S0.f32)"),
    "v_cvt_f32_bf16": ("a cast of bits, written as one of numbers", "D0.f32 = bf16_to_f32(S0.bf16)"),
    "v_cvt_off_f32_i4": ("its table is in no document but as words: i4 / 16", "D0.f32 = offset_of_4_bits(S0)"),
    "v_frexp_exp_i16_f16": (
        _EXPONENT[0],
        "if isNAN(S0.f16) || abs(S0.f16) == INF.f16 then\nD0.i16 = 0\nelse\nD0.i16 = normal_exponent(S0.f16)\nendif",
    ),
}
_LDEXP = "D0.{t} = ldexp(S0.{t}, {by})"
# v_div_scale's fourth case: 2**64 overflows there; the sequence of a division needs 2**-64 for v_div_fmas to undo.
_SCALES = {
    "v_div_scale_f32": ("ldexp(S0.f32, 64)", "ldexp(S0.f32, -64)"),
    "v_div_scale_f64": ("ldexp(S0.f64, 128)", "ldexp(S0.f64, -128)"),
}


def corrected(name: str, table: str, text: str) -> str:
    """The pseudocode, or what stands for it."""
    kind = name.rsplit("_", 1)[-1]
    if name in CORRECTIONS:
        return CORRECTIONS[name][1].replace("{t}", kind)
    if name.startswith("v_ldexp"):  # 2**S1 overflows before the product does
        return _LDEXP.replace("{t}", kind).replace("{by}", "S1.i16" if kind == "f16" else "S1.i32")
    if name.startswith("v_div_fixup"):  # a quotient that overflowed although it was scaled is inf - inf by now
        last = f"D0.{kind} = sign_out ? -abs(S0.{kind}) : abs(S0.{kind})"
        return text.replace(
            last, f"if isNAN(S0.{kind}) then\nD0.{kind} = sign_out ? -INF.{kind} : +INF.{kind}\nelse\n{last}\nendif"
        )
    if (
        ("_min_" in name or "_max_" in name)
        and "src < tmp ?" in text.replace("src > tmp ?", "src < tmp ?")
        and kind[0] == "f"
    ):
        # of atomics too: the number where the other one is a NaN, as LLVM's atomicrmw fmin is
        return text.replace("= src < tmp ?", f"= isNAN(tmp.{kind}) ? src : src < tmp ?").replace(
            "= src > tmp ?", f"= isNAN(tmp.{kind}) ? src : src > tmp ?"
        )
    if name in _SCALES:
        begin = text.index("elsif ((1.0 /")
        first, rest = text[:begin], text[begin:]
        text = f"D0 = S0;\n{first}{rest.replace(*_SCALES[name], 1)}"
        # the inverse and the quotient are subnormal, or nothing is left of them, in the sources' format
        text = text.replace("1.0 / 64'F(S1.f32) == DENORM.f64", "1.0F / S1.f32 == DENORM.f32")
        return text.replace(f"S2.{kind} / S1.{kind} == DENORM.{kind}", f"is_tiny(S2.{kind} / S1.{kind})")
    return text
