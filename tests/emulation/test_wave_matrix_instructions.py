"""Matrix instructions of RDNA, and those of gfx950 with formats that modifiers name, against numpy."""

import ml_formats
import numpy as np
import pytest
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
torch = pytest.importorskip("torch")
pytestmark = needs_clang

RDNA3 = [
    ("v_wmma_f32_16x16x16_f16", "f16", "f16", "f32"), ("v_wmma_f32_16x16x16_bf16", "bf16", "bf16", "f32"),
    ("v_wmma_f16_16x16x16_f16", "f16", "f16", "f16"), ("v_wmma_bf16_16x16x16_bf16", "bf16", "bf16", "bf16"),
    ("v_wmma_i32_16x16x16_iu8", "u8", "u8", "i32"), ("v_wmma_i32_16x16x16_iu4", "u4", "u4", "i32"),
]  # fmt: skip
RDNA4 = [*RDNA3, ("v_wmma_i32_16x16x32_iu4", "u4", "u4", "i32")] + [
    (f"v_wmma_f32_16x16x16_{a}_{b}", a, b, "f32") for a in ("fp8", "bf8") for b in ("fp8", "bf8")
]
CASES = [*(("gfx1100", *case) for case in RDNA3), *(("gfx1201", *case) for case in RDNA4)]


