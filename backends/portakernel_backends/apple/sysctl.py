"""What macOS tells of the machine through ``sysctlbyname``; through ctypes, without a process of its own.

Source: Apple, sysctl(3) manual page and sys/sysctl.h.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from portakernel.authoring import logger

_LOG = logger()


def load() -> Any | None:
    """The C library as this process has it loaded, or None on another system."""
    return ctypes.CDLL(None) if sys.platform == "darwin" else None


def text(library: Any, name: str) -> str | None:
    """The value of ``name``, which is a text; None where this macOS does not know it."""
    size = ctypes.c_size_t()
    if library.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        _LOG.debug("macOS has no %s", name)
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        _LOG.debug("macOS does not tell %s", name)
        return None
    return buffer.value.decode("utf-8", "replace").strip()
