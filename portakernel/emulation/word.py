"""An instruction's bits, read by the names of its encoding's fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portakernel.emulation import abi
from portakernel.emulation.arch import Arch
from portakernel.emulation.encodings import Encoding
from portakernel.emulation.record import Record

# What has a literal behind it whatever its operands are.
_LITERAL_ALWAYS = ("fmamk", "fmaak", "madmk", "madak", "s_setreg_imm32")
ACCUMULATION = abi.AGPR - abi.VGPR


@dataclass(slots=True)
class Word:
    """An instruction's bits, its encoding, and the record that is filled from them; second halves go to ``halves``."""

    raw: int
    encoding: Encoding
    arch: Arch
    record: Record
    halves: list[Record]

    @property
    def cdna(self) -> bool:
        """Whether it is of CDNA, not of RDNA."""
        return self.arch.table == "cdna"

    def has(self, name: str) -> bool:
        """Whether the encoding has a field of that name."""
        return name in self.encoding.fields

    def bits(self, name: str, default: int = 0) -> int:
        """What a field holds, ``default`` where the encoding has none of that name."""
        place = self.encoding.fields.get(name)
        return default if place is None else place.of(self.raw)

    def operand(self, name: str) -> int:
        """The code of the operand in a field; ``NO_OPERAND`` where the encoding has none of that name."""
        return self.normal(self.bits(name, abi.NO_OPERAND))

    def normal(self, code: int) -> int:
        """An operand's code with RDNA's numbers of M0 and NULL, which CDNA has the other way round."""
        return {abi.NULL: abi.M0, abi.M0: abi.NULL}.get(code, code) if self.cdna else code

    def signed(self, name: str, bits: int) -> int:
        """What a field holds in its lowest ``bits``, as a signed number."""
        value = self.bits(name) & (1 << bits) - 1
        return value - (1 << bits) if value >> bits - 1 else value

    @property
    def accumulation(self) -> int:
        """What the codes of data registers grow by: those of accumulation registers, where ``acc`` says so."""
        return ACCUMULATION if self.bits("acc") else 0

    @property
    def returns(self) -> bool:
        """Whether an atomic operation returns what was there."""
        return bool(self.bits("th") & 1 if self.has("th") else self.bits("sc0") | self.bits("glc"))

    def next_dword(self) -> int:
        """The dword behind what the record has taken so far, which it takes too."""
        at = 8 * self.record.size
        self.record.size += 4
        return self.raw >> at & 0xFFFFFFFF

    def take_literal(self, codes: Sequence[int]) -> None:
        """Takes the dword behind the instruction, where an operand or the opcode asks for one."""
        if abi.LITERAL in codes or has_literal(self.record.name):
            self.record.literal = self.next_dword()


def has_literal(name: str) -> bool:
    """Whether an instruction of that name has a literal behind it, whatever its operands are."""
    return any(part in name for part in _LITERAL_ALWAYS)
