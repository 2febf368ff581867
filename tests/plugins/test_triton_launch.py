"""One launch function serves compiled and interpreted kernels in one process, and refuses before it launches.

Compiled launches run against a driver that pretends to be an sm_90: Triton's own JIT and compiler do all but run
the code.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from itertools import count, permutations
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.errors import CompilationError
from triton.runtime.cache import FileCacheManager

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import ArgumentValueError, CaptureError
from portakernel.tensors.compilation import compilations
from portakernel.tensors.rows import row_stride
from portakernel.triton_launch import direct, launch
from portakernel.triton_launch.cache_folder import CacheFolder, CacheWarning
from portakernel.triton_launch.interpreter import interpreting, is_interpreting
from portakernel.triton_launch.launch import program_index
from portakernel_plugins.triton.add import add
from portakernel_plugins.triton.norms import norm_forward, rms_norm

_A_GLOBAL = tl.constexpr(3.0)

# Triton keeps compiled kernels per device number: each fake device has a number of its own, far from real ones.
_DEVICE_NUMBERS = count(1000)


class FakeDriver:
    """A driver of an sm_90 with so many bytes of shared memory, which records launches instead of making them."""

    def __init__(self, shared_memory_bytes: int, threads: int = 1024) -> None:
        self.launched: list[tuple[int, ...]] = []
        self.device = next(_DEVICE_NUMBERS)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": shared_memory_bytes},
            load_binary=lambda name, kernel, shared, device: (object(), object(), 32, 0, threads),
        )

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *args: self.launched.append(args[:3])


class CudaLauncher:
    """A launcher by the name of Triton's own, which a held kernel is called through."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls
        self.launch_cooperative_grid = self.launch_pdl = False

    def __call__(self, *args: Any) -> None:
        self.calls.append(args)

    def launch(self, x: int, y: int, z: int, stream: int, function: Any, *args: Any) -> None:
        self.calls.append((x, y, z, stream, function, *args[4:]))


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeDriver]:
    def install(shared_memory_bytes: int = 232448, **properties: int) -> FakeDriver:
        driver = FakeDriver(shared_memory_bytes, **properties)
        monkeypatch.setattr(triton.runtime.driver, "_active", driver)
        return driver

    return install


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@triton.jit
def _square(value):
    return value * value


@triton.jit
def _sum_of_squares_and(value, other):
    return tl.sum(_square(value), axis=0) + other


@triton.jit
def _calls_helpers(x, out, BLOCK: tl.constexpr):  # noqa: N803 - as Triton writes constexprs
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, _sum_of_squares_and(values, 1.0))


def test_helpers_and_their_helpers_are_interpreted():
    out = torch.zeros(1)
    with interpreting():
        launch.launch(_calls_helpers, (1,), torch.arange(4.0), out, BLOCK=4)
    assert out.item() == 15.0


def test_interpreting_leaves_the_language_and_the_kernels_module_as_they_were():
    language = {name: getattr(tl, name) for name in ("sum", "load", "store", "range", "arange", "reduce")}
    core = {name: getattr(tl.core, name) for name in ("load", "reduce", "expand_dims")}
    call = triton.JITFunction.__call__
    namespaces = [set(vars(module)) for module in (rms_norm, launch, tl.standard)]
    with interpreting():
        rms_norm.rms_norm(torch.ones(2, 8), torch.ones(8), eps=1e-6)
    assert {name: getattr(tl, name) for name in language} == language
    assert {name: getattr(tl.core, name) for name in core} == core
    assert triton.JITFunction.__call__ is call
    assert [set(vars(module)) for module in (rms_norm, launch, tl.standard)] == namespaces


def test_interpreting_ends_with_its_context_and_holds_for_its_thread_only():
    seen = []
    with interpreting():
        thread = threading.Thread(target=lambda: seen.append(is_interpreting()))
        thread.start()
        thread.join()
        assert is_interpreting()
        assert copy_context().run(is_interpreting)
    assert seen == [False]
    assert not is_interpreting()


