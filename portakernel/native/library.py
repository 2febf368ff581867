"""Shared libraries with host code."""

from __future__ import annotations

import ctypes

from portakernel.native.code_object import CodeObject


def load_library(code: CodeObject) -> ctypes.CDLL:
    """A built library, loaded: its functions are called by name, with ``argtypes`` that the caller sets.

    It does not know torch's stream: pass ``torch.cuda.current_stream().cuda_stream`` (or its raw handle) as an argument.

    Raises:
        CannotRun: it is for another architecture or cannot be loaded.
    """
    raise NotImplementedError
