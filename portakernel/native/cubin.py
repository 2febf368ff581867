"""What a cubin says of itself: its architecture, and of each kernel registers, stack, shared memory and parameters.

The attributes of ``.nv.info`` are not documented by NVIDIA; these numbers were compared with what ``cuobjdump
-res-usage`` prints of code for sm_75 to sm_120 (CUDA 13.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from portakernel.native.elf import Elf, NotReadableError, Section

_WITH_SIZE = 4  # an attribute's format: a size, then as many bytes; the others have two bytes
_FRAME_SIZE, _PARAMETER, _REGISTERS = 0x11, 0x17, 0x2F
_INFO, _SHARED = ".nv.info.", ".nv.shared."
# From sm_90 on a kernel's section begins with the system's own KiB, which what a block can have (227 KiB of 228) leaves
# out already; another section says so (CUDA 13.5).
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024


def arch(elf: Elf) -> str:
    """The architecture it is for, without ``a`` or ``f``."""
    number = elf.flags >> 8 & 0xFF if elf.abi_version >= 8 else elf.flags & 0xFF
    return f"sm_{number}"


def kernels(elf: Elf) -> dict[str, tuple[int, int, int, tuple[tuple[int, int], ...]]]:
    """By symbol: registers, bytes of stack, of shared memory of its own, and each parameter's offset and bytes."""
    registers, stack = dict[str, int](), dict[str, int]()
    parameters: dict[str, dict[int, tuple[int, int]]] = {}
    systems = _RESERVED_BYTES if any(section.name == _RESERVED for section in elf.sections) else 0
    shared = {
        s.name.removeprefix(_SHARED): max(s.size - systems, 0) for s in elf.sections if s.name.startswith(_SHARED)
    }
    for section in elf.sections:
        if section.name == ".nv.info":
            for attribute, words in _attributes(section):
                if attribute in (_FRAME_SIZE, _REGISTERS) and len(words) == 2:
                    symbol = elf.symbols[words[0]] if words[0] < len(elf.symbols) else ""
                    (stack if attribute == _FRAME_SIZE else registers)[symbol] = words[1]
        elif section.name.startswith(_INFO):
            found = parameters.setdefault(section.name.removeprefix(_INFO), {})
            for attribute, words in _attributes(section):
                if attribute == _PARAMETER and len(words) == 3:
                    found[words[1] & 0xFFFF] = words[1] >> 16, words[2] >> 18
    return {
        name: (registers.get(name, 0), stack.get(name, 0), shared.get(name, 0), tuple(found[i] for i in sorted(found)))
        for name, found in parameters.items()
    }


def _attributes(section: Section) -> Iterator[tuple[int, tuple[int, ...]]]:
    at, data = 0, section.data
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _WITH_SIZE:
            if at + size > len(data):
                raise NotReadableError("ends inside an attribute of .nv.info")
            if size % 4 == 0:
                yield attribute, struct.unpack_from(f"<{size // 4}I", data, at)
            at += size
