"""The example of a paged cache, examples/paged_generate, serves as the model would alone, and finds what does not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "paged_generate" / "generate.py"
OPS = ("paged_attention", "write_kv_cache")
# What a program does to the example before it is run.
CHANGED = """\
import runpy, sys
from pathlib import Path

sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
import pages, serving, torch

{change}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# A captured step that is computed anew with each replay, from the same tensors into the same tensor.
COMPUTED_ANEW = """\
class Graph:
    def __init__(self, server, held):
        self.again = lambda: server._forward(held)
        self.logits = self.again()
    def replay(self):
        self.logits.copy_(self.again())
def capture(server):
    held = server._step([], server.batch)
    torch.set_grad_enabled(False)
    graph = Graph(server, held)
    return held, graph, graph.logits
serving.Server._capture = capture
made = serving.Server.__init__
serving.Server.__init__ = lambda self, model, *, graph, **more: made(self, model, graph=True, **more)
"""
MIXES_HEADS = """\
right = serving.ops.paged_attention
def wrong(q, keys, *more, **how):
    return right(q, keys.flip(2), *more, **how)
serving.ops = type("ops", (), {"write_kv_cache": serving.ops.write_kv_cache, "paged_attention": staticmethod(wrong)})
"""
# A page that a second request holds is given away when the first one ends.
FORGETS_HOLDERS = "pages.Pool.share = lambda *_: None"
SHARES_NONE_AND_LOSES_ONE = """\
pages.Pool.filled = lambda *_: []
release, lost = pages.Pool.release, iter([1])
pages.Pool.release = lambda self, held: release(self, held[next(lost, 0) :])
"""

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the examples are not part of this distribution")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(python: Run) -> Run:
    """Runs the script in a process of its own: what it registers and counts is a process's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}

    def run(*arguments: str, change: str | None = None) -> subprocess.CompletedProcess[str]:
        program = [] if change is None else ["-c", CHANGED.format(change=change)]
        imports = ("transformers", "typer", "rich.table", "transformers.models.llama.modeling_llama")
        return python(*program, SCRIPT, *arguments, env=environment | {"COLUMNS": "160"}, imports=imports)

    return run


def counts(shown: str) -> dict[str, int]:
    """The numbers that stand before what they count."""
    words = ("steps", "of them replayed", "held at most", "shared", "pages", "requests differ", "equal")
    return {word: int(re.findall(rf"(\d+) {word}\b", shown)[0]) for word in words}


def assert_served(ran: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert (ran.returncode, ran.stderr) == (0, "")
    found = counts(ran.stdout)
    assert f"│ all {found['equal']} " in ran.stdout
    assert found["requests differ"] == 0
    assert found["shared"] == 2
    return found


def test_requests_that_join_and_leave_are_answered_as_the_model_answers_each_alone(run: Run) -> None:
    ran = run("--device", "cpu")
    found = assert_served(ran)
    assert found["held at most"] <= found["pages"]
    assert found["of them replayed"] == 0
    for op in OPS:
        assert re.search(rf"│ {op} +│ decoding │ reference\.{op} +│ the only kernel that can serve", ran.stdout)
        assert re.search(rf"│ {op} +│ prefill  │ reference\.{op} +│ the only kernel that can serve", ran.stdout)
        assert re.search(rf"\breference\.{op} {2 * 2 * found['steps']}\b", ran.stdout)  # two layers, two runs


def test_a_step_that_is_padded_to_the_largest_batch_answers_the_same(run: Run) -> None:
    found = assert_served(run("--device", "cpu", "--page", "7", change=COMPUTED_ANEW))
    assert 0 < found["of them replayed"] < found["steps"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a stream, which takes a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", [[], ["--graph"]], ids=["called", "captured"])
def test_triton_s_kernels_serve_on_a_gpu(run: Run, dtype: str, how: list[str]) -> None:
    small = ("--layers", "2", "--hidden", "512", "--requests", "8", "--tokens", "24", "--batch", "4")
    ran = run("--device", "cuda", "--dtype", dtype, *small, *how)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(f"│ triton.{op}" in ran.stdout for op in OPS)
    assert bool(counts(ran.stdout)["of them replayed"]) is bool(how)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (MIXES_HEADS, [r"logits are .* apart, wanted 1.0e-04"]),
        (FORGETS_HOLDERS, [r"logits are .* apart, wanted 1.0e-04"]),
        (
            SHARES_NONE_AND_LOSES_ONE,
            ["no page was shared, though two requests begin", r"1 pages are held though every request has ended"],
        ),
    ],
    ids=["heads mixed up", "pages given away", "pages kept"],
)
def test_what_is_wrong_is_found(run: Run, change: str, told: list[str]) -> None:
    ran = run("--device", "cpu", change=change)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert all(re.search(f"^{text}", ran.stderr, re.MULTILINE) for text in told), ran.stderr


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="torch has CUDA here")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--device", "cpu", "--graph"), "--graph: a CUDA graph is captured on a GPU, and the device is 'cpu'; leave"),
        pytest.param(("--device", "cuda"), "--device: torch cannot use 'cuda' here (", marks=NO_CUDA),
        (("--device", "cpu", "--hidden", "300"), "--hidden: 300 is no multiple of 256: 4 heads of 64 share their keys"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_with_the_reason(
    run: Run, arguments: tuple[str, ...], told: str
) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"Invalid value for {told}" in " ".join(ran.stderr.replace("│", " ").split())
