"""Shared libraries with host code, as CUTLASS's launchers are: built by nvcc, loaded from memory, called by address."""

from __future__ import annotations

import ctypes
import functools
import os
from itertools import count
from pathlib import Path

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.host.private_folder import make_private
from portakernel.native.code_object import CodeObject
from portakernel.native.module import check_target

# The loader takes two libraries of one path for the same, and a descriptor's number is used again: no two paths are
# equal. It reads "/./" as "/".
_NUMBERS = count()


def load_library(code: CodeObject, device: int | None = None) -> ctypes.CDLL:
    """A built library, loaded: its functions are called by name, with ``argtypes`` that the caller sets.

    ``device`` is the index of the one it will be called on; where given, its architecture has to be the library's. It
    does not know torch's stream: pass its handle (``torch.cuda.current_stream().cuda_stream``) as an argument.

    What is loaded is what was verified, byte by byte: a copy in memory, of which no file system has to allow that it be
    executed, or where the system has none of that in a file of this process's own.

    Raises:
        CannotRun: it is for another architecture or cannot be loaded.
    """
    if device is not None:
        check_target(code, device)
    try:
        return _from_memory(code.code)
    except (OSError, AttributeError):  # no such memory here, or not for code, or it is no library at all
        pass
    try:
        return ctypes.CDLL(str(_own_file(code.code)))
    except OSError as error:
        text = f"the library that {code.compiler} made cannot be loaded: {error}; "
        if "failed to map segment" in str(error):
            remedy = "set TMPDIR to a folder on a file system that is not mounted noexec"
        elif error.errno is not None:
            remedy = "make room there, or set TMPDIR to a folder that can be written"
        else:
            remedy = "`portakernel cache clear` lets it be built anew"
        raise CannotRun(Rejection(ReasonCode.PROBE_FAILED, text + remedy)) from error


def _from_memory(code: bytes) -> ctypes.CDLL:
    descriptor = os.memfd_create("portakernel")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(code)
        return ctypes.CDLL(f"/proc/self/fd/{'./' * next(_NUMBERS)}{descriptor}")
    finally:
        os.close(descriptor)


def _own_file(code: bytes) -> Path:
    path = _folder() / f"{next(_NUMBERS)}.so"
    path.write_bytes(code)
    return path


@functools.cache
def _folder() -> Path:
    return make_private("libraries")
