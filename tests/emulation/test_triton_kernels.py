"""Triton's own machine code for GPUs that are not here, run and compared with float64."""

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX
from emulated_kernels import (
    ARCHS,
    add,
    add_past_the_end,
    compiled,
    rms_norm,
    softmax,
    spin,
    wave_size,
)

from portakernel.emulation import Kind, emulate

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]

FLOATS = ("*fp32",) * 3


def launch(kernel, types, constants, arch, grid, arguments, **options):
    code, shared = compiled(kernel, types, constants, arch)
    block = 4 * wave_size(arch)
    given = [*arguments, None, None]
    names = kernel.arg_names
    return emulate(code, kernel.fn.__name__, (grid,), (block,), given, arch, dynamic_lds=shared, names=names, **options)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("n", [1, 1000, 3000])
def test_a_vector_sum_is_exact(arch, n):
    torch.manual_seed(n)
    x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), torch.nan)
    ran = launch(add, (*FLOATS, "i32"), (("BLOCK", 1024),), arch, -(-n // 1024), [x, y, out, n])
    assert torch.equal(out, x + y)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "name", "tolerance"), [(torch.float32, "*fp32", 1e-6), (torch.bfloat16, "*bf16", 2**-8)]
)
def test_rms_norm_of_several_waves_is_that_of_float64(arch, dtype, name, tolerance):
    torch.manual_seed(1)
    x, weight = torch.randn(8, 1000, dtype=dtype), torch.randn(1000, dtype=dtype)
    out = torch.full_like(x, torch.nan)
    types = (name, name, name, "i32", "fp32")
    ran = launch(rms_norm, types, (("BLOCK", 1024),), arch, 8, [x, weight, out, 1000, 1e-6])
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    assert torch.allclose(out.double(), expected, rtol=tolerance, atol=1e-7)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_softmax_is_that_of_float64(arch):
    torch.manual_seed(2)
    x = torch.randn(4, 777)
    out = torch.full_like(x, torch.nan)
    ran = launch(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 1024),), arch, 4, [x, out, 777])
    assert torch.allclose(out.double(), x.double().softmax(-1), rtol=2e-6, atol=1e-9)
    assert ran.clean, ran.findings


@pytest.mark.parametrize("arch", ARCHS)
def test_a_load_one_element_past_the_end_is_named_with_its_line(arch):
    n = 1000
    x, y, out = torch.randn(n), torch.randn(n), torch.zeros(n)
    ran = launch(add_past_the_end, (*FLOATS, "i32"), (("BLOCK", 1024),), arch, 1, [x, y, out, n])
    assert [(one.kind, one.region, one.distance, one.bytes) for one in ran.findings] == [(Kind.OUTSIDE, "x", 4, 4)]
    assert ran.findings[0].line.startswith("emulated_kernels.py:")
    assert "load" in ran.findings[0].instruction
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("arch", ARCHS)
def test_an_endless_loop_ends_with_its_budget(arch):
    out = torch.zeros(1, dtype=torch.int32)
    ran = launch(spin, ("*i32", "i32"), (), arch, 1, [out, 5], budget=10_000)
    assert ran.stopped
    assert [one.kind for one in ran.findings] == [Kind.BUDGET]


@pytest.mark.parametrize("arch", ARCHS)
def test_host_threads_change_no_result(arch):
    torch.manual_seed(3)
    x = torch.randn(16, 300)
    outs = [torch.zeros_like(x) for _ in range(2)]
    runs = [
        launch(softmax, ("*fp32", "*fp32", "i32"), (("BLOCK", 512),), arch, 16, [x, out, 300], threads=threads)
        for out, threads in zip(outs, (1, 4), strict=True)
    ]
    assert torch.equal(*outs)
    assert runs[0].counts == runs[1].counts


@pytest.mark.parametrize("arch", ARCHS)
def test_bytes_are_counted_by_width(arch):
    n = 1000  # lanes beyond it move nothing, whether EXEC or a buffer's range masks them
    x, y, out = torch.randn(n), torch.randn(n), torch.zeros(n)
    ran = launch(add, (*FLOATS, "i32"), (("BLOCK", 1024),), arch, 1, [x, y, out, n])
    assert ran.counts.stored == {4: 4 * n}
    assert 0 <= ran.counts.loaded[4] - 8 * n <= 64  # and of its arguments
