"""Working beside captures: what this thread asks of a device must not break another thread's capture of a CUDA graph.

In the mode that torch captures in, the runtime refuses allocations, waits and the like of every thread meanwhile, and
ends the capture with an error. A thread can say that its work has nothing to do with captures, as the watchdog of
torch's NCCL does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

# Where the function is, by whether torch is built for HIP: the driver's library is loaded whenever there is a device.
_FUNCTIONS = {
    False: ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
    True: ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
}
# cudaStreamCaptureModeRelaxed, and HIP's of the same name.
_RELAXED = 2


def work_beside_captures(*, hip: bool, load: Callable[[str], Any] = ctypes.CDLL) -> bool:
    """Has this thread's calls refused by no other thread's capture, for good; whether that could be said."""
    library, function = _FUNCTIONS[hip]
    mode = ctypes.c_int(_RELAXED)
    try:
        status = getattr(load(library), function)(ctypes.byref(mode))
    except (OSError, AttributeError):
        return False
    return bool(status == 0)
