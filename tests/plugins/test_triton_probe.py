"""The Triton plugin's probe gives a reason and a way out for each way to be unusable, and never raises."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import torch
import triton

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.deciding.readiness import Usable
from portakernel.triton_launch import probe
from portakernel.triton_launch.cache_folder import CacheFolder, CacheWarning
from portakernel.triton_launch.interpreter import interpreting
from portakernel.words.target import Device, Target

# CPU tensors stand in for the device's; the kernel is interpreted.
HOPPER = Device(Target("nvidia", "sm_90"), "H200", "cpu")


@pytest.fixture(autouse=True)
def _toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """A compiler, Python's headers and a directory for the cache, whatever this machine has."""
    compiler = tmp_path / "bin" / "gcc"
    compiler.parent.mkdir()
    compiler.touch(mode=0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(compiler.parent))
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache_of_this_test"))
    monkeypatch.setattr(probe, "FOLDER", CacheFolder())


def use_driver(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    driver = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend=backend))
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)


def refuse_driver(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def create() -> None:
        raise error

    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    monkeypatch.setattr(triton.runtime.driver, "_default", None)
    # `triton.runtime.driver` is the object of that name, which hides the module.
    monkeypatch.setattr(sys.modules["triton.runtime.driver"], "_create_driver", create)


def test_usable_where_the_kernel_gives_the_sum(monkeypatch):
    use_driver(monkeypatch, "cuda")
    with interpreting():
        assert probe.ready(HOPPER) == Usable([])


def test_a_cache_directory_that_cannot_be_used_is_a_note_and_the_rest_is_asked(monkeypatch, tmp_path):
    use_driver(monkeypatch, "cuda")
    (tmp_path / "cache").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with interpreting(), triton.knobs.cache.scope():
        with pytest.warns(CacheWarning, match="is no directory") as warned:
            answer = probe.ready(HOPPER)
        assert triton.knobs.cache.dir in str(warned[0].message)
    assert answer == Usable([str(warned[0].message)])


def test_without_any_directory_for_the_cache_triton_is_refused(monkeypatch, tmp_path):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with triton.knobs.cache.scope():
        rejection = probe.ready(HOPPER)
    assert rejection == Rejection(
        ReasonCode.PROBE_FAILED,
        f"Triton's cache directory {tmp_path / 'cache'} is no directory (File exists), and {tempfile.gettempdir()},"
        " which would take its place, is full (No space left on device); make room, or set TRITON_CACHE_DIR to a"
        " directory on a local disk that can be written",
    )


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe.ready(HOPPER) == Rejection(
        ReasonCode.MISSING_TOOLCHAIN,
        "Triton compiles launchers with a host C compiler and finds none; install gcc or clang, or set CC to one",
    )


def test_cc_that_is_no_executable(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert probe.ready(HOPPER) == Rejection(
        ReasonCode.MISSING_TOOLCHAIN,
        "Triton compiles launchers with CC, which is 'no-such-compiler' and no executable; set CC to one, or unset it",
    )


def test_no_python_headers(monkeypatch, tmp_path):
    (tmp_path / "Python.h").unlink()
    assert probe.ready(HOPPER) == Rejection(
        ReasonCode.MISSING_TOOLCHAIN,
        f"Triton's launchers include Python.h, which is not in {tmp_path}; install Python's headers (python3-dev)",
    )


def test_a_compiler_that_fails(monkeypatch):
    refuse_driver(monkeypatch, subprocess.CalledProcessError(1, ["gcc", "main.c"]))
    assert probe.ready(HOPPER) == Rejection(
        ReasonCode.MISSING_TOOLCHAIN,
        "the C compiler failed on Triton's launcher (status 1): run `gcc main.c` to see why",
    )


def test_no_driver(monkeypatch):
    refuse_driver(monkeypatch, RuntimeError("0 active drivers"))
    assert probe.ready(HOPPER) == Rejection(
        ReasonCode.DRIVER,
        "Triton finds no usable cuda driver (0 active drivers); check that `nvidia-smi` lists the device and that this"
        " torch is built for it: torch.cuda.is_available() has to be true",
    )


def test_another_vendors_driver(monkeypatch):
    use_driver(monkeypatch, "cuda")
    assert probe.ready(Device(Target("amd", "gfx942"), "MI300X", "cuda:0")) == Rejection(
        ReasonCode.DRIVER,
        "amd:gfx942 needs Triton's hip driver, and cuda is active; use a torch built for amd",
    )


def test_a_vendor_without_a_driver():
    assert probe.ready(Device(Target("cpu", "x86_64"), "CPU", "cpu")) == Rejection(
        ReasonCode.DRIVER, "Triton's drivers serve nvidia and amd, not cpu"
    )


def test_a_device_that_torch_does_not_reach(monkeypatch):
    use_driver(monkeypatch, "cuda")
    unreached = Device(Target("nvidia", "sm_90"), "H200", None, note="torch 2.13.0 is a CPU build")
    assert probe.ready(unreached) == Rejection(
        ReasonCode.DRIVER, "torch does not reach nvidia:sm_90: torch 2.13.0 is a CPU build"
    )


def test_a_kernel_that_fails(monkeypatch):
    use_driver(monkeypatch, "cuda")
    rejection = probe.ready(HOPPER)  # CPU tensors, and nothing interprets
    assert rejection is not None
    assert rejection.code is ReasonCode.PROBE_FAILED
    assert rejection.text.startswith(
        "a tiny Triton kernel failed on nvidia:sm_90: ArgumentValueError: Triton kernel _double was given tensors"
    )
    assert rejection.text.endswith("check that the versions of driver, torch and Triton belong together")


def test_a_kernel_that_gives_wrong_numbers(monkeypatch):
    use_driver(monkeypatch, "cuda")
    monkeypatch.setattr(probe, "doubled", lambda x: x)
    assert probe.ready(HOPPER) == Rejection(
        ReasonCode.PROBE_FAILED,
        "a tiny Triton kernel ran on cpu and gave wrong numbers; check the driver's and Triton's versions",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", [HOPPER, Device(Target("amd", "gfx942"), "MI300X", "cuda:0")])
def test_this_machine_without_a_gpu_is_told_so(device):
    rejection = probe.ready(device)
    assert rejection is not None
    assert rejection.code is ReasonCode.DRIVER
    assert "torch.cuda.is_available() has to be true" in rejection.text