def operand(arch, kind, k, seed):
    """``(16, k)`` of codes, their values, and the registers by lane that hold them."""
    codes, values = ml_formats.drawn(kind, (16, k), seed)
    if arch == "gfx1100":  # twice
        rows = np.concatenate([codes, codes])
    else:  # lanes 16 to 31 have the other half of k
        rows = np.concatenate([codes[:, : k // 2], codes[:, k // 2 :]])
    return values, ml_formats.packed(rows, ml_formats.BITS[kind])


def place(arch, out, row, column):
    """The register, the half of it and the lane of an element of D."""
    if arch == "gfx1100":
        return row // 2, 0, column + 16 * (row % 2)
    item, lane = row % 8, column + 16 * (row // 8)
    return (item // 2, item % 2, lane) if out in ("f16", "bf16") else (item, 0, lane)


def run_wmma(case, *, modifiers="", seed=1, c=None, high=False):
    arch, name, a, b, out = case
    k = int(name.split("x")[2].split("_")[0])
    (a_values, a_words), (b_values, b_words) = operand(arch, a, k, seed), operand(arch, b, k, seed + 1)
    half = out in ("f16", "bf16")
    count = 4 if half and arch == "gfx1201" else 8
    words = np.zeros((count, 32), dtype=np.uint32)
    c = np.random.default_rng(seed + 2).integers(-8, 8, (16, 16)) if c is None else c
    for row in range(16):
        for column in range(16):
            register, part, lane = place(arch, out, row, column)
            code = int(ml_formats.encoded(out, float(c[row, column])))
            words[register, lane] |= np.uint32(code << 16 * (part or high) & 0xFFFFFFFF)
    if half and arch == "gfx1100":  # what the other half holds stays there
        words |= np.uint32(0x1234 << (0 if high else 16))
    given = dict(enumerate(a_words)) | {16 + at: word for at, word in enumerate(b_words)}
    given |= {32 + at: word for at, word in enumerate(words)}
    names = [
        f"v[{begin}:{begin + n - 1}]" if n > 1 else f"v{begin}"
        for begin, n in ((0, len(a_words)), (16, len(b_words)), (32, count))
    ]
    ran = run_single(arch, f"{name} {names[2]}, {names[0]}, {names[1]}, {names[2]} {modifiers}".strip(), vgprs=given)
    assert ran.finding_kinds == frozenset()
    found = np.zeros((16, 16))
    for row in range(16):
        for column in range(16):
            register, part, lane = place(arch, out, row, column)
            word = int(ran.vgpr(32 + register)[lane])
            if half and arch == "gfx1100":
                assert word >> (0 if high else 16) & 0xFFFF == 0x1234
            found[row, column] = ml_formats.decoded(out, word >> 16 * (part or high) & (0xFFFF if half else 0xFFFFFFFF))
    return found, a_values, b_values, c.astype(np.float64)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_products_of_a_wave_are_those_of_numpy(case):
    for seed in range(4):
        found, a, b, c = run_wmma(case, seed=10 * seed)
        expected = a @ b.T + c
        rounded = np.array(
            [[ml_formats.decoded(case[4], int(ml_formats.encoded(case[4], float(x)))) for x in row] for row in expected]
        )
        assert np.array_equal(found, rounded)


@pytest.mark.parametrize("case", [case for case in CASES if case[2] in ("u8", "u4")], ids="-".join)
@pytest.mark.parametrize("signed", [(1, 0), (0, 1), (1, 1)])
def test_integers_are_signed_where_neg_says_so(case, signed):
    found, a, b, c = run_wmma(case, modifiers=f"neg_lo:[{signed[0]},{signed[1]},0]")
    top = 1 << ml_formats.BITS[case[2]] - 1
    a, b = (np.where(x >= top, x - 2 * top, x) if sign else x for x, sign in zip((a, b), signed, strict=True))
    assert np.array_equal(found, a @ b.T + c)


@pytest.mark.parametrize("name", ["v_wmma_f16_16x16x16_f16", "v_wmma_bf16_16x16x16_bf16"])
def test_results_of_16_bits_go_to_the_half_that_op_sel_names(name):
    kind = name.split("_")[2]
    found, a, b, c = run_wmma(("gfx1100", name, kind, kind, kind), modifiers="op_sel:[0,0,1]", high=True)
    expected = a @ b.T + c
    assert np.array_equal(
        found, [[ml_formats.decoded(kind, int(ml_formats.encoded(kind, float(x)))) for x in row] for row in expected]
    )


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_sums_of_integers_saturate_where_clamp_is_set(arch):
    c = np.full((16, 16), 2**31 - 1)
    case = (arch, "v_wmma_i32_16x16x16_iu8", "u8", "u8", "i32")
    found, *_ = run_wmma(case, modifiers="clamp", c=c)
    assert np.array_equal(found, c.astype(np.float64))
    wrapped, a, b, _ = run_wmma(case, c=c)
    total = (a @ b.T + c).astype(np.int64)
    assert np.array_equal(wrapped, (total + 2**31) % 2**32 - 2**31)


def test_halves_that_differ_are_refused():
    a = np.arange(32, dtype=np.uint32)
    ran = run_single("gfx1100", "v_wmma_i32_16x16x16_iu4 v[8:15], v[0:1], v[2:3], v[8:15]", vgprs={0: a})
    assert {kind.name for kind in ran.finding_kinds} == {"UNSUPPORTED"}


SMALL = ["fp8", "bf8", "fp6", "bf6", "fp4"]


@pytest.mark.parametrize("a", SMALL)
@pytest.mark.parametrize("b", SMALL)
@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("scaled", [False, True])
def test_formats_of_gfx950_are_those_that_modifiers_name(a, b, side, scaled):
    k, groups = 2048 // side, 64 // side
    sources, values = [], []
    for kind, seed in ((a, 1), (b, 2)):
        codes, value = ml_formats.drawn(kind, (side, k), seed)
        lanes = np.zeros((64, 32), dtype=np.uint32)
        for lane in range(64):
            group, row = lane // side, lane % side
            # 8-bit elements: runs of 16, of one lane after the other; smaller ones: 32 that follow each other
            ks = (
                np.concatenate([np.arange(16) + 16 * (group + groups * run) for run in (0, 1)])
                if "8" in kind
                else 32 * group + np.arange(32)
            )
            lanes[lane] = codes[row, ks]
        sources.append(ml_formats.packed(lanes, ml_formats.BITS[kind]))
        values.append(value)
    generator = np.random.default_rng(5)
    scales = generator.integers(125, 130, (2, 64, 4)).astype(np.uint8)
    given = dict(enumerate(sources[0])) | {16 + at: word for at, word in enumerate(sources[1])}
    given |= {48 + at: scales[at].reshape(64, 4).view(np.uint32)[:, 0] for at in (0, 1)}
    results = side * side // 64
    names = [f"v[{begin}:{begin + len(words) - 1}]" for begin, words in zip((0, 16), sources, strict=True)]
    into = f"v[64:{63 + results}]"
    formats = f"cbsz:{SMALL.index(a)} blgp:{SMALL.index(b)}"
    name = f"_f32_{side}x{side}x{k}_f8f6f4"
    bytes_of = "op_sel:[1,0,0] op_sel_hi:[0,1,0]"  # the second byte of the first scale, the third of the second
    if scaled:
        text = f"v_mfma_scale{name} {into}, {names[0]}, {names[1]}, 1.0, v48, v49 {bytes_of} {formats}"
        for which, byte in ((0, 1), (1, 2)):
            scale = np.exp2(scales[which, :, byte].astype(np.float64) - 127)
            for lane in range(64):
                values[which][lane % side, 32 * (lane // side) : 32 * (lane // side) + 32] *= scale[lane]
    else:
        text = f"v_mfma{name} {into}, {names[0]}, {names[1]}, 1.0 {formats}"
    ran = run_single("gfx950", text, vgprs=given)
    found = np.zeros((side, side), dtype=np.float32)
    for lane in range(64):
        for item in range(results):
            row = 4 * (lane // 16) + item if side == 16 else 8 * (item // 4) + 4 * (lane // 32) + item % 4
            found[row, lane % side] = ran.vgpr(64 + item, np.float32)[lane]
    assert np.allclose(found, values[0] @ values[1].T + 1, rtol=2e-7, atol=1e-6 if not scaled else 1e-4)
    assert ran.finding_kinds == frozenset()
