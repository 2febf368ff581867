"""NVRTC and HIPRTC, the vendors' compilers that are libraries: found here, run in a process of their own.

They need neither a toolkit nor a driver nor a host compiler, and come with CUDA and ROCm builds of torch. The process
is ``rtc_process.py``, which knows the one interface that both have.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Literal

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.native.compiler import BRIEF, Compiler, on_path, packaged
from portakernel.native.process import run
from portakernel.native.staging import Task
from portakernel.registry.plugin_manager import find_folder
from portakernel.tensors.torch_build import installed

Kind = Literal["nvrtc", "hiprtc"]
# HIPRTC tells the version of its interface, which ROCm 5.2's calls 9.0.
_OLDEST: dict[Kind, tuple[int, int]] = {"nvrtc": (12, 0), "hiprtc": (5, 0)}
# Isolated from the environment's Python settings and without site: it starts in 10 ms.
_PROCESS = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rtc_process.py"))]


def find_nvrtc() -> Compiler | Rejection:
    """NVRTC: of NVIDIA's packages (that of torch's CUDA first), of CUDA_HOME, of the system."""
    build = installed()
    major = build.cuda.partition(".")[0] if build is not None and build.cuda else ""
    found = [path for folder in packaged("lib") for path in sorted(folder.glob("libnvrtc.so.*"))]
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        found += sorted(Path(root, "lib64").glob("libnvrtc.so.*")) if root else []
    found.sort(key=lambda path: not (major and f".so.{major}" in path.name))
    remedy = "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit"
    return _first("nvrtc", [*found, *_of_the_system("nvrtc")], remedy)


def find_hiprtc() -> Compiler | Rejection:
    """HIPRTC: of torch's ROCm build, of ROCm, of the system."""
    torch = find_folder("torch")
    folders = [torch / "lib"] if torch is not None else []
    folders += [Path(root, "lib") for root in (os.environ.get("ROCM_PATH"), "/opt/rocm") if root]
    # until ROCm 6 it is part of HIP's runtime
    found = [path for name in ("hiprtc", "amdhip64") for f in folders for path in sorted(f.glob(f"lib{name}.so*"))]
    return _first(
        "hiprtc",
        [*found, *_of_the_system("hiprtc"), *_of_the_system("amdhip64")],
        "install ROCm, or torch's ROCm build",
    )


def _of_the_system(name: str) -> list[Path]:
    found = ctypes.util.find_library(name)
    return [Path(found)] if found else []


def _first(kind: Kind, libraries: list[Path], remedy: str) -> Compiler | Rejection:
    seen: list[str] = []
    for library in libraries:
        version = _version(kind, library)
        if version is None:
            seen.append(f"{library} cannot be loaded")
        elif version < _OLDEST[kind]:
            seen.append(f"{library} is {version[0]}.{version[1]}")
        else:
            return _compiler(kind, version, library)
    needs = f"needs {kind} {_OLDEST[kind][0]}.{_OLDEST[kind][1]} or later"
    text = f"{needs}; {', '.join(seen) or 'none was found'}; {remedy}"
    return Rejection(ReasonCode.MISSING_TOOLCHAIN, text, kind)


def _version(kind: Kind, library: Path) -> tuple[int, int] | None:
    asked = json.dumps({"library": str(library), "prefix": kind}).encode()
    try:
        ran = run(_PROCESS, BRIEF, folder=Path(os.sep), given=asked)
    except OSError:
        return None
    found = re.search(r"^version (\d+) (\d+)$", ran.told, re.MULTILINE)
    return (int(found[1]), int(found[2])) if ran.status == 0 and found else None


def _compiler(kind: Kind, version: tuple[int, int], library: Path) -> Compiler:
    headers = _cuda_headers() if kind == "nvrtc" else []
    # releases of one version differ in size at least
    size = library.stat().st_size if library.is_file() else 0
    details = f"{size} bytes" + (f" with headers {_headers_version(headers[0])}" if headers else "")

    def given(task: Task) -> bytes:
        (task.folder / "stand_ins" / "hip").mkdir(parents=True)
        (task.folder / "stand_ins" / "hip" / "hip_runtime.h").touch()  # which HIPRTC has in itself
        standing_in = [task.folder / "stand_ins"] if kind == "hiprtc" else []
        includes = [f"-I{folder}" for folder in (*task.includes, *standing_in, *headers)]
        arch = f"{task.target.arch}{task.options.arch_suffix}"
        target = f"--gpu-architecture={arch}" if kind == "nvrtc" else f"--offload-arch={arch}"
        options = [target, f"-std={task.options.standard}", *task.defines(), *includes, *task.options.flags]
        asked = {"library": str(library), "prefix": kind, "file": str(task.main), "folder": str(task.made)}
        return json.dumps({**asked, "options": options, "names": list(task.names)}).encode()

    return Compiler(kind, f"{version[0]}.{version[1]}", library, details, lambda task: _PROCESS, given)


def _cuda_headers() -> list[Path]:
    """The folders with ``cuda_fp16.h`` and with CCCL's ``cuda/std``."""
    roots = [Path(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots += packaged("include")
    roots += [path.resolve().parents[1] / "include" for path in on_path("nvcc")] + [Path("/usr/local/cuda/include")]
    roots += sorted(Path("/usr/local").glob("cuda-*/include"), reverse=True)
    for root in roots:
        if (root / "cuda_fp16.h").is_file():
            return [root, *(path for path in (root / "cccl",) if path.is_dir())]
    return []


def _headers_version(folder: Path) -> str:
    try:
        text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "?"
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return found[1] if found else "?"
