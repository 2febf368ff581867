"""What takes long in processes that tests fork, and is the same in each: importing this has it done beforehand.

Neither asks a driver for devices, whose threads no fork would have, nor calls anything that a test could be about.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import first_party

from portakernel.deciding import trace_token
from portakernel.registry.registry import listing_model
from portakernel.tuning.sources import source_digest


def _drivers() -> Iterator[str]:
    """The OpenCL drivers that pyopencl will load: the wheel's and the system's."""
    with contextlib.suppress(ImportError, OSError):
        wheel = Path(importlib.import_module("pyopencl").__file__ or "").parent
        yield from map(str, wheel.glob(".libs/libpocl*"))
        for file in Path("/etc/OpenCL/vendors").glob("*.icd"):
            yield file.read_text(encoding="utf-8").strip()


for library in _drivers():
    with contextlib.suppress(OSError):
        ctypes.CDLL(library)  # 9000 pages and 50 ms, of which nothing is left then
inspect.getmodule(sys._getframe())  # reads where each module lies, as torch does for the first op
for kernel in first_party.kernels():
    trace_token._claims(kernel)
    source_digest(kernel)
listing_model()
