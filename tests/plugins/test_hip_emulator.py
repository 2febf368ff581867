"""The HIP kernels' numbers, in the emulator: with warps of both sizes, however a row is shared among threads."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from portakernel import runtime
from portakernel.claims.capability import CannotRun
from portakernel.errors import ArgumentValueError
from portakernel.references import add_rms_norm as add_rms_norm_reference
from portakernel.references import layer_norm as layer_norm_reference
from portakernel.references import quantize_fp8 as quantize_fp8_reference
from portakernel.references import rms_norm as rms_norm_reference
from portakernel_kit.conformance.runner import fresh_seed
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import find_venue
from portakernel_plugins.hip import configurations, emulator, norms
from portakernel_plugins.hip.add import add
from portakernel_plugins.hip.add_rms_norm import add_rms_norm
from portakernel_plugins.hip.emulator import emulating
from portakernel_plugins.hip.layer_norm import layer_norm
from portakernel_plugins.hip.quantize_fp8 import quantize_fp8
from portakernel_plugins.hip.rms_norm import rms_norm
from portakernel_plugins.hip.rotary_embedding import rotary_embedding
from portakernel_plugins.hip.silu_and_mul import silu_and_mul
from portakernel_plugins.hip.softmax import softmax

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="lacks a C++ compiler, which the emulator needs"
)

FUNCTIONS = (add, add_rms_norm, layer_norm, quantize_fp8, rms_norm, rotary_embedding, silu_and_mul, softmax)
OPS = sorted({kernel.op for kernel in runtime.dispatcher().registry.kernels.values() if kernel.plugin == "hip"})

# How a row is shared: within a warp, by a block of several warps, and read again. (threads, row_threads, packs)
SHAPES = {"in a warp": (128, 16, 8), "in a block": (128, 128, 2), "read again": (128, 128, 0)}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    """What one worker of this run of the tests compiled, the others load."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated"
    shared.mkdir(exist_ok=True)
    compiling = emulator.run_limited

    def run(command, *arguments, **options):
        place = Path(command[command.index("-o") + 1])
        kept = shared / hashlib.sha256(repr([word for word in command if word != str(place)]).encode()).hexdigest()
        if kept.exists():
            shutil.copy(kept, place)
            return Mock(status=0)
        ran = compiling(command, *arguments, **options)
        if ran.status == 0:
            shutil.copy(place, place.with_suffix(".kept"))
            place.with_suffix(".kept").rename(kept)
        return ran

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "run_limited", run)
        yield


@pytest.fixture(params=[32, 64])
def warp_size(request):
    with emulating(request.param):
        yield request.param


@pytest.fixture
def configured(monkeypatch):
    """Launches every kernel in one way."""

    def configure(threads: int, row_threads: int, packs: int, blocks: int = 3) -> None:
        entry = {"threads": threads, "row_threads": row_threads, "packs": packs, "blocks": blocks}
        if row_threads == threads:
            del entry["row_threads"]
        monkeypatch.setattr(configurations, "entries", lambda: {kernel: [entry] for kernel in known})
        forget()

    def forget() -> None:
        """What was found by the size before: configurations, and the launches made of them."""
        for module in (configurations, *(sys.modules[f.__module__] for f in FUNCTIONS), norms):
            for function in vars(module).values():
                if hasattr(function, "cache_clear") and function is not configurations.entries:
                    function.cache_clear()

    known = configurations.entries()
    yield configure
    forget()


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: Tensor, exact: Tensor) -> None:
    """Within a few units in the last place of the dtype."""
    ulps = {torch.float32: 16, torch.float16: 1, torch.bfloat16: 1}[found.dtype]
    near = ulps * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=near, atol=near * exact.abs().max().item() / 16)


# --- the kit ---------------------------------------------------------------------------------------------------------


@pytest.mark.turns(3)
@pytest.mark.parametrize("op", OPS)
def test_kernel_conforms_in_the_emulator(op, units_in_turn):
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels[f"hip.{op}"]
    cpu = next(d for d in dispatcher.registry.devices if d.torch_device == "cpu" and not d.attached)
    venue = find_venue(dispatcher, kernel, cpu)
    assert (venue.mode, venue.torch_device) == ("emulator", "cpu")
    suite = Suite(dispatcher, kernel, venue, fresh_seed())
    # the other dtypes differ in their conversions alone, and each combination is compiled
    first = suite.contract.names[0]
    units = units_in_turn(suite, lambda unit: dict(unit.dtypes).get(first) in (None, "bfloat16"))
    found = [result for unit in units for result in suite.run(unit)]
    assert [str(result) for result in found if result.status == "failed"] == []
    assert sum(result.aspect == "forward" and result.status == "passed" for result in found) >= 10


