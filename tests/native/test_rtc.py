"""NVRTC and HIPRTC, whose interface a small library in C stands in for: it makes what it is told, or aborts."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from portakernel.authoring.native import Options, build, compiler_for
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.native import rtc, toolchain
from portakernel.words.target import Target

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char code[65536], told[65536];
static long size;
int P(Version)(int *major, int *minor) { *major = MAJOR; *minor = 5; return 0; }
int P(CreateProgram)(void **p, const char *source, const char *name, int n, const char **h, const char **i) {
  *p = code; return strstr(source, "no program") ? 1 : 0;
}
int P(AddNameExpression)(void *p, const char *name) { return 0; }
int P(CompileProgram)(void *p, int n, const char **options) {
  for (int i = 0; i < n; i++) { strcat(told, options[i]); strcat(told, "\n"); }
  if (strstr(told, "ABORT")) abort();
  FILE *file = fopen(GOOD, "rb"); size = fread(code, 1, sizeof code, file); fclose(file);
  return strstr(told, "FAIL") ? 6 : 0;
}
int P(GetProgramLogSize)(void *p, long *n) { *n = strlen(told) + 1; return 0; }
int P(GetProgramLog)(void *p, char *log) { strcpy(log, told); return 0; }
int P(GetPTXSize)(void *p, long *n) { *n = 5; return 0; }
int P(GetPTX)(void *p, char *ptx) { strcpy(ptx, "ptx!"); return 0; }
int P(GetCUBINSize)(void *p, long *n) { *n = size; return 0; }
int P(GetCUBIN)(void *p, char *out) { memcpy(out, code, size); return 0; }
int P(GetCodeSize)(void *p, long *n) { *n = size; return 0; }
int P(GetCode)(void *p, char *out) { memcpy(out, code, size); return 0; }
int P(GetLoweredName)(void *p, const char *name, const char **symbol) { *symbol = "scale"; return 0; }
"""


@pytest.fixture
def library(tmp_path, monkeypatch, cubin):
    """Puts a library with the prefix in the place of the vendor's."""
    if shutil.which("cc") is None:
        pytest.skip("lacks a C compiler, for the library that stands in for NVRTC")
    (tmp_path / "good").write_bytes(cubin(90, {"scale": (8, 0, ((0, 8),))}))

    def put(prefix, major=13):
        (tmp_path / "rtc.c").write_text(LIBRARY)
        name = tmp_path / "cuda" / "lib64" / f"lib{prefix}.so.{major}"
        name.parent.mkdir(parents=True)
        given = [f"-DP(x)={prefix}##x", f"-DMAJOR={major}", f'-DGOOD="{tmp_path / "good"}"']
        subprocess.run(["cc", "-shared", "-fPIC", "-w", *given, str(tmp_path / "rtc.c"), "-o", str(name)], check=True)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
        monkeypatch.setattr(rtc, "packaged", lambda folder: [])
        monkeypatch.setattr(rtc, "_of_the_system", lambda kind: [name] if kind == "hiprtc" else [])
        toolchain._found.cache_clear()
        return Options(compilers=(prefix,))

    yield put
    toolchain._found.cache_clear()


def test_nvrtc_compiles_in_a_process_of_its_own(source, library):
    options = library("nvrtc")
    target = Target("nvidia", "sm_90")
    assert str(compiler_for(target, options)) == "nvrtc 13.5"
    given = Options(compilers=("nvrtc",), defines=(("N", 4),), flags=("-lineinfo",), arch_suffix="a")
    code = build(source, target, given, ("scale<float, 4>",))
    assert code.kernel("scale<float, 4>").symbol == "scale"
    assert code.assembly == "ptx!"
    told = code.log.splitlines()
    assert told[:3] == ["--gpu-architecture=sm_90a", "-std=c++17", "-DN=4"]
    assert told[-1] == "-lineinfo"


def test_hiprtc_has_the_same_interface(source, library):
    options = library("hiprtc", 6)
    target = Target("amd", "gfx942")
    with pytest.raises(CannotRun) as caught:  # the stand-in makes code for NVIDIA
        build(source, target, options, ("scale",))
    assert caught.value.rejection.code is ReasonCode.ARCH
    assert caught.value.rejection.text == (
        "hiprtc 6.5 made code for nvidia:sm_90 when asked for amd:gfx942; use another version of it"
    )


def test_one_that_aborts_takes_its_own_process_alone(source, library):
    library("nvrtc")
    with pytest.raises(CannotRun) as caught:
        build(source, Target("nvidia", "sm_90"), Options(compilers=("nvrtc",), flags=("-DABORT",)), ("scale",))
    assert caught.value.rejection.code is ReasonCode.CANNOT_RUN
    assert caught.value.rejection.text.endswith("(SIGABRT); use another version of it")


def test_one_that_fails_says_why(source, library):
    library("nvrtc")
    flag = "file.cu(3): error: FAIL"
    with pytest.raises(CannotRun, match=r"file\.cu:3: FAIL$"):
        build(source, Target("nvidia", "sm_90"), Options(compilers=("nvrtc",), flags=(flag,)), ("scale",))


def test_a_library_that_is_too_old_is_left(library):
    found = compiler_for(Target("nvidia", "sm_90"), library("nvrtc", 11))
    assert found.code is ReasonCode.MISSING_TOOLCHAIN
    assert "needs nvrtc 12.0 or later; " in found.text
    assert "libnvrtc.so.11 is 11.5" in found.text


def test_a_library_that_cannot_be_loaded_is_left(library, tmp_path):
    options = library("nvrtc")
    (tmp_path / "cuda" / "lib64" / "libnvrtc.so.13").write_bytes(b"garbage")
    found = compiler_for(Target("nvidia", "sm_90"), options)
    assert "libnvrtc.so.13 cannot be loaded; pip install nvidia-cuda-nvrtc" in found.text
