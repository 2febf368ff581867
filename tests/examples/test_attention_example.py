"""The example of attention in transformers, examples/attention_in_transformers, compares, and finds what differs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "attention_in_transformers" / "compare.py"
MODELS = ("Gemma 2 (softcap)", "GPT-OSS (sinks)")
TINY = ("--prompt", "8", "--tokens", "3", "--steps", "1")
# What a program has to do to the integration before the script is run.
BROKEN = """\
import runpy, sys
from types import SimpleNamespace
from portakernel import ops
from portakernel.integrations.transformers import attention as module

within = module.attention.__globals__
{change}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FORGETS = """\
def forgetful(q, k, v, **given):
    return ops.attention(q, k, v, **(given | {"softcap": 0.0, "sinks": None}))
within["ops"] = SimpleNamespace(attention=forgetful)
"""
OVERFLOWS = """\
def faulty(q, k, v, **given):
    y = ops.attention(q, k, v, **given)
    if y.requires_grad:
        y.register_hook(lambda grad: grad * float("nan"))
    return y
within["ops"] = SimpleNamespace(attention=faulty)
"""
REFUSES = """within["_refused"] = lambda module, *given: "" if module.layer_idx else "no first layers today" """

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the examples are not part of this distribution")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(python: Run) -> Run:
    """Runs the script in a process of its own: what it counts is a process's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
    models = [f"transformers.models.{name}.modeling_{name}" for name in ("gemma2", "gpt_oss")]

    def run(*arguments: str, change: str | None = None) -> subprocess.CompletedProcess[str]:
        program = [] if change is None else ["-c", BROKEN.format(change=change)]
        imports = ("transformers", "typer", "rich.table", *models)
        return python(*program, SCRIPT, *arguments, env=environment | {"COLUMNS": "120"}, imports=imports)

    return run


def calls(shown: str, kernel: str) -> list[list[str]]:
    """For each layer of the tables, and for gradients, the calls of ``kernel`` by column."""
    rows = [row for row in shown.splitlines() if re.match(r"│ (\d+|all) ", row)]
    return [re.findall(rf"(\d+) {re.escape(kernel)} ", row) for row in rows]


def test_both_models_train_and_write_as_with_their_own_attention(run: Run) -> None:
    ran = run("--device", "cpu", *TINY)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.findall(r"^ +(.*), float32 on cpu: ", ran.stdout, re.MULTILINE) == list(MODELS)
    assert ran.stdout.count("│ ok │") == 4 * len(MODELS)
    assert ran.stdout.count("│ 6 equal ") == len(MODELS)
    assert calls(ran.stdout, "torch.attention_math") == [["3", "1"], ["3", "1"], []] * len(MODELS)
    assert ran.stdout.count("by PyTorch, of the kernel's operators") == len(MODELS)


def test_triton_s_attention_serves_every_layer_in_its_interpreter(run: Run) -> None:
    pytest.importorskip("triton")
    ran = run("--interpret")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("│ ok │") == 4 * len(MODELS)
    assert calls(ran.stdout, "interpreted.attention") == [["3", "1"], ["3", "1"], ["2"]] * len(MODELS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_triton_s_attention_serves_every_layer_on_a_gpu(run: Run, dtype: str) -> None:
    ran = run("--device", "cuda", "--dtype", dtype, "--kernel", "triton.attention")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert calls(ran.stdout, "triton.attention") == [["16", "30"], ["16", "30"], ["60"]] * len(MODELS)


def test_attention_without_softcap_and_sinks_is_found(run: Run) -> None:
    ran = run("--device", "cpu", *TINY, change=FORGETS)
    assert ran.returncode == 1
    for model in MODELS:
        found = re.findall(rf"^{re.escape(model)}: (.*?): .* apart, wanted ", ran.stderr, re.MULTILINE)
        assert {"their logits", "gradients"} <= set(found)


def test_gradients_that_are_no_numbers_are_found(run: Run) -> None:
    ran = run("--device", "cpu", *TINY, change=OVERFLOWS)
    assert ran.returncode == 1
    for model in MODELS:
        assert f"{model}: gradients: nan apart, wanted " in ran.stderr


def test_a_layer_that_is_left_to_the_model_is_found(run: Run) -> None:
    ran = run("--device", "cpu", *TINY, change=REFUSES)
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == [
        f"{model}: {text}"
        for model in MODELS
        for text in (
            "4 calls were left to the model's own attention: no first layers today",
            "layer 0, inference: portakernel served 0 of 3 calls",
            "layer 0, training: portakernel served 0 of 1 calls",
        )
    ]


def test_a_kernel_that_has_no_softcap_and_no_sinks_is_refused_with_the_reason(run: Run) -> None:
    ran = run("--device", "cpu", *TINY, "--kernel", "torch.attention_flash_cpu")
    assert ran.returncode == 1
    for model, lacks in zip(MODELS, ("softcap=5.0", "sinks=True"), strict=True):
        assert f"{model}: no kernel for op attention (training)" in ran.stderr
        assert f"float32: does not serve {lacks}" in ran.stderr


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="torch has CUDA here")
COUNTS = ("--layers", "--prompt", "--tokens", "--steps")
UNKNOWN = "torch.attention_maths"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--interpret", "--kernel", "torch.attention_math"),
            "--kernel: --interpret runs triton.attention alone, and 'torch.attention_math' was named; leave one",
        ),
        (("--interpret", "--device", "cuda"), "--device: --interpret runs on the CPU, and 'cuda' was named; leave one"),
        *(((count, "0"), f"'{count}': ") for count in COUNTS),
        pytest.param(("--device", "cuda"), "--device: torch cannot use 'cuda' here (", marks=NO_CUDA),
        (("--device", "meta"), "--device: torch cannot use 'meta' here ("),
        (("--device", "toaster"), "--device: torch cannot use 'toaster' here ("),
        (
            ("--device", "cpu", "--kernel", UNKNOWN),
            f"--kernel: context: use: unknown kernel or plugin '{UNKNOWN}'; did you mean 'torch.attention_math'",
        ),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_with_the_reason(
    run: Run, arguments: tuple[str, ...], told: str
) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    # the message is wrapped, and has a frame
    shown = " ".join(ran.stderr.replace("│", " ").split())
    assert f"Invalid value for {told}" in shown
    assert "Traceback" not in shown


def test_one_of_each_is_enough(run: Run) -> None:
    ran = run("--device", "cpu", *(word for count in COUNTS for word in (count, "1")))
    assert (ran.returncode, ran.stderr) == (0, "")
