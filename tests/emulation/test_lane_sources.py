"""Fields of an instruction that are no operands of it are not read.

Of VOP3's three sources, moves between lanes have two. A load of s0, whose code such a field holds, is on its way
meanwhile.
"""

import numpy as np
import pytest
from single_instruction import needs_clang, run_single

from portakernel.emulation import Kind

pytest.importorskip("tinygrad")
pytestmark = needs_clang

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
WAIT = {"gfx1201": "s_wait_kmcnt 0x0"}


def during_a_load(arch: str, text: str) -> frozenset[Kind]:
    """What is found of an instruction between a load of s0 and the wait for it."""
    name = "s_load_dword" if arch.startswith("gfx9") else "s_load_b32"
    lines = [f"{name} s0, s[4:5], 0x0", text, WAIT.get(arch, "s_waitcnt lgkmcnt(0)"), "v_mov_b32 v9, s0"]
    ran = run_single(arch, lines, tensors={4: np.array([7], dtype=np.uint32)}, sgprs={6: 1})
    assert ran.vgpr(9)[0] == 7
    return ran.finding_kinds


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", ["v_writelane_b32 v1, s6, 3", "v_readlane_b32 s8, v1, 3", "v_readlane_b32 s8, v1, s6"])
def test_moves_between_lanes_read_two_sources(arch, text):
    assert during_a_load(arch, text) == frozenset()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", ["v_writelane_b32 v1, s0, 3", "v_readlane_b32 s8, v1, s0"])
def test_what_they_do_read_has_to_be_waited_for(arch, text):
    assert during_a_load(arch, text) == frozenset({Kind.UNWAITED})


@pytest.mark.parametrize("text", ["v_s_rcp_f32 s8, s6", "v_s_exp_f16 s8, s6 mul:2"])
def test_scalar_units_read_one_source(text):
    assert during_a_load("gfx1201", text) == frozenset()
