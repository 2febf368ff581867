"""Triton's matrix products against float64: Triton chooses where elements lie, so whole products prove the layouts."""

import re

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
import triton.language as tl
from cxx import HAS_CXX
from emulated_kernels import ARCHS
from emulated_products import dot, dot_scaled, emulated, scaled_operand

from portakernel.emulation import emulating
from portakernel.words.target import Target
from portakernel_plugins.triton.matrix import scaled_mm

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
    pytest.mark.filterwarnings("ignore:fp8e.* is AMD gfx942 specific:UserWarning"),
]
TYPES = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i8": torch.int8, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2, "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}  # fmt: skip
SUMS = {"i8": (tl.int32, "*i32", torch.int32), "fp64": (tl.float64, "*fp64", torch.float64)}
# M, N, K of a step, steps, b turned, warps, the side of MFMA's tiles
SHAPES = [(16, 16, 64, 1, True, 1, 16), (64, 64, 64, 2, True, 4, 32), (64, 32, 128, 2, False, 4, 32)]
# What multiplies, where it is one instruction: of any other dtype Triton makes float16 or scalar products.
INSTRUCTIONS = {
    "gfx90a": {"fp16": "v_mfma_f32_", "bf16": "v_mfma_f32_", "i8": "v_mfma_i32_"},
    "gfx942": {"fp8e4b8": "fp8_fp8", "fp8e5b16": "bf8_bf8", "i8": "v_mfma_i32_", "fp64": "v_mfma_f64_"},
    "gfx950": {"fp8e4nv": "v_mfma_f32_", "fp8e5": "v_mfma_f32_", "i8": "v_mfma_i32_", "bf16": "_bf16"},
    "gfx1100": {"fp16": "v_wmma_f32_", "bf16": "v_wmma_f32_", "i8": "v_wmma_i32_"},
    "gfx1201": {"fp16": "v_wmma_f32_", "fp8e4nv": "fp8_fp8", "fp8e5": "bf8_bf8", "i8": "v_wmma_i32_"},
}


@pytest.mark.parametrize(("arch", "kind"), [(arch, kind) for arch in ARCHS for kind in (*INSTRUCTIONS[arch], "fp32")])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape[:4])))
def test_products_are_those_of_float64(arch, kind, shape):
    m, n, k, steps, turned, warps, side = shape
    if kind == "fp64":
        k, side = k // 2, 16  # of which LDS holds no more, and MFMA has no larger tiles
    sum_type, pointer, out = SUMS.get(kind, (tl.float32, "*fp32", torch.float32))
    torch.manual_seed(1)
    right_shape = (n, k * steps) if turned else (k * steps, n)
    if kind == "i8":
        a, b = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((m, k * steps), right_shape))
    else:
        a, b = (torch.randn(size).to(TYPES[kind]) for size in ((m, k * steps), right_shape))
    c = torch.zeros(m, n, dtype=out)
    constants = {"M": m, "N": n, "K": k, "STEPS": steps, "TURNED": turned, "SUM": sum_type}
    options = {"num_warps": warps} | ({"matrix_instr_nonkdim": side} if arch.startswith("gfx9") else {})
    ran = emulated(dot, (f"*{kind}", f"*{kind}", pointer), constants, arch, [a, b, c], **options)
    expected = a.double() @ (b.double().T if turned else b.double())
    # gfx90a's matrix units take subnormal numbers of 16 bits as zero
    tolerance = 0 if kind == "i8" else 1e-12 if kind == "fp64" else 3e-4 if arch == "gfx90a" else 1e-4
    assert torch.allclose(c.double(), expected, rtol=0, atol=tolerance)
    assert ran.clean, ran.findings
    used = INSTRUCTIONS[arch].get(kind)
    assert used is None or any(used in name for name in ran.executed), sorted(ran.executed)


# triton#9567
MIXED = pytest.mark.skipif(
    not scaled_mm._MIXED_ON_AMD, reason="this Triton has matrix units take each dtype for the other"
)


