"""The thread that judges says that its work has nothing to do with captures."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from portakernel.shadow.beside_captures import work_beside_captures


@pytest.mark.parametrize(
    ("hip", "library", "function"),
    [
        (False, "libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
        (True, "libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
    ],
)
@pytest.mark.parametrize("status", [0, 3])
def test_the_driver_is_asked_for_the_relaxed_mode(hip, library, function, status):
    asked: list[tuple[str, int]] = []

    def load(name: str) -> Any:
        def exchange(mode: Any) -> int:
            asked.append((name, ctypes.cast(mode, ctypes.POINTER(ctypes.c_int))[0]))
            return status

        return SimpleNamespace(**{function: exchange})

    assert work_beside_captures(hip=hip, load=load) is (status == 0)
    assert asked == [(library, 2)]


def test_where_there_is_no_such_library_or_function_nothing_is_said():
    def lacks(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert work_beside_captures(hip=False, load=lacks) is False
    assert work_beside_captures(hip=False, load=lambda name: SimpleNamespace()) is False
