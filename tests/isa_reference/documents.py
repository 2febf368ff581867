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
    """By name, for pseudocode that calls other instructions: CDNA's calls some that RDNA 4 alone has."""
    borrowed = ("v_minimum_f32", "v_maximum_f32", "v_minimum3_f16", "v_maximum3_f16", "v_minimum_f16", "v_maximum_f16")
    made = {one.name: one.pseudocode for one in instructions("rdna4") if one.name in borrowed}
    return made | {one.name: one.pseudocode for one in instructions(table)}


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
_MEDIAN = (
    "it compares with a maximum that MODE may have made zero; the unit picks one of its sources",
    "if isNAN(S0.{t}) || isNAN(S1.{t}) || isNAN(S2.{t}) then\nD0.{t} = v_min3{num}_{t}(S0.{t}, S1.{t}, S2.{t})\n"
    "else\nD0.{t} = median(S0.{t}, S1.{t}, S2.{t})\nendif",
)
_SUM = (
    "it rounds after each product; the unit keeps them (LLVM makes it of fused ones alone), always to nearest even, and "
    "keeps subnormal numbers whatever MODE says, but gfx90a's, which takes and gives zero for them"
)


def _sum(to: str, last: str, *parts: str) -> tuple[str, str]:
    size = 8 if len(parts) > 1 or parts[0] in ("fp8", "bf8") else 16
    first, second = parts[0], parts[-1]
    terms = ", ".join(
        f"S0[{at + size - 1} : {at}].{first}, S1[{at + size - 1} : {at}].{second}" for at in range(0, 32, size)
    )
    return _SUM, f"D0.{to} = sum_of_products({last}.{to}, {terms})"


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
    **{f"v_med3_{t}": (_MEDIAN[0], _MEDIAN[1].replace("{num}", "")) for t in ("f16", "f32")},
    **{f"v_med3_num_{t}": (_MEDIAN[0], _MEDIAN[1].replace("{num}", "_num")) for t in ("f16", "f32")},
    **{
        f"v_dot2_{to}_{t}": _sum(to, "S2", t)
        for to, t in (("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("bf16", "bf16"))
    },
    **{f"v_dot2{name}_f32_{t}": _sum("f32", "D0", t) for name in ("c", "acc") for t in ("f16", "bf16")},
    **{f"v_dot4_f32_{a}_{b}": _sum("f32", "S2", a, b) for a in ("fp8", "bf8") for b in ("fp8", "bf8")},
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


# What ``corrected`` rewrites in the pseudocode of several instructions, by its reason.
EXCEPTIONS: dict[str, list[str]] = {
    "2**S1 overflows before the product does": ["v_ldexp_*"],
    "v_div_scale's 2**64 overflows in its fourth case: 2**-64, which v_div_fmas undoes": list(_SCALES),
    "a quotient that overflowed although it was scaled is a NaN by now, and infinite": ["v_div_fixup_*"],
    "the number where the other one is a NaN, as LLVM's atomicrmw fmin is": ["atomic minima and maxima of floats"],
    "the random number's upper bits are added with a carry, and what they reach is cut, as hip_fp8.h has it": [
        "v_cvt_sr_*"
    ],
    "half of a pair of registers is taken of one of them": ["v_pk_mov_b32"],
    "the result is called D": ["v_bitop3_*"],
    "the half that the result leaves is in a comment alone": ["v_cvt_scalef32_f16_*"],
}


def _at_random(name: str, text: str) -> str:
    """Stochastic rounding adds the random number's upper bits to those that are dropped, and drops them.

    The pseudocode adds to the mantissa alone, without a carry, and rounds the sum to nearest once more; that of 16-bit
    formats names functions and says no more. AMD's hip_fp8.h, which computes it in software, adds with a carry.
    """
    to = name.split("_")[3]
    text = re.sub(r"\bf32_to_\w+\(tmp\.f32\)", f"f32_to_{to}_random(S0.f32, S1.u32)", text)
    text = re.sub(r"^(s|e|m|tmp) = .*?;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"16'B?F\(f32_to_b?f16_(?:SR|sr)\(S0\.f32, S1\.u32\)\)", f"f32_to_{to}_random(S0.f32, S1.u32)", text)


def corrected(name: str, table: str, text: str) -> str:
    """The pseudocode, or what stands for it."""
    kind = name.rsplit("_", 1)[-1]
    if name.startswith("v_cvt"):  # the registers are those of the operands, which may be scalar or permuted
        text = text.replace("VGPR[laneId][VDST.u32]", "D0").replace("VGPR[laneId][SRC0.u32]", "S0")
    if name.startswith("v_cvt_sr_"):
        text = _at_random(name, text)
    if name.startswith("v_cvt_scalef32_f16_"):  # as its comment says, and LLVM has it: the other half stays
        whole = (
            "if OPSEL[3].u32 == 0U then\nD0[15 : 0].f16 = tmp.f16\nelse\nD0[31 : 16].f16 = tmp.f16\nendif // preserved"
        )
        return text.replace("D0 = tmp.b32", whole)
    if name == "v_pk_mov_b32":  # 32 bits of one of 32, where the other half of the pair is meant
        return text.replace("S0.u32[", "S0.u64[").replace("S1.u32[", "S1.u64[").replace("D0.u32[", "D0[")
    if name.startswith("v_bitop3"):  # a result that is called D
        return text.replace("\nD.", "\nD0.")
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
