"""AMD's code objects as the runtime loads them: segments, kernel descriptors, arguments (LLVM's AMDGPU usage guide)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portakernel.emulation.arch import ARCHS, Arch
from portakernel.emulation.errors import EmulationError
from portakernel.native import hsaco
from portakernel.native.elf import EM_AMDGPU, Elf, NotReadableError

_OSABI_HSA = 64
_VERSIONS = {3: 5, 4: 6}  # EI_ABIVERSION: the version of the code object
_PT_LOAD, _SHT_SYMTAB, _SHT_DYNSYM = 1, 2, 11
_MOST_BYTES = 1 << 30
# MODE's bit for it: results of 16 bits and less that are too large are the largest number.
_FP16_OVFL = 23
_MOST_VGPRS, _MOST_SGPRS = 512, 128
# By bit of kernel_code_properties, in the order in which user SGPRs are filled: what, and how many.
_USER_SGPRS = (
    ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2), ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2), ("flat_scratch_init", 2), ("private_segment_size", 1),
)  # fmt: skip
# Where arguments are preloaded, what loads them for older firmware stands before the entry, in so many bytes.
PRELOAD_ENTRY = 256


@dataclass(frozen=True, slots=True)
class Segment:
    """A loaded part of the file: its address, bytes (zeros behind what the file holds), and whether it is code."""

    address: int
    data: bytes
    executable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """One of a kernel's arguments, hidden ones included, by the metadata's kind (``by_value``, ``global_buffer``)."""

    offset: int
    size: int
    kind: str
    name: str = ""

    @property
    def hidden(self) -> bool:
        """Whether the runtime fills it and not the caller."""
        return self.kind.startswith("hidden_")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's descriptor and metadata; ``user_sgpr_count`` may be more than what fills them (gfx11 wants 16).

    ``end`` is where its code ends by its symbol; ``entry`` where the symbol has no size, as assembly may leave it.
    """

    name: str
    entry: int
    end: int
    wave_size: int
    lds_bytes: int
    private_bytes: int
    kernarg_bytes: int
    arguments: tuple[Argument, ...]
    user_sgprs: tuple[tuple[str, int], ...]
    user_sgpr_count: int
    preload_offset: int
    preload_words: int
    workgroup_ids: tuple[bool, bool, bool]
    workgroup_info: bool
    workitem_dimensions: int
    mode: int
    most_threads: int


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """A code object ready to run: ``text`` at ``text_address``, everything addressable in ``segments``."""

    arch: Arch
    version: int
    segments: tuple[Segment, ...]
    text: bytes
    text_address: int
    kernels: Mapping[str, Kernel]
    debug_line: bytes
    debug_line_str: bytes

    def kernel(self, name: str) -> Kernel:
        """The kernel of that symbol.

        Raises:
            EmulationError: there is none.
        """
        if name in self.kernels:
            return self.kernels[name]
        raise EmulationError(f"no kernel {name!r} is in the code object; it has {', '.join(self.kernels) or 'none'}")


def load(data: bytes, arch: str) -> LoadedObject:
    """The code object whose bytes these are, for ``arch``.

    Raises:
        EmulationError: it is no such file, of another architecture or version, ends too early, or describes what
            cannot be.
    """
    if arch not in ARCHS:
        raise EmulationError(f"architecture {arch!r} is not emulated; these are: {', '.join(ARCHS)}")
    try:
        elf = Elf.read(data)
        metadata = hsaco.metadata(elf)
        return _load(data, elf, metadata, ARCHS[arch])
    except NotReadableError as error:
        raise EmulationError(f"the code object {error}; give the whole file that the compiler wrote") from error
    except (struct.error, IndexError, KeyError, TypeError, ValueError, OverflowError, UnicodeDecodeError) as error:
        if isinstance(error, EmulationError):
            raise
        raise EmulationError(f"the code object is broken ({type(error).__name__}: {error})") from error


def _load(data: bytes, elf: Elf, metadata: dict[str, Any], arch: Arch) -> LoadedObject:
    if elf.machine != EM_AMDGPU or data[7] != _OSABI_HSA:
        raise EmulationError(f"the ELF file is for machine {elf.machine}, OS ABI {data[7]}: no AMD code object for HSA")
    if elf.abi_version not in _VERSIONS:
        raise EmulationError(f"code object version {elf.abi_version + 2} is not emulated; 5 and 6 are")
    if (machine := elf.flags & 0xFF) != arch.machine:
        known = next((one.name for one in ARCHS.values() if one.machine == machine), f"machine {machine:#x}")
        raise EmulationError(f"the code object is for {known}, not for {arch.name}")
    if metadata.get("amdhsa.printf"):
        raise EmulationError("the code object calls printf, whose buffer a host reads; remove the calls")
    sections = {section.name: section for section in elf.sections}
    if ".text" not in sections:
        raise EmulationError("the code object has no section .text")
    heads = _section_heads(data)
    segments = _segments(data)
    text_address = heads[".text"][0]
    symbols = _symbols(data, heads)
    kernels: dict[str, Kernel] = {}
    for described in metadata.get("amdhsa.kernels", ()):
        kernel = _kernel(described, symbols, segments, arch)
        if not text_address <= kernel.entry < text_address + sections[".text"].size or kernel.entry & 3:
            raise EmulationError(f"kernel {kernel.name} begins at {kernel.entry:#x}, outside .text")
        kernels[kernel.name] = kernel
    lines = {name: sections[name].data if name in sections else b"" for name in (".debug_line", ".debug_line_str")}
    return LoadedObject(
        arch, _VERSIONS[elf.abi_version], segments, sections[".text"].data, text_address, kernels,
        lines[".debug_line"], lines[".debug_line_str"],
    )  # fmt: skip


