"""Conversions to and from floats of 8, 6 and 4 bits, dot products and transposed LDS loads, against numpy."""

import ml_formats
import numpy as np
import pytest
from single_instruction import MODE, needs_clang, run_single

pytest.importorskip("tinygrad")
pytestmark = needs_clang

FP16_OVFL = 1 << 23
EDGES = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    448.0,
    464.0,
    465.0,
    -500.0,
    240.0,
    248.0,
    57344.0,
    61440.0,
    7e4,
    2**-9,
    2**-10,
    1.5 * 2**-10,
    1e-40,
]
KINDS = {
    "gfx942": {"fp8": "fp8_fnuz", "bf8": "bf8_fnuz"},
    "gfx950": {"fp8": "fp8", "bf8": "bf8"},
    "gfx1201": {"fp8": "fp8", "bf8": "bf8"},
}
CASES = [(arch, kind) for arch, kinds in KINDS.items() for kind in kinds]


def lanes(arch):
    return 64 if arch.startswith("gfx9") else 32


def floats(arch, seed):
    draw = np.random.default_rng(seed)
    values = (draw.standard_normal(lanes(arch)) * np.exp2(draw.integers(-18, 18, lanes(arch)))).astype(np.float32)
    places = draw.permutation(lanes(arch))[: len(EDGES)]
    values[places] = np.array(EDGES, dtype=np.float32)
    return values


def codes_of(kind, values, limit=False):
    made = np.array([ml_formats.encoded(kind, float(value)) for value in values], dtype=np.uint32)
    if limit:
        top = np.nanmax(np.where(np.isfinite(ml_formats.table(kind)), ml_formats.table(kind), 0))
        limited = np.array(
            [ml_formats.encoded(kind, float(np.clip(value, -top, top))) for value in values], dtype=np.uint32
        )
        made = np.where(np.isfinite(values), limited, made)
    return made


def same(found, expected):
    both = np.isnan(found) & np.isnan(expected)
    return bool(np.all(both | (found.view(np.uint32) == expected.astype(np.float32).view(np.uint32))))


@pytest.mark.parametrize(("arch", "kind"), CASES)
@pytest.mark.parametrize("limit", [False, True])
@pytest.mark.parametrize("high", [False, True])
def test_two_float32_become_float8_in_the_half_that_op_sel_names(arch, kind, limit, high):
    a, b, old = (
        floats(arch, 1),
        floats(arch, 2),
        np.random.default_rng(3).integers(0, 1 << 32, lanes(arch), dtype=np.uint32),
    )
    text = f"v_cvt_pk_{kind}_f32 v2, v0, v1" + (" op_sel:[0,0,1]" if high else "")
    ran = run_single(arch, text, vgprs={0: a, 1: b, 2: old}, mode=MODE | (FP16_OVFL if limit else 0))
    name = KINDS[arch][kind]
    two = codes_of(name, a, limit) | codes_of(name, b, limit) << np.uint32(8)
    expected = old & np.uint32(0xFFFF) | two << np.uint32(16) if high else old & np.uint32(0xFFFF0000) | two
    assert np.array_equal(ran.vgpr(2), expected)


@pytest.mark.parametrize(("arch", "kind"), CASES)
@pytest.mark.parametrize("byte", range(4))
def test_every_code_of_float8_becomes_its_float32(arch, kind, byte):
    values = ml_formats.table(KINDS[arch][kind])
    for first in range(0, 256, lanes(arch)):
        codes = np.arange(first, first + lanes(arch), dtype=np.uint32)
        noise = np.random.default_rng(first).integers(0, 1 << 32, lanes(arch), dtype=np.uint32)
        word = noise & ~np.uint32(255 << 8 * byte) | codes << np.uint32(8 * byte)
        if arch.startswith("gfx9"):
            text = f"v_cvt_f32_{kind}_sdwa v2, v0 src0_sel:BYTE_{byte}"
        else:
            text = f"v_cvt_f32_{kind} v2, v0 byte_sel:{byte}"
        ran = run_single(arch, text, vgprs={0: word})
        assert same(ran.vgpr(2, np.float32), values[codes])