def test_two_threads_may_interpret_at_once():
    totals = {}

    def work(number: int) -> None:
        with interpreting():
            totals[number] = add(torch.full((3000,), float(number)), torch.ones(3000))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(totals[number], torch.full((3000,), number + 1.0)) for number in range(4))


def test_cpu_tensors_outside_interpreting_are_refused():
    with pytest.raises(ArgumentValueError) as caught:
        add(torch.ones(3), torch.ones(3))
    assert str(caught.value) == (
        "Triton kernel _add was given tensors on cpu; it is compiled for GPUs (torch device cuda). Move the tensors to"
        " a GPU, or run it in Triton's interpreter, inside"
        " portakernel.authoring.triton.interpreting()"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_process_compiles_and_interprets_the_same_kernels(fake_driver, dtype):
    driver = fake_driver()
    for _ in range(2):
        with interpreting():
            x = torch.ones(40, 129, dtype=dtype)
            y, rstd = rms_norm.rms_norm(x, x[0], eps=0.0, save=True)
            grad_x, _ = rms_norm.backward(x, x, x[0], rstd, eps=0.0, needs=(True, True))
            assert torch.equal(y, x)
            assert torch.equal(grad_x, torch.zeros_like(x))
        x, weight, rstd = meta(40, 129, dtype=dtype), meta(129, dtype=dtype), meta(40, dtype=torch.float32)
        rms_norm.rms_norm(x, weight, eps=0.0, save=True)
        rms_norm.rms_norm(x, weight, eps=0.0, out=x)
        rms_norm.backward(x, x, weight, rstd, eps=0.0, needs=(True, True))
        rms_norm.backward(x, x, weight, rstd, eps=0.0, needs=(False, True))
        add(x, x)
    # Forward takes four rows of 256 columns a program, and add comes last.
    rounds = len(driver.launched) // 2
    assert driver.launched[:rounds] == driver.launched[rounds:]
    assert driver.launched[:2] == [(10, 1, 1), (10, 1, 1)]
    assert driver.launched[-1] == (3, 1, 1)


@pytest.mark.parametrize("n", [1, 2, 8192, 16384, 65536])
def test_compiles_for_every_row_length(fake_driver, n):
    driver = fake_driver()
    x, weight, rstd = meta(1, n), meta(n), meta(1, dtype=torch.float32)
    rms_norm.rms_norm(x, weight, eps=1e-6, save=True)
    rms_norm.backward(x, x, weight, rstd, eps=1e-6, needs=(True, True))
    # forward's, backward's, and of long rows those that add up the weight's gradient
    assert driver.launched[0] == (1, 1, 1)
    assert len(driver.launched) == (2 if n <= 8192 else 4)


def test_the_number_of_rows_does_not_recompile(fake_driver, monkeypatch):
    fake_driver()
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **about: compiled.append(about["repr"]))
    for rows in (1, 2, 16):
        rms_norm.rms_norm(meta(rows, 128), meta(128), eps=1e-6)
    assert len(compiled) == 1
    for rows in (65536, 65537, 1 << 20):  # many, of which a program takes more
        rms_norm.rms_norm(meta(rows, 128), meta(128), eps=1e-6)
    assert len(compiled) == 2


def test_an_option_of_nvidias_alone_is_passed_on_where_it_asks_for_something():
    assert launch.prepared(_calls_helpers, {"BLOCK": 32, "launch_pdl": False}).meta == {"BLOCK": 32}
    assert launch.prepared(_calls_helpers, {"BLOCK": 32, "launch_pdl": True}).meta == {"BLOCK": 32, "launch_pdl": True}


