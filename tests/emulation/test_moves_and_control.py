"""Instructions whose pseudocode speaks of more than registers of a wave: jumps, modes, accumulation, copies to LDS."""

import numpy as np
import pytest
from cxx import HAS_CXX
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
pytestmark = [needs_clang, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]
CDNA, RDNA = ("gfx90a", "gfx942", "gfx950"), ("gfx1100", "gfx1201")
MET = {
    "scc1": "s_cmp_eq_u32 s4, 5", "scc0": "s_cmp_eq_u32 s4, 6", "vccz": "s_mov_b64 vcc, 0", "vccnz": "s_mov_b64 vcc, 8",
    "execz": "s_mov_b64 exec, 0", "execnz": "s_mov_b64 exec, 4",
}  # fmt: skip
UNMET = {
    "scc1": "s_cmp_eq_u32 s4, 6", "scc0": "s_cmp_eq_u32 s4, 5", "vccz": "s_mov_b64 vcc, 8", "vccnz": "s_mov_b64 vcc, 0",
    "execz": "s_mov_b64 exec, 4", "execnz": "s_mov_b64 exec, 0",
}  # fmt: skip


def lanes(arch):
    return 64 if arch in CDNA else 32


def noise(arch, seed):
    return np.random.default_rng(seed).integers(0, 1 << 32, lanes(arch), dtype=np.uint32)


def waited(arch):
    return "s_wait_dscnt 0" if arch == "gfx1201" else "s_waitcnt lgkmcnt(0)"


@pytest.mark.parametrize("arch", CDNA + RDNA)
@pytest.mark.parametrize("condition", MET)
@pytest.mark.parametrize("is_met", [True, False])
def test_a_branch_is_taken_where_its_condition_is_met(arch, condition, is_met):
    prepared = (MET if is_met else UNMET)[condition]
    if arch in RDNA:
        prepared = prepared.replace("b64 vcc", "b32 vcc_lo").replace("b64 exec", "b32 exec_lo")
    text = [prepared, f"s_cbranch_{condition} taken", "s_mov_b32 s0, 1", "taken:", "s_mov_b32 s1, 2"]
    ran = run_single(arch, text, sgprs={0: 0, 1: 0, 4: 5})
    assert (ran.sgpr(0), ran.sgpr(1)) == (0 if is_met else 1, 2)


@pytest.mark.parametrize("arch", CDNA + RDNA)
def test_calls_come_back_behind_themselves(arch):
    text = [
        "s_call_b64 s[8:9], first", "s_getpc_b64 s[4:5]", "base:", "s_add_u32 s4, s4, second-base",
        "s_addc_u32 s5, s5, 0", "s_swappc_b64 s[10:11], s[4:5]", "s_add_i32 s0, s0, 1", "s_branch end",
        "first:", "s_add_i32 s0, s0, 10", "s_setpc_b64 s[8:9]",
        "second:", "s_add_i32 s0, s0, 100", "s_setpc_b64 s[10:11]",
        "end:", "s_add_i32 s0, s0, 1000",
    ]  # fmt: skip
    assert run_single(arch, text, sgprs={0: 0}).sgpr(0) == 1111


@pytest.mark.parametrize("arch", CDNA + RDNA)
def test_mode_is_written_and_read_and_rounds_what_follows(arch):
    text = [
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 1", "v_add_f32 v2, v0, v1",
        "s_getreg_b32 s0, hwreg(HW_REG_MODE, 0, 8)", "s_setreg_b32 hwreg(HW_REG_MODE, 0, 2), s4",
        "v_add_f32 v3, v0, v1",
        "s_getreg_b32 s1, hwreg(HW_REG_MODE, 4, 4)",
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0",
        "v_mul_f32 v4, v5, v0",
    ]  # fmt: skip
    one, tiny, subnormal = (np.full(lanes(arch), x, dtype=np.float32) for x in (1.0, 2.0**-30, 2.0**-140))
    ran = run_single(arch, text, vgprs={0: one, 1: tiny, 5: subnormal}, sgprs={0: 0, 1: 0, 4: 3})
    assert np.all(ran.vgpr(2, np.float32) == np.float32(1 + 2**-23))
    assert np.all(ran.vgpr(3, np.float32) == 1.0)
    assert np.all(ran.vgpr(4, np.float32) == 0.0)
    assert (ran.sgpr(0), ran.sgpr(1)) == (0xF1, 0xF)


def test_how_waits_are_scheduled_changes_no_result():
    text = ["s_setreg_imm32_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2), 2", "s_mov_b32 s0, 5"]
    ran = run_single("gfx1201", text, sgprs={0: 0})
    assert (ran.sgpr(0), ran.finding_kinds) == (5, frozenset())


@pytest.mark.parametrize("arch", RDNA)
def test_rounding_and_subnormals_have_instructions_of_their_own(arch):
    text = ["s_round_mode 1", "v_add_f32 v2, v0, v1", "s_denorm_mode 0", "v_mul_f32 v3, v4, v0"]
    one, tiny, subnormal = (np.full(32, x, dtype=np.float32) for x in (1.0, 2.0**-30, 2.0**-140))
    ran = run_single(arch, text, vgprs={0: one, 1: tiny, 4: subnormal})
    assert np.all(ran.vgpr(2, np.float32) == np.float32(1 + 2**-23))
    assert np.all(ran.vgpr(3, np.float32) == 0.0)


