"""What is read out of machine code, made by hand and by the compilers themselves."""

from __future__ import annotations

import random
import shutil

import pytest

from portakernel.authoring.native import KernelFacts, Options, Source, Unit, compiler_for
from portakernel.claims.capability import Rejection
from portakernel.native.elf import NotReadableError
from portakernel.native.facts import named, read_code
from portakernel.native.hsaco import _Reader
from portakernel.native.symbols import demangled, find_symbol, instances, is_instance
from portakernel.words.target import Target

SOURCE = """\
#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime.h>
#endif
template <class T, int V> __global__ void scale(T* y, const T* x, long n, char c) {
  __shared__ T kept[64];
  kept[threadIdx.x % 64] = x[blockIdx.x];
  __syncthreads();
  for (long i = 0; i < n; ++i) y[i] = kept[i % 64] * T(V) + T(c);
}
extern "C" __global__ void plain(float* y, int n, double z) { y[n] = expf(float(z)); }
"""


def needs_compiler(target: Target, options: Options = Options()) -> None:  # noqa: B008 - frozen
    found = compiler_for(target, options)
    if isinstance(found, Rejection):
        pytest.skip(f"lacks a compiler for {target}: {found.text}")


def test_a_cubin_tells_its_architecture_and_what_its_kernels_take(cubin):
    code = cubin(120, {"scale": (40, 256, ((0, 8), (8, 8), (16, 4))), "other": (8, 0, ())})
    target, kernels = read_code(code)
    assert target == Target("nvidia", "sm_120")
    assert kernels["scale"] == KernelFacts("scale", "scale", 40, 256, 0, ((0, 8), (8, 8), (16, 4)))
    assert kernels["other"].registers == 8


def test_whatever_is_cut_or_altered_is_told_as_such(cubin):
    code = cubin(90, {"scale": (40, 256, ((0, 8),))})
    for end in range(len(code)):
        with pytest.raises(NotReadableError):
            read_code(code[:end])
    drawn = random.Random(0)
    for _ in range(2000):
        altered = bytearray(code)
        for _ in range(drawn.randrange(1, 4)):
            altered[drawn.randrange(len(code))] = drawn.randrange(256)
        try:
            read_code(bytes(altered))
        except NotReadableError:
            continue


def test_other_machines_code_is_refused(cubin):
    code = bytearray(cubin(90, {}))
    code[18:20] = b"\x3e\x00"
    with pytest.raises(NotReadableError, match=r"^is for machine 62: neither NVIDIA's nor AMD's$"):
        read_code(bytes(code))


@pytest.mark.parametrize(
    ("packed", "value"),
    [
        ("07", 7), ("ff", -1), ("cc80", 128), ("cd0400", 1024), ("ce00010000", 65536), ("d0ff", -1), ("c3", True),
        ("c0", None), ("a3616263", "abc"), ("d903616263", "abc"), ("920102", [1, 2]), ("81a16101", {"a": 1}),
        ("dc000101", [1]), ("de0001a16102", {"a": 2}), ("cb3ff0000000000000", 1.0),
    ],
)  # fmt: skip
def test_messagepack_is_read(packed, value):
    assert _Reader(bytes.fromhex(packed)).value() == value