@MIXED
@pytest.mark.parametrize(("arch", "suffix"), [("gfx942", "b8 b16"), ("gfx950", "nv "), ("gfx1201", "nv ")])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_two_float8_dtypes_are_those_of_float64(arch, suffix, turned):
    kinds = [f"fp8e{bits}{end}" for bits, end in zip((4, 5), suffix.split(" "), strict=True)]
    kinds = kinds[::-1] if turned else kinds
    torch.manual_seed(4)
    a, b = (torch.randn(size).to(TYPES[kind]) for size, kind in zip(((32, 64), (64, 32)), kinds, strict=True))
    c = torch.zeros(32, 32)
    constants = {"M": 32, "N": 32, "K": 64, "STEPS": 1, "TURNED": False, "SUM": tl.float32}
    ran = emulated(dot, (f"*{kinds[0]}", f"*{kinds[1]}", "*fp32"), constants, arch, [a, b, c], num_warps=4)
    assert torch.allclose(c.double(), a.double() @ b.double(), rtol=0, atol=1e-4)
    assert ran.clean, ran.findings
    assert any(re.search("fp8_bf8|bf8_fp8|f8f6f4", name) for name in ran.executed), sorted(ran.executed)


@pytest.mark.parametrize("mixed", [pytest.param(True, marks=MIXED), False])
@pytest.mark.parametrize(("arch", "suffix"), [("gfx942", "fnuz fnuz"), ("gfx950", "fn "), ("gfx1201", "fn ")])
def test_scaled_mm_of_two_float8_dtypes_is_right_by_matrix_units_and_decoded(monkeypatch, arch, suffix, mixed):
    monkeypatch.setattr(scaled_mm, "_MIXED_ON_AMD", mixed)
    kinds = [f"float8_{name}{end}" for name, end in zip(("e4m3", "e5m2"), suffix.split(" "), strict=True)]
    torch.manual_seed(5)
    for left, right in (kinds, kinds[::-1]):
        a, b = torch.randn(5, 70).to(getattr(torch, left)), torch.randn(9, 70).to(getattr(torch, right))
        ones = [torch.ones(rows, 1) for rows in (5, 9)]
        with emulating(Target("amd", arch)) as launches:
            y = scaled_mm.scaled_mm(
                a, b, *ones, global_scale_a=None, global_scale_b=None, format_a="row", format_b="row",
                out_dtype="float32", use_fast_accum=False,
            )  # fmt: skip
        assert torch.allclose(y.double(), a.double() @ b.double().T, rtol=0, atol=1e-4)
        used = {name for one in launches for name in one.run.executed if "mfma" in name or "wmma" in name}
        assert used
        assert all(bool(re.search("fp8|bf8|f8f6f4", name)) == mixed for name in used), used


PAIRS = [
    ("e4m3", "e4m3"),
    ("e4m3", "e5m2"),
    ("e2m1", "e2m1"),
    ("e5m2", "e5m2"),
    ("e4m3", "e2m1"),
    ("e2m1", "e5m2"),
    ("bf16", "e2m1"),
    ("fp16", "e4m3"),
]


@pytest.mark.parametrize(
    ("arch", "kinds", "side"),
    [("gfx950", kinds, side) for kinds in PAIRS for side in (16, 32)]
    + [(arch, kinds, 16) for arch in ARCHS if arch != "gfx950" for kinds in PAIRS[3:]],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_scaled_products_are_those_of_float64(arch, kinds, side):
    m, n, k = 64, 32, 256
    torch.manual_seed(2)
    (a, a_values), (b, b_values) = (scaled_operand(kind, rows, k) for kind, rows in zip(kinds, (m, n), strict=True))
    a_scale, b_scale = (torch.randint(120, 134, (rows, k // 32), dtype=torch.uint8) for rows in (m, n))
    scaled = kinds[0] not in ("bf16", "fp16")
    c = torch.zeros(m, n)
    types = {"e2m1": "*u8", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5", "bf16": "*bf16", "fp16": "*fp16"}
    packed = [2 if kind == "e2m1" else 1 for kind in kinds]
    constants = {
        "M": m,
        "N": n,
        "K": k,
        "A": kinds[0],
        "B": kinds[1],
        "A_PACKED": packed[0],
        "B_PACKED": packed[1],
        "A_SCALED": scaled,
    }
    options = {"num_warps": 4} | ({"matrix_instr_nonkdim": side} if arch.startswith("gfx9") else {})
    pointers = (types[kinds[0]], "*u8", types[kinds[1]], "*u8", "*fp32")
    ran = emulated(
        dot_scaled, pointers, constants, arch, [a, a_scale, b.T.contiguous(), b_scale, c], **options
    )  # fmt: skip
    powers = [torch.exp2(scale.double() - 127).repeat_interleave(32, 1) for scale in (a_scale, b_scale)]
    expected = (a_values * powers[0] if scaled else a_values) @ (b_values * powers[1]).T
    assert torch.allclose(c.double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert ran.clean, ran.findings
    if arch == "gfx950" and scaled:
        assert any("v_mfma_scale_f32_" in name for name in ran.executed)
