"""Where the comparison departs from the documents' pseudocode, and what proves instructions that it does not reach."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from isa_reference.bench import UNITS
from isa_reference.cases import NO_MODES
from isa_reference.documents import CORRECTIONS
from isa_reference.documents import EXCEPTIONS as REWRITTEN
from isa_reference.execute import KEEP_HIGH

_TESTS = "tests/emulation/"
# In this order; the last one is for what no earlier one names.
_PROVEN = (
    ("matrix instructions", r"v_(mfma|wmma|smfmac|swmmac)_", "products in numpy, of every shape and dtype",
     "test_matrix_instructions.py, test_wave_matrix_instructions.py"),
    ("transposed loads of LDS", r"ds_read_b\d+_tr_", "columns in numpy", "test_small_floats.py"),
    ("copies to LDS", r"global_load_lds_", "memory and LDS in numpy", "test_moves_and_control.py"),
    ("jumps, calls, MODE", r"s_(c?branch|call|getpc|setpc|swappc|getreg|setreg|round_mode|denorm_mode)",
     "what is executed after them", "test_moves_and_control.py"),
    ("moves by lane, M0 or an index of registers, accumulation registers",
     r"v_accvgpr|v_movrel|ds_swizzle|s_set_gpr_idx", "moves in numpy", "test_moves_and_control.py"),
    ("of none of the five targets", r".*rsub|v_ma[cd]|v_madak|v_madmk|.*_legacy_f32|s_(add|sub)_u64|v_pk_fma_mix",
     "nothing: no assembler takes them", ""),
    ("waits, barriers, caches, hints, ends", r".*", "whole kernels, which change no register by them",
     "test_hip_kernels.py, test_planted_faults.py"),
)  # fmt: skip


def elsewhere(names: Iterable[str]) -> list[dict[str, object]]:
    """The instructions by kind, and what proves each kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        found[next(what for what, pattern, _, _ in _PROVEN if re.match(pattern, name))].append(name)
    rows = []
    for what, _, how, files in _PROVEN:
        where = ", ".join(f"`{_TESTS}{file}`" for file in files.split(", ") if file)
        if what in found:
            rows.append({"what": what, "instructions": found[what], "proven": f"{how} ({where})" if where else how})
    return rows


def exceptions() -> list[dict[str, object]]:
    """Instructions that are not held to their pseudocode to the letter, by reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, (reason, _) in CORRECTIONS.items():
        found[reason].append(name)
    for reason, names in REWRITTEN.items():
        found[reason] += names
    for name, units in UNITS.items():
        found[_unit(units)].append(name)
    found[
        "whether MODE makes zero of subnormal numbers here, or rounds, no document says: drawn in the default mode"
    ] += [f"{name.rstrip('_')}*" for name in NO_MODES]
    found["on CDNA the other half of the register stays, as LLVM has it; the pseudocode names 16 bits alone"] += sorted(
        KEEP_HIGH
    )
    return [{"instructions": names, "reason": reason} for reason, names in found.items()]


def _unit(units: int) -> str:
    if units < 0:
        return (
            "within 2**-17 (float16: 2**-8) of the sine, of up to 256 turns; beyond them the documents give no result"
        )
    return f"within {units} in the last place: the documents give the unit a bound, or none"