@pytest.mark.parametrize("packed", ["dd7fffffff", "df7fffffff"])
def test_messagepack_that_promises_more_than_there_is_is_refused_at_once(packed):
    with pytest.raises(ValueError, match="is shorter than it says"):
        _Reader(bytes.fromhex(packed)).value()


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("plain", "plain"),
        ("scale<float,4>", "_Z5scaleIfLi4EEvPT_PKS0_lc"),
        ("scale<__bf16, 2u>", "_Z5scaleIDF16bLi2EEvPT_PKS0_lc"),
        ("::scale<_Float16, 2>", "_Z5scaleIDF16_Li2EEvPT_PKS0_lc"),
        ("scale<unsigned char, 4>", "_Z5scaleIhLi4EEvPT_PKS0_lc"),
        ("a::scale<a::Kind<float>, true>", "_ZN1a5scaleINS_4KindIfEELb1EEEvPT_"),
        ("scale<float, 5>", None),
        ("scale", None),
    ],
)
def test_an_instance_of_a_template_is_found_by_its_name(name, symbol):
    symbols = [
        "plain", "_Z5scaleIfLi4EEvPT_PKS0_lc", "_Z5scaleIDF16bLi2EEvPT_PKS0_lc", "_Z5scaleIDF16_Li2EEvPT_PKS0_lc",
        "_Z5scaleIhLi4EEvPT_PKS0_lc", "_ZN1a5scaleINS_4KindIfEELb1EEEvPT_",
    ]  # fmt: skip
    assert find_symbol(name, symbols) == symbol


def test_symbols_that_are_none_stay_as_they_are():
    assert demangled("plain") == "plain"
    assert demangled("_Znonsense") == "_Znonsense"


def test_only_instances_have_to_be_asked_for():
    assert instances(("plain",)) == ""
    assert "(void)&scale<float, 4>;" in instances(("plain", "scale<float, 4>"))
    assert not is_instance("plain")


def test_a_missing_kernel_is_named():
    with pytest.raises(KeyError, match="scale"):
        named({"plain": KernelFacts("plain", "plain")}, ("scale",), {})


@pytest.mark.parametrize(
    ("arch", "compiler"),
    [
        ("nvidia:sm_75", "nvcc"), ("nvidia:sm_80", "nvcc"), ("nvidia:sm_90", "nvcc"), ("nvidia:sm_100", "nvcc"),
        ("nvidia:sm_90", "nvrtc"),
        ("amd:gfx90a", "clang"), ("amd:gfx942", "clang"), ("amd:gfx950", "clang"), ("amd:gfx1100", "clang"),
        ("amd:gfx1201", "clang"),
    ],
)  # fmt: skip
def test_the_real_compilers_make_what_was_asked_for(tmp_path, arch, compiler):
    target, options = Target.parse(arch), Options(compilers=(compiler,))
    needs_compiler(target, options)
    source = Source(tmp_path, "scale.cu" if target.vendor == "nvidia" else "scale.hip")
    source.path.write_text(SOURCE)
    names = ("scale<float, 4>", "scale<unsigned char, 2>", "plain")
    code = Unit(source, names, options).build(target)
    assert code.target == target
    assert [facts.name for facts in code.kernels] == list(names)
    assert code.kernel("plain").parameters == ((0, 8), (8, 4), (16, 8))
    assert code.kernel("scale<float, 4>").parameters == ((0, 8), (8, 8), (16, 8), (24, 1))
    shared = {facts.name: facts.shared_bytes for facts in code.kernels}
    assert shared == {"scale<float, 4>": 64 * 4, "scale<unsigned char, 2>": 64, "plain": 0}
    assert all(0 < facts.registers < 256 and facts.spilled_bytes == 0 for facts in code.kernels)
    assert "plain" in code.assembly
    assert ("bar.sync" if target.vendor == "nvidia" else "s_endpgm") in code.assembly


def test_a_library_tells_what_its_kernels_take(tmp_path):
    target = Target("nvidia", "sm_80")
    needs_compiler(target, Options(compilers=("nvcc",)))
    if shutil.which("g++") is None:
        pytest.skip("lacks g++, with which nvcc compiles libraries")
    source = Source(tmp_path, "scale.cu")
    source.path.write_text(f'{SOURCE}extern "C" int answer() {{ plain<<<1, 1>>>(nullptr, 0, 0.0); return 42; }}\n')
    code = Unit(source, ("answer",), form="library").build(target)
    assert code.kernel("plain").parameters == ((0, 8), (8, 4), (16, 8))
    assert code.path.name == "code.so"