# --- rows, however they are shared -----------------------------------------------------------------------------------


@pytest.mark.turns(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("columns", "dtype"), [(1000, torch.float16), (509, torch.float32)])
def test_norms_are_right_however_a_row_is_shared(warp_size, configured, shape, columns, dtype):
    configured(*SHAPES[shape])
    x, residual = draw(5, columns, dtype=dtype), draw(5, columns, dtype=dtype, seed=1)
    weight, bias = draw(columns, seed=2), draw(columns, seed=3)
    y, rstd = rms_norm(x, weight, eps=1e-6, weight_offset=1.0, save=True)
    exact = rms_norm_reference.forward(x.double(), weight.double(), eps=1e-6, weight_offset=1.0, save=True)
    assert_near(y, exact[0])
    assert_near(rstd, exact[1])
    y, summed, rstd = add_rms_norm(x, residual, weight, eps=1e-6, save=True)
    assert torch.equal(summed, x + residual)
    exact = add_rms_norm_reference.forward(
        summed.double(), torch.zeros_like(summed).double(), weight.double(), eps=1e-6, save=True
    )
    assert_near(y, exact[0])
    y, mean, rstd = layer_norm(x + 3, weight, bias, eps=1e-5, save=True)
    exact = layer_norm_reference.forward((x + 3).double(), weight.double(), bias.double(), eps=1e-5, save=True)
    for found, wanted in zip((y, mean, rstd), exact, strict=True):
        assert_near(found, wanted)