def _section_heads(data: bytes) -> dict[str, tuple[int, int, int, int, int]]:
    """By name: address, offset, size, kind, link."""
    begin = struct.unpack_from("<Q", data, 40)[0]
    step, count, names_at = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, begin + i * step) for i in range(count)]
    table = heads[names_at][4]
    named = {}
    for name, kind, _, address, offset, size, link, *_ in heads:
        text = data[table + name : data.index(b"\0", table + name)].decode()
        named[text] = (address, offset, size, kind, link)
    return named


def _segments(data: bytes) -> tuple[Segment, ...]:
    begin = struct.unpack_from("<Q", data, 32)[0]
    step, count = struct.unpack_from("<HH", data, 54)
    segments = []
    for i in range(count):
        kind, flags, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", data, begin + i * step)
        if kind != _PT_LOAD:
            continue
        if offset + in_file > len(data) or in_file > in_memory:
            raise EmulationError(
                f"a segment holds bytes {offset} to {offset + in_file} of a file of {len(data)}: it is cut short"
            )
        if in_memory > _MOST_BYTES or address + in_memory > 1 << 40:
            raise EmulationError(f"a segment takes {in_memory} bytes at {address:#x}: no compiler writes such")
        content = data[offset : offset + in_file].ljust(in_memory, b"\0")
        segments.append(Segment(address, content, bool(flags & 1), bool(flags & 2)))
    return tuple(segments)


def _symbols(data: bytes, heads: Mapping[str, tuple[int, int, int, int, int]]) -> dict[str, tuple[int, int]]:
    """By name: value, size."""
    by_place = list(heads.values())
    symbols: dict[str, tuple[int, int]] = {}
    for _, offset, size, kind, link in heads.values():
        if kind not in (_SHT_SYMTAB, _SHT_DYNSYM):
            continue
        table = by_place[link][1]
        for at in range(offset, offset + size - 23, 24):
            name, _, _, _, value, size_of = struct.unpack_from("<IBBHQQ", data, at)
            symbols[data[table + name : data.index(b"\0", table + name)].decode()] = value, size_of
    return symbols


def _kernel(
    described: dict[str, Any], symbols: Mapping[str, tuple[int, int]], segments: tuple[Segment, ...], arch: Arch
) -> Kernel:
    name, symbol = str(described[".name"]), str(described[".symbol"])
    if symbol not in symbols:
        raise EmulationError(f"kernel {name} has no descriptor {symbol}")
    address, _ = symbols[symbol]
    data = next(
        (s.data[address - s.address :][:64] for s in segments if s.address <= address < s.address + len(s.data)), b""
    )
    if len(data) != 64:
        raise EmulationError(f"the descriptor of kernel {name} at {address:#x} is in no segment of the file")
    lds, private, kernarg, _, entry = struct.unpack_from("<IIIIq", data)
    _, rsrc1, rsrc2 = struct.unpack_from("<III", data, 44)
    properties, preload = struct.unpack_from("<HH", data, 56)
    if lds > arch.lds_bytes:
        raise EmulationError(f"kernel {name} takes {lds} bytes of LDS; a workgroup of {arch.name} has {arch.lds_bytes}")
    if private > 1 << 18 or kernarg > 1 << 20:
        raise EmulationError(f"kernel {name} asks for {private} bytes of private memory and {kernarg} of arguments")
    wave_size = 32 if properties >> 10 & 1 else 64
    if wave_size == 32 and arch.table == "cdna":
        raise EmulationError(f"kernel {name} is for waves of 32, which {arch.name} does not have")
    user = tuple(part for bit, part in enumerate(_USER_SGPRS) if properties >> bit & 1)
    arguments = tuple(
        Argument(int(a[".offset"]), int(a[".size"]), str(a[".value_kind"]), str(a.get(".name", "")))
        for a in described.get(".args", ())
    )
    outside = [a for a in arguments if a.offset < 0 or a.size < 0 or a.offset + a.size > kernarg]
    if outside:
        raise EmulationError(
            f"argument {outside[0].name or outside[0].kind} of kernel {name} lies at {outside[0].offset}, "
            f"outside of its {kernarg} bytes of arguments"
        )
    words, count = preload & 0x7F, rsrc2 >> 1 & 0x1F
    taken = sum(size for _, size in user)
    if taken + words > count:
        raise EmulationError(f"kernel {name} asks for {taken + words} user SGPRs; its descriptor allows {count}")
    vgprs, agprs, sgprs = (int(described.get(f".{kind}_count", 0)) for kind in ("vgpr", "agpr", "sgpr"))
    if vgprs > _MOST_VGPRS or vgprs + agprs > 2 * _MOST_VGPRS:
        raise EmulationError(f"kernel {name} asks for {vgprs + agprs} vector registers; there are {_MOST_VGPRS}")
    if sgprs > _MOST_SGPRS:
        raise EmulationError(f"kernel {name} asks for {sgprs} scalar registers; there are {_MOST_SGPRS}")
    entry += address + (PRELOAD_ENTRY if words else 0)
    end = max(entry, sum(symbols.get(symbol.removesuffix(".kd"), (0, 0))))
    return Kernel(
        name, entry, end, wave_size, lds, private, kernarg, arguments, user,
        count, (preload >> 7 & 0x1FF) * 4, words,
        (bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)), bool(rsrc2 >> 10 & 1), rsrc2 >> 11 & 3,
        rsrc1 >> 12 & 0xFF | (rsrc1 >> 26 & 1) << _FP16_OVFL,
        int(described.get(".max_flat_workgroup_size", 1024)),
    )  # fmt: skip
