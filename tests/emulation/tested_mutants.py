"""Mutants of handlers without pseudocode, matrix instructions above all: whether the tests of their own notice them.

Each test is called as pytest calls it, on an engine with one handler wrong. A mutant that leaves every register of all
its calls as the sound engine does counts as ``equal``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import test_matrix_instructions
import test_moves_and_control
import test_small_floats
import test_wave_matrix_instructions
from isa_reference.mutants import MutableEngine, Tally
from single_instruction import run_single

_MODULES = (test_matrix_instructions, test_wave_matrix_instructions, test_small_floats, test_moves_and_control)
Call = Callable[[], Any]
Registers = list[np.ndarray[Any, Any]]


def calls() -> dict[str, list[Call]]:
    """By handler: the calls of tests that execute it."""
    made: dict[str, list[Call]] = defaultdict(list)
    for arch, name in test_matrix_instructions.CASES:
        made[name].append(partial(test_matrix_instructions.test_elements_lie_where_the_documents_draw_them, arch, name))
    for case in test_wave_matrix_instructions.CASES:
        made[case[1]].append(partial(test_wave_matrix_instructions.test_products_of_a_wave_are_those_of_numpy, case))
    for side, scaled in ((16, False), (32, False), (16, True), (32, True)):
        name = f"v_mfma_{'scale_' if scaled else ''}f32_{side}x{side}x{2048 // side}_f8f6f4"
        test = test_wave_matrix_instructions.test_formats_of_gfx950_are_those_that_modifiers_name
        made[name] += [partial(test, a, b, side, scaled) for a, b in (("fp8", "fp4"), ("bf6", "bf8"))]
    for name, bits in (("b64_tr_b16", 16), ("b64_tr_b8", 8), ("b64_tr_b4", 4), ("b96_tr_b6", 6)):
        test = test_small_floats.test_transposed_loads_give_each_of_16_lanes_a_column
        made[f"ds_read_{name}"].append(partial(test, name, bits))
    control = test_moves_and_control
    for name in ("v_accvgpr_write", "v_accvgpr_mov_b32", "v_accvgpr_read"):
        made[name].append(partial(control.test_accumulation_registers_are_written_moved_and_read, "gfx942"))
    for keep in ((0x1F, 0, 0x10), (0x1E, 1, 0), (0x18, 0, 5)):
        test = control.test_a_swizzle_within_32_lanes_keeps_sets_and_turns_bits_of_the_lane
        made["ds_swizzle_b32"].append(partial(test, "gfx942", *keep))
    for width, count in (("dword", 1), ("dwordx3", 3), ("dwordx4", 4)):
        test = control.test_a_copy_to_lds_puts_lanes_side_by_side_from_m0_on
        made[f"global_load_lds_{width}"].append(partial(test, "gfx950", width, count))
    for condition in control.MET:
        made[f"s_cbranch_{condition}"] += [
            partial(control.test_a_branch_is_taken_where_its_condition_is_met, "gfx942", condition, is_met)
            for is_met in (True, False)
        ]
    return made


@contextmanager
def engine_of(library: Any) -> Iterator[list[Registers]]:
    """Tests run on ``library``; yields the registers that each of their runs left."""
    left: list[Registers] = []

    def noted(*given: Any, **options: Any) -> Any:
        ran = run_single(*given, **options)
        left.append([ran.vector.copy(), ran.scalar.copy()])
        return ran

    with patch("portakernel.emulation.launch.engine", lambda: library):
        for module in _MODULES:
            module.run_single = noted
        try:
            yield left
        finally:
            for module in _MODULES:
                module.run_single = run_single


def run(names: Sequence[str] = ()) -> Tally:
    """Mutate these handlers, or all that have such tests, one after the other."""
    engine, tally, tests = MutableEngine(), Tally(), calls()
    library = engine.library
    for name in names or sorted(tests):
        assert library.handler(name.encode()), name
        sound = _outcome(library, tests[name])
        assert sound is not None, f"{name}: the sound engine does not pass its tests"
        tally.handlers.add(name)
        for kind in engine.kinds:
            with engine.mutated(name, kind):
                found = _outcome(library, tests[name])
            if found is None:
                tally.noticed += 1
                tally.caught.add(name)
            elif all(
                np.array_equal(a, b) for x, y in zip(sound, found, strict=True) for a, b in zip(x, y, strict=True)
            ):
                tally.equal += 1
            else:
                tally.missed.append(f"{name} {kind}")
    return tally


def _outcome(library: Any, tests: Sequence[Call]) -> list[Registers] | None:
    """The registers that the tests' runs left; None where one failed."""
    with engine_of(library) as left:
        try:
            for test in tests:
                test()
        except (AssertionError, ArithmeticError, LookupError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not re.search("emulat|budget|instruction", str(error)):
                raise
            return None
    return left
