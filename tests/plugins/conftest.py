"""What tests of several plugins' kernels use."""

from __future__ import annotations

import pytest


@pytest.fixture
def launched(monkeypatch):
    """The names of the Triton kernels launched in the interpreter."""
    from portakernel.triton_launch import interpreter

    names: list[str] = []
    run = interpreter.run

    def record(kernel, *given):
        names.append(kernel.__name__)
        run(kernel, *given)

    monkeypatch.setattr(interpreter, "run", record)
    return names
