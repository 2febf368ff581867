"""Drawn instructions run on the engine and by the reference, and what differs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from isa_reference.bench import Batch, check
from isa_reference.cases import cases
from isa_reference.documents import TABLES, Instruction, instructions
from isa_reference.state import Case
from isa_reference.syntax import NotPseudocodeError
from portakernel.emulation.build import handler

# Control, which tests of whole kernels cover, and what the documents have no pseudocode of: prose, hardware registers.
LEFT_OUT = frozenset({
    "s_getpc_b64", "s_setpc_b64", "s_swappc_b64", "s_call_b64", "s_getreg_b32", "s_setreg_b32", "s_setreg_imm32_b32",
    "s_version", "ds_swizzle_b32", "s_rfe_b64", "s_cbranch_join", "s_barrier_signal", "s_barrier_wait", "s_sleep_var",
    "s_set_gpr_idx_on", "v_movreld_b32", "v_movrelsd_b32", "v_movrelsd_2_b32", "ds_nop",
})  # fmt: skip


@dataclass(slots=True)
class Comparison:
    """How many cases were equal; those that were not, in words; names of instructions that were compared."""

    equal: int = 0
    unlike: list[str] = field(default_factory=list)
    refused: int = 0
    compared: set[str] = field(default_factory=set)
    exist: set[str] = field(default_factory=set)  # of which the assembler takes some form


# Their pseudocode is a line of prose, D = A * B + C.
MATRIX = ("v_mfma_", "v_wmma_", "v_smfmac_", "v_swmmac_")


def known(arch: str) -> list[Instruction]:
    """The instructions that the documents, the engine and this reference have."""
    return [
        one for one in instructions(TABLES[arch])
        if handler(one.name) and one.name not in LEFT_OUT and not one.name.startswith(MATRIX)
    ]  # fmt: skip


def drawn_cases(arch: str, seed: int, *, instructions_of: int = 0, cases_of: int = 0) -> list[Case]:
    """Cases of so many instructions, so many of each; 0 stands for all."""
    draw = random.Random(f"{arch} {seed}")
    some = known(arch)
    some = draw.sample(some, min(instructions_of, len(some))) if instructions_of else some
    made: list[Case] = []
    for one in some:
        drawn = list(cases(arch, one, seed))
        made += draw.sample(drawn, min(cases_of, len(drawn))) if cases_of else drawn
    return made


def compare(arch: str, drawn: Iterable[Case]) -> Comparison:
    """Run cases; those that the assembler knows no such form of are counted apart."""
    batch, told = Batch.of(arch, drawn), Comparison()
    told.refused = len(batch.refused)
    told.exist = {case.name for case in batch.cases}
    for at, case in enumerate(batch.cases):
        try:
            unlike = check(batch, at)
        except NotPseudocodeError as error:
            unlike = f"the reference cannot read it: {error}"
        if unlike:
            told.unlike.append(f"{arch} {case.text} ({case.variant}, seed {case.seed}): {unlike}")
        else:
            told.equal += 1
            told.compared.add(case.name)
    return told


def never_drawn(arch: str) -> set[str]:
    """Instructions that the engine and the documents have and no case is drawn of."""
    names = {
        one.name for one in instructions(TABLES[arch])
        if handler(one.name) and one.encoding != "SOPP" and not one.name.startswith(MATRIX)
    }  # fmt: skip
    return names - {one.name for one in known(arch) if next(iter(cases(arch, one, 0)), None) is not None}
