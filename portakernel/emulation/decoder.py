"""A code object's .text as records that the engine executes: one pass, every word accounted for.

A record's operands stand in the order in which handlers take them, whatever the encoding: v_fmac's accumulator and
v_cndmask's mask are sources, a carry's VCC a destination. What no table knows becomes a record of one dword whose
handler is 0; a wave that reaches it reports its offset and bytes.
"""

from __future__ import annotations

import functools

from portakernel.emulation import alu_formats, memory_formats
from portakernel.emulation.arch import Arch
from portakernel.emulation.encodings import Encoding, encodings, vopd_names
from portakernel.emulation.record import Record
from portakernel.emulation.waits import counted
from portakernel.emulation.word import Word

_FORMATS = {**alu_formats.FORMATS, **memory_formats.FORMATS}


def decode(text: bytes, arch: Arch) -> tuple[list[Record], list[Record]]:
    """The instructions in the order of ``text``, and the second halves of dual ones, which ``pair`` numbers.

    Raises:
        EmulationError: tinygrad is not installed.
    """
    flow: list[Record] = []
    halves: list[Record] = []
    at = 0
    while at + 4 <= len(text):
        record = _decode(text, at, arch, halves)
        flow.append(record)
        at += record.size
    for record in flow:
        if record.pair >= 0:
            record.pair += len(flow)
    return flow, halves


def _decode(text: bytes, at: int, arch: Arch, halves: list[Record]) -> Record:
    window = text[at : at + 20]
    raw = int.from_bytes(window, "little")
    for encoding in _candidates(arch.table, arch.name, raw >> 23 & 0x1FF):
        if len(window) >= encoding.size and encoding.matches(raw):
            break
    else:
        return Record("unknown", at, 4, raw=window[:4])
    if encoding.opcode is not None:
        name = encoding.names[encoding.opcode.of(raw)]
    else:  # a dual one, whose first half is an instruction of its own
        name = vopd_names(arch.table).get(raw >> 22 & 15, "unknown")
    record = Record(name, at, encoding.size, encoding.name)
    _FORMATS[encoding.name](Word(raw, encoding, arch, record, halves))
    if at + record.size > len(text):
        return Record("unknown", at, 4, raw=window[:4])
    record.raw = window[: record.size]
    record.counters, record.result_words = counted(record, arch.table)
    return record


@functools.cache
def _candidates(table: str, arch: str, top: int) -> tuple[Encoding, ...]:
    """Those whose fixed bits agree with the nine topmost of the first word."""
    return tuple(e for e in encodings(table, arch) if not (top << 23 ^ e.fixed) & e.fixed_mask & 0xFF800000)
