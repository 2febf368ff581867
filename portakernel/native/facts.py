"""What can be read out of machine code: which architecture it is for, and what its kernels take."""

from __future__ import annotations

from collections.abc import Sequence

from portakernel.native import cubin, hsaco
from portakernel.native.code_object import KernelFacts
from portakernel.native.elf import EM_AMDGPU, EM_CUDA, Elf, NotReadableError
from portakernel.native.symbols import find_symbol
from portakernel.words.target import Target

_READERS = {EM_CUDA: ("nvidia", cubin), EM_AMDGPU: ("amd", hsaco)}


def read_code(code: bytes) -> tuple[Target, dict[str, KernelFacts]]:
    """The target of a code object, and its kernels by symbol.

    Raises:
        NotReadableError: it is neither a cubin nor an AMD code object.
    """
    elf = Elf.read(code)
    if elf.machine not in _READERS:
        raise NotReadableError(f"is for machine {elf.machine}: neither NVIDIA's nor AMD's")
    vendor, reader = _READERS[elf.machine]
    found = {symbol: KernelFacts(symbol, symbol, *facts) for symbol, facts in reader.kernels(elf).items()}
    return Target(vendor, reader.arch(elf)), found


def named(kernels: dict[str, KernelFacts], names: Sequence[str], lowered: dict[str, str]) -> tuple[KernelFacts, ...]:
    """The kernels that were asked for, under the names they were asked for by; all where none was named.

    ``lowered`` are symbols that the compiler itself told.

    Raises:
        KeyError: there is no such kernel; its argument is the name.
    """
    found: list[KernelFacts] = []
    for name in names or kernels:
        symbol = lowered.get(name) or find_symbol(name, list(kernels))
        if symbol not in kernels:
            raise KeyError(name)
        facts = kernels[symbol]
        found.append(
            KernelFacts(name, symbol, facts.registers, facts.spilled_bytes, facts.shared_bytes, facts.parameters)
        )
    return tuple(found)
