"""Kernels compiled by CuTe DSL: for a device of this machine, to be called, or for any architecture, to be read."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Int32, Int64, cute
from cutlass.base_dsl.compiler import DumpDir

from portakernel_plugins.cutlass_dsl.blackwell import BlackwellLinearAct
from portakernel_plugins.cutlass_dsl.hopper import HopperLinearAct
from portakernel_plugins.cutlass_dsl.operands import Operands, Sizes

# What CuTe DSL calls each architecture: wgmma and tcgen05 are of exactly these.
ARCHS: Mapping[str, str] = MappingProxyType({"sm_90": "sm_90a", "sm_100": "sm_100a"})
_KERNELS: Mapping[str, Any] = MappingProxyType({"sm_90": HopperLinearAct, "sm_100": BlackwellLinearAct})
_ELEMENTS: Mapping[str, Any] = MappingProxyType({"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16})
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel is compiled for; it serves all sizes."""

    arch: str
    dtype: str
    activation: str
    has_bias: bool

    def __str__(self) -> str:
        bias = ", bias" if self.has_bias else ""
        return f"linear_act {self.arch} ({self.dtype}, {self.activation}{bias})"


def compiled(variant: Variant) -> Any:
    """The kernel, which takes what ``operands_at`` makes, sizes and a stream; loaded when first called."""
    return _compile(_kernel(variant), variant.dtype, cute.GPUArch(ARCHS[variant.arch]))


def read(variant: Variant) -> tuple[str, bytes, int]:
    """The kernel's PTX and cubin, and the shared memory in bytes that it is launched with; nothing is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        options = cute.GPUArch(ARCHS[variant.arch]), cute.KeepPTX(), cute.KeepCUBIN(), DumpDir(folder)
        kernel = _kernel(variant)
        made = _compile(kernel, variant.dtype, *options)
        return made.__ptx__ or "", made.__cubin__ or b"", kernel.shared.size_in_bytes()


def operands_at(dtype: str, *addresses: int) -> Operands:
    """The operands at these addresses: of x, weight, bias and y."""
    element = _ELEMENTS[dtype]
    space = cute.AddressSpace.gmem
    return Operands(*(cute.runtime.make_ptr(element, at, space, assumed_align=_ALIGNMENT) for at in addresses))


def sizes_of(M: int, N: int, K: int, *strides: int) -> Sizes:
    """The sizes, and the strides of x, weight and y."""
    return Sizes(Int32(M), Int32(N), Int32(K), *map(Int64, strides))


def _kernel(variant: Variant) -> Any:
    return _KERNELS[variant.arch](variant.activation, has_bias=variant.has_bias)


def _compile(kernel: Any, dtype: str, *options: Any) -> Any:
    # any addresses and sizes: they are arguments of what is compiled
    example = operands_at(dtype, *(_ALIGNMENT,) * 4), sizes_of(64, 64, 64, 64, 64, 64)
    return cute.compile[options](kernel, *example, CUstream(0))
