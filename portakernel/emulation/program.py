"""A code object decoded for the engine: made once for equal bytes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from portakernel.emulation.build import handler
from portakernel.emulation.code_object import PRELOAD_ENTRY, Kernel, LoadedObject, load
from portakernel.emulation.decoder import decode
from portakernel.emulation.errors import EmulationError
from portakernel.emulation.lines import Lines
from portakernel.emulation.record import Record

# Behind the code on RDNA.
_PADDING = "s_code_end"
# The first of the two registers that LLVM's functions return by.
_RETURN_ADDRESS = 30


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in the order of .text (``flow_count``), then the second halves of dual ones; ``ops`` packed.

    ``names``: of all instructions but those before a kernel's entry that only firmware executes which preloads nothing.
    """

    loaded: LoadedObject
    records: tuple[Record, ...]
    handlers: tuple[int, ...]
    flow_count: int
    ops: ctypes.Array[ctypes.c_char]
    index_at: ctypes.Array[ctypes.c_int32]
    lines: Lines
    names: frozenset[str]
    _orders: dict[str, bool] = field(default_factory=dict[str, bool], repr=False, compare=False)

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
        """The instructions that a kernel may reach and the engine has no handler for."""
        return tuple(
            sorted({self.records[index].name for index in self._reachable(kernel) if not self.handlers[index]})
        )

    def orders_workgroups(self, kernel: Kernel) -> bool:
        """Whether a kernel may reach atomics in memory, by which workgroups may wait for what others wrote."""
        if kernel.name not in self._orders:
            names = {self.records[index].name for index in self._reachable(kernel)}
            self._orders[kernel.name] = any("_atomic_" in name and not name.startswith("ds_") for name in names)
        return self._orders[kernel.name]

    def _reachable(self, kernel: Kernel) -> list[int]:
        """The records of a kernel's code, and where it calls, of all code that is no kernel's: which one nobody knows.

        Of dual instructions both halves.
        """
        others = [self._range(one) for one in self.loaded.kernels.values()]
        own = self._range(kernel)
        begin, flow = self.loaded.text_address, self.records[: self.flow_count]
        reached = [i for i, one in enumerate(flow) if begin + one.offset in own and one.name != _PADDING]
        if any(_calls(flow[i]) for i in reached):
            reached += [
                i
                for i, one in enumerate(flow)
                if one.name != _PADDING and not any(begin + one.offset in other for other in others)
            ]
        return reached + [flow[i].pair for i in reached if flow[i].pair >= 0]

    def _range(self, kernel: Kernel) -> range:
        """The addresses of a kernel's code; to the next kernel's entry, where its symbol does not say how many."""
        if kernel.end > kernel.entry:
            return range(kernel.entry, kernel.end)
        behind = [one.entry for one in self.loaded.kernels.values() if one.entry > kernel.entry]
        return range(kernel.entry, min(behind, default=self.loaded.text_address + len(self.loaded.text)))


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
    return Program(loaded, records, handlers, len(flow), ops, index_at, Lines.read(loaded), names)


def _calls(record: Record) -> bool:
    """Whether an instruction goes to where a register says, and this is no return of LLVM's functions."""
    if record.name == "s_setpc_b64":
        return record.src[0] != _RETURN_ADDRESS
    return record.name in ("s_swappc_b64", "s_call_b64")


def _names(loaded: LoadedObject, records: Sequence[Record]) -> frozenset[str]:
    entries = [one.entry - loaded.text_address for one in loaded.kernels.values() if one.preload_words]
    headers = [range(entry - PRELOAD_ENTRY, entry) for entry in entries]
    return frozenset(one.name for one in records if not any(one.offset in header for header in headers))
