"""One instruction at a time against numpy, over random and edge operands."""

import numpy as np
import pytest
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
pytestmark = needs_clang

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
EDGES = np.array(
    [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, 1.17549435e-38], dtype=np.float32
)


def lanes(arch: str) -> int:
    return 64 if arch.startswith("gfx9") else 32


def floats(arch: str, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(lanes(arch)).astype(np.float32)
    at = np.random.default_rng(seed + 1).permutation(lanes(arch))[: len(EDGES)]
    drawn[at] = EDGES
    return drawn


def integers(arch: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, lanes(arch), dtype=np.uint32)


def equal(found: np.ndarray, expected: np.ndarray) -> bool:
    both_nan = np.isnan(found) & np.isnan(expected)
    return bool(np.all(both_nan | (found.view(np.uint32) == expected.view(np.uint32))))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("v_add_f32 v2, v0, v1", lambda a, b: a + b),
        ("v_sub_f32 v2, v0, v1", lambda a, b: a - b),
        ("v_mul_f32 v2, v0, v1", lambda a, b: a * b),
        ("v_add_f32 v2, -v0, |v1|", lambda a, b: -a + np.abs(b)),
        ("v_mul_f32 v2, 0.5, v1", lambda a, b: np.float32(0.5) * b),
        ("v_add_f32 v2, 0x40490fdb, v1", lambda a, b: np.float32(np.pi) + b),
        ("v_mul_f32 v2, v0, v1 mul:2", lambda a, b: a * b * np.float32(2)),
        (
            "v_mul_f32 v2, v0, v1 clamp",
            lambda a, b: np.where(a * b > 0, np.minimum(a * b, np.float32(1)), np.float32(0)),
        ),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_float32_arithmetic_rounds_as_ieee_754_does(arch, text, compute):
    a, b = floats(arch, 1), floats(arch, 5)
    with np.errstate(all="ignore"):
        expected = compute(a, b).astype(np.float32)
    ran = run_single(arch, text, vgprs={0: a, 1: b})
    assert equal(ran.vgpr(2, np.float32), expected)
    assert ran.finding_kinds == frozenset()


@pytest.mark.parametrize("arch", ARCHS)
def test_subnormals_are_flushed_where_mode_says_so(arch):
    a = floats(arch, 1)
    flushed = np.where(np.abs(a) < np.float32(1.17549435e-38), np.copysign(np.float32(0), a), a)
    ran = run_single(arch, "v_mul_f32 v2, 1.0, v0", vgprs={0: a}, mode=0xC0)
    assert equal(ran.vgpr(2, np.float32), flushed)


@pytest.mark.parametrize(("mode", "direction"), [(0xF1, np.inf), (0xF2, -np.inf), (0xF3, 0)])
def test_mode_rounds_float32_sums_up_down_and_to_zero(mode, direction):
    a, b = floats("gfx942", 3), floats("gfx942", 9)
    keep = np.isfinite(a + b) & (np.minimum(np.abs(a), np.abs(b)) > 1e-3) & (np.maximum(np.abs(a), np.abs(b)) < 1e3)
    a, b = np.where(keep, a, np.float32(1)), np.where(keep, b, np.float32(2))
    exact = a.astype(np.float64) + b
    nearest = exact.astype(np.float32)
    if direction == 0:
        expected = np.where(
            np.abs(nearest.astype(np.float64)) > np.abs(exact), np.nextafter(nearest, np.float32(0)), nearest
        )
    else:
        off = nearest > exact if direction < 0 else nearest < exact
        expected = np.where(off, np.nextafter(nearest, np.float32(direction)), nearest)
    ran = run_single("gfx942", "v_add_f32 v2, v0, v1", vgprs={0: a, 1: b}, mode=mode)
    assert equal(ran.vgpr(2, np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("mode", "bits"), [(0xF0, 0x6801), (0xFC, 0x6800)])
def test_a_mixed_sum_is_rounded_once(arch, mode, bits):
    """2050 less 2**-60 is no float64: to zero it is 2048, as neighbours lie 2 apart."""
    a, one, c = (np.full(lanes(arch), value, np.float32) for value in (2050, 1, -(2.0**-60)))
    ran = run_single(arch, "v_fma_mixlo_f16 v3, v0, v1, v2", vgprs={0: a, 1: one, 2: c, 3: 0 * a}, mode=mode)
    assert (ran.vgpr(3) == bits).all()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("v_and_b32 v2, v0, v1", lambda a, b: a & b),
        ("v_lshlrev_b32 v2, v0, v1", lambda a, b: b << (a & np.uint32(31))),
        (
            "v_ashrrev_i32 v2, v0, v1",
            lambda a, b: (b.view(np.int32) >> (a & np.uint32(31)).view(np.int32)).view(np.uint32),
        ),
        ("v_mul_lo_u32 v2, v0, v1", lambda a, b: a * b),
        ("v_mul_hi_u32 v2, v0, v1", lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
        ("v_bfe_u32 v2, v0, 3, 7", lambda a, b: a >> np.uint32(3) & np.uint32(127)),
        ("v_add3_u32 v2, v0, v1, -5", lambda a, b: a + b - np.uint32(5)),
        ("v_xad_u32 v2, v0, v1, v0", lambda a, b: (a ^ b) + a),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_integer_arithmetic_wraps(arch, text, compute):
    a, b = integers(arch, 2), integers(arch, 4)
    ran = run_single(arch, text, vgprs={0: a, 1: b})
    assert np.array_equal(ran.vgpr(2), compute(a, b))


@pytest.mark.parametrize("arch", ARCHS)
def test_lanes_that_are_not_active_keep_their_value(arch):
    a, b = integers(arch, 2), integers(arch, 4)
    ran = run_single(arch, "v_mov_b32 v1, v0", vgprs={0: a, 1: b}, exec_mask=0x0F0F_00FF)
    active = 0x0F0F_00FF >> np.arange(lanes(arch)) & 1
    assert np.array_equal(ran.vgpr(1), np.where(active, a, b))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_comparison_clears_the_bits_of_inactive_lanes(arch):
    a, b = floats(arch, 1), floats(arch, 5)
    text = "v_cmp_lt_f32 vcc, v0, v1" if arch.startswith("gfx9") else "v_cmp_lt_f32 vcc_lo, v0, v1"
    ran = run_single(arch, text, vgprs={0: a, 1: b}, vcc=(1 << lanes(arch)) - 1, exec_mask=0xFFFF)
    with np.errstate(invalid="ignore"):
        expected = sum(int(a[lane] < b[lane]) << lane for lane in range(16))
    assert ran.vcc == expected


# What lane each of DPP's controls reads, as the documents draw it for a row of 16.
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("control", "source"),
    [
        ("quad_perm:[1,0,3,2]", lambda lane: lane ^ 1),
        ("row_shl:1", lambda lane: lane + 1 if lane % 16 < 15 else None),
        ("row_shr:4", lambda lane: lane - 4 if lane % 16 >= 4 else None),
        ("row_ror:8", lambda lane: lane // 16 * 16 + (lane + 8) % 16),
        ("row_mirror", lambda lane: lane // 16 * 16 + 15 - lane % 16),
        ("row_half_mirror", lambda lane: lane // 8 * 8 + 7 - lane % 8),
    ],
)
def test_dpp_in_place_reads_every_lane_before_it_writes_one(arch, control, source):
    a = integers(arch, 2)
    text = f"v_add_u32_dpp v0, v0, v0 {control} row_mask:0xf bank_mask:0xf"
    if not arch.startswith("gfx9"):
        text = text.replace("v_add_u32", "v_add_nc_u32")
    ran = run_single(arch, text, vgprs={0: a})
    expected = [
        int(a[lane]) + int(a[at]) & 0xFFFFFFFF if (at := source(lane)) is not None else int(a[lane])
        for lane in range(lanes(arch))
    ]
    assert ran.vgpr(0).tolist() == expected


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(("control", "first"), [("row_bcast:15", 16), ("row_bcast:31", 32)])
def test_row_broadcasts_give_the_last_lane_of_the_rows_before(arch, control, first):
    a = integers(arch, 2)
    ran = run_single(
        arch, f"v_mov_b32_dpp v1, v0 {control} row_mask:0xf bank_mask:0xf", vgprs={0: a, 1: integers(arch, 8)}
    )
    last = [lane // 16 * 16 - 1 if first == 16 else 31 for lane in range(64)]
    assert ran.vgpr(1)[first:].tolist() == [int(a[last[lane]]) for lane in range(first, 64)]
    assert ran.vgpr(1)[:first].tolist() == integers(arch, 8)[:first].tolist()


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_sdwa_reads_and_writes_parts_of_registers(arch):
    a, b, old = integers(arch, 2), integers(arch, 4), integers(arch, 6)
    text = "v_add_u32_sdwa v2, v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2 src1_sel:WORD_0"
    ran = run_single(arch, text, vgprs={0: a, 1: b, 2: old})
    total = (a >> np.uint32(16) & np.uint32(255)) + (b & np.uint32(0xFFFF))
    assert np.array_equal(ran.vgpr(2), old & np.uint32(0xFFFF) | total << np.uint32(16))


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_both_halves_of_a_dual_instruction_read_before_either_writes(arch):
    a, b = floats(arch, 1), floats(arch, 5)
    ran = run_single(arch, "v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0", vgprs={0: a, 1: b})
    assert equal(ran.vgpr(0, np.float32), b)
    assert equal(ran.vgpr(1, np.float32), a)


@pytest.mark.parametrize("arch", ARCHS)
def test_scalar_carries_go_from_one_instruction_to_the_next(arch):
    ran = run_single(
        arch, ["s_add_u32 s4, s0, s2", "s_addc_u32 s5, s1, s3"], sgprs={0: 0xFFFFFFF0, 1: 7, 2: 0x20, 3: 0xFFFFFFF8}
    )
    assert (ran.sgpr(4), ran.sgpr(5), ran.scc) == (0x10, 0, True)


@pytest.mark.parametrize("text", ["v_mad_f32 v3, v0, v1, v2", "v_mac_f32 v2, v0, v1"])
def test_the_mad_of_gfx90a_rounds_twice(text):
    a, b, c = (np.random.default_rng(seed).standard_normal(64).astype(np.float32) for seed in (1, 2, 3))
    ran = run_single("gfx90a", text, vgprs={0: a, 1: b, 2: c})
    assert equal(ran.vgpr(3 if "mad" in text else 2, np.float32), a * b + c)
    assert ran.finding_kinds == frozenset()


@pytest.mark.parametrize("arch", ARCHS)
def test_lanes_add_to_one_place_of_lds_and_see_every_sum(arch):
    ones = np.ones(lanes(arch), dtype=np.uint32)
    write, read = ("ds_write_b32", "ds_read_b32") if arch.startswith("gfx9") else ("ds_store_b32", "ds_load_b32")
    text = ["v_mov_b32 v1, 0", f"{write} v1, v1", "ds_add_rtn_u32 v2, v1, v0", f"{read} v3, v1"]
    ran = run_single(arch, text, vgprs={0: ones}, m0=0xFFFFFFFF, lds_bytes=64)
    assert sorted(ran.vgpr(2).tolist()) == list(range(lanes(arch)))
    assert set(ran.vgpr(3).tolist()) == {lanes(arch)}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("rdna", "cdna", "compute"),
    [
        ("add_u32", "add", lambda old, new: old + new),
        ("max_i32", "smax", lambda old, new: np.maximum(old.view(np.int32), new.view(np.int32)).view(np.uint32)),
        ("min_u32", "umin", np.minimum),
        ("xor_b32", "xor", lambda old, new: old ^ new),
        ("swap_b32", "swap", lambda old, new: new),
        ("inc_u32", "inc", lambda old, new: np.where(old >= new, np.uint32(0), old + np.uint32(1))),
    ],
)
def test_atomics_in_memory_give_the_old_value_and_leave_the_new_one(arch, rdna, cdna, compute):
    old, new = integers(arch, 2), integers(arch, 4)
    held = old.copy()
    offsets = (np.arange(lanes(arch)) * 4).astype(np.uint32)
    returns = {"gfx90a": "glc", "gfx942": "sc0", "gfx950": "sc0", "gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN"}
    name = cdna if arch.startswith("gfx9") else rdna
    text = f"global_atomic_{name} v2, v0, v1, s[4:5] {returns[arch]}"
    ran = run_single(arch, text, vgprs={0: offsets, 1: new}, tensors={4: held})
    assert np.array_equal(ran.vgpr(2), old)
    assert np.array_equal(held, compute(old, new))
    assert ran.finding_kinds == frozenset()


@pytest.mark.parametrize("arch", ARCHS)
def test_packed_integers_wrap_in_their_halves(arch):
    a, b = integers(arch, 2), integers(arch, 4)
    low = (a + b) & np.uint32(0xFFFF)
    high = ((a >> np.uint32(16)) + (b >> np.uint32(16))) << np.uint32(16)
    ran = run_single(arch, "v_pk_add_u16 v2, v0, v1", vgprs={0: a, 1: b})
    assert np.array_equal(ran.vgpr(2), high | low)
