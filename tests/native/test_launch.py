"""Kernels loaded and launched, by a driver that writes down what it is told and reads arguments as a GPU would."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import gc
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading

import pytest
import torch

from portakernel.authoring.native import (
    CodeObject,
    Kernel,
    KernelFacts,
    Unit,
    compiling,
    load,
    load_library,
    needs_build,
    target_of,
)
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.errors import ArgumentValueError, CaptureError
from portakernel.native import library as native_library
from portakernel.native import module, place
from portakernel.native.driver import Driver
from portakernel.native.module import Layout
from portakernel.tensors.compilation import compilations
from portakernel.words.target import Target

HOPPER = Target("nvidia", "sm_90")
PARAMETERS = ("pointer", "int32", "int64", "float32", (12, 16), "pointer")
PLACES = ((0, 8), (8, 4), (16, 8), (24, 4), (32, 12), (48, 8))


class DriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA error {status}")


class Recorder:
    """A driver without a device: ``launched`` are the launches, arguments read from where they lie."""

    error = DriverError

    def __init__(self, places=PLACES) -> None:
        self.places = places
        self.launched: list[tuple[object, ...]] = []
        self.bound: list[int] = []
        self.failing: list[int] = []
        self.loaded: list[bytes] = []
        self.allowed: list[tuple[int, int]] = []

    def stream(self, device):
        return 0xABC + device

    def launch(self, function, x, y, z, bx, by, bz, shared_bytes, stream, addresses, extra):
        if self.failing:
            raise DriverError(self.failing.pop())
        pointers = (ctypes.c_uint64 * len(self.places)).from_address(addresses)
        read = [ctypes.string_at(at, size) for at, (_, size) in zip(pointers, self.places, strict=True)]
        self.launched.append((function, (x, y, z), (bx, by, bz), shared_bytes, stream, read))

    def bind(self, device):
        self.bound.append(device)

    def load(self, code):
        if self.failing:
            raise DriverError(self.failing.pop())
        self.loaded.append(code)
        return code

    def find(self, loaded, symbol):
        return 77

    def allow_shared(self, handle, size):
        if size > 200_000:
            raise DriverError(1)
        self.allowed.append((handle, size))


class OnGPU(torch.Tensor):
    """A tensor that says it is on cuda:3; its memory is nobody's."""

    def get_device(self):
        return 3

    @property
    def device(self):
        return torch.device("cuda", 3)


def tensor(address: int):
    made = torch.zeros(1).as_subclass(OnGPU)
    made.data_ptr = lambda: address
    return made


