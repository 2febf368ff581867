"""PyTorch's scaled matrix products: which serves which formats where, and how scales are laid out for it."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version

import portakernel
from portakernel import ops
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.references import scale_formats
from portakernel_kit.conformance.memory import place_tensor
from portakernel_plugins.torch.matrix import scale_layout, scaled_mm, scaled_mm_blocks, scaled_mm_mx


def serves(target, scale_format, dtype=None, shape=(64, 512, 1024), **asked):
    rows, columns, terms = shape
    packed = 2 if scale_format in ("mxfp4", "nvfp4") else 1
    shapes = {"a": (rows, terms // packed), "b": (columns, terms // packed)}
    formats = scale_format if isinstance(scale_format, str) else dict(zip("ab", scale_format, strict=True))
    found = portakernel.explain("scaled_mm", target=target, dtype=dtype, shape=shapes, format=formats, **asked)
    return [c.kernel.name for c in found.candidates if c.status != "rejected" and c.kernel.plugin == "torch"]


@pytest.mark.parametrize(
    ("target", "scale_format", "dtype", "kernel"),
    [
        ("nvidia:sm_90", "row", "float8_e4m3fn", "torch.scaled_mm"),
        ("nvidia:sm_90", "tensor", "float8_e4m3fn", "torch.scaled_mm"),
        ("nvidia:sm_89", ("row", "tensor"), "float8_e4m3fn", "torch.scaled_mm"),
        ("nvidia:sm_90", "tensor", {"a": "float8_e4m3fn", "b": "float8_e5m2"}, "torch.scaled_mm"),
        ("nvidia:sm_90", "tensor", "float8_e5m2", "torch.scaled_mm_dequantized"),
        ("nvidia:sm_80", "row", "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("nvidia:sm_90", "row", "float8_e4m3fnuz", "torch.scaled_mm_dequantized"),
        ("nvidia:sm_90", ("block_1x128", "block_128x128"), "float8_e4m3fn", "torch.scaled_mm_blocks"),
        ("nvidia:sm_100", ("block_1x128", "block_128x128"), "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("nvidia:sm_90", "block_128x128", "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("nvidia:sm_90", "nvfp4", None, "torch.scaled_mm_dequantized"),
        ("nvidia:sm_100", "nvfp4", None, "torch.scaled_mm_mx"),
        ("nvidia:sm_120", "mxfp8", "float8_e4m3fn", "torch.scaled_mm_mx"),
        ("nvidia:sm_100", "mxfp4", None, "torch.scaled_mm_dequantized"),
        ("amd:gfx950", "mxfp4", None, "torch.scaled_mm_mx"),
        ("amd:gfx942", "row", "float8_e4m3fnuz", "torch.scaled_mm"),
        ("amd:gfx942", "row", "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("amd:gfx950", "row", "float8_e4m3fn", "torch.scaled_mm"),
        ("amd:gfx1100", "row", "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("intel:bmg", "row", "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("cpu:x86_64", "row", "float8_e5m2", "torch.scaled_mm_cpu"),
        ("cpu:x86_64", "row", "float8_e5m2fnuz", "torch.scaled_mm_dequantized"),
        ("cpu:x86_64", "mxfp8", "float8_e4m3fn", "torch.scaled_mm_dequantized"),
        ("apple:m3", "row", "float8_e4m3fn", None),
    ],
)
def test_which_product_serves_which_format_where(target, scale_format, dtype, kernel):
    assert serves(target, scale_format, dtype)[:1] == ([] if kernel is None else [kernel])


@pytest.mark.parametrize(
    ("asked", "native"),
    [
        ({}, True),
        ({"shape": (63, 512, 1024)}, True),
        ({"shape": (64, 520, 1024)}, False),
        ({"shape": (64, 512, 1000)}, False),
        ({"out_dtype": "float32"}, False),
    ],
)
def test_rows_want_sixteens_and_bfloat16(asked, native):
    assert ("torch.scaled_mm" in serves("nvidia:sm_90", "row", "float8_e4m3fn", **asked)) == native


def test_a_bias_beside_a_product_in_its_own_dtype_alone_is_fused():
    shapes = {"a": (64, 128), "b": (32, 128), "bias": (32,)}
    for bias, text in (("bfloat16", None), ("float32", "bias needs out_dtype's dtype; this is float32")):
        dtypes = {"a": "float8_e4m3fn", "b": "float8_e4m3fn", "bias": bias}
        decision = portakernel.explain("scaled_mm", target="nvidia:sm_90", dtype=dtypes, shape=shapes, format="row")
        found = decision.candidate("torch.scaled_mm")
        assert (found.status == "rejected") == (text is not None)
        assert text is None or any(rejection.text == f"row: {text}" for rejection in found.rejections)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (130, 9), (128, 4), (300, 17)])
def test_swizzled_scales_lie_as_the_contract_says_and_come_back(rows, columns):
    codes = torch.randint(0, 255, (rows, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))
    found = scale_layout.swizzled(codes)
    assert torch.equal(found, scale_formats.swizzled(codes).flatten())
    shaped = found.view(-(-rows // 128) * 128, -1)
    assert torch.equal(scale_layout.unswizzled(shaped, rows, columns), codes)


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (4, 1), (5, 3), (2, 8)])
def test_block_scales_have_the_strides_that_cublas_wants(rows, columns):
    scale = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    outer = scale_layout.outer_major(scale)
    assert torch.equal(outer, scale)
    assert outer.stride() == (1, rows)
    square = scale_layout.square_blocks(scale)
    padded = -(-columns // 4) * 4
    assert (square.shape, square.stride()) == ((padded, rows), (1, padded))
    assert torch.equal(square[:columns].t(), scale)


@pytest.mark.parametrize("layout", ["contiguous", "offset", "sliced", "stepped", "transposed", "expanded"])
@pytest.mark.parametrize("rows", [1, 16])
def test_matrices_and_scales_reach_cublas_as_it_reads_them(rows, layout):
    drawn = torch.randn((1, 32) if layout == "expanded" else (rows, 32)).to(torch.float8_e4m3fn)
    x = place_tensor(drawn, (rows, 32), layout, "float8_e4m3fn", "cpu")
    found = scale_layout.row_major(x)
    assert torch.equal(found.float(), x.float())
    assert found.stride(1) == 1
    assert found.stride(0) >= 32
    assert found.stride(0) % 16 == found.data_ptr() % 16 == 0
    drawn = torch.rand(1 if layout == "expanded" else rows, 1)
    scale = scale_layout.on_16_bytes(place_tensor(drawn, (rows, 1), layout, "float32", "cpu"))
    assert scale.data_ptr() % 16 == 0


@pytest.mark.parametrize("layout", ["contiguous", "offset", "stepped", "sliced", "expanded"])
@pytest.mark.parametrize("kernel", [scaled_mm, scaled_mm_blocks, scaled_mm_mx])
def test_a_bias_reaches_cublas_at_an_aligned_address(kernel, layout, monkeypatch):
    """At another one cuBLAS has no algorithm, or one that fails (H200): checked in front of the operators."""
    seen = []

    def product(a, b, *_, bias, **more):
        seen.append(bias)
        return torch.zeros(a.shape[0], b.shape[1], dtype=bias.dtype)

    monkeypatch.setattr(scaled_mm, "_product", product)
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", product)
    formats = {scaled_mm: "tensor", scaled_mm_blocks: "block_1x128", scaled_mm_mx: "mxfp8"}
    shapes = {scaled_mm: (), scaled_mm_blocks: (16, 1), scaled_mm_mx: (16, 4)}
    x, scale = torch.zeros(16, 128).to(torch.float8_e4m3fn), torch.ones(shapes[kernel])
    scale = scale.to(torch.float8_e8m0fnu) if kernel is scaled_mm_mx else scale
    drawn = torch.rand(1 if layout == "expanded" else 16)
    bias = place_tensor(drawn, (16,), layout, "float16", "cpu")
    parameters = {"format_a": formats[kernel], "format_b": formats[kernel], "use_fast_accum": False}
    scales = {"global_scale_a": None, "global_scale_b": None}
    kernel.scaled_mm(x, x, scale, scale, bias=bias, out_dtype="float16", **scales, **parameters)
    (given,) = seen
    assert torch.equal(given, bias)
    assert given.is_contiguous()
    assert given.data_ptr() % 16 == 0


ONE_ROW = [
    ((1, 17), ("tensor", "row")),
    ((5, 1), ("row", "tensor")),
    ((1, 1), ("tensor", "row")),
    ((4, 3), ("row", "row")),
]


@pytest.mark.parametrize(("sizes", "formats"), ONE_ROW)
@pytest.mark.parametrize("layout", ["contiguous", "sliced", "stepped", "transposed", "expanded"])
def test_row_scales_reach_the_operator_however_they_lie(sizes, formats, layout):
    source = torch.Generator().manual_seed(3)
    q = [torch.randn(rows, 32, generator=source).to(torch.float8_e4m3fn) for rows in sizes]
    shapes = [(rows, 1) if scale_format == "row" else () for rows, scale_format in zip(sizes, formats, strict=True)]
    scales = []
    for shape in shapes:
        laid = layout if shape else "contiguous"
        drawn = torch.rand((1, *shape[1:]) if laid == "expanded" else shape, generator=source) + 0.5
        scales.append(place_tensor(drawn, shape, laid, "float32", "cpu"))
    found = scale_layout.row_scales(scales[0], sizes[0])
    assert (found.shape, found.stride()) == ((sizes[0], 1), (1, 1))
    assert torch.equal(found, scales[0].expand(sizes[0], 1))
    if Version(torch.__version__) < Version("2.13"):
        return  # what follows is of the operator that 2.13 has for CPUs
    y = ops.scaled_mm(
        *q, *scales, format_a=formats[0], format_b=formats[1], out_dtype="float32", kernel="torch.scaled_mm_cpu"
    )
    left, right = (x.double() * scale.double() for x, scale in zip(q, scales, strict=True))
    torch.testing.assert_close(y.double(), left @ right.T, rtol=1e-5, atol=1e-5)


def test_global_scales_beside_other_formats_than_nvfp4_are_declined():
    code = torch.zeros(32, 64, dtype=torch.uint8)
    quantised, scale = code.view(torch.float8_e4m3fn), code[:, :2].clone().view(torch.float8_e8m0fnu)
    with pytest.raises(CannotRun) as caught:
        scaled_mm_mx.scaled_mm(
            quantised,
            quantised,
            scale,
            scale,
            global_scale_a=None,
            global_scale_b=torch.ones(()),
            format_a="mxfp8",
            format_b="mxfp8",
            out_dtype="bfloat16",
            use_fast_accum=False,
        )
    rejection = caught.value.rejection
    assert (rejection.code, rejection.parameter) == (ReasonCode.SCALE_FORMAT, "global_scale_b")
    assert rejection.text == "takes global scales beside nvfp4 alone; this is mxfp8"


@pytest.mark.parametrize(("version", "serves"), [("12.6", False), ("12.8", False), ("12.9", True), ("13.0", True)])
def test_blocks_of_128_need_the_cublas_of_cuda_12_9(version, serves, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", version)
    rejection = scaled_mm_blocks.check(use_fast_accum=False)
    assert (rejection is None) == serves
    assert rejection is None or rejection.text.endswith(f"this one is for {version}")


@pytest.mark.parametrize("said", ["CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling ...", "something else"])
def test_a_product_for_which_cublas_has_no_algorithm_is_left_to_the_next_kernel(monkeypatch, said):
    def fails(*_, **__):
        raise RuntimeError(said)

    monkeypatch.setattr(scaled_mm, "_product", fails)
    a, b = (torch.ones(rows, 64).to(torch.float8_e4m3fn) for rows in (16, 32))
    scales, more = (torch.ones(16, 1), torch.ones(32, 1)), {"global_scale_a": None, "global_scale_b": None}
    values = {"format_a": "row", "format_b": "row", "out_dtype": "bfloat16", "use_fast_accum": False}
    with pytest.raises(CannotRun if "CUBLAS" in said else RuntimeError) as caught:
        scaled_mm.scaled_mm(a, b, *scales, **more, **values)
    assert caught.type is (CannotRun if "CUBLAS" in said else RuntimeError)
