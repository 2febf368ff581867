"""The engine as a shared library: compiled once by this machine's C++ compiler, kept in the cache of native code."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.native.code_cache import cache
from portakernel.native.code_object import CodeObject
from portakernel.native.compiler import version_of
from portakernel.native.library import load_library
from portakernel.native.options import Limits
from portakernel.native.process import run
from portakernel.words.target import Target

FOLDER = Path(__file__).parent / "engine"
# Results have to be those of IEEE 754 operation by operation: nothing contracted, MODE's rounding honoured.
_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-frounding-math", "-fno-math-errno",
    "-pthread",
)  # fmt: skip
_X86_V3 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"})
# By the numbers of registry.h's Family.
_FAMILIES = (
    "unknown", "scalar", "control", "scalar memory", "vector", "lanes", "memory", "buffer", "lds", "atomic", "matrix",
    "wait",
)  # fmt: skip
_LIMITS = Limits(seconds=600.0, memory_bytes=8 << 30)


@functools.cache
def engine() -> ctypes.CDLL:
    """The engine, loaded; compiled first where the cache does not have it.

    Raises:
        CannotRun: there is no C++ compiler, or it fails.
    """
    return loaded()


def loaded() -> ctypes.CDLL:
    """The engine loaded once more, with a table of handlers of its own.

    Raises:
        CannotRun: there is no C++ compiler, or it fails.
    """
    library = load_library(_built())
    library.emulate.argtypes = [ctypes.c_void_p]
    library.handler.argtypes = [ctypes.c_char_p]
    library.handler_name.argtypes = [ctypes.c_int]
    library.handler_name.restype = ctypes.c_char_p
    library.handler_family.argtypes = [ctypes.c_int]
    library.handler_table.restype = ctypes.c_void_p
    return library


@functools.cache
def handler(name: str) -> int:
    """The number of an instruction's handler; 0 where the engine has none."""
    return int(engine().handler(name.encode()))


@functools.cache
def known_instructions() -> tuple[str, ...]:
    """Every instruction that the engine executes, by name."""
    library = engine()
    return tuple(sorted({library.handler_name(i).decode() for i in range(1, library.handler_count())}))


def compiler() -> tuple[tuple[str, ...], str]:
    """What the engine is compiled with: the compiler's path and its flags, and the first line of its version.

    Raises:
        CannotRun: there is no C++ compiler.
    """
    named = os.environ.get("CXX")
    path = next(filter(None, map(shutil.which, [named] if named else ["g++", "clang++", "c++"])), None)
    if path is None:
        text = f"the emulator is compiled with a C++ compiler and finds {named or 'none'}; install g++, or set CXX"
        raise CannotRun(Rejection(ReasonCode.MISSING_TOOLCHAIN, text))
    version = version_of(Path(path)).splitlines()
    return (path, *_FLAGS, *_machine_flags()), version[0] if version else path


@functools.cache
def family(number: int) -> str:
    """The class that a handler's instructions are counted in."""
    return _FAMILIES[engine().handler_family(number)]


def _built() -> CodeObject:
    command, version = compiler()
    files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in (".cpp", ".h")}
    digest = hashlib.sha256(repr((command[1:], version)).encode())
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    key = f"emulator-{digest.hexdigest()[:40]}"
    kept = cache()
    if (code := kept.find(key)) is not None:
        return code
    with kept.locked(key, _LIMITS.seconds):
        if (code := kept.find(key)) is not None:
            return code
        begin = time.perf_counter()
        content = _compile(command, [name for name in files if name.endswith(".cpp")])
        target = Target("cpu", platform.machine())
        made = CodeObject(key, "library", target, version, (), None, content, "", time.perf_counter() - begin)
        return kept.store(made, "emulation/engine")


def _compile(command: Sequence[str], sources: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="portakernel-engine-") as place:
        folder = Path(place)

        def one(name: str) -> None:
            _run([*command, "-c", str(FOLDER / name), "-o", str(folder / f"{name}.o")], folder)

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(one, sources))
        objects = [str(folder / f"{name}.o") for name in sources]
        _run([command[0], "-shared", "-pthread", "-o", str(folder / "engine.so"), *objects], folder)
        return (folder / "engine.so").read_bytes()


def _run(command: Sequence[str], folder: Path) -> None:
    ran = run(command, _LIMITS, folder=folder)
    if ran.status != 0:
        text = f"the emulator's engine cannot be compiled by {command[0]}: {ran.told.strip()[:2000]}"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, f"{text}; set CXX to another C++17 compiler"))


def _machine_flags() -> tuple[str, ...]:
    """Vector instructions where this CPU has them; a folder that several machines share may hold both libraries."""
    if platform.machine() != "x86_64":
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")), [])
    return ("-march=x86-64-v3",) if set(flags) >= _X86_V3 else ()
