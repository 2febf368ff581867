"""The structures that Python and the engine hand each other, as ``engine/abi.h`` defines them."""

from __future__ import annotations

import ctypes
import struct

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
I32, I64 = ctypes.c_int32, ctypes.c_int64

# One decoded instruction, in the order of abi.h's Op.
OP = struct.Struct("<HHIHH4HIiiH7BBHBBBBI4B4B2H")
assert OP.size == 64

VCC, NULL, M0, EXEC, LITERAL, VGPR, AGPR, NO_OPERAND = 106, 124, 125, 126, 255, 256, 512, 0xFFFF

# Op.flags
SHORT_FORM, FETCH_INACTIVE, BOUND_CTRL, OFFSET_ENABLE, INDEX_ENABLE, TO_LDS, RETURNS = 1, 2, 4, 8, 16, 32, 64
SDWA_SEXT0, SDWA_SEXT1, SCALAR_DST, VOP3_FORM, PACKED_FORM = 128, 256, 512, 1024, 2048
# Op.counters
VECTOR_COUNT, LDS_COUNT, SCALAR_COUNT = 1, 2, 4
# Op.permute
NO_PERMUTE, DPP16, DPP8, SDWA = range(4)


class Region(ctypes.Structure):
    """Memory that a kernel may touch."""

    _fields_ = (("base", U64), ("size", U64), ("host", U64), ("written", U64), ("writable", U32), ("tag", U32))


class RawFinding(ctypes.Structure):
    """What the engine reports of one instruction."""

    _fields_ = (
        ("kind", U32), ("record", U32), ("wave", U32), ("lane", U32), ("workgroup", U32 * 3), ("bytes", U32),
        ("address", U64), ("distance", I64), ("region", U32), ("other_wave", U32), ("other_record", U32),
        ("count", U32), ("other_workgroup", U32 * 3), ("reserved", U32),
    )  # fmt: skip


class Launch(ctypes.Structure):
    """All that one launch is given and gives back."""

    _fields_ = (
        ("ops", ctypes.c_void_p), ("index_at", ctypes.c_void_p), ("text_base", U64), ("text_size", U64),
        ("op_count", U32), ("flow_count", U32), ("entry", U32), ("major", U32), ("minor", U32), ("stepping", U32),
        ("wave_size", U32), ("grid", U32 * 3), ("block", U32 * 3), ("regions", ctypes.c_void_p),
        ("region_count", U32), ("lds_bytes", U32), ("private_bytes", U32),
        ("user_sgprs", U32 * 32), ("user_sgpr_count", U32), ("workgroup_id", U32 * 3), ("workgroup_info", U32),
        ("workitem_dimensions", U32), ("mode", U32), ("budget", U64), ("threads", U32),
        ("check_conflicts", U32), ("findings", ctypes.c_void_p), ("finding_capacity", U32), ("finding_count", U32),
        ("executed", ctypes.c_void_p), ("lanes", ctypes.c_void_p), ("conflicts", ctypes.c_void_p),
        ("registers", ctypes.c_void_p), ("moved", ctypes.c_void_p), ("lds_moved", ctypes.c_void_p), ("stopped", U32),
        ("check_groups", U32),
    )  # fmt: skip
