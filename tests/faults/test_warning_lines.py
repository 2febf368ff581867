"""Every warning points to the caller's own line, whichever way the call went."""

from __future__ import annotations

import ast
import linecache
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = "# here"


def _lines(category: str, run: Callable[[], object]) -> list[list[str]]:
    """File and source line that each warning of ``category`` points to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [
        [os.path.basename(one.filename), linecache.getline(one.filename, one.lineno).strip()]
        for one in caught
        if one.category.__name__ == category
    ]


def _of_an_op(way: str) -> list[list[str]]:
    import torch
    from torch.utils.checkpoint import checkpoint

    import portakernel
    from portakernel import ops
    from portakernel.runtime import register

    # never able to serve on a CPU: what is preferred and cannot serve is warned of
    portakernel.set_policy(prefer="triton")
    x, weight = torch.randn(4, 8), torch.ones(8)
    leaf = torch.randn(4, 8, requires_grad=True)

    class Norm(torch.nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return ops.rms_norm(given, weight)  # here: module

    def step() -> Any:
        return ops.rms_norm(x, weight)  # here: step

    def made(backend: str) -> Any:
        return torch.compile(step, backend=backend)()  # here: compiled

    ways: dict[str, Callable[[], object]] = {
        "op": lambda: ops.rms_norm(x, weight),  # here: op
        "training": lambda: ops.rms_norm(leaf, weight),  # here: training
        "backward": lambda: ops.rms_norm(leaf, weight).sum().backward(),  # here: backward
        "out": lambda: ops.rms_norm(x, weight, out=torch.empty_like(x)),  # here: out
        "torch op": lambda: torch.ops.portakernel.rms_norm(x, weight),  # here: torch op
        "module": lambda: Norm()(x),
        "bind": lambda: portakernel.bind("rms_norm", x, weight),  # here: bind
        "warmup": lambda: portakernel.warmup("rms_norm", x, weight),  # here: warmup
        "words": lambda: portakernel.warmup("rms_norm", dtype="float32", shape={"x": (4, 8)}),  # here: words
        "step": lambda: portakernel.warmup(step),
        "vmap": lambda: torch.vmap(lambda row: ops.rms_norm(row, weight))(x),  # here: vmap
        "checkpoint": lambda: checkpoint(ops.rms_norm, leaf, weight, use_reentrant=False),  # here: checkpoint
        "compiled": lambda: made("eager"),
        "aot": lambda: made("aot_eager"),
    }
    if way == "torch op":
        register()
    return _lines("FallbackWarning", ways[way])


@pytest.mark.parametrize(
    ("way", "mark"),
    [
        *((way, way) for way in ("op", "training", "backward", "out", "torch op", "module", "bind", "warmup", "words")),
        *((way, way) for way in ("step", "vmap", "checkpoint")),
        ("compiled", "step"),
        ("aot", "step"),
    ],
)
def test_a_fallback_is_told_at_the_line_that_made_the_call(fault, way, mark):
    # what is warmed up is built, and with Inductor that takes seconds
    outcome = fault(_of_an_op, way, seconds=120, env={"PORTAKERNEL_DENY": "inductor"})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned
    for file, line in outcome.returned:
        assert file == Path(__file__).name, outcome.returned
        assert line.endswith(f"{HERE}: {mark}") or (mark == "step" and "here: compiled" in line), outcome.returned


def _of_a_variable(way: str) -> list[list[str]]:
    import torch

    import portakernel
    from portakernel import ops

    x = torch.randn(2, 4)
    ways: dict[str, Callable[[], object]] = {
        "op": lambda: ops.softmax(x),  # here: op
        "explain": lambda: portakernel.explain("softmax", x),  # here: explain
        "targets": portakernel.targets,
        "policy": lambda: portakernel.set_policy(prefer="torch"),  # here: policy
    }
    if way == "targets":
        return _lines("ConfigWarning", lambda: portakernel.targets())  # noqa: PLW0108 - a line # here: targets
    return _lines("ConfigWarning", ways[way])


@pytest.mark.parametrize("way", ["op", "explain", "targets", "policy"])
def test_an_unknown_variable_is_told_at_the_line_that_first_asked(fault, way):
    outcome = fault(_of_a_variable, way, env={"PORTAKERNEL_PREFFER": "triton"})
    assert outcome.status == 0, outcome.stderr
    ((file, line),) = outcome.returned
    assert (file, line.endswith(f"{HERE}: {way}")) == (Path(__file__).name, True), outcome.returned


def test_every_warning_of_ours_computes_its_line():
    folders = ("portakernel", "plugins", "backends")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py") if "modes" not in file.parts]
    calls = [
        (file, node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]
    assert len(calls) >= 7
    for file, node in calls:
        levels = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "stacklevel"]
        assert levels == ["callers_level()"], f"{file}:{node.lineno}"
