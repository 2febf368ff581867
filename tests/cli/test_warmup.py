"""``portakernel warmup``."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from portakernel.cli import main
from portakernel.contracts import contract
from portakernel.question import ask
from portakernel.scratch import described
from portakernel.target import Target

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="Inductor needs a C++ compiler for the CPU"
)


@needs_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # importing Inductor
def test_it_builds_runs_and_says_what_serves(capsys):
    given = ["warmup", "silu_and_mul", "--dtype", "float32", "--shape", "x=4x34", "--device", "cpu"]
    assert main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("seconds") >= 0
    (call,) = answer.pop("calls")
    assert (call["phase"], call["kernel"], call["request"]["dims"]) == (
        "inference",
        "inductor.silu_and_mul",
        {"M": 4, "N": 17},
    )
    assert answer == {
        "op": "silu_and_mul",
        "device": "cpu",
        "built": ["inductor.silu_and_mul"],
        "declined": {},
        "compiled": [],
        "runs": 2,
        "settled": True,
    }
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 kind of call is warm after 2 runs in ")
    assert lines[1].startswith("  inductor.silu_and_mul  silu_and_mul on cpu:")
    assert lines[2:] == ["  built inductor.silu_and_mul"]


def test_it_ends_with_1_where_there_is_nothing_to_build_or_compile(capsys):
    given = ["warmup", "add", "--dtype=float32", "--shape=x=3x5", "--device=cpu", "--kernel=torch", "--training"]
    assert main(given) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  torch.add  add (training) on cpu:")
    assert lines[1].endswith(" with x float32, y float32, M=15")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["rms_norm", "--dtype", "float32"], 'rms_norm: give the shape of x: shape={"x": (A, B)}, or --shape x=AxB'),
        (["rms_norm", "--shape", "x=2x8"], 'rms_norm: give the dtype of x: dtype={"x": DTYPE}, or --dtype x=DTYPE'),
        (["nothing"], "unknown op 'nothing'"),
        (["rms_norm", "--device", "abacus"], "unknown device 'abacus'"),
    ],
)
def test_what_does_not_make_a_call_is_refused(capsys, given, message):
    assert main(["warmup", *given]) == 2
    assert message in capsys.readouterr().err


def test_the_example_fits_the_op():
    shapes = {"x": (2, 3, 8), "bias": (8,)}
    dtypes = {"x": "bfloat16", "weight": "float32"}
    request = ask(contract("layer_norm"), Target("cpu", "x86_64"), dtypes=dtypes | {"bias": "float32"}, shapes=shapes)
    found = described(request, shapes, "cpu", training=True)
    assert {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in found.items()} == {
        "x": ((2, 3, 8), torch.bfloat16, True),
        "weight": ((8,), torch.float32, True),
        "bias": ((8,), torch.float32, True),
    }
