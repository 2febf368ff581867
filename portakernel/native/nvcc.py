"""NVIDIA's compiler driver, which compiles host code too: it makes libraries as well as code objects."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.native.compiler import Compiler, on_path, packaged, version_of
from portakernel.native.staging import Task

# The first that compiles C++20 and knows sm_90a.
_OLDEST = (12, 0)
_USUAL = Path("/usr/local/cuda/bin/nvcc")
_VERSION = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")


def find() -> Compiler | Rejection:
    """The first nvcc that is new enough: of CUDA_HOME, along PATH, of NVIDIA's packages, of the usual place."""
    named = [Path(os.environ[name], "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = [*named, *on_path("nvcc"), *(path / "nvcc" for path in packaged("bin")), _USUAL]
    seen: list[str] = []
    for path in dict.fromkeys(places):
        if not (path.is_file() and os.access(path, os.X_OK)):
            continue
        version = _VERSION.search(version_of(path))
        if version is None:
            seen.append(f"{path} does not tell its version")
        elif (int(version[1]), int(version[2])) < _OLDEST:
            seen.append(f"{path} is {version[1]}.{version[2]}")
        else:
            return Compiler("nvcc", version[3], path, "", partial(_command, path))
    needs = f"needs nvcc {_OLDEST[0]}.{_OLDEST[1]} or later"
    remedy = "install the CUDA toolkit (or pip install nvidia-cuda-nvcc) and set CUDA_HOME"
    return Rejection(ReasonCode.MISSING_TOOLCHAIN, f"{needs}; {', '.join(seen) or 'none was found'}; {remedy}", "nvcc")


def _command(path: Path, task: Task) -> list[str]:
    arch = f"{task.target.arch.removeprefix('sm_')}{task.options.arch_suffix}"
    form = ["-cubin"] if task.form == "code object" else ["-shared", "-Xcompiler", "-fPIC", "-cudart", "static"]
    # the PTX and cubin on the way are kept: the one is read for evidence, the other for a library's resources
    return [
        str(path), "-x", "cu", *form, "-gencode", f"arch=compute_{arch},code=sm_{arch}",
        f"-std={task.options.standard}", "-O3", "--keep", "--keep-dir", str(task.made),
        *task.defines(), *(f"-I{folder}" for folder in task.includes), *task.options.flags,
        "-o", str(task.made / "code"), str(task.main),
    ]  # fmt: skip
