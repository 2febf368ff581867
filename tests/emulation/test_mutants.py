"""A drawn part of the engine's mutants: each one that changes results is noticed by the comparison with the reference.

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

    names = random.Random(1).sample(known_instructions(), 25)
    told = run(("gfx942", "gfx1201"), names, 2)
    assert told.missed == []
    assert told.caught == told.handlers
    assert told.noticed > 2 * len(told.handlers) > 20
