"""A drawn part of the engine's mutants: those that change results are noticed by the comparison with the reference.

All of them: ``python tests/emulation/mutants.py``.
"""

import random

import pytest

pytest.importorskip("tinygrad")
from cxx import HAS_CXX
from isa_reference.mutants import run
from single_instruction import needs_clang

pytestmark = [needs_clang, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]


def test_mutants_of_drawn_handlers_are_noticed():
    from portakernel.emulation.build import known_instructions

    names = random.Random(1).sample(known_instructions(), 15)
    told = run(("gfx942", "gfx1201"), names, 5)
    assert told.rate > 0.95, told.missed
    assert told.caught == told.handlers
    assert told.noticed > 2 * len(told.handlers) > 15
