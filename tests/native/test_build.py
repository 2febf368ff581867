"""Sources compiled by stand-ins: what reaches the cache, and what each way to fail becomes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from portakernel.authoring.native import HeaderPackage, Limits, Options, Unit, build, kept
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.errors import ArgumentValueError
from portakernel.native import nvcc as real_nvcc
from portakernel.native import toolchain
from portakernel.native.code_cache import cache
from portakernel.words.target import Target

HOPPER = Target("nvidia", "sm_90")


def rejection(source, options, target=HOPPER, names=("scale",)):
    with pytest.raises(CannotRun) as caught:
        build(source, target, options, names)
    return caught.value.rejection


@pytest.fixture(autouse=True)
def nothing_is_left(request, temporary, cache_folder):
    """No failure leaves a temporary file, and what is in the cache is whole."""
    yield
    assert list(temporary.iterdir()) == []
    assert [found.broken for found in cache().entries() if found.broken] == []
    assert not cache_folder.exists() or not list(cache_folder.glob(".writing-*"))


# --- what is compiled, and what is not -----------------------------------------------------------------------------


def test_what_was_compiled_once_comes_from_the_cache(source, nvcc, runs):
    options = nvcc()
    first, second = (build(source, HOPPER, options, ("scale",)) for _ in range(2))
    assert runs() == 1
    assert (first.code, first.kernels, first.path) == (second.code, second.kernels, second.path)
    assert first.kernel("scale").registers == 8
    assert first.path.read_bytes() == first.code
    assert second.seconds == 0 < first.seconds


@pytest.mark.parametrize(
    "change",
    [
        lambda source, options: ((source.folder / "scale.cu").write_text("// another\n"), options)[1],
        lambda source, options: ((source.folder / "types.h").write_text("typedef double T;\n"), options)[1],
        lambda _, options: replace(options, defines=(("N", 4),)),
        lambda _, options: replace(options, flags=("--use_fast_math",)),
        lambda _, options: replace(options, standard="c++20"),
        lambda _, options: replace(options, arch_suffix="a"),
        lambda source, options: replace(options, packages=(HeaderPackage("cutlass", "4.2", source.folder),)),
    ],
    ids=["source", "header", "define", "flag", "standard", "suffix", "package"],
)
def test_whatever_decides_about_the_code_is_in_the_key(source, nvcc, runs, change):
    options = nvcc()
    before = build(source, HOPPER, options, ("scale",))
    after = build(source, HOPPER, change(source, options), ("scale",))
    assert runs() == 2
    assert before.key != after.key


def test_another_version_of_the_compiler_compiles_anew_and_its_limits_do_not(source, nvcc, runs):
    build(source, HOPPER, nvcc(), ("scale",))
    build(source, HOPPER, nvcc(seconds=5.0), ("scale",))
    assert runs() == 1
    options = nvcc(version="13.1")
    assert kept(source, HOPPER, options, ("scale",)) is not None  # of the older one
    build(source, HOPPER, options, ("scale",))
    assert runs() == 2


def test_the_compiler_sees_the_listed_files_and_no_other(source, nvcc):
    (source.folder / "secret.h").write_text("")
    listed = nvcc('ls -R "$(dirname "$main")" >&2; cp "$good" "$code"')
    code = build(source, HOPPER, listed, ("scale",))
    assert "scale.cu" in code.log
    assert "types.h" in code.log
    assert "secret.h" not in code.log


def test_without_a_compiler_what_is_in_the_cache_serves(source, nvcc, monkeypatch, tmp_path):
    options = nvcc()
    made = build(source, HOPPER, options, ("scale",))
    without_compilers(monkeypatch, tmp_path)
    assert build(source, HOPPER, options, ("scale",)).key == made.key
    assert kept(source, HOPPER, options, ("scale",)).key == made.key


def test_a_unit_has_options_by_target(source, nvcc):
    chosen = nvcc()
    unit = Unit(source, ("scale",), lambda target: replace(chosen, defines=(("ARCH", target.arch),)))
    assert unit.kept(HOPPER) is None
    assert unit.build(HOPPER).key == unit.kept(HOPPER).key
    assert cache().entries()[0].source == "scale.cu ARCH=sm_90"


# --- failures ------------------------------------------------------------------------------------------------------


def without_compilers(monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(real_nvcc, "_USUAL", tmp_path / "none")
    monkeypatch.setattr(real_nvcc, "packaged", lambda folder: [])
    toolchain._found.cache_clear()


def test_no_compiler(source, nvcc, monkeypatch, tmp_path):
    options = nvcc()
    without_compilers(monkeypatch, tmp_path)
    found = rejection(source, options)
    assert found.code is ReasonCode.MISSING_TOOLCHAIN
    assert found.text == (
        "needs nvcc 12.0 or later; none was found; install the CUDA toolkit (or pip install nvidia-cuda-nvcc) and set"
        " CUDA_HOME"
    )


def test_a_compiler_that_is_installed_later_is_found(source, nvcc, monkeypatch, tmp_path):
    options = nvcc('/bin/cp "$good" "$code"')
    installed = tmp_path / "bin" / "nvcc"
    installed.rename(tmp_path / "away")
    monkeypatch.setattr(real_nvcc, "_USUAL", tmp_path / "none")
    monkeypatch.setattr(real_nvcc, "packaged", lambda folder: [])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert rejection(source, options).code is ReasonCode.MISSING_TOOLCHAIN
    (tmp_path / "away").rename(installed)
    assert build(source, HOPPER, options, ("scale",)).kernel("scale").registers == 8


def test_a_compiler_of_the_wrong_version(source, nvcc, monkeypatch, tmp_path):
    options = nvcc(version="11.8")
    monkeypatch.setattr(real_nvcc, "_USUAL", tmp_path / "none")
    monkeypatch.setattr(real_nvcc, "packaged", lambda folder: [])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = rejection(source, options)
    assert found.code is ReasonCode.MISSING_TOOLCHAIN
    assert found.text.startswith(f"needs nvcc 12.0 or later; {tmp_path / 'bin' / 'nvcc'} is 11.8; install")


def test_no_compiler_makes_that(source):
    found = rejection(source, Options(compilers=("clang",)))
    assert (found.code, found.text) == (
        ReasonCode.MISSING_TOOLCHAIN,
        "no compiler makes a code object for nvidia:sm_90 of clang",
    )


def test_an_error_has_the_file_and_line_of_our_source(source, nvcc):
    told = 'echo "$main(2): error: identifier \\"T\\" is undefined"; echo "$main(7): error: expected a \\";\\""; exit 2'
    options = nvcc(told)
    found = rejection(source, options)
    path = source.folder / "scale.cu"
    assert found.code is ReasonCode.CANNOT_RUN
    assert found.text == (
        f'nvcc 13.0.88 cannot compile {path} for nvidia:sm_90: {path}:2: identifier "T" is undefined (and 1 more)'
    )
    with pytest.raises(CannotRun) as caught:
        build(source, HOPPER, options, ("scale",))
    assert str(caught.value.__cause__).splitlines()[1] == f'{path}(7): error: expected a ";"'


@pytest.mark.parametrize(
    ("told", "header", "remedy"),
    [
        (
            '$main(1): catastrophic error: cannot open source file \\"types.h\\"',
            "types.h",
            "it is there: list it among",
        ),
        (
            "$main:1:10: fatal error: 'cutlass/cutlass.h' file not found",
            "cutlass/cutlass.h",
            "list it among the source",
        ),
        (
            "$main:1:10: fatal error: cuda_fp16.h: No such file or directory",
            "cuda_fp16.h",
            "install the vendor's headers",
        ),
    ],
)
def test_headers_that_are_missing(source, nvcc, told, header, remedy):
    found = rejection(replace(source, headers=()), nvcc(f'echo "{told}"; exit 1'))
    assert (found.code, found.parameter) == (ReasonCode.MISSING_LIBRARY, header)
    assert found.text.startswith(f"{source.folder / 'scale.cu'}:1 includes {header}, which is not found; {remedy}")


def test_a_header_that_the_package_lacks(source, nvcc):
    found = rejection(replace(source, headers=("gone.h",)), nvcc())
    assert found.code is ReasonCode.MISSING_LIBRARY
    assert found.text == (
        f"{source.folder / 'gone.h'} cannot be read (No such file or directory): the package that ships it is"
        " incomplete; reinstall it"
    )


def test_a_package_of_headers_that_is_not_installed():
    with pytest.raises(
        CannotRun, match=r"^missing_library: needs the headers of no-such-thing, which is not installed"
    ):
        HeaderPackage.installed("no-such-thing", "x/x.h")
    with pytest.raises(
        CannotRun, match=r"^missing_library: needs x/x.h of torch; .* has no such file; pip install torch"
    ):
        HeaderPackage.installed("torch", "x/x.h")


def test_a_file_outside_of_the_folder_is_refused(source, nvcc):
    with pytest.raises(ArgumentValueError, match=r"^'\.\./secret\.h' is not below "):
        build(replace(source, headers=("../secret.h",)), HOPPER, nvcc(), ("scale",))


@pytest.mark.parametrize(
    "told",
    [
        "nvcc fatal   : Unsupported gpu architecture 'compute_90'",
        "nvcc fatal   : Value 'sm_90' is not defined for option 'gpu-architecture'",
        "nvrtc: error: invalid value for --gpu-architecture (-arch)",
        "clang-22: error: unsupported HIP gpu architecture: gfx9999",
    ],
)
def test_an_architecture_that_the_compiler_does_not_know(source, nvcc, told):
    found = rejection(source, nvcc(f'echo "{told}"; exit 1'))
    assert (found.code, found.parameter) == (ReasonCode.ARCH, "target")
    assert found.text == "nvcc 13.0.88 does not know sm_90; install a newer one"


def test_a_compiler_that_aborts(source, nvcc):
    found = rejection(source, nvcc("kill -ABRT $$"))
    assert found.code is ReasonCode.CANNOT_RUN
    assert found.text == (
        f"nvcc 13.0.88 crashed on {source.path} for nvidia:sm_90 (SIGABRT); use another version of it"
    )


def test_a_compiler_whose_part_crashes(source, nvcc):
    found = rejection(source, nvcc("echo \"nvcc error   : 'cicc' died due to signal 11\"; exit 1"))
    assert found.text.startswith(f"nvcc 13.0.88 crashed on {source.path}")


def test_a_compiler_that_does_not_end(source, nvcc, tmp_path):
    found = rejection(source, nvcc(f"echo $$ > {tmp_path / 'pid'}; while :; do :; done", seconds=0.3))
    assert found.code is ReasonCode.CANNOT_RUN
    assert found.text == (
        f"nvcc 13.0.88 did not compile {source.path} for nvidia:sm_90 in 0.3 s and was ended; allow it more time"
        " (Options.limits), or another compiler"
    )
    assert not process_lives(int((tmp_path / "pid").read_text()))


def process_lives(pid):
    try:
        return subprocess.run(["kill", "-0", str(pid)], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_a_compiler_that_runs_out_of_memory(source, nvcc):
    hungry = f"exec {sys.executable} -I -S -c 'bytearray(1 << 31)'"
    found = rejection(source, nvcc(hungry, memory_bytes=1 << 29))
    assert found.code is ReasonCode.CANNOT_RUN
    assert found.text == (
        f"nvcc 13.0.88 ran out of memory on {source.path} for nvidia:sm_90, of which it may use 0.5 GiB; allow it more"
        " (Options.limits), or build fewer at a time"
    )


def test_a_compiler_that_the_system_ends_for_want_of_memory(source, nvcc):
    assert "ran out of memory" in rejection(source, nvcc("kill -KILL $$")).text


def test_a_compiler_that_has_no_room(source, nvcc):
    found = rejection(source, nvcc('echo "/tmp/x.ii: No space left on device"; exit 1'))
    assert found.text == (
        f"nvcc 13.0.88 had no room on the disk to compile {source.path} for nvidia:sm_90; make room, or set TMPDIR to a"
        " folder with some"
    )


def test_no_folder_for_temporary_files(source, nvcc, monkeypatch, tmp_path):
    options = nvcc()
    toolchain.compiler_for(HOPPER, options)  # finding one needs such a folder too
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    found = rejection(source, options)
    assert found.code is ReasonCode.CANNOT_RUN
    assert re.fullmatch(
        r"scale\.cu cannot be compiled: .*/gone/portakernel-native-\w+: No such file or directory; make room there, or"
        r" set TMPDIR to a folder that can be written",
        found.text,
    )


def test_a_compiler_without_its_host_compiler(source, nvcc):
    found = rejection(source, nvcc('echo "sh: 1: gcc: not found"; exit 1'))
    assert found.code is ReasonCode.MISSING_TOOLCHAIN
    assert found.text.startswith("nvcc 13.0.88 cannot work: sh: 1: gcc: not found; install what it lacks")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('echo garbage > "$code"', "is no 64-bit ELF file; use another version of it"),
        ('head -c 300 "$good" > "$code"', "use another version of it"),
        (': > "$code"', "ended with status 0 on"),
        ("true", "ended with status 0 on"),
        ("exit 3", "ended with status 3 on"),
    ],
    ids=["garbage", "cut short", "empty", "nothing", "status"],
)
def test_a_compiler_that_makes_no_code(source, nvcc, script, says):
    found = rejection(source, nvcc(script))
    assert found.code is ReasonCode.CANNOT_RUN
    assert says in found.text


def test_a_compiler_that_makes_code_for_another_architecture(source, nvcc):
    found = rejection(source, nvcc(), target=Target("nvidia", "sm_80"))
    assert (found.code, found.parameter) == (ReasonCode.ARCH, "target")
    assert found.text == (
        "nvcc 13.0.88 made code for nvidia:sm_90 when asked for nvidia:sm_80; use another version of it"
    )


def test_a_kernel_that_the_source_does_not_have(source, nvcc):
    found = rejection(source, nvcc(), names=("scales",))
    assert found.text == (
        f"{source.path} has no kernel 'scales' for nvidia:sm_90; it has scale; declare it extern \"C\" __global__, or"
        " name an instance of a template as C++ does"
    )


def test_a_suffix_that_is_no_language(source, nvcc):
    (source.folder / "scale.cpp").write_text("")
    found = rejection(replace(source, file="scale.cpp"), nvcc())
    assert found.text.endswith("is in no language that is compiled here: name it .cu (CUDA C++) or .hip (HIP C++)")


# --- several at once -----------------------------------------------------------------------------------------------


def test_who_waits_for_another_builder_takes_what_that_one_built(source, nvcc, runs, tmp_path):
    options = nvcc()
    made = build(source, HOPPER, options, ("scale",))
    assert cache().discard(made.path.parent)
    found = []
    waiting = threading.Thread(target=lambda: found.append(build(source, HOPPER, options, ("scale",))))
    with cache().locked(made.key, 60.0):
        waiting.start()
        cache().store(made, "scale.cu")
    waiting.join()
    assert found[0].code == made.code
    assert runs() == 1


def test_who_waits_too_long_builds_by_himself(source, nvcc, runs):
    options = nvcc()
    made = build(source, HOPPER, options, ("scale",))
    assert cache().discard(made.path.parent)
    hasty = replace(options, limits=Limits(seconds=0.5))
    with cache().locked(made.key, 60.0):
        assert build(source, HOPPER, hasty, ("scale",)).code == made.code
    assert runs() == 2


def test_two_processes_build_the_same_thing_once(source, nvcc, runs, cache_folder):
    nvcc()
    program = """\
import sys
from pathlib import Path
from portakernel.authoring.native import Options, Source, build
from portakernel.words.target import Target
source, target = Source(Path(sys.argv[1]), "scale.cu", ("types.h",)), Target("nvidia", "sm_90")
made = build(source, target, Options(compilers=("nvcc",)), ("scale",))
print(made.key, len(made.code))
"""
    command = [sys.executable, "-c", program, str(source.folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert told[0] == told[1]
    assert runs() == 1
    assert [found.broken for found in cache().entries()] == [""]