def test_what_a_launch_compiles_is_announced_once_for_each_specialisation(fake_driver):
    fake_driver()
    mark = len(compilations())
    for n in (64, 64, 128, 64):
        rms_norm.rms_norm(meta(4, n), meta(n), eps=1e-6)
    assert compilations().since(mark) == ("Triton kernel portakernel_plugins.triton.norms.norm_forward._forward",) * 2


@triton.jit
def _plain(x, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(x + tl.arange(0, BLOCK), 1.0)


@triton.jit
def _wrong(x, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(x + tl.arange(0, BLOCK), tl.zeros((BLOCK, 2), tl.float32))


@pytest.mark.parametrize("words", ["PassManager::run failed", "failed to translate module to LLVM IR"])
def test_a_kernel_that_triton_s_compiler_fails_on_declines_the_call(fake_driver, monkeypatch, words):
    def fail(*_: Any) -> None:
        raise RuntimeError(words)

    driver = fake_driver()
    monkeypatch.setattr(CUDABackend, "make_llir", fail)
    with pytest.raises(CannotRun) as caught:
        launch.launch(_plain, (1, 1), meta(64), BLOCK=64)
    text = f"triton {triton.__version__} does not compile _plain for such arguments ({words})"
    text += "; another version of it may"
    assert caught.value.rejection == Rejection(ReasonCode.CANNOT_RUN, text)
    assert driver.launched == []


def test_a_fault_in_a_kernel_s_own_code_propagates(fake_driver):
    fake_driver()
    with pytest.raises(CompilationError):
        launch.launch(_wrong, (1, 1), meta(64), BLOCK=64)


def test_in_a_capture_compiled_kernels_launch_and_others_are_refused(fake_driver, monkeypatch):
    driver = fake_driver()
    rms_norm.rms_norm(meta(4, 64), meta(64), eps=1e-6)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    rms_norm.rms_norm(meta(7, 64), meta(64), eps=1e-6)
    assert driver.launched == [(1, 1, 1), (2, 1, 1)]
    for _ in range(2):
        with pytest.raises(CaptureError) as caught:
            rms_norm.rms_norm(meta(4, 128), meta(128), eps=1e-6)
    what = "Triton kernel portakernel_plugins.triton.norms.norm_forward._forward"
    what += " would have to be compiled for these arguments"
    assert caught.value.what == what
    assert len(driver.launched) == 2


def failing(monkeypatch, code: int, times: int = 1) -> list[int]:
    """Triton's cache cannot keep what it is given, so many times; how often it was given something."""
    asked: list[int] = []
    real = FileCacheManager.put

    def put(manager: FileCacheManager, data: Any, filename: str, binary: bool = True) -> str:
        asked.append(1)
        if len(asked) <= times:
            raise OSError(code, os.strerror(code), manager.cache_dir)
        return real(manager, data, filename, binary)

    monkeypatch.setattr(FileCacheManager, "put", put)
    return asked


def test_a_cache_that_becomes_full_while_a_kernel_is_compiled_is_left_for_another(fake_driver, monkeypatch, tmp_path):
    driver, asked = fake_driver(), failing(monkeypatch, errno.ENOSPC)
    monkeypatch.setattr(launch, "FOLDER", CacheFolder())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with triton.knobs.cache.scope():
        with pytest.warns(CacheWarning, match="is full"):
            add(meta(8), meta(8))
        assert triton.knobs.cache.dir != str(tmp_path)
    assert len(asked) > 1
    assert driver.launched == [(1, 1, 1)]


@pytest.mark.parametrize("times", [1, 2])
def test_what_another_process_did_to_the_cache_is_tried_again_once(fake_driver, monkeypatch, tmp_path, times):
    driver, asked = fake_driver(), failing(monkeypatch, errno.EBUSY, times)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with pytest.raises(OSError, match="busy") if times == 2 else nullcontext():
        add(meta(8), meta(8))
    assert len(asked) >= 2
    assert driver.launched == [(1, 1, 1)] * (2 - times)


@triton.jit
def _with_a_global(value):
    return value * _A_GLOBAL


@triton.jit
def _between(value):
    return _with_a_global(value)


@triton.jit
def _calls_through(x):
    tl.store(x, tl.sum(_between(tl.load(x + tl.arange(0, 4))), axis=0))


def test_what_a_kernel_calls_is_hashed_before_it():
    """Triton 3.6 makes another cache key of it else, by whether another kernel that calls the same came before."""
    helpers = [_between, _with_a_global]
    assert [helper.hash for helper in (*helpers, _calls_through)] == [None] * 3
    launch.hash_helpers(_calls_through)
    assert all(helper.hash for helper in (*helpers, tl.sum))
    assert _calls_through.hash is None
    assert [name for name, _ in _between.used_global_vals] == ["_A_GLOBAL"]


def test_a_kernel_that_exceeds_shared_memory_cannot_run_and_launches_nothing(fake_driver):
    driver = fake_driver(shared_memory_bytes=1)
    x, weight, rstd = meta(8, 4096), meta(4096), meta(8, dtype=torch.float32)
    for _ in range(2):  # Triton keeps the failed kernel, and has to refuse it again
        with pytest.raises(CannotRun) as caught:
            rms_norm.rms_norm(x, weight, eps=1e-6)
        rejection = caught.value.rejection
        assert (rejection.code, rejection.parameter) == (ReasonCode.SHARED_MEMORY, "N")
        assert rejection.text.startswith("compiled, _forward needs ")
        assert rejection.text.endswith(" bytes of shared memory; the device has 1")
        with pytest.raises(CannotRun, match="shared_memory: compiled, _backward needs"):
            rms_norm.backward(x, x, weight, rstd, eps=1e-6, needs=(True, True))
    assert driver.launched == []


def test_a_kernel_that_exceeds_another_resource_cannot_run(fake_driver):
    driver = fake_driver(threads=64)
    with pytest.raises(CannotRun) as caught:
        add(meta(8), meta(8))
    assert caught.value.rejection == Rejection(
        ReasonCode.CANNOT_RUN, "compiled, _add needs 128 of threads; the device has 64", None
    )
    assert driver.launched == []


@pytest.mark.parametrize("programs", [1, 2**20, 2**20 + 1, 2**31, 2**31 + 5, 2**35])
def test_grids_hold_every_program_within_the_vendors_bounds(programs):
    width, height = launch.grid_of(programs)
    assert programs <= width * height < programs + height
    assert width <= 2**20
    assert height <= 65535


@triton.jit
def _write_program_index(out):
    index = program_index()
    tl.store(out + index, index)


def test_programs_are_numbered_without_gaps():
    out = torch.full((12,), -1)
    with interpreting():
        launch.launch(_write_program_index, (4, 3), out)
    assert out.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((5,), (1,), 5),
        ((5,), (2,), None),
        ((1,), (7,), 1),
        ((3, 5), (5, 1), 5),
        ((3, 5), (8, 1), 8),
        ((3, 5), (0, 1), 0),
        ((3, 5), (1, 3), None),
        ((3, 1), (4, 9), 4),
        ((1, 5), (1, 1), 5),
        ((2, 3, 5), (15, 5, 1), 5),
        ((2, 3, 5), (24, 8, 1), 8),
        ((2, 3, 5), (30, 5, 1), None),
        ((2, 3, 5), (0, 0, 1), 0),
        ((2, 3, 5), (0, 5, 1), None),
        ((2, 1, 5), (40, 7, 1), 40),
        ((0, 5), (5, 1), 5),
    ],
)
def test_rows_have_one_stride_or_none(shape, strides, expected):
    tensor = torch.empty_strided(shape, strides)
    assert row_stride(tensor) == expected


