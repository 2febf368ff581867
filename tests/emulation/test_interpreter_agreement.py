"""Triton's machine code in the emulator against Triton's interpreter, on the same inputs."""

# ruff: noqa: N803
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
import triton
import triton.language as tl
from cxx import HAS_CXX
from emulated_kernels import ARCHS, compiled, rms_norm, softmax, wave_size

from portakernel.emulation import emulate
from portakernel.triton_launch import interpreter

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n, other=0), tl.load(y + at, mask=at < n, other=0)
    odd = b | 1
    made = (a * b) ^ (a // odd) + (a % odd) * 3 - (a << (b & 31)) + (a >> (b & 31))
    made += tl.where(a > b, tl.umulhi(a, b), tl.minimum(a, b)) + tl.cumsum(a, 0) + tl.max(b, 0)
    tl.store(out + at, made, mask=at < n)


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def halves(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    half = value.to(tl.float16)
    made = (half * half + half).to(tl.float32) + value.to(tl.bfloat16).to(tl.float32)
    tl.store(out + at, made, mask=at < n)


def both(kernel, types, block, arch, grid, arguments, out):
    """The results of the machine code and of the interpreter."""
    code, shared = compiled(kernel, types, (("BLOCK", block),), arch)
    results = [torch.full_like(out, 7), torch.full_like(out, 7)] if kernel is not histogram else [out, out.clone()]
    place = next(i for i, one in enumerate(arguments) if one is out)
    given = [[*arguments[:place], result, *arguments[place + 1 :]] for result in results]
    ran = emulate(
        code, kernel.fn.__name__, (grid,), (4 * wave_size(arch),), [*given[0], None, None], arch, dynamic_lds=shared
    )
    assert ran.clean, ran.findings
    interpreter.run(kernel, (grid,), tuple(given[1]), {"BLOCK": block})
    return results


@pytest.mark.parametrize("arch", ARCHS)
def test_integers_are_equal(arch):
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randint(-(2**31), 2**31 - 1, (2, 700), generator=generator, dtype=torch.int32)
    out = torch.zeros(700, dtype=torch.int32)
    machine, interpreted = both(integers, ("*i32", "*i32", "*i32", "i32"), 1024, arch, 1, [x, y, out, 700], out)
    assert torch.equal(machine, interpreted)


@pytest.mark.parametrize("arch", ARCHS)
def test_atomic_counts_are_equal(arch):
    x = torch.randint(0, 17, (3000,), generator=torch.Generator().manual_seed(6), dtype=torch.int32)
    out = torch.zeros(17, dtype=torch.int32)
    machine, interpreted = both(histogram, ("*i32", "*i32", "i32"), 1024, arch, 3, [x, out, 3000], out)
    assert torch.equal(machine, interpreted)
    assert machine.sum() == 3000


@pytest.mark.parametrize("arch", ARCHS)
def test_conversions_and_half_arithmetic_agree_to_a_unit(arch):
    """A fused product and sum is rounded once in machine code, twice in the interpreter: a unit of float16 apart."""
    torch.manual_seed(7)
    x = torch.randn(1000)
    out = torch.zeros(1000)
    machine, interpreted = both(halves, ("*fp32", "*fp32", "i32"), 1024, arch, 1, [x, out, 1000], out)
    half = x.half().double()
    bound = 2.0**-10 * torch.maximum((half * half).abs(), (half * half + half).abs()) + 2.0**-23 * interpreted.abs()
    assert ((machine.double() - interpreted.double()).abs() <= bound + 1e-7).all()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", [rms_norm, softmax], ids=lambda kernel: kernel.fn.__name__)
def test_reductions_agree_to_eight_units(arch, kernel):
    """The order of sums differs: lanes and waves against NumPy's pairs."""
    torch.manual_seed(8)
    x, weight, out = torch.randn(3, 500), torch.randn(500), torch.zeros(3, 500)
    if kernel is rms_norm:
        types, given = ("*fp32", "*fp32", "*fp32", "i32", "fp32"), [x, weight, out, 500, 1e-6]
    else:
        types, given = ("*fp32", "*fp32", "i32"), [x, out, 500]
    machine, interpreted = both(kernel, types, 512, arch, 3, given, out)
    assert ((machine - interpreted).abs() <= 8 * 2.0**-23 * interpreted.abs()).all()
