"""How this plugin launches: one way in, for GPUs, for GPUs that are not here, and for the emulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.native import Kernel, Options, Source, Unit, target_of
from portakernel_plugins.hip import emulator

FOLDER = Path(__file__).with_name("sources")

# What a kernel takes, and what it is given: tensors or None, int, float.
Parameter = Literal["pointer", "int64", "float32"]
# Macros and their values: dtypes by torch's names, numbers, and 0 or 1.
Defines = tuple[tuple[str, str | int], ...]

_COMMON = ("numbers.h", "portability.h", "portability_amd.h", "portability_nvidia.h", "emulator.h")

# portability.h: the first dimension of a grid before the second is used.
_GRID_WIDTH = 1 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """A source, whose one kernel has its name, and the types of the kernel's parameters."""

    name: str
    headers: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    @property
    def source(self) -> Source:
        """The file, and what it includes."""
        return Source(FOLDER, f"{self.name}.hip", (*self.headers, *_COMMON))


def program(name: str, *headers: str, pointers: int, integers: int, floats: int = 0) -> Program:
    """The program of ``name``, whose kernel takes so many pointers, then integers, then numbers."""
    parameters: tuple[Parameter, ...] = (
        *("pointer" for _ in range(pointers)),
        *("int64" for _ in range(integers)),
        *("float32" for _ in range(floats)),
    )
    return Program(name, headers, parameters)


@cache
def kernel(of: Program, defines: Defines) -> Kernel:
    """The kernel that the program becomes with these macros."""
    return Kernel(Unit(of.source, (of.name,), Options(defines=defines)), of.parameters)


def launch(of: Program, defines: Defines, blocks: int, threads: int, *args: Any) -> None:
    """Launch ``blocks`` blocks of the kernel on the current device, which the dispatcher makes the arguments'.

    Raises:
        CannotRun: it cannot be compiled or loaded here; nothing was launched.
        ArgumentValueError: CPU tensors, outside ``emulating()``.
    """
    height = cdiv(blocks, _GRID_WIDTH)
    grid = (min(blocks, _GRID_WIDTH), height)
    warp_size = emulator.warp_size()
    if warp_size is not None:
        emulator.run(of, defines, warp_size, grid, threads, args)
        return
    kernel(of, defines)(grid, (threads,), 0, *args)


def arch_of(x: Tensor) -> str:
    """The architecture that a launch on ``x`` is for."""
    warp_size = emulator.warp_size()
    if warp_size is not None:
        return emulator.ARCHS[warp_size]
    if x.device.type == "cpu":
        raise ArgumentValueError(
            "a HIP kernel was given tensors on cpu; it is compiled for GPUs (torch device cuda). Move the tensors to a"
            " GPU, or run it in the emulator, inside portakernel_plugins.hip.emulator.emulating()"
        )
    return target_of(x).arch


def name_of(x: Tensor) -> str:
    """The dtype of ``x`` as sources name it."""
    return str(x.dtype).removeprefix("torch.")


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)
