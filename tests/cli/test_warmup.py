"""``portakernel warmup``."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from portakernel.cli import main
from portakernel.cli.warmup import example
from portakernel.contracts import contract
from portakernel.question import ask
from portakernel.target import Target

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="Inductor needs a C++ compiler for the CPU"
)


@needs_compiler
def test_it_builds_and_says_how_long_it_took(capsys):
    given = ["warmup", "silu_and_mul", "--dtype", "float32", "--shape", "x=4x34", "--device", "cpu"]
    assert main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("seconds") >= 0
    assert answer == {"op": "silu_and_mul", "device": "cpu", "built": ["inductor.silu_and_mul"]}
    assert main(given) == 0
    assert capsys.readouterr().out.startswith("inductor.silu_and_mul built for silu_and_mul on cpu:")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["rms_norm", "--dtype", "float32"], "rms_norm: give the shape of x: --shape x=AxB"),
        (["rms_norm", "--shape", "x=2x8"], "rms_norm: give the dtype of x: --dtype x=DTYPE"),
        (["nothing"], "unknown op 'nothing'"),
    ],
)
def test_what_does_not_make_a_call_is_refused(capsys, given, message):
    assert main(["warmup", *given]) == 2
    assert message in capsys.readouterr().err


def test_the_example_fits_the_op():
    shapes = {"x": (2, 3, 8), "bias": (8,)}
    dtypes = {"x": "bfloat16", "weight": "float32"}
    request = ask(contract("layer_norm"), Target("cpu", "x86_64"), dtypes=dtypes | {"bias": "float32"}, shapes=shapes)
    found = example(request, shapes, "cpu", training=True)
    assert {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in found.items()} == {
        "x": ((2, 3, 8), torch.bfloat16, True),
        "weight": ((8,), torch.float32, True),
        "bias": ((8,), torch.float32, True),
    }
