"""The benchmark of first calls: what it asks fresh processes, what they answer, and what is made of that."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")

from portakernel.contracts import contract
from portakernel.words.target import Target

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def first_call(benchmark_script) -> Iterator[ModuleType]:
    with benchmark_script("first_call") as module:
        yield module


@pytest.fixture(scope="module")
def specs(first_call) -> list[dict[str, Any]]:
    return first_call.specs(Target.parse("nvidia:sm_90"))


def test_every_op_with_sizes_and_a_triton_kernel_is_asked_for_and_survives_json(specs):
    ops = [spec["op"] for spec in specs]
    assert {"add", "rms_norm", "quantize_fp8", "dequantize", "embedding_bag"} <= set(ops)
    assert len(set(ops)) == len(ops)
    for spec in specs:
        assert json.loads(json.dumps(spec))["own_values"] == spec["own_values"]
        given = {*spec["positional"], *spec["named"]}
        assert given == spec["tensors"].keys()
        assert spec["call"]["dtype"].keys() <= set(contract(spec["op"]).names)
        assert all(dtype == spec["call"]["dtype"][name] for name, (_, dtype, _) in spec["tensors"].items())


@pytest.fixture
def asked(forked_interpreter):
    """What a process answers that has imported torch alone, of what its clock counts, on the CPU."""

    def ask(way: str, calls: list[dict[str, Any]], **environment: str) -> dict[str, Any]:
        ran = subprocess.run(
            [forked_interpreter(), str(FOLDER / "first_call_process.py")],
            input=json.dumps({"way": way, "device": "cpu", "calls": calls}),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(ran.stdout)

    return ask


def test_a_process_tells_the_parts_of_its_first_call_and_later_ones_whole(first_call, specs, asked):
    calls = [
        {**spec, "kernel": f"reference.{spec['op']}", "entry": f"portakernel.references.{spec['op']}:forward"}
        for spec in specs
        if spec["op"] in ("add", "softmax")
    ]
    first, later = asked("portakernel", calls)["calls"]
    assert (first["op"], tuple(first["spent_ms"])) == ("add", first_call.PARTS)
    assert (later["op"], list(later["spent_ms"])) == ("softmax", ["call"])
    assert all(spent >= 0 for spent in first["spent_ms"].values())


def test_tritons_way_launches_the_plugins_kernels_by_tritons_jit(specs, asked):
    calls = [spec for spec in specs if spec["op"] in ("add", "quantize_fp8")]
    answer = asked("triton", calls, TRITON_INTERPRET="1")
    assert [(call["op"], list(call["spent_ms"])) for call in answer["calls"]] == [
        ("add", ["import triton", "import plugin", "call"]),
        ("quantize_fp8", ["import plugin", "call"]),
    ]
    assert answer["compiled"] == []


def test_figures_are_medians_over_processes(first_call):
    samples = first_call.Samples()

    def process(way: str, *calls: tuple[str, dict[str, float]], compiled: tuple[str, ...] = ()) -> None:
        samples.add(way, {"calls": [{"op": op, "spent_ms": ms} for op, ms in calls], "compiled": list(compiled)})

    parts = dict.fromkeys(first_call.PARTS, 2.0)
    for call in (10.0, 20.0, 60.0):
        process("portakernel", ("add", {**parts, "call": call}), ("softmax", {"call": call}))
        process("triton", ("add", {"import triton": 2.0, "call": 2 * call}), ("softmax", {"call": call / 4}))
    process("portakernel", ("softmax", parts), ("add", {"call": 3.0}))
    process("triton", ("softmax", parts), ("add", {"import plugin": 1.0, "call": 5.0}), compiled=("_add",))
    add = samples.result("add")
    assert add["portakernel"]["first_ms"] == 28.0
    assert add["portakernel"]["parts_ms"] == {**parts, "call": 20.0}
    assert add["triton"]["first_ms"] == 42.0
    assert add["first_ratio"] == 28 / 42
    assert (add["portakernel"]["later_ms"], add["triton"]["later_ms"], add["later_ratio"]) == (3.0, 6.0, 0.5)
    assert samples.result("softmax")["later_ratio"] == 4.0
    assert samples.compiled == {"portakernel": [], "triton": ["_add"]}
    table = first_call.table_of([add])
    (row,) = zip(*(list(column.cells) for column in table.columns), strict=True)
    assert row == ("add", "28.0", "42.0", "0.67", "2.0", "2.0", "2.0", "2.0", "20.0", "3.0", "6.0", "0.50")


def test_what_is_no_gpu_is_refused(first_call, python):
    ran = python(FOLDER / "first_call.py", "--device", "cpu")
    assert ran.returncode == 1
    assert ran.stderr == "first_call measures kernels of GPUs, which cpu is none of; give --device cuda:0\n"
