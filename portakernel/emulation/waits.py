"""Which of the hardware's counters an instruction of memory counts in, and how many registers its result takes.

The result is there only after a wait for its counter: s_waitcnt, or s_wait_loadcnt, s_wait_dscnt and s_wait_kmcnt of
RDNA 4. The engine asks for that wait before a register is used.
"""

from __future__ import annotations

import re

from portakernel.emulation import abi
from portakernel.emulation.record import Record

_VECTOR_MEMORY = frozenset({"GLOBAL", "VGLOBAL", "SCRATCH", "VSCRATCH", "FLAT", "VFLAT", "MUBUF", "VBUFFER"})
_LOADED = re.compile(r"_(?:dwordx(?P<dwords>\d+)|b(?P<bits>\d+))(?:_tr_b\d+)?$")
_WIDE = ("64", "_x2")


def counted(record: Record, table: str) -> tuple[int, int]:
    """The counters (``abi.VECTOR_COUNT`` and others, 0 where it has no result to wait for) and words of the result."""
    name = record.name
    if record.encoding in _VECTOR_MEMORY:
        if "_load_" in name:
            return abi.VECTOR_COUNT, 0 if "_lds_" in name or record.flags & abi.TO_LDS else _loaded_words(name)
        if "_atomic_" in name and record.flags & abi.RETURNS:
            return abi.VECTOR_COUNT, 2 if name.endswith(_WIDE) else 1
        # CDNA counts stores beside loads; RDNA has a counter of their own, which no register waits for
        return (abi.VECTOR_COUNT if table == "cdna" else 0), 0
    if record.encoding == "DS":
        return abi.LDS_COUNT, _lds_words(name)
    if record.encoding == "SMEM" and "_load_" in name:
        return abi.SCALAR_COUNT, _loaded_words(name)
    return 0, 0


def _loaded_words(name: str) -> int:
    match = _LOADED.search(name)
    if match is None:
        return 1
    return int(match["dwords"]) if match["dwords"] else max(1, int(match["bits"]) // 32)


def _lds_words(name: str) -> int:
    wide = 2 if name.endswith("64") else 1
    if name.startswith(("ds_read2", "ds_load_2addr")) or "xchg2" in name or "xchg_2addr" in name:
        return 2 * wide
    if name.startswith(("ds_read_", "ds_load_")):
        return _loaded_words(name)
    if "_rtn" in name:
        return wide
    return int(name.startswith(("ds_permute", "ds_bpermute", "ds_swizzle", "ds_append", "ds_consume")))
