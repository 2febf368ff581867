"""The libraries that a kernel is made of: what each is compiled from, whether it is built, and loading it.

A library is one entry of ``configurations.yaml`` for one choice of dtypes; it serves all sizes, layouts of rows, and
activations. Calls never compile: ``ahead`` does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from portakernel.authoring import CannotRun, CaptureError, ReasonCode, Rejection, Target
from portakernel.authoring.native import HeaderPackage, Limits, Options, Source, Unit, load_library
from portakernel.authoring.tensors import is_capturing
from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.configurations import Configuration, for_arch

# Names that call.cuh exports, and with them their types in C.
_EXPORTS: Mapping[str, tuple[type[Any], tuple[Any, ...]]] = MappingProxyType(
    {
        "portakernel_call_bytes": (ctypes.c_int64, ()),
        "portakernel_workspace_bytes": (ctypes.c_int64, (ctypes.POINTER(Call),)),
        "portakernel_launch": (ctypes.c_int, (ctypes.POINTER(Call), ctypes.c_void_p, ctypes.c_void_p)),
        "portakernel_status_text": (ctypes.c_char_p, (ctypes.c_int,)),
    }
)

_HEADERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "linear_act_sm90.cu": ("call.cuh", "tma.cuh", "hopper.cuh", "activation.cuh"),
        "linear_act_sm80.cu": ("call.cuh", "activation.cuh"),
        "scaled_mm_sm90.cu": ("call.cuh", "tma.cuh", "hopper.cuh", "promoted.cuh"),
        "scaled_mm_blocks_sm90.cu": ("call.cuh", "tma.cuh", "hopper.cuh", "promoted.cuh"),
        "scaled_mm_mx_sm100.cu": ("call.cuh", "tma.cuh"),
    }
)

# What a call's dtypes define.
Macros = tuple[tuple[str, str | int], ...]

# CUTLASS' names of dtypes.
ELEMENTS: Mapping[str, str] = MappingProxyType({"bfloat16": "cutlass::bfloat16_t", "float16": "cutlass::half_t"})

# Its names of elements with their scales, by scale format.
OPERANDS: Mapping[str, str] = MappingProxyType(
    {
        "mxfp8": "cutlass::mx_float8_t<cutlass::float_e4m3_t>",
        "nvfp4": "cutlass::nv_float4_t<cutlass::float_e2m1_t>",
    }
)

# Macros of `scaled_mm_sm90.cu`: whether sums stay in the tensor cores' registers.
PROMOTED: Macros = (("FAST_SUMS", 0),)
FAST: Macros = (("FAST_SUMS", 1),)

_FLAGS = ("-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xcompiler", "-fvisibility=hidden")

# A product for Hopper took 48 to 101 s on two busy cores (nvcc 13.0, 2026-11-22), one for Ampere 13 to 16.
_LIMITS = Limits(seconds=1200.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One library: a configuration of ``kernel``, and the macros that a call's dtypes define."""

    kernel: str
    configuration: Configuration
    macros: Macros

    def __str__(self) -> str:
        defined = [value for _, value in self.macros]
        said = [dtype for dtype, element in ELEMENTS.items() if element in defined]
        return f"{self.configuration.name} ({', '.join(said)})"

    def unit(self) -> Unit:
        """What the native runtime compiles."""
        configuration = self.configuration
        source = Source.beside(__file__, f"cuda/{configuration.source}", _headers(configuration.source))
        return Unit(source, tuple(_EXPORTS), self.options, form="library")

    def options(self, target: Target) -> Options:
        """How it is compiled for ``target``.

        Raises:
            CannotRun: CUTLASS' headers are not installed.
        """
        return Options(
            defines=self.configuration.defines + self.macros,
            flags=_FLAGS,
            include=("cuda",),
            packages=(_cutlass(),),
            # wgmma and tcgen05 are of exactly these architectures, and of no later ones
            arch_suffix="" if self.configuration.generation == "sm80" else "a",
            compilers=("nvcc",),
            limits=_LIMITS,
        )


def element_macros(dtype: str) -> Macros:
    """The macros of a product whose tensors all have ``dtype``."""
    return (("ELEMENT", ELEMENTS[dtype]),)


def output_macros(dtype: str) -> Macros:
    """The macros of a product of float8 that is rounded to ``dtype``."""
    return (("OUTPUT", ELEMENTS[dtype]),)


def operand_macros(scale_format: str) -> Macros:
    """The macros of a product of operands whose scales the tensor cores apply."""
    return (("OPERAND", OPERANDS[scale_format]),)


def recipes(kernel: str, arch: str, macros: Macros) -> tuple[Recipe, ...]:
    """The libraries of ``kernel`` for an architecture and dtypes, in the table's order."""
    return tuple(Recipe(kernel, configuration, macros) for configuration in for_arch(kernel, arch))


def is_built(recipe: Recipe, target: Target) -> bool:
    """Whether the cache on disk has the library; that it has is asked once.

    Raises:
        CannotRun: CUTLASS' headers are not installed.
    """
    if (recipe, target) not in _BUILT and recipe.unit().kept(target) is not None:
        _BUILT.add((recipe, target))
    return (recipe, target) in _BUILT


# What was found in the cache. It may be cleared meanwhile: then `load` says so.
_BUILT: set[tuple[Recipe, Target]] = set()


def load(recipe: Recipe, target: Target) -> ctypes.CDLL:
    """The library, ready to be called.

    Raises:
        CannotRun: it is not built, or cannot be loaded.
        CaptureError: a stream is being captured: its code would be loaded onto the device then.
    """
    if is_capturing():
        raise CaptureError(f"CUTLASS library {recipe} would have to be loaded")
    code = recipe.unit().kept(target)
    if code is None:
        _BUILT.discard((recipe, target))
        raise CannotRun(needs_build(target, (recipe,)))
    library = load_library(code)
    for name, (result, arguments) in _EXPORTS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if (theirs := library.portakernel_call_bytes()) != ctypes.sizeof(Call):
        text = f"{code.path} takes calls of {theirs} bytes, not our {ctypes.sizeof(Call)}; `portakernel cache clear`"
        raise CannotRun(Rejection(ReasonCode.PROBE_FAILED, f"{text} and build it again"))
    return library


def needs_build(target: Target, missing: Sequence[Recipe], warmup: str = "") -> Rejection:
    """The reason of a kernel whose libraries are not built, with the command, and the call that warms up for them."""
    names = f"{', '.join(map(str, missing))} {'is' if len(missing) == 1 else 'are'}"
    way = f"`portakernel build cutlass --target {target}`" + (f" or {warmup}" if warmup else "")
    text = f"{names} not built for {target}; {way} builds {'it' if len(missing) == 1 else 'them'}"
    return Rejection(ReasonCode.NEEDS_BUILD, text)


@cache
def _cutlass() -> HeaderPackage:
    """CUTLASS' headers; to find them reads the list of the distribution's files."""
    return HeaderPackage.installed("nvidia-cutlass", "cutlass/cutlass.h")


def _headers(source: str) -> tuple[str, ...]:
    return tuple(f"cuda/{name}" for name in _HEADERS[source])
