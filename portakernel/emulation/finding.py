"""What the engine finds wrong with a kernel, in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from portakernel.emulation.memory import service_at
from portakernel.emulation.operand_text import register

# The other wave of a finding that has none, as in ``engine/wave.h``.
NO_WAVE = 0xFF
# A null pointer and what a small index adds to it.
_FIRST_PAGES = 1 << 16
# Arguments lie further from each other (``memory.py``): an access so far from all of them is meant for none.
_FAR = 1 << 24


class Kind(IntEnum):
    """What was found; the numbers are those of ``engine/abi.h``."""

    OUTSIDE = 1
    READ_ONLY = 2
    MISALIGNED = 3
    UNINITIALISED_LDS = 4
    UNINITIALISED_REGISTER = 5
    CONFLICT = 6
    BUDGET = 7
    UNKNOWN = 8
    UNSUPPORTED = 9
    BAD_JUMP = 10
    OUTSIDE_LDS = 11
    UNINITIALISED_MEMORY = 12
    DEADLOCK = 13
    GROUP_CONFLICT = 14
    UNWAITED = 15
    HOST_SERVICE = 16


_OF_ACCESSES = frozenset(
    {
        Kind.OUTSIDE, Kind.READ_ONLY, Kind.MISALIGNED, Kind.UNINITIALISED_LDS, Kind.CONFLICT, Kind.OUTSIDE_LDS,
        Kind.UNINITIALISED_MEMORY, Kind.GROUP_CONFLICT, Kind.HOST_SERVICE,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an instruction did, the first time it did so; ``count`` says how often in all.

    What an access of memory does wrong counts for each lane (of a scalar instruction for the wave), what was used
    before a wait for each register, all else for each wave that executes the instruction.
    ``region`` names the tensor whose memory is nearest; ``distance`` are the bytes by which an access goes past its
    end, negative before its start. ``line`` is the kernel's source line where the code object has line tables.
    ``other_text`` and ``other_offset`` are the other instruction of a conflict, the load that was not waited for, or
    the instruction that what nobody wrote comes from ("" and -1 where there is none). ``address`` is a register's
    number where one was used before its wait, and the budget where that was used up.
    """

    kind: Kind
    instruction: str
    text: str
    offset: int
    wave: int
    lane: int
    workgroup: tuple[int, int, int]
    address: int
    bytes: int
    distance: int
    region: str
    other_wave: int
    other_text: str
    other_workgroup: tuple[int, int, int]
    count: int
    line: str = ""
    other_offset: int = -1

    def __str__(self) -> str:
        where = f"workgroup {self.workgroup}, wave {self.wave}, lane {self.lane}"
        place = f" ({self.line})" if self.line else ""
        times = f", {self.count} {self._unit()} in all" if self.count > 1 else ""
        return f"{self._what()}: {self.text} at {self.offset:#x}{place}; {where}{times}"

    def _unit(self) -> str:
        if self.kind in _OF_ACCESSES:
            return "accesses" if self.instruction.startswith("s_") else "accesses of lanes"
        return "registers" if self.kind is Kind.UNWAITED else "executions by waves"

    def _what(self) -> str:
        if self.kind is Kind.OUTSIDE and self.region:
            if self.address < _FIRST_PAGES:
                return (
                    f"an access of {self.bytes} bytes by a null pointer, at {self.address:#x} (None and tensors "
                    "without elements are null pointers)"
                )
            if abs(self.distance) > _FAR:
                return f"an access of {self.bytes} bytes at {self.address:#x}, which is no argument's memory"
        if self.kind in (Kind.OUTSIDE, Kind.OUTSIDE_LDS):
            of = "LDS" if self.kind is Kind.OUTSIDE_LDS else self.region or "private memory"
            if self.distance > 0:
                return f"an access of {self.bytes} bytes ends {self.distance} bytes past the end of {of}"
            return f"an access of {self.bytes} bytes begins {-self.distance} bytes before the start of {of}"
        if self.kind is Kind.CONFLICT:
            of = f"{self.region} at {self.address:#x}" if self.region else f"LDS byte {self.address}"
            return (
                f"{of} is touched by waves {self.wave} and {self.other_wave} without a barrier between "
                f"(there: {self.other_text})"
            )
        if self.kind is Kind.UNINITIALISED_REGISTER and self.other_wave != NO_WAVE:
            return (
                "an address, a stored value or a branch comes from a register nobody wrote, or from a load that "
                f"conflicts with a store of wave {self.other_wave} ({self.other_text})"
            )
        if self.kind is Kind.GROUP_CONFLICT:
            of = f"{self.region} at {self.address:#x}"
            return f"{of} is touched by another workgroup too, {self.other_workgroup}, and nothing orders them"
        if self.kind is Kind.UNSUPPORTED and self.instruction == "s_trap":
            return "the kernel ends itself: an assert does not hold, or a trap is reached"
        other = f"{self.other_text} at {self.other_offset:#x}"
        if self.kind is Kind.UNWAITED:
            return f"{register(self.address)} is used before a wait for what loads it ({other})"
        if self.kind is Kind.UNINITIALISED_REGISTER and self.other_text:
            return (
                "an address, a stored value or a branch comes from a register that was not written in this lane "
                f"(what it holds comes from {other})"
            )
        return {
            Kind.READ_ONLY: f"a store to {self.region}, which is read only",
            Kind.MISALIGNED: f"an access of {self.bytes} bytes at {self.address:#x} is misaligned",
            Kind.UNINITIALISED_LDS: f"a load of LDS byte {self.address}, which nobody wrote",
            Kind.UNINITIALISED_REGISTER: "an address, a stored value or a branch comes from a register nobody wrote",
            Kind.BUDGET: f"an endless loop, or more than {self.address} instructions of a wave",
            Kind.HOST_SERVICE: f"the kernel asks for {service_at(self.address)}, which the emulator does not have",
            Kind.UNKNOWN: "no table or handler knows this instruction",
            Kind.UNSUPPORTED: "the engine does not execute this instruction with these operands",
            Kind.BAD_JUMP: f"a jump to {self.address:#x}, where no instruction begins",
            Kind.UNINITIALISED_MEMORY: f"a load of {self.region} that nobody wrote",
            Kind.DEADLOCK: "the wave waits for a barrier that it did not signal: for ever",
        }[self.kind]