@pytest.mark.parametrize(("arch", "kind"), CASES)
@pytest.mark.parametrize("high", [False, True])
def test_two_float8_become_two_float32(arch, kind, high):
    word = np.random.default_rng(4).integers(0, 1 << 32, lanes(arch), dtype=np.uint32)
    if arch.startswith("gfx9"):
        text = f"v_cvt_pk_f32_{kind}" + ("_sdwa v[2:3], v0 src0_sel:WORD_1" if high else " v[2:3], v0")
    else:
        text = f"v_cvt_pk_f32_{kind} v[2:3], v0" + (" op_sel:[1,0]" if high else "")
    ran = run_single(arch, text, vgprs={0: word})
    values = ml_formats.table(KINDS[arch][kind])
    half = word >> np.uint32(16 if high else 0)
    assert same(ran.vgpr(2, np.float32), values[half & np.uint32(255)])
    assert same(ran.vgpr(3, np.float32), values[half >> np.uint32(8) & np.uint32(255)])


@pytest.mark.parametrize(("arch", "kind"), CASES)
def test_a_random_number_rounds_to_a_neighbour_as_often_as_it_is_near(arch, kind):
    name = KINDS[arch][kind]
    value = np.full(lanes(arch), 1.03125, dtype=np.float32)  # a quarter (float8) or an eighth of the way to the next
    random = (np.arange(lanes(arch), dtype=np.uint64) * (2**32 // lanes(arch))).astype(np.uint32)
    ran = run_single(
        arch, f"v_cvt_sr_{kind}_f32 v2, v0, v1", vgprs={0: value, 1: random, 2: np.zeros(lanes(arch), np.uint32)}
    )
    codes = ran.vgpr(2)
    one = ml_formats.encoded(name, 1.0)
    assert set(codes.tolist()) == {one, one + 1}
    assert (codes == one + 1).sum() == lanes(arch) // (4 if kind == "fp8" else 8)


SCALED = ["fp8", "bf8", "fp4"]


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("wide", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("place", [0, 1])
def test_scaled_conversions_to_small_floats_divide_by_the_power_of_two(kind, wide, place):
    a, b, old = (
        floats("gfx950", 1),
        floats("gfx950", 2),
        np.random.default_rng(3).integers(0, 1 << 32, 64, dtype=np.uint32),
    )
    scale = np.exp2(np.random.default_rng(6).integers(-6, 7, 64)).astype(np.float32) * np.float32(1.25)
    power = np.exp2(np.floor(np.log2(scale)))
    modifier = (" op_sel:[0,0,0,1]" if kind != "fp4" else " op_sel:[0,0,1,0]") if place else ""
    if wide == "f32":
        given, text = {0: a, 1: b}, f"v_cvt_scalef32_pk_{kind}_f32 v2, v0, v1, v3{modifier}"
    else:
        words = [np.array([ml_formats.encoded(wide, float(v)) for v in x], dtype=np.uint32) for x in (a, b)]
        a, b = (ml_formats.table(wide)[x] for x in words)
        modifier = modifier.replace("[0,0,0,1]", "[0,0,1]").replace("[0,0,1,0]", "[0,0,1,0]")
        given, text = {0: words[0] | words[1] << np.uint32(16)}, f"v_cvt_scalef32_pk_{kind}_{wide} v2, v0, v3{modifier}"
    ran = run_single("gfx950", text, vgprs=given | {2: old, 3: scale})
    bits = ml_formats.BITS[kind]
    with np.errstate(over="ignore"):
        two = codes_of(kind, a.astype(np.float64) / power) | codes_of(kind, b.astype(np.float64) / power) << np.uint32(
            bits
        )
    shift, field = np.uint32(2 * bits * place), np.uint32((1 << 2 * bits) - 1 << 2 * bits * place)
    assert np.array_equal(ran.vgpr(2), old & ~field | two << shift)


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("wide", ["f32", "f16", "bf16"])
def test_scaled_conversions_from_small_floats_multiply_by_the_power_of_two(kind, wide):
    word = np.random.default_rng(4).integers(0, 1 << 32, 64, dtype=np.uint32)
    scale = np.exp2(np.random.default_rng(6).integers(-6, 7, 64)).astype(np.float32)
    ran = run_single(
        "gfx950",
        f"v_cvt_scalef32_pk_{wide}_{kind} {'v[2:3]' if wide == 'f32' else 'v2'}, v0, v3",
        vgprs={0: word, 3: scale},
    )
    bits, values = ml_formats.BITS[kind], ml_formats.table(kind)
    expected = [values[word >> np.uint32(bits * at) & np.uint32((1 << bits) - 1)] * scale for at in (0, 1)]
    for at in (0, 1):
        if wide == "f32":
            assert same(ran.vgpr(2 + at, np.float32), expected[at])
        else:
            half = ran.vgpr(2) >> np.uint32(16 * at) & np.uint32(0xFFFF)
            found = ml_formats.table(wide)[half]
            rounded = np.array([ml_formats.decoded(wide, ml_formats.encoded(wide, float(v))) for v in expected[at]])
            assert np.array_equal(found, rounded, equal_nan=True)


@pytest.mark.parametrize("kind", ["fp6", "bf6"])
def test_32_elements_of_6_bits_are_packed_and_unpacked(kind):
    draw = np.random.default_rng(7)
    a, b = draw.standard_normal((2, 16, 64)).astype(np.float32) * 3
    scale = np.exp2(draw.integers(-2, 3, 64)).astype(np.float32)
    given = {at: a[at] for at in range(16)} | {16 + at: b[at] for at in range(16)} | {40: scale}
    ran = run_single("gfx950", f"v_cvt_scalef32_2xpk16_{kind}_f32 v[32:37], v[0:15], v[16:31], v40", vgprs=given)
    values = np.stack([a, b], axis=1).reshape(32, 64) / scale
    codes = np.stack([codes_of(kind, row) for row in values], axis=1)
    assert all(np.array_equal(ran.vgpr(32 + at), word) for at, word in enumerate(ml_formats.packed(codes, 6)))
    back = run_single(
        "gfx950", f"v_cvt_scalef32_pk32_f32_{kind} v[64:95], v[32:37], v40",
        vgprs={40: scale} | {32 + at: word for at, word in enumerate(ml_formats.packed(codes, 6))},
    )  # fmt: skip
    for at in range(32):
        assert same(back.vgpr(64 + at, np.float32), ml_formats.table(kind)[codes[:, at]] * scale)


def parts(word, bits, signed):
    made = np.stack([word >> np.uint32(at) & np.uint32((1 << bits) - 1) for at in range(0, 32, bits)]).astype(np.int64)
    return np.where(made >> bits - 1, made - (1 << bits), made) if signed else made


@pytest.mark.parametrize(
    ("archs", "name", "bits", "signs"),
    [
        (("gfx90a", "gfx942", "gfx950"), "v_dot4_i32_i8", 8, (1, 1)),
        (("gfx90a", "gfx950"), "v_dot8_i32_i4", 4, (1, 1)),
        (("gfx90a", "gfx1100", "gfx1201"), "v_dot4_u32_u8", 8, (0, 0)),
        (("gfx90a", "gfx1100"), "v_dot8_u32_u4", 4, (0, 0)),
        (("gfx90a", "gfx942"), "v_dot2_i32_i16", 16, (1, 1)), (("gfx90a", "gfx942"), "v_dot2_u32_u16", 16, (0, 0)),
        (("gfx1100", "gfx1201"), "v_dot4_i32_iu8", 8, (1, 0)), (("gfx1100", "gfx1201"), "v_dot8_i32_iu4", 4, (0, 1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("clamp", [False, True])
def test_dot_products_of_integers(archs, name, bits, signs, clamp):
    for arch in archs:
        a, b, c = np.random.default_rng(8).integers(0, 1 << 32, (3, lanes(arch)), dtype=np.uint32)
        c[:2] = 0x7FFFFFFF, 0xFFFFFFFF
        modifiers = (f" neg_lo:[{signs[0]},{signs[1]},0]" if "_iu" in name else "") + (" clamp" if clamp else "")
        ran = run_single(arch, f"{name} v3, v0, v1, v2{modifiers}", vgprs={0: a, 1: b, 2: c})
        signed = "_i32_" in name
        total = (parts(a, bits, signs[0]) * parts(b, bits, signs[1])).sum(0) + (
            c.view(np.int32) if signed else c
        ).astype(np.int64)
        if clamp:
            total = np.clip(total, -(2**31) if signed else 0, 2**31 - 1 if signed else 2**32 - 1)
        assert np.array_equal(ran.vgpr(3), (total & 0xFFFFFFFF).astype(np.uint32))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_dot_products_of_pairs_are_rounded_once(arch, kind):
    if kind == "bf16" and arch in ("gfx90a", "gfx942"):
        pytest.skip(f"{arch} has no v_dot2_f32_bf16")
    draw = np.random.default_rng(9)
    values = draw.standard_normal((4, lanes(arch)))
    codes = [np.array([ml_formats.encoded(kind, float(v)) for v in row], dtype=np.uint32) for row in values]
    a0, a1, b0, b1 = (ml_formats.table(kind)[row] for row in codes)
    c = draw.standard_normal(lanes(arch)).astype(np.float32)
    given = {0: codes[0] | codes[1] << np.uint32(16), 1: codes[2] | codes[3] << np.uint32(16), 2: c}
    ran = run_single(arch, f"v_dot2_f32_{kind} v3, v0, v1, v2", vgprs=given)
    assert np.allclose(ran.vgpr(3, np.float32), a0 * b0 + a1 * b1 + c, rtol=1.3e-7, atol=1e-12)
    if kind == "f16" and arch not in ("gfx942", "gfx950"):  # which have no op_sel here
        turned = run_single(
            arch, "v_dot2_f32_f16 v3, v0, v1, v2 op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[1,0,0]", vgprs=given
        )
        assert np.allclose(turned.vgpr(3, np.float32), -a1 * b0 + a0 * b1 + c, rtol=1.3e-7, atol=1e-12)


@pytest.mark.parametrize("a", ["fp8", "bf8"])
@pytest.mark.parametrize("b", ["fp8", "bf8"])
def test_dot_products_of_float8(a, b):
    codes = np.random.default_rng(10).integers(0, 1 << 32, (2, 32), dtype=np.uint32)
    sides = [ml_formats.table(kind)[parts(word, 8, False)] for kind, word in zip((a, b), codes, strict=True)]
    c = np.random.default_rng(11).standard_normal(32).astype(np.float32)
    ran = run_single("gfx1201", f"v_dot4_f32_{a}_{b} v3, v0, v1, v2", vgprs={0: codes[0], 1: codes[1], 2: c})
    with np.errstate(invalid="ignore"):
        expected = (sides[0] * sides[1]).sum(0) + c
    assert np.allclose(ran.vgpr(3, np.float32), expected.astype(np.float32), rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("name", "bits"), [("b64_tr_b16", 16), ("b64_tr_b8", 8), ("b64_tr_b4", 4), ("b96_tr_b6", 6)])
def test_transposed_loads_give_each_of_16_lanes_a_column(name, bits):
    size, step = (12, 16) if bits == 6 else (8, 8)
    lds = np.random.default_rng(12).integers(0, 1 << 32, 64 * step // 4, dtype=np.uint32)
    address = np.random.default_rng(13).permutation(64).astype(np.uint32) * step
    registers = size // 4
    ran = run_single(
        "gfx950",
        [f"ds_read_{name} v[2:{1 + registers}], v0", "s_waitcnt lgkmcnt(0)"],
        vgprs={0: address},
        lds=lds.tolist(),
    )
    raw = lds.tobytes()
    items = size * 8 // bits
    for lane in range(64):
        group = lane // 16 * 16
        flat = [
            int.from_bytes(raw[address[at] : address[at] + size], "little") >> bits * item & (1 << bits) - 1
            for at in range(group, group + 16)
            for item in range(items)
        ]
        column = flat[lane % 16 :: 16]
        whole = sum(code << bits * at for at, code in enumerate(column))
        assert [int(ran.vgpr(2 + at)[lane]) for at in range(registers)] == [
            whole >> 32 * at & 0xFFFFFFFF for at in range(registers)
        ]
    assert ran.finding_kinds == frozenset()


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_a_packed_sum_of_products_takes_each_half_by_itself(arch):
    values = np.random.default_rng(14).standard_normal((3, lanes(arch), 2)).astype(np.float16)
    words = {at: row.view(np.uint32)[:, 0] for at, row in enumerate(values)}
    ran = run_single(arch, "v_pk_fmac_f16 v2, v0, v1", vgprs=words)
    a, b, c = values.astype(np.float64)
    found = np.ascontiguousarray(ran.vgpr(2)).view(np.float16).reshape(-1, 2)
    assert np.array_equal(found, (a * b + c).astype(np.float16))
