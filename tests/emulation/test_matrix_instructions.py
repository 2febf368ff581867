"""Matrix instructions of CDNA against numpy: every shape and dtype, over random and edge operands."""

import numpy as np
import pytest
from matrix_layouts import Mfma, dense, product, registers, results
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
torch = pytest.importorskip("torch")
pytestmark = needs_clang

_OLDER = [
    "v_mfma_f64_16x16x4_f64",
    "v_mfma_f64_4x4x4_4b_f64",
    "v_mfma_f32_32x32x1_2b_f32",
    "v_mfma_f32_16x16x1_4b_f32",
    "v_mfma_f32_4x4x1_16b_f32",
    "v_mfma_f32_32x32x2_f32",
    "v_mfma_f32_16x16x4_f32",
    "v_mfma_f32_32x32x4_2b_f16",
    "v_mfma_f32_16x16x4_4b_f16",
    "v_mfma_f32_4x4x4_16b_f16",
    "v_mfma_f32_32x32x8_f16",
    "v_mfma_f32_16x16x16_f16",
    "v_mfma_f32_32x32x4_2b_bf16",
    "v_mfma_f32_16x16x4_4b_bf16",
    "v_mfma_f32_4x4x4_16b_bf16",
    "v_mfma_f32_32x32x8_bf16",
    "v_mfma_f32_16x16x16_bf16",
    "v_mfma_i32_32x32x4_2b_i8",
    "v_mfma_i32_16x16x4_4b_i8",
    "v_mfma_i32_4x4x4_16b_i8",
]
_OF_GFX90A = [
    "v_mfma_i32_32x32x8_i8",
    "v_mfma_i32_16x16x16_i8",
    "v_mfma_f32_32x32x2_2b_bf16",
    "v_mfma_f32_16x16x2_4b_bf16",
    "v_mfma_f32_4x4x2_16b_bf16",
    "v_mfma_f32_32x32x4_bf16",
    "v_mfma_f32_16x16x8_bf16",
]
_NEWER = ["v_mfma_i32_32x32x16_i8", "v_mfma_i32_16x16x32_i8"] + [
    f"v_mfma_f32_{shape}_{a}_{b}" for shape in ("16x16x32", "32x32x16") for a in ("fp8", "bf8") for b in ("fp8", "bf8")
]
_OF_GFX942 = ["v_mfma_f32_16x16x8_xf32", "v_mfma_f32_32x32x4_xf32"]
_OF_GFX950 = [
    "v_mfma_f32_16x16x32_f16",
    "v_mfma_f32_32x32x16_f16",
    "v_mfma_f32_16x16x32_bf16",
    "v_mfma_f32_32x32x16_bf16",
    "v_mfma_i32_16x16x64_i8",
    "v_mfma_i32_32x32x32_i8",
]
CASES = [
    *(("gfx90a", name) for name in (*_OLDER, *_OF_GFX90A)),
    *(("gfx942", name) for name in (*_OLDER, *_NEWER, *_OF_GFX942)),
    *(("gfx950", name) for name in (*_OLDER, *_NEWER, *_OF_GFX950)),
]
_TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "xf32": torch.float32,
    "f64": torch.float64,
}
_FLOAT8 = {
    ("gfx942", "fp8"): torch.float8_e4m3fnuz, ("gfx942", "bf8"): torch.float8_e5m2fnuz,
    ("gfx950", "fp8"): torch.float8_e4m3fn, ("gfx950", "bf8"): torch.float8_e5m2,
}  # fmt: skip