@pytest.mark.turns(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("columns", "dtype"), [(1024, torch.bfloat16), (509, torch.float32)])
def test_softmax_is_right_however_a_row_is_shared(warp_size, configured, shape, columns, dtype):
    configured(*SHAPES[shape])
    x = draw(6, columns, dtype=dtype) * 4
    x[1] = float("-inf")
    x[2, 3] = float("inf")
    x[3, 5] = float("nan")
    x[4, : columns // 2] = float("-inf")
    x[5, 0] = 90.0
    found, exact = softmax(x), torch.softmax(x.double(), -1)
    torch.testing.assert_close(found.isnan(), exact.isnan())
    assert_near(found.nan_to_num(), exact.nan_to_num())


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("granularity", "shape", "dtype"),
    [
        *(("row", shape, "float8_e4m3fn") for shape in SHAPES),
        *(("row", "in a warp", dtype) for dtype in ("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")),
        *((granularity, "in a block", "float8_e4m3fnuz") for granularity in ("tensor", "block_128x128")),
    ],
)
def test_codes_and_scales_are_the_references_however_a_row_is_shared(warp_size, configured, granularity, shape, dtype):
    configured(*SHAPES[shape])
    x = draw(130, 512, dtype=torch.bfloat16)
    x[0, :7] = torch.tensor([0.0, -0.0, 1e-4, -1e-4, 2.0**-9, -(2.0**-10), 17.0])
    if granularity == "row":
        x[1, 9] = float("nan")
        x[2] = 0.0
    q, scale = quantize_fp8(x, granularity=granularity, dtype=dtype)
    expected, expected_scale = quantize_fp8_reference.forward(x, granularity=granularity, dtype=dtype)
    torch.testing.assert_close(scale, expected_scale, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(q.float(), expected.float(), rtol=0, atol=0, equal_nan=True)


def test_a_rows_bits_depend_on_no_other_row_and_not_on_where_it_begins(warp_size):
    x, weight = draw(9, 1024, dtype=torch.bfloat16), draw(1024)
    alone = torch.cat([rms_norm(row, weight, eps=1e-6) for row in x.split(1)])
    memory = torch.empty(9 * 1031 + 1, dtype=torch.bfloat16)
    unaligned = memory.as_strided(x.shape, (1031, 1), 1).copy_(x)
    assert torch.equal(rms_norm(x, weight, eps=1e-6), alone)
    assert torch.equal(rms_norm(unaligned, weight, eps=1e-6), alone)
    assert torch.equal(softmax(x), softmax(unaligned))


def test_silu_and_mul_and_rotary_embedding_are_right_where_a_row_is_several_blocks_or_rounds(warp_size, configured):
    configured(32, 32, 1)
    x = draw(3, 2 * 1001)
    gate, up = x.double().chunk(2, -1)
    assert_near(silu_and_mul(x), torch.nn.functional.silu(gate) * up)
    q, k, angles = draw(4, 2, 600), draw(4, 1, 600, seed=1), draw(4, 256, seed=2)
    cos, sin = angles.cos(), angles.sin()
    a, b, rest = q.double()[..., :256], q.double()[..., 256:512], q.double()[..., 512:]
    c, s = cos.double()[:, None], sin.double()[:, None]
    turned, _ = rotary_embedding(q, k, cos, sin)
    assert_near(turned, torch.cat([a * c - b * s, b * c + a * s, rest], -1))


# --- large offsets, large grids --------------------------------------------------------------------------------------


def test_rows_may_lie_more_than_two_to_the_31_elements_apart(warp_size):
    far = torch.empty(2**31 + 4096, dtype=torch.bfloat16)  # pages that nobody touches cost nothing
    x = far.as_strided((2, 256), (2**31, 1))
    x.copy_(draw(2, 256))
    near, weight = x.clone(), draw(256)
    assert torch.equal(rms_norm(x, weight, eps=1e-6), rms_norm(near, weight, eps=1e-6))
    assert torch.equal(softmax(x, out=x), softmax(near))
    x.copy_(near)
    assert torch.equal(silu_and_mul(x), silu_and_mul(near))
    for granularity in ("row", "tensor"):
        q, scale = quantize_fp8(x, granularity=granularity, dtype="float8_e4m3fn")
        expected, expected_scale = quantize_fp8(near, granularity=granularity, dtype="float8_e4m3fn")
        assert torch.equal(q.float(), expected.float())
        assert torch.equal(scale, expected_scale)


def test_blocks_beyond_a_grids_width_go_into_its_second_dimension(configured):
    configured(1, 1, 1)
    x = draw((1 << 22) + 5)
    with emulating():
        assert torch.equal(add(x, x), x + x)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_without_a_cpp_compiler_the_emulator_says_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    wanted = "missing_toolchain: the emulator compiles kernels with a C\\+\\+ compiler and finds no-such-compiler"
    with emulating(), pytest.raises(CannotRun, match=wanted):
        softmax(draw(3, 11 * 8 * 13))


@pytest.mark.parametrize("size", [16, 0, -32, None])
def test_warps_that_no_gpu_has_are_refused(size):
    wanted = f"emulating: warp_size must be 32 or 64, as GPUs have them; this is {size}"
    with pytest.raises(ArgumentValueError, match=f"^{wanted}$"), emulating(size):
        pytest.fail("the context was entered")
    assert emulator.warp_size() is None


@pytest.mark.parametrize(("does", "ended"), [("exit 3", "status 3"), ("kill -SEGV $$", "SIGSEGV")])
def test_a_compiler_that_fails_without_a_word_is_named_with_how_it_ended(monkeypatch, tmp_path, does, ended):
    compiler = tmp_path / "silent-c++"
    compiler.write_text(f"#!/bin/sh\n{does}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    # a size of its own, because what is compiled is kept
    with emulating(), pytest.raises(RuntimeError) as caught:
        softmax(draw(3, 11 * 8 * 17))
    told = str(caught.value).split(":\n")
    assert told[0].endswith(" does not compile for the emulator")
    assert told[1] == f"{compiler} ended with {ended} and wrote nothing; set CXX to a C++ compiler that works here"


@pytest.fixture
def emulated(python, tmp_path):
    """Runs a kernel's source, with the plugin's headers, on 8 threads and 16 zeros in a process of its own."""

    def run(name: str, source: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / f"{name}.hip").write_text(source)
        code = f"""
from pathlib import Path
import torch
from portakernel_plugins.hip import launch
from portakernel_plugins.hip.configurations import Configuration
from portakernel_plugins.hip.emulator import emulating
sources = launch.FOLDER
for header in sources.iterdir():
    if header.suffix in (".h", ".cpp"):
        Path({str(tmp_path)!r}, header.name).write_text(header.read_text())
launch.FOLDER = Path({str(tmp_path)!r})
with emulating():
    how = Configuration(threads=8, row_threads=8, packs=1, most_packs=1)
    launch.Launch(launch.program({name!r}, pointers=1, integers=0), how, ())(1, torch.zeros(16))
"""
        return python("-c", code)

    return run


def test_threads_that_disagree_on_a_barrier_end_the_program_with_the_reason(emulated):
    done = emulated(
        "torn",
        """\
#include "portability.h"
extern "C" __global__ void torn(float* x) {
    if (thread_number() < 3) synchronize_block();
}
""",
    )
    assert done.returncode != 0
    assert "3 of a block's 8 threads wait at a barrier that the others never reach" in done.stderr


# A line of a kernel that takes `float* x`, aligned to 16 bytes; the file that is blamed, the thread and the reason.
FORGIVEN_BY_CPUS = {
    "a vector read elsewhere": (
        "unsigned words[4]; read_words<4>(x + 1 + thread_number() * 4, words);",
        (
            r"numbers\.h:\d+",
            0,
            r"accesses '(const )?(struct )?Words4' at an address that is 4 more than a multiple of 16: ",
        ),
    ),
    "a vector written elsewhere": (
        "const unsigned words[2] = {}; write_words<2>(x + thread_number(), words);",
        (
            r"numbers\.h:\d+",
            1,
            r"accesses '(const )?(struct )?Words2' at an address that is 4 more than a multiple of 8: ",
        ),
    ),
    "a number behind an array": (
        "float numbers[4]; for (int i = 0; i <= 4; ++i) numbers[i] = x[i];",
        (r"bad\.hip:3", 0, r"index 4 of 'float ?\[4\]': "),
    ),
    "a number before an array": (
        "float numbers[4]; numbers[int(thread_number()) - 1] = x[0];",
        (r"bad\.hip:3", 0, r"index -1 of 'float ?\[4\]': "),
    ),
    "a pack behind those that are held": (
        "Held<Pack<float, 4>, 2> held; for (int p = 0; p <= 2; ++p) held[p] = load<true, 4>(x, 4);",
        (r"bad\.hip:3", 0, r"index 2 of the 2 packs that a thread holds: "),
    ),
}


@pytest.mark.parametrize("compiler", [*filter(shutil.which, ("g++", "clang++", "clang++-22"))])
@pytest.mark.parametrize("fault", FORGIVEN_BY_CPUS)
def test_an_access_that_a_gpu_does_not_forgive_ends_the_program_with_its_line(emulated, monkeypatch, fault, compiler):
    monkeypatch.setenv("CXX", compiler)
    line, (file, thread, reason) = FORGIVEN_BY_CPUS[fault]
    source = f'#include "numbers.h"\nextern "C" __global__ void bad(float* x) {{\n    {line}\n}}\n'
    done = emulated("bad", source)
    assert done.returncode == -signal.SIGABRT
    assert re.search(rf"{file}: bad\.hip, block 0, thread {thread}: {reason}", done.stderr), done.stderr


@pytest.mark.skipif(shutil.which("readelf") is None, reason="lacks readelf, of binutils")
def test_what_is_compiled_needs_no_library_of_a_sanitizer(warp_size):
    add(draw(64), draw(64))
    library = next(emulator._folder().glob("*.so"))
    shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"NEEDED.*\[(\w+)", shown) in (["libm", "libc"], ["libc", "libm"], ["libc"])


@pytest.mark.skipif(shutil.which("nm") is None, reason="lacks nm, of binutils")
def test_kernels_share_no_memory(warp_size):
    """A process has one of each variable that its libraries show as unique, as large as the first one's."""
    quantize_fp8(draw(130, 512), granularity="tensor", dtype="float8_e4m3fn")
    libraries = list(emulator._folder().glob("*.so"))
    assert libraries
    command = ["nm", "-A", "-D", "--defined-only", *libraries]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [(line.partition(":")[0], line.split()[-1]) for line in shown.splitlines()]
    assert sorted(found) == sorted((str(library), "launch") for library in libraries)
