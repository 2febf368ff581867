"""Compilers that are scripts, machine code that is made by hand, and a cache of each test's own."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from portakernel.authoring.native import Limits, Options, Source
from portakernel.native import toolchain

Facts = tuple[int, int, tuple[tuple[int, int], ...]]
COUNT = "compiled"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test's cache is its own, and starts empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", str(folder))
    monkeypatch.delenv("PORTAKERNEL_CACHE_MIB", raising=False)
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A source with a header."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "scale.cu").write_text('#include "types.h"\nextern "C" __global__ void scale(T* y) {}\n')
    (folder / "types.h").write_text("typedef float T;\n")
    return Source(folder, "scale.cu", ("types.h",))


@pytest.fixture
def cubin() -> Callable[..., bytes]:
    return make_cubin


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Options]:
    """Puts a shell script in nvcc's place; returns options that use it.

    In the script, `$main` is the staged source, `$code` where the code goes, `$good` a cubin for sm_90 with the kernel
    `scale`. Runs are counted in the file `compiled`.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    good = tmp_path / "good.cubin"
    good.write_bytes(make_cubin(90, {"scale": (8, 0, ((0, 8),))}))
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH"):
        monkeypatch.delenv(name, raising=False)

    def put(script: str = 'cp "$good" "$code"', *, version: str = "13.0", **limits: float) -> Options:
        path = folder / "nvcc"
        path.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && echo "Cuda compilation tools, release {version}, V{version}.88" && exit 0\n'
            f"echo run >> {tmp_path / COUNT}\n"
            f"good={good}\n"
            'while [ $# -gt 0 ]; do [ "$1" = -o ] && code="$2"; main="$1"; shift; done\n'
            f"{script}\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        toolchain._found.cache_clear()
        return Options(compilers=("nvcc",), limits=Limits(**limits))

    return put


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], int]:
    """How often the stand-in has compiled."""

    def count() -> int:
        path = tmp_path / COUNT
        return len(path.read_text().splitlines()) if path.exists() else 0

    return count


def make_cubin(number: int, kernels: Mapping[str, Facts]) -> bytes:
    """A cubin without instructions: of each kernel its registers, bytes of stack, and parameters."""
    symbols = b"\0" * 24
    strings, info = b"\0", b""
    own: dict[str, bytes] = {}
    for place, (name, (registers, stack, parameters)) in enumerate(kernels.items(), start=1):
        symbols += struct.pack("<IBBHQQ", len(strings), 18, 0, 1, 0, 0)
        strings += name.encode() + b"\0"
        info += struct.pack("<BBHII", 4, 0x2F, 8, place, registers) + struct.pack("<BBHII", 4, 0x11, 8, place, stack)
        own[name] = b"".join(
            struct.pack("<BBHIII", 4, 0x17, 12, 0, ordinal | offset << 16, size << 18)
            for ordinal, (offset, size) in enumerate(parameters)
        )
    sections = [("", 0, b""), (".strtab", 3, strings), (".symtab", 2, symbols), (".nv.info", 0x70000000, info)]
    sections += [(f".nv.info.{name}", 0x70000000, content) for name, content in own.items()]
    names, at = b"", 64
    heads, body = b"", b""
    for name, kind, content in [*sections, (".shstrtab", 3, b"")]:
        text = content
        if name == ".shstrtab":
            text = names + b".shstrtab\0"
        heads += struct.pack("<IIQQQQIIQQ", len(names), kind, 0, 0, at, len(text), int(kind == 2), 0, 1, 0)
        names += name.encode() + b"\0"
        body, at = body + text, at + len(text)
    count = len(sections) + 1
    ident = b"\x7fELF\x02\x01\x01\x41\x08".ljust(16, b"\0")
    head = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at, number << 8, 64, 0, 0, 64, count, count - 1)
    return ident + head + body + heads
