"""Shared libraries with host code, as CUTLASS's launchers are: built by nvcc, kept in the cache, called by address."""

from __future__ import annotations

import ctypes

from portakernel.capability import CannotRun, ReasonCode, Rejection
from portakernel.native.code_object import CodeObject
from portakernel.native.module import check_target


def load_library(code: CodeObject, device: int | None = None) -> ctypes.CDLL:
    """A built library, loaded: its functions are called by name, with ``argtypes`` that the caller sets.

    ``device`` is the index of the one it will be called on; where given, its architecture has to be the library's. It
    does not know torch's stream: pass its handle (``torch.cuda.current_stream().cuda_stream``) as an argument.

    Raises:
        CannotRun: it is for another architecture or cannot be loaded.
    """
    if device is not None:
        check_target(code, device)
    if code.path is None:
        text = (
            "the library cannot be kept in any folder, from which it would be loaded; set PORTAKERNEL_CACHE_DIR to one"
        )
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, f"{text} that can be written"))
    try:
        return ctypes.CDLL(str(code.path))
    except OSError as error:
        text = f"the library that {code.compiler} made cannot be loaded: {error}; `portakernel cache clear` lets it be"
        raise CannotRun(Rejection(ReasonCode.PROBE_FAILED, f"{text} built anew")) from error
