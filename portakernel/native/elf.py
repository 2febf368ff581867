"""Sections and symbols of ELF files, which is what cubins and AMD's code objects are."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# e_machine: NVIDIA's and AMD's
EM_CUDA, EM_AMDGPU = 190, 224
_SHT_SYMTAB, SHT_NOTE = 2, 7


class NotReadableError(ValueError):
    """Bytes that are not what a compiler should have made."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its name, kind, and bytes."""

    name: str
    kind: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit little-endian ELF file; ``symbols`` are names by index."""

    machine: int
    flags: int
    abi_version: int
    sections: tuple[Section, ...]
    symbols: tuple[str, ...]

    @classmethod
    def read(cls, data: bytes) -> Elf:
        """The file whose bytes these are.

        Raises:
            NotReadableError: it is no such file, or ends too early.
        """
        if data[:6] != b"\x7fELF\x02\x01":
            raise NotReadableError("is no 64-bit ELF file")
        try:
            return cls._read(data)
        except (struct.error, IndexError, OverflowError, ValueError) as error:
            raise NotReadableError(f"is a broken ELF file ({error})") from error

    @classmethod
    def _read(cls, data: bytes) -> Elf:
        _, machine, _, _, _, begin, flags, _, _, _, step, count, names_at = struct.unpack_from(
            "<HHIQQQIHHHHHH", data, 16
        )
        heads = [struct.unpack_from("<IIQQQQIIQQ", data, begin + place * step) for place in range(count)]

        def text(table: int, offset: int) -> str:
            first = heads[table][4] + offset
            return data[first : data.index(b"\0", first)].decode()

        sections: list[Section] = []
        symbols: list[str] = []
        for name, kind, _, _, offset, size, link, *_ in heads:
            # a section without bits in the file (shared memory) has a size all the same
            content = b"" if kind == 8 else data[offset : offset + size]
            if kind not in (0, 8) and len(content) != size:
                raise NotReadableError("ends before its last section")
            sections.append(Section(text(names_at, name), kind, size, content))
            if kind == _SHT_SYMTAB:
                at = range(offset, offset + size, 24)
                symbols = [text(link, struct.unpack_from("<I", data, place)[0]) for place in at]
        return cls(machine, flags, data[8], tuple(sections), tuple(symbols))

    def notes(self) -> Iterator[tuple[str, int, bytes]]:
        """Each note's owner, kind and content."""
        for section in self.sections:
            if section.kind != SHT_NOTE:
                continue
            at, data = 0, section.data
            while at + 12 <= len(data):
                name_bytes, size, kind = struct.unpack_from("<III", data, at)
                name_at, at = at + 12, at + 12 + (name_bytes + 3) // 4 * 4
                yield (
                    data[name_at : name_at + name_bytes].rstrip(b"\0").decode(errors="replace"),
                    kind,
                    data[at : at + size],
                )
                at += (size + 3) // 4 * 4
