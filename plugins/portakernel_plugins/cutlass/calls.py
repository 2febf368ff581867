"""What a built library is told of a call: one structure, which C knows too."""

from __future__ import annotations

import ctypes


class Call(ctypes.Structure):
    """``Call`` of ``cuda/call.cuh``, field by field."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("scale_a", ctypes.c_void_p),
        ("scale_b", ctypes.c_void_p),
        ("factor", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("stride_a", ctypes.c_int64),
        ("stride_b", ctypes.c_int64),
        ("stride_y", ctypes.c_int64),
        ("m", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("rows_of_scales", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
    )
