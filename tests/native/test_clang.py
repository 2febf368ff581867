"""Clang for AMD, which a shell script stands in for: which one is taken, what it needs, and how it is called."""

from __future__ import annotations

import pytest

from portakernel.authoring.native import Options, Source, build, compiler_for
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.native import clang, toolchain
from portakernel.words.target import Target

MI300 = Target("amd", "gfx942")
OPTIONS = Options(compilers=("clang",))


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Puts a clang of a version, under a name, on PATH; HIP's headers and libraries are where ROCM_PATH says."""
    folder, rocm = tmp_path / "bin", tmp_path / "rocm"
    folder.mkdir()
    for name in ("include/hip/hip_runtime.h", "amdgcn/bitcode/ocml.bc", "amdgcn/bitcode/ockl.bc"):
        (rocm / name).parent.mkdir(parents=True, exist_ok=True)
        (rocm / name).touch()
    version = "#define HIP_VERSION_MAJOR 7\n#define HIP_VERSION_MINOR 1\n#define HIP_VERSION_PATCH 2\n"
    (rocm / "include" / "hip" / "hip_version.h").write_text(version)
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    monkeypatch.setattr(clang, "_places", lambda: [path for n in names for path in clang.on_path(n)])
    names = ["clang", *(f"clang-{number}" for number in range(30, 16, -1))]
    toolchain._found.cache_clear()

    def script(name, version, body="exit 1"):
        path = folder / name
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "clang version {version}" && exit 0\n{body}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/sbin:/bin")
        monkeypatch.setattr(clang, "on_path", lambda n: [folder / n] if (folder / n).exists() else [])
        return path

    yield script
    toolchain._found.cache_clear()


def test_the_newest_is_taken_whatever_its_name(put):
    put("clang", "18.1.3")
    newest = put("clang-22", "22.1.8")
    put("clang-19", "19.1.0")
    found = compiler_for(MI300, OPTIONS)
    assert (str(found), found.path, found.identity) == ("clang 22.1.8", newest, "clang 22.1.8 with HIP 7.1.2")


def test_one_that_is_too_old_is_named(put):
    path = put("clang", "14.0.6")
    found = compiler_for(MI300, OPTIONS)
    assert found == Rejection(
        ReasonCode.MISSING_TOOLCHAIN,
        f"needs clang 17 or later; {path} is 14; install clang and lld 17 or later (apt-get install clang lld; LLVM or"
        " ROCm packages)",
        "clang",
    )


def test_without_hips_headers_it_is_no_compiler_for_hip(put, tmp_path, monkeypatch):
    path = put("clang", "22.1.8")
    (tmp_path / "rocm" / "include" / "hip" / "hip_runtime.h").unlink()
    monkeypatch.setattr(clang, "find_folder", lambda module: None)
    found = compiler_for(MI300, OPTIONS)
    assert found == Rejection(
        ReasonCode.MISSING_LIBRARY,
        f"{path} needs HIP's headers and device libraries, and found neither ROCm's nor triton's; set ROCM_PATH to"
        " ROCm's folder, or pip install triton",
        "hip",
    )


def test_the_device_libraries_are_answered_for_the_architecture(put, tmp_path):
    """The script fails once it is to compile the source, and then tells what it was given."""
    put(
        "clang",
        "22.1.8",
        'for last; do :; done; case "$last" in *.bc) exit 0;; esac; cat "$TMPDIR/constants.ll"; exit 1',
    )
    (tmp_path / "scale.hip").write_text("")
    with pytest.raises(CannotRun) as caught:
        build(Source(tmp_path, "scale.hip"), MI300, OPTIONS)
    constants = str(caught.value.__cause__)
    assert "@__oclc_ISA_version = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i32 9402" in constants
    assert "@__oclc_wavefrontsize64 = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i8 1" in constants


def test_its_linker_may_be_missing(put, tmp_path):
    told = 'echo "clang: error: unable to execute command: Executable \\"lld\\" doesn\'t exist!"; exit 1'
    put("clang", "22.1.8", f'for last; do :; done; case "$last" in *.bc) exit 0;; esac; {told}')
    (tmp_path / "scale.hip").write_text("")
    with pytest.raises(CannotRun) as caught:
        build(Source(tmp_path, "scale.hip"), MI300, OPTIONS)
    assert caught.value.rejection.code is ReasonCode.MISSING_TOOLCHAIN
    assert "lld" in caught.value.rejection.text


@pytest.mark.parametrize(
    ("arch", "number"),
    [("gfx90a", 9010), ("gfx906", 9006), ("gfx942", 9402), ("gfx950", 9500), ("gfx1100", 11000), ("gfx1201", 12001)],
)
def test_architectures_have_the_numbers_of_rocms_own_libraries(arch, number):
    assert clang.isa_version(arch) == number
