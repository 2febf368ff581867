"""One launch: arguments laid out as the runtime lays them out, the engine run, its report read."""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from portakernel.emulation import abi
from portakernel.emulation.build import engine
from portakernel.emulation.code_object import Argument, Kernel, LoadedObject
from portakernel.emulation.counts import Counts, counted
from portakernel.emulation.errors import EmulationError
from portakernel.emulation.finding import NO_WAVE, Finding, Kind
from portakernel.emulation.memory import CODE_BASE, KERNARG_BASE, PACKET_BASE, Memory, service_addresses
from portakernel.emulation.operand_text import describe
from portakernel.emulation.program import Program, program

_MOST_FINDINGS = 256
_MOST_ITEMS, _MOST_WORKGROUPS = 1024, 1 << 31
_LINE_BYTES = 64
# The upper halves of addresses that flat accesses find LDS and private memory at; the same as in engine/wave.h.
_SHARED_APERTURE, _PRIVATE_APERTURE = 0xFF01, 0xFF02


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a launch: findings in the order of workgroups, counts, and how often each instruction ran.

    The tensors hold the results. ``stopped``: the kernel did not run to its end, for a finding that says why.
    """

    findings: tuple[Finding, ...]
    counts: Counts
    stopped: bool
    executed: dict[str, int] = field(repr=False)
    present: frozenset[str] = field(repr=False)

    @property
    def clean(self) -> bool:
        """Whether the kernel ran to its end and nothing was found."""
        return not self.findings and not self.stopped


def emulate(
    code_object: bytes,
    kernel_name: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    arch: str,
    *,
    names: Sequence[str] = (),
    dynamic_lds: int = 0,
    budget: int = 100_000_000,
    threads: int | None = None,
    check_conflicts: bool = True,
) -> Run:
    """Run a kernel of an AMD code object on this CPU, instruction by instruction.

    ``grid`` counts workgroups, ``block`` work items of one; ``arguments`` are the explicit ones in the kernel's order:
    tensors on the CPU (or numpy arrays) for pointers, None for a null pointer, ints, floats, or ``bytes`` as they lie
    in memory. ``names`` are theirs in findings, where the code object has none (Triton's). ``dynamic_lds``: bytes of
    LDS beside those that the kernel declares. ``budget``: instructions of one wave. ``threads``: of the host, all its
    cores by default; results do not depend on them where workgroups are independent.

    Raises:
        EmulationError: the code object or the launch cannot be emulated.
        CannotRun: the engine cannot be compiled here.
    """
    made = program(code_object, arch)
    kernel = made.loaded.kernel(kernel_name)
    sizes = _three(grid, "grid"), _three(block, "block")
    lds = _workgroup_lds(made.loaded, kernel, *sizes, dynamic_lds)
    memory = Memory()
    kernarg = _kernarg(kernel, arguments, names, *sizes, dynamic_lds, memory)
    # whole cache lines, as runtimes give: compilers read several dwords at once, and some behind the last argument
    memory.add_bytes(KERNARG_BASE, kernarg + bytes(-len(kernarg) % _LINE_BYTES), "the kernel's arguments")
    memory.add_bytes(PACKET_BASE, _packet(kernel, *sizes, lds), "the dispatch packet")
    for segment in made.loaded.segments:
        memory.add_bytes(CODE_BASE + segment.address, segment.data, "the code object", writable=segment.writable)
    launch = _launch(made, kernel, *sizes, lds, bytes(kernarg))
    launch.budget, launch.check_conflicts = budget, int(check_conflicts)
    launch.check_groups = int(check_conflicts and math.prod(sizes[0]) > 1 and not made.orders_workgroups(kernel))
    launch.threads = threads if threads is not None else _cores()
    return run(made, launch, memory)


def run(made: Program, launch: abi.Launch, memory: Memory) -> Run:
    """The engine on a launch whose registers are set."""
    regions = memory.finish()
    launch.regions, launch.region_count = ctypes.addressof(regions), len(regions)
    findings = (abi.RawFinding * _MOST_FINDINGS)()
    launch.findings, launch.finding_capacity = ctypes.addressof(findings), _MOST_FINDINGS
    arrays = [(abi.U64 * len(made.records))() for _ in range(5)]
    launch.executed, launch.lanes, launch.conflicts, launch.moved, launch.lds_moved = map(ctypes.addressof, arrays)
    if engine().emulate(ctypes.byref(launch)):
        raise EmulationError("the launch does not fit this machine's memory: emulate fewer threads, or a smaller grid")
    counters = [list(one) for one in arrays]
    report = tuple(_finding(made, memory, one) for one in _completed(findings[: launch.finding_count], launch))
    executed: dict[str, int] = {}
    for record, count in zip(made.records, counters[0], strict=True):
        if count:
            executed[record.name] = executed.get(record.name, 0) + count
            if record.pair >= 0:  # the engine counts a dual instruction once, by its first half
                second = made.records[record.pair].name
                executed[second] = executed.get(second, 0) + count
    counts = counted(made.records, made.handlers, *counters)
    return Run(report, counts, bool(launch.stopped), executed, made.names)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _three(sizes: Sequence[int], name: str) -> tuple[int, int, int]:
    full = (*sizes, 1, 1, 1)[:3]
    if not 1 <= len(sizes) <= 3 or any(size < 1 for size in full):
        raise EmulationError(f"{name} is {tuple(sizes)}: give one to three sizes of at least 1")
    return full[0], full[1], full[2]


def _workgroup_lds(
    loaded: LoadedObject, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], dynamic_lds: int
) -> int:
    """The bytes of LDS of a workgroup, where the kernel can be launched with these sizes."""
    items, most = block[0] * block[1] * block[2], min(_MOST_ITEMS, kernel.most_threads)
    if items > most:
        raise EmulationError(f"a block of {items} work items: {kernel.name} takes at most {most}")
    if grid[0] * grid[1] * grid[2] > _MOST_WORKGROUPS:
        raise EmulationError(f"a grid of {grid} has more than {_MOST_WORKGROUPS} workgroups")
    lds = kernel.lds_bytes + dynamic_lds
    if dynamic_lds < 0 or lds > loaded.arch.lds_bytes:
        raise EmulationError(
            f"{kernel.name} with {dynamic_lds} bytes of dynamic LDS takes {lds}; "
            f"a workgroup of {loaded.arch.name} has {loaded.arch.lds_bytes}"
        )
    return lds


def _kernarg(
    kernel: Kernel, arguments: Sequence[Any], called: Sequence[str], grid: tuple[int, int, int],
    block: tuple[int, int, int], dynamic_lds: int, memory: Memory,
) -> bytearray:  # fmt: skip
    explicit = [one for one in kernel.arguments if not one.hidden]
    if len(arguments) != len(explicit):
        names = ", ".join(one.name or one.kind for one in explicit)
        raise EmulationError(f"{kernel.name} takes {len(explicit)} arguments ({names}), not {len(arguments)}")
    data = bytearray(kernel.kernarg_bytes)
    for index, (place, value) in enumerate(zip(explicit, arguments, strict=True)):
        name = called[index] if index < len(called) else place.name or f"argument {index}"
        data[place.offset : place.offset + place.size] = _value(place, name, value, memory)
    hidden = {"hidden_grid_dims": 1 + (grid[1] > 1 or grid[2] > 1) + (grid[2] > 1)}
    for axis, letter in enumerate("xyz"):
        hidden[f"hidden_block_count_{letter}"] = grid[axis]
        hidden[f"hidden_group_size_{letter}"] = block[axis]
    hidden["hidden_dynamic_lds_size"] = dynamic_lds
    hidden |= service_addresses()
    hidden["hidden_private_base"], hidden["hidden_shared_base"] = _PRIVATE_APERTURE, _SHARED_APERTURE
    for place in kernel.arguments:
        if place.hidden:  # offsets and remainders are 0
            value = hidden.get(place.kind, 0) & (1 << 8 * place.size) - 1  # whatever size the metadata gives it
            data[place.offset : place.offset + place.size] = value.to_bytes(place.size, "little")
    return data


def _value(place: Argument, name: str, value: Any, memory: Memory) -> bytes:
    if place.kind in ("global_buffer", "dynamic_shared_pointer"):
        address = value or 0 if isinstance(value, int) or value is None else memory.add_tensor(value, name)
        try:
            return address.to_bytes(place.size, "little")
        except OverflowError as error:
            raise EmulationError(f"pointer {address:#x} does not fit {name} of {place.size} bytes") from error
    if isinstance(value, bytes | bytearray):
        if len(value) != place.size:
            raise EmulationError(f"{name} takes {place.size} bytes, not {len(value)}")
        return bytes(value)
    try:
        if isinstance(value, bool | int):
            return int(value).to_bytes(place.size, "little", signed=value < 0)
        if isinstance(value, float):
            return struct.pack({2: "<e", 4: "<f", 8: "<d"}[place.size], value)
    except (OverflowError, KeyError) as error:
        raise EmulationError(f"{value!r} does not fit {name} of {place.size} bytes") from error
    if place.size == 8:  # a pointer that the metadata calls a value
        return memory.add_tensor(value, name).to_bytes(8, "little")
    raise EmulationError(f"{name} of {place.size} bytes cannot be a {type(value).__name__}: {value!r}")


def _packet(kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], lds: int) -> bytes:
    items = [count * size for count, size in zip(grid, block, strict=True)]
    return struct.pack(
        "<HHHHHHIIIIIQQQQ", 2, 3, *block, 0, *items, kernel.private_bytes, lds, 0, KERNARG_BASE, 0, 0
    ).ljust(64, b"\0")


def _launch(
    made: Program, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], lds: int, kernarg: bytes
) -> abi.Launch:
    launch = abi.Launch()
    launch.ops, launch.index_at = ctypes.addressof(made.ops), ctypes.addressof(made.index_at)
    launch.text_base, launch.text_size = CODE_BASE + made.loaded.text_address, len(made.loaded.text)
    launch.op_count, launch.flow_count = len(made.records), made.flow_count
    launch.entry = made.entry(kernel)
    launch.major, launch.minor, launch.stepping = made.loaded.arch.version
    launch.wave_size = kernel.wave_size
    launch.grid, launch.block = (abi.U32 * 3)(*grid), (abi.U32 * 3)(*block)
    launch.lds_bytes, launch.private_bytes = lds, kernel.private_bytes
    launch.mode = kernel.mode
    words = _user_sgprs(kernel, kernarg)
    launch.user_sgprs, launch.user_sgpr_count = (abi.U32 * 32)(*words), kernel.user_sgpr_count
    launch.workgroup_id = (abi.U32 * 3)(*kernel.workgroup_ids)
    launch.workgroup_info, launch.workitem_dimensions = int(kernel.workgroup_info), kernel.workitem_dimensions
    return launch


def _user_sgprs(kernel: Kernel, kernarg: bytes) -> list[int]:
    words: list[int] = []
    values = {
        "dispatch_ptr": PACKET_BASE,
        "kernarg_segment_ptr": KERNARG_BASE,
        "private_segment_size": kernel.private_bytes,
    }
    for name, size in kernel.user_sgprs:
        if name == "private_segment_buffer":  # swizzled by lane, which the engine knows by the base
            words += [0, _PRIVATE_APERTURE, 0xFFFFFFFF, 0]
            continue
        value = values.get(name, 0)
        words += [value & 0xFFFFFFFF, value >> 32][:size]
    if kernel.preload_words:
        part = kernarg[kernel.preload_offset :][: 4 * kernel.preload_words].ljust(4 * kernel.preload_words, b"\0")
        words += struct.unpack(f"<{kernel.preload_words}I", part)
    return words


def _completed(findings: list[abi.RawFinding], launch: abi.Launch) -> list[abi.RawFinding]:
    """With what the engine leaves out: of a load that conflicts, it says so with the first use of what it gave."""
    waves = {one.record: one.other_wave for one in findings if one.kind == Kind.CONFLICT}
    for one in findings:
        if one.kind == Kind.UNINITIALISED_REGISTER and one.other_wave == NO_WAVE:
            one.other_wave = waves.get(one.other_record, NO_WAVE)
        elif one.kind == Kind.BUDGET:
            one.address = launch.budget
    return findings


def _finding(made: Program, memory: Memory, raw: abi.RawFinding) -> Finding:
    record = made.records[raw.record]
    known = raw.other_record < len(made.records)
    return Finding(
        Kind(raw.kind), record.name, describe(record), record.offset, raw.wave, raw.lane, tuple(raw.workgroup),
        raw.address, raw.bytes, raw.distance, memory.names[raw.region] if raw.region < len(memory.names) else "",
        raw.other_wave, describe(made.records[raw.other_record]) if known else "",
        tuple(raw.other_workgroup), raw.count,
        made.lines.at(made.loaded.text_address + record.offset),
        made.records[raw.other_record].offset if known else -1,
    )  # fmt: skip
