"""Kernels in CUDA or HIP C++: compiled at run time or ahead, kept in a cache on disk, launched on torch tensors.

A plugin keeps its sources beside its Python modules, and needs four words:

- ``Source``: a file and the headers of the plugin's that it may include. Nothing else of the folder is there when it is
  compiled, so that what the cache's key covers is what the compiler saw.
- ``Options``: how it is compiled: definitions, flags, other packages' headers (``HeaderPackage``), and ``Limits``.
- ``Unit``: one thing to compile, and the kernels or functions that are wanted of it.
- ``Kernel``: one ``__global__`` function of a unit with the types of its parameters; called, it is launched.

::

    from portakernel.authoring.native import Kernel, Options, Source, Unit

    SOURCE = Source.beside(__file__, "rms_norm.hip", headers=("vectors.h", "on_nvidia/hip/hip_runtime.h"))

    def options(target):                             # Options, or what makes them for a target
        shim = ("on_nvidia",) if target.vendor == "nvidia" else ()
        return Options(defines=(("T", "__half"),), include=shim)

    RMS_NORM = Kernel(Unit(SOURCE, ("rms_norm",), options), ("pointer", "pointer", "pointer", "int64", "float32"))

    def rms_norm(x, weight, *, eps, out=None):
        y = torch.empty_like(x) if out is None else out
        RMS_NORM((rows,), (256,), 0, y, x, weight, x.shape[-1], eps)        # grid, block, dynamic shared bytes
        return y

The tensors' device has to be current, as it is when the dispatcher calls a kernel; the launch goes to torch's current
stream. The first launch on a device compiles, or takes what the cache on disk has; ``Kernel(..., compiles="ahead")``
compiles on no call: until ``Unit.build`` or ``portakernel build`` has, it declines with ``needs_build`` and the
command. A name may be an ``extern "C"`` kernel (``rms_norm``) or an instance of a template (``rms_norm<float, 8>``).

Below that stand ``build``, ``kept`` and ``load``, and for host code compiled by nvcc (CUTLASS's launchers)
``Unit(..., form="library")`` with ``load_library``.

Every failure is a ``CannotRun`` whose rejection has a code and says what to do: the next kernel serves the call.
``missing_toolchain`` (no compiler, the wrong version), ``missing_library`` (headers, CuPy), ``arch`` (the compiler does
not know it, or the code is for another), ``needs_build`` (not built, and calls do not compile), ``cannot_run`` (our
source does not compile: the text has the compiler's file and line; it crashed, or ran out of memory or time),
``shared_memory``, ``probe_failed`` (it could not be loaded).

In a plugin's manifest, ``offline`` names a function of the plugin's own, which can be ``compiling`` itself, imported:
``portakernel compile`` calls kernels on meta tensors then, and ``target_of`` says for which target. ``units`` names one
that lists, for a target, the units to build ahead: ``(Target) -> Iterable[Unit]``, for ``portakernel build``.

Importing this loads neither torch nor CuPy, and looks for no compiler.
"""

from __future__ import annotations

from portakernel.native.code_cache import Cache, cache
from portakernel.native.code_object import CodeObject, KernelFacts
from portakernel.native.compiler import Compiler
from portakernel.native.facts import read_code
from portakernel.native.kernel import Kernel
from portakernel.native.library import load_library
from portakernel.native.module import Function, Module, Parameter, load
from portakernel.native.offline import compiling
from portakernel.native.options import Limits, Options
from portakernel.native.place import target_of
from portakernel.native.process import run as run_limited
from portakernel.native.source import HeaderPackage, Source
from portakernel.native.toolchain import compiler_for
from portakernel.native.unit import Unit, build, kept, needs_build

__all__ = [
    "Cache",
    "CodeObject",
    "Compiler",
    "Function",
    "HeaderPackage",
    "Kernel",
    "KernelFacts",
    "Limits",
    "Module",
    "Options",
    "Parameter",
    "Source",
    "Unit",
    "build",
    "cache",
    "compiler_for",
    "compiling",
    "kept",
    "load",
    "load_library",
    "needs_build",
    "read_code",
    "run_limited",
    "target_of",
]
