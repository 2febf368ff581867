"""A code object decoded for the engine: made once for equal bytes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from portakernel.emulation.build import handler
from portakernel.emulation.code_object import PRELOAD_ENTRY, Kernel, LoadedObject, load
from portakernel.emulation.decoder import decode
from portakernel.emulation.errors import EmulationError
from portakernel.emulation.lines import Lines
from portakernel.emulation.record import Record


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in the order of .text (``flow_count``), then the second halves of dual ones; ``ops`` packed.

    ``names``: of all instructions but those before a kernel's entry that only firmware executes which preloads nothing.
    ``orders_workgroups``: whether there are atomics in memory, by which workgroups may wait for what others wrote.
    """

    loaded: LoadedObject
    records: tuple[Record, ...]
    handlers: tuple[int, ...]
    flow_count: int
    ops: ctypes.Array[ctypes.c_char]
    index_at: ctypes.Array[ctypes.c_int32]
    lines: Lines
    names: frozenset[str]
    orders_workgroups: bool

    def entry(self, kernel: Kernel) -> int:
        """The index of a kernel's first instruction.

        Raises:
            EmulationError: none begins there.
        """
        offset = kernel.entry - self.loaded.text_address
        index = self.index_at[offset // 4] if 0 <= offset < len(self.loaded.text) else -1
        if index < 0:
            raise EmulationError(f"no instruction begins at {kernel.entry:#x}, the entry of {kernel.name}")
        return index

    def missing(self, kernel: Kernel) -> tuple[str, ...]:
        """The instructions between a kernel's entry and its last end of program that the engine has no handler for."""
        first, names = self.entry(kernel), set()
        others = {one.entry for one in self.loaded.kernels.values() if one.entry > kernel.entry}
        for index in range(first, self.flow_count):
            record = self.records[index]
            if record.offset + self.loaded.text_address in others or record.name == "s_code_end":
                break
            halves = (index, record.pair) if record.pair >= 0 else (index,)
            names |= {self.records[i].name for i in halves if not self.handlers[i]}
        return tuple(sorted(names))


@functools.lru_cache(maxsize=64)
def program(data: bytes, arch: str) -> Program:
    """The program in a code object.

    Raises:
        EmulationError: it cannot be loaded, or tinygrad is not installed.
        CannotRun: the engine cannot be compiled.
    """
    return decoded(load(data, arch))


def decoded(loaded: LoadedObject) -> Program:
    """The program of a loaded code object.

    Raises:
        EmulationError: tinygrad is not installed.
        CannotRun: the engine cannot be compiled.
    """
    flow, halves = decode(loaded.text, loaded.arch)
    records = (*flow, *halves)
    handlers = tuple(0 if one.name == "unknown" else handler(one.name) for one in records)
    packed = b"".join(one.pack(number) for one, number in zip(records, handlers, strict=True))
    dwords = max(1, (len(loaded.text) + 3) // 4)
    index_at = (ctypes.c_int32 * dwords)(*([-1] * dwords))
    for index, one in enumerate(flow):
        index_at[one.offset // 4] = index
    ops = ctypes.create_string_buffer(packed, max(1, len(packed)))
    names = _names(loaded, records)
    orders = any("_atomic_" in name and not name.startswith("ds_") for name in names)
    return Program(loaded, records, handlers, len(flow), ops, index_at, Lines.read(loaded), names, orders)


def _names(loaded: LoadedObject, records: Sequence[Record]) -> frozenset[str]:
    entries = [one.entry - loaded.text_address for one in loaded.kernels.values() if one.preload_words]
    headers = [range(entry - PRELOAD_ENTRY, entry) for entry in entries]
    return frozenset(one.name for one in records if not any(one.offset in header for header in headers))
