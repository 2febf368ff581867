"""A record of a process counts a call with arrays as the call with tensors that it becomes, once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

CALL = """
import numpy as np
from portakernel import ops
x = np.ones((2, 8), np.float32)
for _ in range(3):
    ops.rms_norm(x, x[0])
"""
GRAD = """
import jax, jax.numpy as jnp
from portakernel import ops
x = jnp.ones((2, 8))
jax.grad(lambda x: ops.softmax(x).sum())(x)
"""


def recorded(program, folder, monkeypatch):
    file = folder / "calls.yaml"
    monkeypatch.setenv("PORTAKERNEL_RECORD", str(file))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    return yaml.safe_load(file.read_text(encoding="utf-8"))["calls"]


def test_a_call_with_arrays_is_counted_once(tmp_path, monkeypatch):
    (entry,) = recorded(CALL, tmp_path, monkeypatch)
    assert (entry["op"], entry["count"]) == ("rms_norm", 3)
    assert entry["dtype"] == {"x": "float32", "weight": "float32"}
    assert entry["shape"] == {"x": [2, 8], "weight": [8]}


def test_a_gradient_of_jaxs_is_counted_as_training(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    entries = recorded(GRAD, tmp_path, monkeypatch)
    assert sorted((entry["op"], entry.get("training", False), entry["count"]) for entry in entries) == [
        ("softmax", False, 1),
        ("softmax", True, 1),
    ]
