"""A drawn part of the engine's mutants: those that change results are noticed by the comparison with the reference.

All of them: ``python tests/emulation/mutants.py``.
"""

import pytest

pytest.importorskip("tinygrad")
from cxx import HAS_CXX
from isa_reference.mutants import ARCHS, run
from single_instruction import needs_clang

pytestmark = [needs_clang, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]
PARTS = 24


@pytest.mark.turns(PARTS // 2)
@pytest.mark.parametrize("part", range(PARTS))
def test_mutants_of_a_part_of_the_handlers_are_noticed(part):
    from portakernel.emulation.build import known_instructions

    told = run(ARCHS, known_instructions()[part::PARTS], 5)
    assert told.rate > 0.95, told.missed
    assert told.caught == told.handlers
    assert told.noticed > 2 * len(told.handlers) > 60
