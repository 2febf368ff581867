"""Instructions, their operands and pseudocode, as tinygrad's wheel has them from AMD's ISA documents."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass
from typing import Any

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


# Where the documents' pseudocode is known to be wrong or loose, what is evaluated instead, and why.
CORRECTIONS: dict[str, tuple[str, str]] = {}


def corrected(name: str, table: str, text: str) -> str:
    """The pseudocode, or what stands for it."""
    found: Any = CORRECTIONS.get(name)
    return found[1] if found else text