def test_offsets_reach_beyond_two_to_the_31_elements():
    # Virtual memory only: what is not touched costs nothing.
    distance = 2**31 + 8
    try:
        storage = torch.empty(distance + 8, dtype=torch.float16)
    except RuntimeError as error:
        pytest.skip(f"no 4 GiB of address space: {error}")
    x = storage.as_strided((2, 8), (distance, 1))
    x.copy_(torch.arange(16.0).view(2, 8))
    with interpreting():
        y = rms_norm.rms_norm(x, torch.ones(8, dtype=torch.float16), eps=0.0)
    assert torch.equal(y, torch.nn.functional.rms_norm(x.float(), (8,), eps=0.0).half())


@pytest.fixture
def direct_calls(fake_driver, monkeypatch):
    """What reaches the launcher of a driver whose launchers look like Triton's, with a stream of number 7."""
    calls: list[tuple[Any, ...]] = []
    driver = fake_driver()
    monkeypatch.setattr(driver, "launcher_cls", lambda source, metadata: CudaLauncher(calls))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    monkeypatch.setattr(launch, "_HELD", {})
    return calls


def bound_of(monkeypatch) -> list[int]:
    """Grows by one with each launch that goes through Triton's binder."""
    seen: list[int] = []
    monkeypatch.setattr(norm_forward._forward, "pre_run_hooks", [])
    real = norm_forward._forward.run
    monkeypatch.setattr(norm_forward._forward, "run", lambda *args, **more: seen.append(1) or real(*args, **more))
    return seen


