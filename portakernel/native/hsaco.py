"""What an AMD code object says of itself, in its note: MessagePack with a documented content (LLVM's AMDGPU usage)."""

from __future__ import annotations

import struct
from typing import Any

from portakernel.native.elf import Elf, NotReadableError
from portakernel.words.arch import normalise

_METADATA = ("AMDGPU", 32)
_SIZED = {
    0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I",
    0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I",
}  # fmt: skip
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip


def arch(elf: Elf) -> str:
    """The architecture it is for, without its features: gfx942 of ``amdgcn-amd-amdhsa--gfx942:sramecc+``."""
    return normalise(str(metadata(elf).get("amdhsa.target", "")).rpartition("--")[2])


def kernels(elf: Elf) -> dict[str, tuple[int, int, int, tuple[tuple[int, int], ...]]]:
    """By symbol: vector registers, bytes of scratch, of shared memory, and each parameter's offset and bytes."""
    found = {}
    for kernel in metadata(elf).get("amdhsa.kernels", ()):
        given = [a for a in kernel.get(".args", ()) if not str(a.get(".value_kind", "")).startswith("hidden_")]
        found[str(kernel[".name"])] = (
            int(kernel.get(".vgpr_count", 0)),
            int(kernel.get(".private_segment_fixed_size", 0)),
            int(kernel.get(".group_segment_fixed_size", 0)),
            tuple((int(a[".offset"]), int(a[".size"])) for a in given),
        )
    return found


def metadata(elf: Elf) -> dict[str, Any]:
    """What the note says: kernels, their arguments and resources.

    Raises:
        NotReadableError: it has none, or a broken one.
    """
    for owner, kind, content in elf.notes():
        if (owner, kind) == _METADATA:
            try:
                found = _Reader(content).value()
            except (struct.error, IndexError, ValueError, TypeError) as error:
                raise NotReadableError(f"has broken metadata ({error})") from error
            if isinstance(found, dict):
                return found
    raise NotReadableError("has no AMD metadata")


class _Reader:
    """MessagePack, as far as compilers write it: no extensions."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def value(self) -> Any:
        head = self.data[self.at]
        self.at += 1
        if head < 0x80:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head < 0xC0:  # small maps, arrays, texts have their size in the head
            return self._several(head, head & 0x0F) if head < 0xA0 else self._text(head & 0x1F)
        if head in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[head]
        if head in _NUMBERS:
            return self._number(_NUMBERS[head])
        if head not in _SIZED:
            raise ValueError(f"unknown MessagePack type {head:#x}")
        size = int(self._number(_SIZED[head]))
        if head >= 0xDC:
            return self._several(0x90 if head < 0xDE else 0x80, size)
        return self._text(size)

    def _number(self, form: str) -> Any:
        (found,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def _text(self, size: int) -> str:
        found = self.data[self.at : self.at + size].decode(errors="replace")
        self.at += size
        return found

    def _several(self, head: int, size: int) -> Any:
        if size > len(self.data):
            raise ValueError("is shorter than it says")
        if head & 0xF0 == 0x90:
            return [self.value() for _ in range(size)]
        return {self.value(): self.value() for _ in range(size)}