@pytest.fixture
def driver(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(module, "driver", lambda: recorder)
    monkeypatch.setattr(place, "device_target", lambda index: HOPPER)
    monkeypatch.setattr(module, "device_target", lambda index: HOPPER)
    return recorder


def code(parameters=PLACES, target=HOPPER) -> CodeObject:
    facts = KernelFacts("scale<float, 4>", "_Z5scale", parameters=parameters)
    return CodeObject("key", "code object", target, "nvcc 13.0", (facts,), None, b"machine code")


# --- a function ----------------------------------------------------------------------------------------------------


def test_arguments_lie_where_the_kernel_reads_them(driver):
    function = load(code(), 3).function("scale<float, 4>", PARAMETERS)
    function((7, 2), (256,), 1024, tensor(0x1234), -5, 1 << 40, 0.5, b"0123456789ab", None)
    handle, grid, block, shared_bytes, stream, read = driver.launched[0]
    assert (handle, grid, block, shared_bytes, stream) == (77, (7, 2, 1), (256, 1, 1), 1024, 0xABF)
    assert read == [
        struct.pack("<Q", 0x1234), struct.pack("<i", -5), struct.pack("<q", 1 << 40), struct.pack("<f", 0.5),
        b"0123456789ab", bytes(8),
    ]  # fmt: skip
    assert driver.loaded == [b"machine code"]
    function((1, 2, 3), (4, 5, 6), 0, 0x99, 0, 0, 0.0, bytes(12), None)
    assert driver.launched[1][1:3] == ((1, 2, 3), (4, 5, 6))
    assert driver.launched[1][5][0] == struct.pack("<Q", 0x99)


def test_a_launch_makes_three_calls_of_python(driver):
    """To the tensor, to the stream and to the driver; a GPU machine measures the time (test_gpu.py)."""
    function = load(code(((0, 8), (8, 8))), 3).function("scale<float, 4>", ("pointer", "int64"))
    driver.places = ((0, 8), (8, 8))
    given = tensor(1)
    called = []
    gc.disable()  # what other tests left behind calls Python too when it goes
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function.launch((1,), (32,), 0, given, 4)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert called[:4] == ["launch", "stream", "<lambda>", "launch"]


def test_threads_have_memory_of_their_own_for_arguments(driver):
    function = load(code(((0, 8),)), 3).function("scale<float, 4>", ("pointer",))
    driver.places = ((0, 8),)
    inside, go = threading.Event(), threading.Event()
    real = driver.launch

    def slow(*args):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go.wait()
        real(*args)

    driver.launch = slow
    function = load(code(((0, 8),)), 3).function("scale<float, 4>", ("pointer",))
    other = threading.Thread(target=function, args=((1,), (1,), 0, 0x1111))
    other.start()
    inside.wait()
    function((1,), (1,), 0, 0x2222)
    go.set()
    other.join()
    assert [launch[5] for launch in driver.launched] == [[struct.pack("<Q", n)] for n in (0x2222, 0x1111)]


def test_a_thread_without_a_context_gets_one(driver):
    function = load(code(((0, 8),)), 3).function("scale<float, 4>", ("pointer",))
    driver.places, driver.bound, driver.failing = ((0, 8),), [], [201]
    function((1,), (1,), 0, 0x1)
    assert (driver.bound, len(driver.launched)) == ([3], 1)
    driver.failing = [719]
    with pytest.raises(DriverError, match="719"):
        function((1,), (1,), 0, 0x1)


def test_parameters_that_are_not_the_kernels_are_refused(driver):
    loaded = load(code(), 3)
    with pytest.raises(ArgumentValueError) as caught:
        loaded.function("scale<float, 4>", ("pointer", "int64"))
    assert str(caught.value) == (
        "kernel scale<float, 4> takes 8 bytes at 0, 4 bytes at 8, 8 bytes at 16, 4 bytes at 24, 12 bytes at 32, 8 bytes"
        " at 48; its parameters are declared as pointer at 0, int64 at 8"
    )
    with pytest.raises(ArgumentValueError, match=r"^a kernel's parameter is 'int'; accepted are pointer, int32, "):
        loaded.function("scale<float, 4>", ("int",))
    with pytest.raises(KeyError, match="no kernel 'scales' was compiled; these were: scale<float, 4>"):
        loaded.function("scales", ("pointer",))


def test_structures_are_aligned_as_they_say():
    layout = Layout(("int32", (128, 64), "int32", "float64"))
    assert layout.places == [(0, 4), (64, 128), (192, 4), (200, 8)]
    assert layout.packer.size == 208


def test_more_shared_memory_is_asked_of_the_driver(driver):
    loaded = load(code(), 3)
    loaded.function("scale<float, 4>", PARAMETERS, most_shared_bytes=48 << 10)
    assert driver.allowed == []
    loaded.function("scale<float, 4>", PARAMETERS, most_shared_bytes=100_000)
    assert driver.allowed == [(77, 100_000)]
    with pytest.raises(CannotRun) as caught:
        loaded.function("scale<float, 4>", PARAMETERS, most_shared_bytes=300_000)
    assert caught.value.rejection.code is ReasonCode.SHARED_MEMORY
    assert caught.value.rejection.text == (
        "scale<float, 4> needs 300000 bytes of shared memory beside 0 of its own; nvidia:sm_90 does not have that much"
        " (CUDA error 1)"
    )


# --- loading -------------------------------------------------------------------------------------------------------


def test_code_for_another_architecture_is_not_loaded(driver):
    with pytest.raises(CannotRun) as caught:
        load(code(target=Target("nvidia", "sm_80")), 3)
    assert caught.value.rejection.code is ReasonCode.ARCH
    assert caught.value.rejection.text == (
        "the code is for nvidia:sm_80, and device 3 is nvidia:sm_90; build it for nvidia:sm_90"
    )
    with pytest.raises(CannotRun, match=r"^arch: "):
        load_library(code(target=Target("nvidia", "sm_80")), 3)


def test_what_the_driver_refuses(driver):
    driver.failing = [222]
    with pytest.raises(CannotRun) as caught:
        load(code(), 3)
    assert caught.value.rejection.code is ReasonCode.PROBE_FAILED
    assert caught.value.rejection.text == (
        "the driver of device 3 refuses code that nvcc 13.0 made for nvidia:sm_90: CUDA error 222; update the driver,"
        " or use a compiler of its version"
    )


def test_without_cupy_nothing_is_launched(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(CannotRun) as caught:
        Driver()
    assert caught.value.rejection.code is ReasonCode.MISSING_LIBRARY
    assert caught.value.rejection.text.startswith(
        "compiled kernels are launched through CuPy, which cannot be imported"
    )
    assert caught.value.rejection.text.endswith("pip install cupy-cuda13x (or 12x, as torch's CUDA)")


def library(folder, number, name="library"):
    """A library with a function that returns ``number``, as a compiler makes it."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler here")
    (folder / "answer.c").write_text(f"int answer(void) {{ return {number}; }}\n")
    made = folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, folder / "answer.c"], check=True, timeout=60)
    return CodeObject("key", "library", HOPPER, "nvcc 13.0", (), made, made.read_bytes())


def test_what_is_loaded_is_what_was_verified_and_not_what_lies_there_now(tmp_path):
    one, two = library(tmp_path, 1, "one"), library(tmp_path, 2, "two")
    one.path.write_bytes(two.code)
    assert load_library(one).answer() == 1
    # none is taken for another, though each may be at the same descriptor
    assert [load_library(code).answer() for code in (two, one, two)] == [2, 1, 2]
    nowhere = dataclasses.replace(one, path=None)
    assert load_library(nowhere).answer() == 1


def test_where_memory_cannot_be_executed_a_file_of_ones_own_is(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "memfd_create", failing(PermissionError(errno.EACCES, "Permission denied")))
    native_library._folder.cache_clear()
    assert load_library(library(tmp_path, 1)).answer() == 1
    (private,) = tmp_path.glob("portakernel-libraries-*")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    native_library._folder.cache_clear()


def test_a_library_that_cannot_be_loaded():
    broken = CodeObject("key", "library", HOPPER, "nvcc 13.0", (), None, b"garbage")
    with pytest.raises(
        CannotRun, match=r"^probe_failed: the library that nvcc 13\.0 made cannot be loaded: "
    ) as caught:
        load_library(broken)
    assert caught.value.rejection.text.endswith("; `portakernel cache clear` lets it be built anew")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError("x.so: failed to map segment from shared object"), "on a file system that is not mounted noexec"),
        (OSError(errno.ENOSPC, "No space left on device"), "that can be written"),
    ],
)
def test_what_to_do_about_a_temporary_folder_that_holds_no_library(monkeypatch, error, remedy):
    monkeypatch.setattr(os, "memfd_create", failing(OSError()))
    monkeypatch.setattr(native_library, "_own_file", failing(error))
    broken = CodeObject("key", "library", HOPPER, "nvcc 13.0", (), None, b"garbage")
    with pytest.raises(CannotRun) as caught:
        load_library(broken)
    assert caught.value.rejection.text.endswith(f"set TMPDIR to a folder {remedy}")


def failing(error):
    def fail(*_):
        raise error

    return fail


# --- a kernel, as plugins declare it -------------------------------------------------------------------------------


def test_the_first_launch_compiles_and_the_next_looks_it_up(driver, source, nvcc, runs):
    driver.places = ((0, 8),)
    kernel = Kernel(Unit(source, ("scale",), nvcc()), ("pointer",))
    before = len(compilations())
    for _ in range(3):
        kernel((1,), (1,), 0, tensor(5))
    assert compilations().since(before) == ("scale of scale.cu for nvidia:sm_90",)
    assert (runs(), len(driver.loaded), len(driver.launched)) == (1, 1, 3)


def test_a_kernel_that_compiles_ahead_says_how_until_it_is_built(driver, source, nvcc, runs):
    driver.places = ((0, 8),)
    (source.folder / "plugin.yaml").write_text("schema_version: 1\nplugin: acme\n")
    unit = Unit(source, ("scale",), nvcc())
    kernel = Kernel(unit, ("pointer",), compiles="ahead")
    with pytest.raises(CannotRun) as caught:
        kernel((1,), (1,), 0, tensor(5))
    assert caught.value.rejection == needs_build(unit, HOPPER)
    assert caught.value.rejection.code is ReasonCode.NEEDS_BUILD
    assert caught.value.rejection.text == (
        "scale.cu (scale) is not built for nvidia:sm_90; `portakernel build acme --target nvidia:sm_90` builds it"
    )
    assert runs() == 0
    unit.build(HOPPER)
    kernel((1,), (1,), 0, tensor(5))
    assert (runs(), len(driver.launched)) == (1, 1)


def test_what_does_not_compile_is_tried_once(driver, source, nvcc, runs):
    kernel = Kernel(Unit(source, ("scale",), nvcc('echo "$main(1): error: no"; exit 1')), ("pointer",))
    for _ in range(3):
        with pytest.raises(CannotRun, match=r"^cannot_run: "):
            kernel((1,), (1,), 0, tensor(5))
    assert runs() == 1


def test_what_is_missing_is_looked_for_again(driver, source, nvcc, runs):
    driver.places = ((0, 8),)
    options = nvcc()
    (source.folder / "types.h").rename(source.folder / "gone.h")
    kernel = Kernel(Unit(source, ("scale",), options), ("pointer",))
    with pytest.raises(CannotRun, match=r"^missing_library: "):
        kernel((1,), (1,), 0, tensor(5))
    (source.folder / "gone.h").rename(source.folder / "types.h")
    kernel((1,), (1,), 0, tensor(5))
    assert len(driver.launched) == 1


def test_nothing_is_compiled_while_a_stream_is_captured(driver, source, nvcc, runs, monkeypatch):
    monkeypatch.setattr("portakernel.tensors.compilation.is_capturing", lambda: True)
    kernel = Kernel(Unit(source, ("scale",), nvcc()), ("pointer",))
    with pytest.raises(CaptureError, match=r"^scale of scale\.cu for nvidia:sm_90 would have to be compiled"):
        kernel((1,), (1,), 0, tensor(5))
    assert runs() == 0


def test_tensors_elsewhere_are_refused(source, nvcc):
    kernel = Kernel(Unit(source, ("scale",), nvcc()), ("pointer",))
    for where in ("cpu", "meta"):
        with pytest.raises(ArgumentValueError, match=rf"torch device cuda\); this one is on {where}$"):
            kernel((1,), (1,), 0, torch.zeros(1, device=where))


def test_a_kernel_is_declared_whole(source):
    with pytest.raises(ArgumentValueError, match=r"^scale\.cu \(a, b\) has 2 kernels: give the name of one$"):
        Kernel(Unit(source, ("a", "b")), ("pointer",))
    with pytest.raises(ArgumentValueError, match=r"^a kernel's parameter is 'int65'; accepted are pointer, int32, "):
        Kernel(Unit(source, ("a",)), ("pointer", "int65"))
    with pytest.raises(ArgumentValueError, match=r"a kernel without a pointer lies on no device$"):
        Kernel(Unit(source, ("a",)), ("int32",))


# --- compiling for a GPU that is not here --------------------------------------------------------------------------


def test_meta_tensors_compile_for_the_target_and_launch_nothing(driver, source, nvcc, runs):
    kernel = Kernel(Unit(source, ("scale",), nvcc()), ("pointer",))
    x = torch.empty(4, device="meta")
    with compiling(HOPPER, dry=True) as lacking:
        assert target_of(x) == HOPPER
        kernel((1,), (1,), 0, x)
    assert [(one.function, one.target) for one in lacking] == [("scale.scale", "nvidia:sm_90")]
    assert runs() == 0
    with compiling(HOPPER) as found:
        kernel((1,), (1,), 0, x)
    assert [(one.function, one.registers, one.spilled_bytes) for one in found] == [("scale.scale", 8, 0)]
    with compiling(HOPPER, multiprocessors=132, dry=True) as lacking:
        kernel((1,), (1,), 0, x)
    assert (lacking, driver.launched) == ([], [])


def test_what_a_launch_may_take_of_shared_memory_counts_with_what_is_the_kernel_s_own(source, nvcc):
    kernel = Kernel(Unit(source, ("scale",), nvcc()), ("pointer",), most_shared_bytes=98_304)
    with compiling(HOPPER) as found:
        kernel((1,), (1,), 98_304, torch.empty(4, device="meta"))
    assert [one.shared_bytes for one in found] == [98_304]


def test_what_the_compiler_said_goes_to_stderr_where_it_is_collected(source, nvcc, capsys):
    kernel = Kernel(Unit(source, ("scale",), nvcc('echo "$main(2): error: no"; exit 1')), ("pointer",))
    with pytest.raises(CannotRun), compiling(HOPPER):
        kernel((1,), (1,), 0, torch.empty(1, device="meta"))
    assert capsys.readouterr().err == f"{source.path}(2): error: no\n"


def test_importing_loads_neither_torch_nor_cupy():
    import subprocess

    program = "import sys, portakernel.native; sys.exit(bool({'torch', 'cupy', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
