"""How this plugin launches: one way in, for GPUs, for GPUs that are not here, and for the emulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.native import Kernel, Options, Source, Unit, target_of
from portakernel_plugins.hip import emulator
from portakernel_plugins.hip.configurations import Configuration

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
    kinds: tuple[tuple[Parameter, int], ...] = (("pointer", pointers), ("int64", integers), ("float32", floats))
    return Program(name, headers, tuple(kind for kind, count in kinds for _ in range(count)))


class Launch:
    """A program with its macros, and how it is launched: called, it is.

    It is kept under what its macros and configuration depend on, because finding these costs as much as the launch.
    """

    __slots__ = ("block", "defines", "how", "kernel", "program")

    def __init__(self, program: Program, how: Configuration, defines: Defines) -> None:
        self.program, self.how, self.defines, self.block = program, how, defines, (how.threads,)
        self.kernel = Kernel(Unit(program.source, (program.name,), Options(defines=defines)), program.parameters)

    def __call__(self, blocks: int, *args: Any) -> None:
        """Launch ``blocks`` blocks on the current device, which the dispatcher makes the arguments'.

        Raises:
            CannotRun: it cannot be compiled or loaded here; nothing was launched.
        """
        grid = (blocks, 1) if blocks <= _GRID_WIDTH else (_GRID_WIDTH, cdiv(blocks, _GRID_WIDTH))
        if args[0].get_device() < 0 and (warp_size := emulator.warp_size()) is not None:
            emulator.run(self.program, self.defines, warp_size, grid, self.block[0], args)
        else:
            self.kernel(grid, self.block, 0, *args)


def arch_of(x: Tensor) -> str:
    """The architecture that a launch on ``x`` is for.

    Raises:
        ArgumentValueError: CPU tensors, outside ``emulating()``.
    """
    index = x.get_device()
    return _arch_of_device(index) if index >= 0 else _arch_without_device(x)


@cache
def _arch_of_device(index: int) -> str:
    return target_of(torch.empty(0, device=torch.device("cuda", index))).arch


def _arch_without_device(x: Tensor) -> str:
    warp_size = emulator.warp_size()
    if warp_size is not None:
        return emulator.ARCHS[warp_size]
    if x.device.type == "cpu":
        raise ArgumentValueError(
            "a HIP kernel was given tensors on cpu; it is compiled for GPUs (torch device cuda). Move the tensors to a"
            " GPU, or run it in the emulator, inside portakernel_plugins.hip.emulator.emulating()"
        )
    return target_of(x).arch


def name_of(dtype: torch.dtype) -> str:
    """The dtype as sources name it."""
    return str(dtype).removeprefix("torch.")


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)