@pytest.mark.parametrize("arch", CDNA)
def test_accumulation_registers_are_written_moved_and_read(arch):
    given = noise(arch, 1)
    ran = run_single(
        arch, ["v_accvgpr_write_b32 a1, v0", "v_accvgpr_mov_b32 a3, a1", "v_accvgpr_read_b32 v2, a3"], vgprs={0: given}
    )
    assert all(np.array_equal(made, given) for made in (ran.agpr(1), ran.agpr(3), ran.vgpr(2)))


@pytest.mark.parametrize("arch", CDNA + RDNA)
@pytest.mark.parametrize(("keep", "set_", "turn"), [(0x1F, 0, 0x10), (0x1E, 1, 0), (0x18, 0, 5), (0, 7, 0)])
def test_a_swizzle_within_32_lanes_keeps_sets_and_turns_bits_of_the_lane(arch, keep, set_, turn):
    given = noise(arch, 2)
    ran = run_single(
        arch, [f"ds_swizzle_b32 v2, v0 offset:{keep | set_ << 5 | turn << 10}", waited(arch)], vgprs={0: given}
    )
    source = [lane & ~31 | ((lane & 31 & keep | set_) ^ turn) for lane in range(lanes(arch))]
    assert np.array_equal(ran.vgpr(2), given[source])


@pytest.mark.parametrize("arch", CDNA + RDNA)
def test_a_swizzle_of_four_lanes_names_each_ones_source(arch):
    given, order = noise(arch, 3), (2, 0, 3, 3)
    offset = 0x8000 | sum(at << 2 * i for i, at in enumerate(order))
    ran = run_single(arch, [f"ds_swizzle_b32 v2, v0 offset:{offset}", waited(arch)], vgprs={0: given})
    assert np.array_equal(ran.vgpr(2), given[[lane & ~3 | order[lane & 3] for lane in range(lanes(arch))]])


@pytest.mark.parametrize(
    ("arch", "width", "count"),
    [("gfx942", "dword", 1), ("gfx950", "dword", 1), ("gfx950", "dwordx4", 4), ("gfx950", "dwordx3", 3)],
)  # fmt: skip
def test_a_copy_to_lds_puts_lanes_side_by_side_from_m0_on(arch, width, count):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(4).integers(0, 1 << 31, (64, count), dtype=np.int32)
    order = np.random.default_rng(5).permutation(64).astype(np.uint32)
    copied = [
        f"global_load_lds_{width} v0, s[4:5] offset:0", "s_waitcnt vmcnt(0)",
        *(f"ds_read_b32 v{2 + at}, v1 offset:{64 + 4 * at}" for at in range(count)), "s_waitcnt lgkmcnt(0)",
    ]  # fmt: skip
    vgprs = {0: order * np.uint32(4 * count), 1: np.arange(64, dtype=np.uint32) * np.uint32(4 * count)}
    ran = run_single(
        arch, copied, vgprs=vgprs, tensors={4: torch.from_numpy(values)}, m0=64, lds_bytes=64 + 256 * count
    )
    assert ran.finding_kinds == frozenset()
    made = np.stack([ran.vgpr(2 + at) for at in range(count)], axis=1)
    assert np.array_equal(made, values[order].view(np.uint32))
    assert np.array_equal(ran.vgpr(0), vgprs[0])
    assert not ran.scc


@pytest.mark.parametrize("arch", ["gfx90a"])
def test_an_index_of_registers_moves_sources_while_it_is_on(arch):
    a, b = noise(arch, 6), noise(arch, 7)
    text = ["s_set_gpr_idx_on s0, gpr_idx(SRC0)", "v_mov_b32 v5, v0", "s_set_gpr_idx_off", "v_mov_b32 v6, v0"]
    ran = run_single(arch, text, vgprs={0: a, 3: b}, sgprs={0: 3})
    assert np.array_equal(ran.vgpr(5), b)
    assert np.array_equal(ran.vgpr(6), a)


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize(
    ("name", "m0", "source", "to"),
    [("v_movreld_b32", 3, 4, 13), ("v_movrelsd_b32", 3, 7, 13), ("v_movrelsd_2_b32", 3 | 2 << 16, 7, 12)],
)
def test_moves_relative_to_m0(arch, name, m0, source, to):
    given = {at: noise(arch, at) for at in (4, 7)}
    ran = run_single(arch, f"{name} v10, v4", vgprs=given, m0=m0)
    assert np.array_equal(ran.vgpr(to), given[source])


@pytest.mark.parametrize("arch", RDNA)
def test_a_constant_of_a_packed_sum_of_products_is_in_both_halves(arch):
    """As RDNA 3's hardware has it (LLVM's issue 94116); 0x780002f2 is v_pk_fmac_f16 v0, 1.0, v1."""
    a, c = (np.random.default_rng(seed).standard_normal((32, 2)).astype(np.float16) for seed in (8, 9))
    ran = run_single(arch, ".long 0x780002f2", vgprs={0: c.view(np.uint32)[:, 0], 1: a.view(np.uint32)[:, 0]})
    made = np.ascontiguousarray(ran.vgpr(0)).view(np.float16).reshape(-1, 2)
    assert np.array_equal(made, (a.astype(np.float64) + c).astype(np.float16))
