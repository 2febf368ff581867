"""Source lines of instructions, from a code object's .debug_line (DWARF 4 and 5)."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from portakernel.emulation.code_object import LoadedObject

# DWARF 5, section 7.22 and 7.5.6.
_CONTENT_PATH = 1
_FORM_STRING, _FORM_LINE_STRP, _FORM_UDATA, _FORM_DATA16, _FORM_DATA1, _FORM_DATA2 = 0x08, 0x1F, 0x0F, 0x1E, 0x0B, 0x05


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows in the order of addresses: from this address on, ``file:line``."""

    addresses: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def read(cls, loaded: LoadedObject) -> Lines:
        """The line table; empty where there is none, or one that is not understood: findings then name offsets."""
        rows: list[tuple[int, str]] = []
        try:
            at = 0
            while at + 4 < len(loaded.debug_line):
                unit = _Unit(loaded.debug_line, at, loaded.debug_line_str)
                rows += unit.rows()
                at = unit.end
        except (struct.error, IndexError, ValueError, UnicodeDecodeError):
            return cls()
        rows.sort(key=lambda row: row[0])
        return cls(tuple(address for address, _ in rows), tuple(text for _, text in rows))

    def at(self, address: int) -> str:
        """The source line of the instruction at ``address``; empty where nothing is known."""
        place = bisect.bisect_right(self.addresses, address) - 1
        return self.texts[place] if place >= 0 else ""


class _Unit:
    """One unit's line program."""

    def __init__(self, data: bytes, at: int, strings: bytes) -> None:
        self.data, self.at, self.strings = data, at, strings
        length = self.number("<I")
        if length >= 0xFFFFFFF0:
            raise ValueError("64-bit DWARF")
        self.end = self.at + length
        self.version = self.number("<H")
        if self.version not in (4, 5):
            raise ValueError(f"DWARF {self.version}")
        if self.version == 5:
            self.number("<H")  # sizes of addresses and segments
        header = self.number("<I")
        self.program = self.at + header
        self.step = self.number("<B")
        self.number("<B")  # operations of an instruction
        self.number("<B")  # what counts as a statement
        self.line_base, self.line_range = self.number("<b"), self.number("<B")
        self.first_special = self.number("<B")
        self.operands = [self.number("<B") for _ in range(self.first_special - 1)]
        self.files = self._files_5() if self.version == 5 else self._files_4()

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def leb(self, *, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def _files_4(self) -> dict[int, str]:
        while self.text():
            pass
        files: dict[int, str] = {}
        while name := self.text():
            for _ in range(3):  # folder, time, size
                self.leb()
            files[len(files) + 1] = name
        return files

    def _files_5(self) -> dict[int, str]:
        self._table()
        return dict(enumerate(self._table()))

    def _table(self) -> list[str]:
        forms = [(self.leb(), self.leb()) for _ in range(self.number("<B"))]
        entries = []
        for _ in range(self.leb()):
            path = ""
            for content, form in forms:
                value = self._form(form)
                path = str(value) if content == _CONTENT_PATH else path
            entries.append(path)
        return entries

    def _form(self, form: int) -> str | int:
        if form == _FORM_STRING:
            return self.text()
        if form == _FORM_LINE_STRP:
            at = self.number("<I")
            return self.strings[at : self.strings.index(b"\0", at)].decode()
        if form == _FORM_UDATA:
            return self.leb()
        if form == _FORM_DATA16:
            self.at += 16
            return 0
        if form in (_FORM_DATA1, _FORM_DATA2):
            return self.number("<B" if form == _FORM_DATA1 else "<H")
        raise ValueError(f"form {form:#x}")

    def rows(self) -> Iterator[tuple[int, str]]:
        self.at, address, file, line = self.program, 0, 1, 1
        while self.at < self.end:
            code = self.number("<B")
            if code >= self.first_special:
                code -= self.first_special
                address += code // self.line_range * self.step
                line += self.line_base + code % self.line_range
                yield address, self._place(file, line)
            elif code == 0:
                size = self.leb()
                after = self.at + size
                extended = self.number("<B")
                if extended == 2:
                    address = self.number("<Q")
                elif extended == 1:
                    yield address, ""
                    address, file, line = 0, 1, 1
                self.at = after
            elif code == 1:
                yield address, self._place(file, line)
            elif code == 2:
                address += self.leb() * self.step
            elif code == 3:
                line += self.leb(signed=True)
            elif code == 4:
                file = self.leb()
            elif code == 8:
                address += (255 - self.first_special) // self.line_range * self.step
            elif code == 9:
                address += self.number("<H")
            else:
                for _ in range(self.operands[code - 1]):
                    self.leb()

    def _place(self, file: int, line: int) -> str:
        return f"{PurePath(self.files.get(file, '?')).name}:{line}" if line else ""
