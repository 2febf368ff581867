"""The models that are measured beside plain torch have its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from cxx import needs_cxx

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("only", [pytest.param("64/224, 1 tokens", marks=needs_cxx), "softmax"])
def test_a_model_through_portakernel_has_the_numbers_of_plain_torch(python, imported_to_compile, only):
    done = python("model_steps.py", "--check", "--only", only, cwd=BENCHMARKS, imports=imported_to_compile)
    assert done.returncode == 0, done.stdout + done.stderr
    ways = 1 if only == "softmax" else 2
    assert f"{ways} of {ways} have equal numbers" in done.stdout
