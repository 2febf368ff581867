"""Instructions drawn with operands and modifiers: the engine and the documents' pseudocode leave the same registers.

All of them: ``python tests/emulation/differential.py``.
"""

import re

import pytest

pytest.importorskip("tinygrad")
from cxx import HAS_CXX
from isa_reference.cases import cases
from isa_reference.differential import compare, drawn_cases, known
from single_instruction import needs_clang

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
pytestmark = [needs_clang, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]


@pytest.mark.parametrize("arch", ARCHS)
def test_drawn_instructions_leave_the_registers_that_the_documents_say(arch):
    told = compare(arch, drawn_cases(arch, 0, instructions_of=60, cases_of=3))
    assert told.unlike == []
    assert told.equal > 100


def test_every_instruction_with_pseudocode_is_drawn_or_named_as_left_out():
    from isa_reference.differential import LEFT_OUT, never_drawn

    assert never_drawn("gfx942") <= LEFT_OUT


def test_what_neither_pseudocode_nor_a_test_of_its_own_proves_computes_nothing():
    from isa_reference.differential import MATRIX
    from isa_reference.proven import elsewhere

    from portakernel.emulation.build import known_instructions

    drawn = {one.name for arch in ARCHS for one in known(arch) if next(iter(cases(arch, one, 0)), None) is not None}
    rows = {row["what"]: row["instructions"] for row in elsewhere(set(known_instructions()) - drawn)}
    control = rows["waits, barriers, caches, hints, ends"]
    assert {name for name in rows["matrix instructions"] if not name.startswith(MATRIX)} == set()
    assert [name for name in control if not re.match(r"s_|(buffer|global)_(gl|inv|wb)|[dv]s?_nop", name)] == []
