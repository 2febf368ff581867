"""How a source is compiled, and what its compiler may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from portakernel.native.source import HeaderPackage

# What compiles: `nvrtc` and `nvcc` for NVIDIA, `clang` and `hiprtc` for AMD.
CompilerName = Literal["nvrtc", "nvcc", "clang", "hiprtc"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run of a compiler may use; beyond that it is ended, and the rejection says so.

    ``memory_bytes`` bounds the address space of each of its processes. That is more than what they touch: nvcc's
    compiler of a CUTLASS kernel for sm_90a takes 2 to 3 GB.
    """

    seconds: float = 600.0
    memory_bytes: int = 16 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """How a unit is compiled for one target.

    ``defines``: macros and their values. ``flags``: passed on as they are; they are the compiler's own, so give
    ``compilers`` where they are not common to all. ``include``: folders under the source's folder that are searched
    for its headers, before that folder itself. ``packages``: headers of other distributions. ``arch_suffix``: ``a``
    compiles for exactly that architecture (``sm_90a``), ``f`` for its family. ``compilers``: those that will do, best
    first; what the target's vendor has where empty. All but ``limits`` is part of the cache's key.
    """

    defines: tuple[tuple[str, str | int], ...] = ()
    flags: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    packages: tuple[HeaderPackage, ...] = ()
    standard: str = "c++17"
    arch_suffix: Literal["", "a", "f"] = ""
    compilers: tuple[CompilerName, ...] = ()
    limits: Limits = field(default=Limits(), compare=False)
