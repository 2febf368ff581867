"""Clang for AMD: upstream's or ROCm's, with HIP's headers and device libraries where they are found.

No ROCm is needed: the triton wheel carries HIP's headers and the bitcode of the mathematical functions (ocml, ockl),
and clang takes both by name. ROCm's own driver options (``--rocm-path``) are left out, so that the same command serves
everywhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.native.compiler import Compiler, on_path, version_of
from portakernel.native.process import Ran, run
from portakernel.native.staging import Task
from portakernel.registry.plugin_manager import find_folder

# The first whose HIP mode knows -fuse-cuid and the code object's version 5 as it is loaded today.
_OLDEST, _NEWEST = 17, 30
_VERSION = re.compile(r"clang version (\d+)\.([\d.]+)")
_LIBRARIES = ("ocml.bc", "ockl.bc")
_CODE_OBJECT_VERSION = 5
# What the device libraries ask of a compilation, as ROCm's own oclc_*.bc answer: IEEE mathematics, subnormals kept.
_CONSTANTS = """\
@__oclc_unsafe_math_opt = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i8 0
@__oclc_finite_only_opt = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i8 0
@__oclc_daz_opt = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i8 0
@__oclc_correctly_rounded_sqrt32 = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i8 1
@__oclc_wavefrontsize64 = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i8 {wave64}
@__oclc_ISA_version = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i32 {isa}
@__oclc_ABI_version = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i32 {abi}
"""


def find() -> Compiler | Rejection:
    """The newest clang along PATH, or ROCm's, with headers and device libraries."""
    seen: list[str] = []
    best: tuple[int, str, Path] | None = None
    for path in _places():
        version = _VERSION.search(version_of(path))
        if version is None:
            seen.append(f"{path} does not tell its version")
        elif int(version[1]) < _OLDEST:
            seen.append(f"{path} is {version[1]}")
        elif best is None or int(version[1]) > best[0]:
            best = int(version[1]), f"{version[1]}.{version[2]}", path
    if best is None:
        remedy = f"install clang and lld {_OLDEST} or later (apt-get install clang lld; LLVM or ROCm packages)"
        text = f"needs clang {_OLDEST} or later; {', '.join(seen) or 'none was found'}; {remedy}"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text, "clang")
    _, version_text, path = best
    parts = _headers_and_libraries()
    if parts is None:
        text = f"{path} needs HIP's headers and device libraries, and found neither ROCm's nor triton's; set ROCM_PATH"
        return Rejection(ReasonCode.MISSING_LIBRARY, f"{text} to ROCm's folder, or pip install triton", "hip")
    headers, libraries = parts
    details = f"with HIP {_hip_version(headers)}"
    return Compiler(
        "clang", version_text, path, details,
        command=lambda task: _command(path, headers, libraries, task),
        prepare=lambda task: _prepare(path, task),
    )  # fmt: skip


def _places() -> list[Path]:
    rocm = [Path(root, "llvm", "bin", "clang") for root in (os.environ.get("ROCM_PATH", ""), "/opt/rocm") if root]
    names = ["clang", *(f"clang-{number}" for number in range(_NEWEST, _OLDEST - 1, -1))]
    found = [*(path for path in rocm if path.is_file()), *(path for name in names for path in on_path(name))]
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1]


def _headers_and_libraries() -> tuple[Path, tuple[Path, ...]] | None:
    """The folder with ``hip/hip_runtime.h``, and the device libraries that go with it."""
    roots = [Path(root) for root in (os.environ.get("ROCM_PATH", ""), "/opt/rocm") if root]
    pairs = [(root / "include", root / "amdgcn" / "bitcode") for root in roots]
    if (triton := find_folder("triton")) is not None:
        pairs.append((triton / "backends" / "amd" / "include", triton / "backends" / "amd" / "lib"))
    for headers, folder in pairs:
        libraries = tuple(folder / name for name in _LIBRARIES)
        if (headers / "hip" / "hip_runtime.h").is_file() and all(path.is_file() for path in libraries):
            return headers, libraries
    return None


def _hip_version(headers: Path) -> str:
    try:
        text = (headers / "hip" / "hip_version.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "?"
    numbers = [re.search(rf"HIP_VERSION_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(number[1] for number in numbers if number)


def isa_version(arch: str) -> int:
    """The architecture's number for the device libraries: 9402 of gfx942, 9010 of gfx90a, 11000 of gfx1100."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]) * 1000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)


def _prepare(path: Path, task: Task) -> Ran | None:
    """Makes the bitcode that answers the device libraries."""
    try:
        isa = isa_version(task.target.arch)
    except ValueError:
        return None  # not an architecture; clang says so
    wave64 = int(isa < 10000)
    text = task.folder / "constants.ll"
    text.write_text(_CONSTANTS.format(wave64=wave64, isa=isa, abi=_CODE_OBJECT_VERSION * 100), encoding="ascii")
    command = [
        str(path), "-target", "amdgcn-amd-amdhsa", "-nogpulib", "-Wno-override-module",
        "-c", "-emit-llvm", "-x", "ir", str(text), "-o", str(task.folder / "constants.bc"),
    ]  # fmt: skip
    return run(command, task.options.limits, folder=task.folder)


def _command(path: Path, headers: Path, libraries: tuple[Path, ...], task: Task) -> list[str]:
    linked: list[str] = []
    for library in (*libraries, task.folder / "constants.bc"):
        linked += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(library)]
    # -save-temps keeps the assembly; without a cuid of its own equal sources make equal code
    return [
        str(path), "-x", "hip", f"--offload-arch={task.target.arch}", "--offload-device-only", "-nogpuinc", "-nogpulib",
        "--no-gpu-bundle-output", f"-mcode-object-version={_CODE_OBJECT_VERSION}", "-fuse-cuid=none", "-O3",
        "-include", "__clang_hip_runtime_wrapper.h", "-D__HIP_PLATFORM_AMD__", f"-std={task.options.standard}",
        *task.defines(), *(f"-I{folder}" for folder in task.includes), "-isystem", str(headers), *linked,
        *task.options.flags, "-save-temps=obj", "-o", str(task.made / "code"), str(task.main),
    ]  # fmt: skip