def test_a_kernel_that_triton_launched_once_is_launched_without_it(direct_calls, monkeypatch):
    bound = bound_of(monkeypatch)
    x, weight = meta(40, 128), meta(128)
    for _ in range(3):
        rms_norm.rms_norm(x, weight, eps=1e-6)
    assert len(bound) == 1
    assert len(direct_calls) == 3
    first, *others = direct_calls
    # the grid and the kernel; Triton passes tensors, a held kernel addresses, and on the current stream
    assert [call[:3] for call in others] == [first[:3]] * 2
    assert [call[3] for call in direct_calls] == [0, 7, 7]
    assert others[0][9:13] == (0, None, 0, None)


def test_with_a_launch_hook_every_launch_is_tritons(direct_calls, monkeypatch):
    bound = bound_of(monkeypatch)
    rms_norm.rms_norm(meta(40, 128), meta(128), eps=1e-6)
    seen: list[Any] = []
    triton.knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        rms_norm.rms_norm(meta(40, 128), meta(128), eps=1e-6)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(seen.append)
    assert len(bound) == 2
    rms_norm.rms_norm(meta(40, 128), meta(128), eps=1e-6)
    assert len(bound) == 2


@pytest.mark.parametrize(
    ("launcher", "version"), [("SomeLauncher", None), ("CudaLauncher", "3.5"), ("CudaLauncher", "4.0")]
)
def test_an_unknown_triton_launches_for_itself(direct_calls, monkeypatch, launcher, version):
    bound = bound_of(monkeypatch)
    if version is not None:
        monkeypatch.setattr(direct, "_VERSION", version)
    if launcher != "CudaLauncher":
        other = type(launcher, (CudaLauncher,), {})
        monkeypatch.setattr(triton.runtime.driver.active, "launcher_cls", lambda source, metadata: other(direct_calls))
    for _ in range(2):
        rms_norm.rms_norm(meta(40, 128), meta(128), eps=1e-6)
    assert len(bound) == 2


@triton.jit(do_not_specialize=["rows"])
def _many_arguments(x, y, n, stride, rows, eps, BLOCK: tl.constexpr):  # noqa: N803 - as Triton writes constexprs
    pass