def drawn(arch: str, kind: str, shape: tuple[int, int], seed: int, edges: bool) -> tuple[np.ndarray, np.ndarray]:
    """Elements by lane and item: their bits as the registers hold them, and their values."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "i8":
        value = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        return value.numpy(), value.numpy().astype(np.float64)
    # small multiples of an eighth: sums are exact, and what is compared is where the elements lie
    value = torch.randint(-8, 9, shape, generator=generator).double() / 8
    if edges:
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 6e-8, 1e-3, 60000.0])
        places = torch.randint(0, value.numel(), (6,), generator=generator)
        value.view(-1)[places] = special[torch.randint(0, len(special), (6,), generator=generator)].double()
    made = value.to(_FLOAT8.get((arch, kind), _TORCH.get(kind)))
    values = made.double()
    if arch == "gfx90a" and kind in ("f16", "bf16"):  # which flushes subnormal numbers
        least = torch.finfo(made.dtype).tiny
        values = torch.where(values.abs() < least, torch.copysign(torch.zeros(()).double(), values), values)
    bits = made.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[made.element_size()])
    if kind == "xf32":
        bits = bits & ~0x1FFF
        values = bits.view(torch.float32).double()
    return bits.numpy(), values.numpy()


def run_mfma(arch, mfma, operands, c, *, agprs=False, constant="", modifiers=""):
    """D of the instruction, by lane and item; ``constant`` stands for C."""
    count = [len(registers(one)) for one in (*operands, c)]
    begins = [0, 16, 64]
    files = ["v", "v", "a" if agprs else "v"]
    given = {}
    for begin, one in zip(begins[:2], operands, strict=True):
        given |= {begin + at: word for at, word in enumerate(registers(one))}
    words = {64 + at: word for at, word in enumerate(registers(c))}
    names = [
        f"{file}[{begin}:{begin + n - 1}]" if n > 1 else f"{file}{begin}"
        for file, begin, n in zip(files, begins, count, strict=True)
    ]
    name = mfma.gfx90a_name() if arch == "gfx90a" else mfma.name
    text = f"{name} {names[2]}, {names[0]}, {names[1]}, {constant or names[2]} {modifiers}".strip()
    ran = run_single(arch, text, vgprs=given if agprs else given | words, agprs=words if agprs else {})
    assert ran.finding_kinds == frozenset()
    read = ran.agpr if agprs else ran.vgpr
    made = np.stack([read(64 + at) for at in range(count[2])], axis=1)
    return np.ascontiguousarray(made).view(c.dtype)


def result_dtype(mfma: Mfma) -> type[np.generic]:
    return {"f32": np.float32, "f64": np.float64, "i32": np.int32}[mfma.out]


@pytest.mark.parametrize(("arch", "name"), CASES, ids=lambda value: value)
def test_elements_lie_where_the_documents_draw_them(arch, name):
    mfma = Mfma.of(name)
    a, b = (drawn(arch, kind, (64, mfma.items), seed, False) for seed, kind in ((1, mfma.a), (2, mfma.b)))
    c = np.random.default_rng(3).integers(-50, 50, (64, mfma.results)).astype(result_dtype(mfma))
    for agprs in (False, True):
        found = run_mfma(arch, mfma, (a[0], b[0]), c, agprs=agprs)
        expected = product(dense(mfma, a[1]), dense(mfma, b[1]), results(mfma, c))
        assert np.array_equal(results(mfma, found), expected.astype(c.dtype))


@pytest.mark.parametrize(
    ("arch", "name"), [case for case in CASES if "_i32_" not in case[1]], ids=lambda value: value
)  # fmt: skip
def test_sums_with_edge_operands_are_those_of_float64(arch, name):
    mfma = Mfma.of(name)
    for seed in range(3):
        a, b = (drawn(arch, kind, (64, mfma.items), seed + at, True) for at, kind in ((10, mfma.a), (20, mfma.b)))
        c = np.random.default_rng(seed).standard_normal((64, mfma.results)).astype(result_dtype(mfma))
        c[0, 0], c[1, 0], c[2, 0] = np.inf, np.nan, 1e-40
        found = results(mfma, run_mfma(arch, mfma, (a[0], b[0]), c)).astype(np.float64)
        expected = product(dense(mfma, a[1]), dense(mfma, b[1]), results(mfma, c))
        with np.errstate(over="ignore"):
            expected = expected.astype(c.dtype).astype(np.float64)
        # float32 and float64 take a rounding for each k
        unit = 2.0**-50 if mfma.out == "f64" else 2.0**-20 if mfma.a == "f32" else 2.0**-23
        magnitude = product(
            *(np.abs(np.nan_to_num(dense(mfma, x[1]), posinf=0, neginf=0)) for x in (a, b)), np.ones_like(expected)
        )
        finite = np.isfinite(expected)
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert np.array_equal(found[np.isinf(expected)], expected[np.isinf(expected)])
        assert np.all(np.abs(found[finite] - expected[finite]) <= (unit * magnitude)[finite])


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("name", "constant", "value"),
    [("v_mfma_f32_16x16x16_f16", "1.0", 1.0), ("v_mfma_f32_32x32x8_bf16", "0", 0.0),
     ("v_mfma_f64_16x16x4_f64", "-4.0", -4.0), ("v_mfma_i32_16x16x4_4b_i8", "-7", -7)],
)  # fmt: skip
def test_a_constant_stands_for_all_of_c(arch, name, constant, value):
    mfma = Mfma.of(name)
    a, b = (drawn(arch, kind, (64, mfma.items), seed, False) for seed, kind in ((1, mfma.a), (2, mfma.b)))
    c = np.full((64, mfma.results), value, dtype=result_dtype(mfma))
    found = run_mfma(arch, mfma, (a[0], b[0]), np.zeros_like(c), constant=constant)
    expected = product(dense(mfma, a[1]), dense(mfma, b[1]), results(mfma, c))
    assert np.array_equal(results(mfma, found), expected.astype(c.dtype))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(("cbsz", "abid"), [(1, 0), (1, 1), (2, 3), (4, 9)])
def test_a_block_of_a_is_broadcast_to_its_neighbours(arch, cbsz, abid):
    mfma = Mfma.of("v_mfma_f32_4x4x4_16b_f16")
    a, b = (drawn(arch, "f16", (64, mfma.items), seed, False) for seed in (1, 2))
    c = np.zeros((64, mfma.results), dtype=np.float32)
    found = run_mfma(arch, mfma, (a[0], b[0]), c, modifiers=f"cbsz:{cbsz} abid:{abid}")
    blocks = dense(mfma, a[1])
    taken = np.stack([blocks[block >> cbsz << cbsz | abid] for block in range(16)])
    assert np.array_equal(results(mfma, found), product(taken, dense(mfma, b[1]), results(mfma, c)))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("blgp", range(1, 8))
def test_lanes_of_b_are_broadcast_or_rotated(arch, blgp):
    mfma = Mfma.of("v_mfma_f32_16x16x4_4b_f16")
    a, b = (drawn(arch, "f16", (64, mfma.items), seed, False) for seed in (1, 2))
    lanes = np.arange(64)
    source = [None, lanes % 32, lanes % 32 + 32, (lanes + 16) % 64, *(lanes % 16 + 16 * part for part in range(4))][
        blgp
    ]
    c = np.zeros((64, mfma.results), dtype=np.float32)
    found = run_mfma(arch, mfma, (a[0], b[0]), c, modifiers=f"blgp:{blgp}")
    expected = product(dense(mfma, a[1]), dense(mfma, b[1][source]), results(mfma, c))
    assert np.array_equal(results(mfma, found), expected)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("negated", range(1, 8))
def test_float64_operands_are_negated(arch, negated):
    mfma = Mfma.of("v_mfma_f64_16x16x4_f64")
    a, b = (drawn(arch, "f64", (64, mfma.items), seed, False) for seed in (1, 2))
    c = np.random.default_rng(3).integers(-50, 50, (64, mfma.results)).astype(np.float64)
    bits = [negated >> at & 1 for at in range(3)]
    found = run_mfma(arch, mfma, (a[0], b[0]), c, modifiers=f"neg:[{bits[0]},{bits[1]},{bits[2]}]")
    signs = [1 - 2 * bit for bit in bits]
    expected = product(signs[0] * dense(mfma, a[1]), signs[1] * dense(mfma, b[1]), signs[2] * results(mfma, c))
    assert np.array_equal(results(mfma, found), expected)
