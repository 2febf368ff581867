"""The example of experts in transformers, examples/experts_in_transformers, compares, and finds what differs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "experts_in_transformers" / "compare.py"
MODELS = ("Mixtral", "Qwen3-MoE")
# margins of a text that was learned by heart; the rest is a quarter of what the script does by itself
SMALL = ("--device", "cpu", "--prompt", "6", "--tokens", "4", "--steps", "20")
# What a program has to do to the ops before the script is run.
BROKEN = """\
import runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, str(__import__("pathlib").Path(sys.argv[0]).parent))
{change}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NEXT_EXPERT = """\
from types import SimpleNamespace
from portakernel import ops
from portakernel.integrations.transformers import mixtures
def wrong(x, w_in, w_out, weights, experts, **given):
    return ops.moe_mlp(x, w_in, w_out, weights, (experts + 1) % len(w_in), **given)
mixtures.ops = SimpleNamespace(moe_mlp=wrong, moe_route=ops.moe_route)
"""
ANOTHER_ZERO = """\
import four_bits
from types import SimpleNamespace
from portakernel import ops
def wrong(*given, **values):
    return ops.int4_mm(*given, **values, zero="stored_plus_one")
four_bits.ops = SimpleNamespace(**{name: getattr(ops, name) for name in ("moe_sort", "pack_int4", "silu_and_mul")},
                                int4_mm=wrong)
"""
REFUSES = """\
from portakernel.integrations.transformers import mixtures
mixtures.DTYPES = ()
"""

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the examples are not part of this distribution")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(python: Run) -> Run:
    """Runs the script in a process of its own: what it counts is a process's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
    models = [f"transformers.models.{name}.modeling_{name}" for name in ("mixtral", "qwen3_moe")]

    def run(*arguments: str, change: str | None = None) -> subprocess.CompletedProcess[str]:
        program = [] if change is None else ["-c", BROKEN.format(change=change)]
        imports = ("transformers", "typer", "rich.table", *models)
        return python(*program, SCRIPT, *arguments, env=environment | {"COLUMNS": "120"}, imports=imports)

    return run


def failed(ran: subprocess.CompletedProcess[str], model: str) -> set[str]:
    """What of a model was told to differ."""
    return set(re.findall(rf"^{re.escape(model)}: (.*?): \S+ (?:equal|apart), wanted ", ran.stderr, re.MULTILINE))


def test_both_models_write_as_with_their_own_experts_and_four_bits_as_what_they_stand_for(run: Run) -> None:
    ran = run(*SMALL)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.findall(r"^ +(.*) on cpu: ", ran.stdout, re.MULTILINE) == list(MODELS)
    assert ran.stdout.count("│ ok │") == 6 * len(MODELS)
    assert ran.stdout.count("│ 8 equal ") == 2 * len(MODELS)
    assert ran.stdout.count("│ 4 bits: 10 layers │") == len(MODELS)
    # two layers, in one step of training and four of writing
    served = re.findall(r"^moe_mlp by (\S+): (\d+) calls$", ran.stdout, re.MULTILINE)
    assert served == [("torch.moe_mlp_unfused", "10")] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_triton_s_kernels_serve_on_a_gpu(run: Run) -> None:
    ran = run("--device", "cuda")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for op in ("moe_mlp", "moe_route", "moe_sort"):
        assert ran.stdout.count(f"{op} by triton.{op}") == len(MODELS)


def test_other_experts_are_found(run: Run) -> None:
    ran = run(*SMALL, change=NEXT_EXPERT)
    assert ran.returncode == 1
    for model in MODELS:
        assert failed(ran, model) == {"ops: gradients", "ops: tokens", "ops: logits"}


def test_zeros_that_are_off_by_one_are_found(run: Run) -> None:
    ran = run(*SMALL, change=ANOTHER_ZERO)
    assert ran.returncode == 1
    for model in MODELS:
        assert {"4 bits: 10 layers", "4 bits: logits"} <= failed(ran, model) <= {
            "4 bits: 10 layers", "4 bits: logits", "4 bits: tokens",
        }  # fmt: skip


def test_layers_that_are_left_to_the_model_are_found(run: Run) -> None:
    ran = run(*SMALL, change=REFUSES)
    assert ran.returncode == 1
    for model in MODELS:
        # with four bits a router is the op's too
        for op, left in (("moe_route", 18), ("moe_mlp", 10)):
            assert f"{model}: {op}: portakernel served 0 of 10 calls" in ran.stderr
            assert f"{model}: {left} calls were left to the model: {op}: dtype torch.float32: the op" in ran.stderr


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")),
        "meta",
        "toaster",
    ],
)
def test_a_device_that_torch_cannot_use_is_told_in_a_sentence(run: Run, device: str) -> None:
    ran = run("--device", device)
    assert (ran.returncode, ran.stdout) == (2, "")
    told = " ".join(ran.stderr.replace("│", " ").split())
    assert f"--device: torch cannot use '{device}' here (" in told
    assert "name a device that it can, as in --device cpu" in told
    assert "Traceback" not in ran.stderr
