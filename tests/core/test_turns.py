"""Tests that take turns: which part a run has, and that a run which names its tests has them all."""

from __future__ import annotations

import math
import os

MUTANTS = "tests/plugins/test_triton_attention_hopper.py::test_a_kernel_that_lacks_one_wait_or_arrival_is_caught"


def collected(python, imports: tuple[str, ...], turn: str | None) -> set[str]:
    env = {name: value for name, value in os.environ.items() if name not in {"TESTS_TURN", "PYTEST_XDIST_WORKER"}}
    if turn is not None:
        env["TESTS_TURN"] = turn
    found = python("-m", "pytest", "-n0", "--collect-only", "-q", MUTANTS, env=env, imports=imports)
    return {line for line in found.stdout.splitlines() if line.startswith(MUTANTS)}


def test_a_part_is_drawn_for_each_tree_and_whoever_names_a_test_has_it(python, imported_to_compile):
    named, part = (collected(python, imported_to_compile, turn) for turn in (None, "a tree"))
    assert len(named) > 20
    assert len(part) == math.ceil(len(named) / 3)
    assert part < named
