"""Calls with tensors pay nothing for arrays, and libraries are imported by those who have their arrays alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from portakernel import ops
from portakernel.calling import caller as slow_path
from portakernel.contracts import own_contracts


@pytest.fixture
def untouched(monkeypatch):
    """Has it fail whoever asks whether an argument is another library's array."""

    def asked(*_: object) -> bool:
        raise AssertionError("a call with tensors looked for arrays")

    monkeypatch.setattr(slow_path, "some_are_arrays", asked)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_call_with_tensors_never_looks_for_arrays_not_even_the_first(untouched, grad):
    for rows in range(3, 6):  # of each dtype the first is decided anew
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x, weight = torch.randn(rows, 8, dtype=dtype, requires_grad=grad), torch.randn(8, dtype=dtype)
            y = ops.rms_norm(x, weight)
            if grad:
                y.sum().backward()


def test_the_guard_of_that_test_is_asked_where_there_are_arrays(untouched):
    with pytest.raises(AssertionError, match=r"^a call with tensors looked for arrays$"):
        ops.rms_norm(torch.randn(3, 8).numpy(), torch.randn(8).numpy())


@pytest.mark.parametrize("op", own_contracts())
def test_the_code_of_a_repeated_call_knows_no_arrays(op):
    """What runs for tensors is the generated function; of arrays it has the way out of its head, and the slow path."""
    import inspect

    source = inspect.getsource(getattr(ops, op))
    assert not {"array", "numpy", "jax", "cupy", "dlpack"} & set(source.lower().replace("_", " ").split())
    # one look at what is unknown, as there always was; all of `copy` is behind it
    head, _, rest = source.partition("return _otherwise(")
    assert head.count("if _unknown or _keywords_only is not ...:") == 1
    assert "_unknown" not in rest.partition("\n")[2]


def test_no_library_is_imported_for_tensors():
    program = """
import sys, torch
from portakernel import ops
before = set(sys.modules)
x = torch.randn(2, 8)
ops.rms_norm(x, x[0])
try:
    ops.rms_norm(x, [1.0])
except TypeError:
    pass
print(sorted({"jax", "cupy", "ml_dtypes", "opentelemetry"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"


def test_no_other_library_is_imported_for_numpys_arrays():
    program = """
import sys
import numpy as np
from portakernel import ops
x = np.ones((2, 8), np.float32)
ops.rms_norm(x, x[0])
print(sorted({"jax", "cupy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"