# each differs from the first in a fact or two that may change what is compiled
VARIED = [
    (1, 2, 32, 1, 5, 0.5, 64),
    (1, 2, 32, 1, 16, 0.5, 64),
    (1, 2, 32, 1, 1, 0.5, 64),
    (1, 2, 32, 1, 2**31, 0.5, 64),
    (1, 2, 33, 1, 5, 0.5, 64),
    (1, 2, 35, 1, 5, 0.5, 64),
    (1, 2, 1, 1, 5, 0.5, 64),
    (1, 2, 0, 1, 5, 0.5, 64),
    (1, 2, -16, 1, 5, 0.5, 64),
    (1, 2, 2**31, 1, 5, 0.5, 64),
    (1, 2, 2**31 - 1, 1, 5, 0.5, 64),
    (1, 2, -(2**31) - 1, 1, 5, 0.5, 64),
    *((1, 2, n, stride, 5, 0.5, 64) for n in (32, 35, 0, 1) for stride in (0, 3, 48, 2**32)),
    (1, 2, 32, 1, 5, 1.0, 64),
    (1, 2, 32, 1, 5, 0.5, 128),
    (1, None, 32, 1, 5, 0.5, 64),
    (3, 2, 32, 1, 5, 0.5, 64),
    (3, None, 32, 1, 5, 0.5, 64),
    (4, 2, 32, 1, 5, 0.5, 64),
]


def test_calls_that_share_a_held_kernel_are_one_specialisation_of_tritons(fake_driver):
    fake_driver()
    memory = torch.zeros(64, dtype=torch.float32)
    aligned = (-memory.data_ptr() % 16) // 4
    tensors = {
        1: memory[aligned:],
        2: memory[aligned + 4 :],
        3: memory[aligned + 1 :],
        4: memory[aligned:].view(torch.int32),
        None: None,
    }
    binder = _many_arguments.create_binder()[-1]
    calls = [((tensors[x], tensors[y], *rest), block) for x, y, *rest, block in VARIED]
    missed: list[Any] = []
    holders = {
        block: direct.Held(_many_arguments, {"BLOCK": block}, lambda held, grid, args: missed.append(args))
        for block in (64, 128)
    }
    for args, block in calls:
        holders[block].key(args)  # from now on every type is expected
    found: dict[Any, set[str]] = {}
    for args, block in calls:
        holders[block].launch((1, 1), *args)
        assert missed.pop() == args
        key = block, holders[block].key(args)
        found.setdefault(key, set()).add(str(binder(*args, BLOCK=block)[1]))
    assert all(len(specialisations) == 1 for specialisations in found.values())
    # and no fact is in a key for nothing, but for those that tell numbers below 1: sizes would fill the table
    below = sum(min(args[2:4]) < 1 for args, _ in calls)
    assert len(found) <= len(set.union(*found.values())) + below


def test_an_argument_of_a_second_type_is_left_to_triton(direct_calls, monkeypatch):
    bound = bound_of(monkeypatch)
    x, weight, y = meta(40, 128), meta(128), meta(40, 128)
    held = launch.prepared(
        norm_forward._forward,
        {
            "CENTRED": False, "ACTIVATION": "none", "BLOCK_M": 1, "BLOCK_N": 128, "BLOCKS": 1, "UNIT": 16,
            "EARLY": True, "num_warps": 4,
        },
    )  # fmt: skip
    for eps in (1e-5, 0, 1e-5, 0):
        held.launch((40, 1), x, None, weight, None, y, *[None] * 3, 40, 128, 128, None, 1, None, 128, None, eps, None)
    assert len(direct_calls) == 4
    assert len(bound) == 3


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_an_absent_tensor_is_no_other_absent_tensor(direct_calls, order):
    x, weight, rstd = meta(40, 128), meta(128), meta(40, dtype=torch.float32)
    needs = [(True, False), (False, True), (True, True)]
    patterns = {}
    for _ in range(2):
        for place in order:
            direct_calls.clear()
            rms_norm.backward(x, x, weight, rstd, eps=1e-6, needs=needs[place])
            # which compiled function ran
            functions = [call[4] for call in direct_calls]
            assert patterns.setdefault(place, functions) == functions
    assert len({id(functions[0]) for functions in patterns.values()}) == 3
