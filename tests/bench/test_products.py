"""The benchmark of matrix products: who takes part on a CPU, what is wrong, what an interrupted run leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel_kit.bench.contenders import Field

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def products(benchmark_script) -> Iterator[ModuleType]:
    with benchmark_script("products") as module:
        yield module


@pytest.fixture(scope="module")
def written(products, python, tmp_path_factory) -> dict[str, Any]:
    """What a run on the CPU writes; what torch.compile is given runs as it is, since compiling takes most of a run."""
    folder = tmp_path_factory.mktemp("results")
    words = (FOLDER / "products.py", "--small", "--device", "cpu", "--no-autotune", "--rounds", "2", "--output", folder)
    ran = python(*words, env={**os.environ, "TORCHDYNAMO_DISABLE": "1"})
    assert ran.returncode == 0, ran.stderr
    assert len((folder / "products-cpu.md").read_text().splitlines()) > 10
    return json.loads((folder / "products-cpu.json").read_text())


def test_kernels_dispatch_and_pytorchs_ways_take_part(written):
    first = written["products"][0]
    names = {way["way"]: way["portakernel"] for way in first["ways"]}
    assert names == {
        "default dispatch: torch.linear_act": True,
        "torch.linear_act": True,
        "torch.linear_act_unfused": True,
        "torch.linear_act_saved": True,
        "F.linear, gelu": False,
        "torch._addmm_activation": False,
        "torch.compile": False,
    }
    assert first["picked"] == "torch.linear_act"
    assert [way["status"] for way in first["ways"]] == ["timed"] * 7
    assert (len(written["products"]), written["interrupted"]) == (5, False)


def test_a_way_has_a_time_or_a_reason(products, written):
    for product in written["products"]:
        peers = [way["latency_us"] for way in product["ways"] if "latency_us" in way and not way["portakernel"]]
        assert product["pytorch_us"] == min(peers, default=None)
        for way in product["ways"]:
            if way["status"] != "timed":
                assert way["status"] == "failed"
                assert way["reason"]
                continue
            assert way["relative_error"] <= products.MOST_ERROR
            assert (way["rounds"], way["launches"]) == (2, 2)
            flops = 2 * product["m"] * product["n"] * product["k"]
            assert way["tflop_per_s"] == pytest.approx(flops / way["latency_us"] / 1e6)
            ratio = product["pytorch_us"] / way["latency_us"] if way["portakernel"] and peers else None
            assert way["ratio"] == ratio


@pytest.mark.parametrize(
    ("spoil", "status", "reason"),
    [
        (lambda y: y, "untimed", ""),
        (lambda y: y * 2, "wrong", "a row is off by 1 of its length (at most 0.01)"),
        (lambda y: y * torch.nan, "wrong", "a row is off by nan of its length (at most 0.01)"),
        (lambda y: y[:4], "wrong", "returned torch.bfloat16 of shape (4, 16)"),
        (lambda y: y[9], "failed", "IndexError: index 9 is out of bounds for dimension 0 with size 8"),
    ],
)
def test_a_way_is_judged_by_the_exact_rows(products, spoil, status, reason):
    case, rows = products.Case("linear_act", 8, 16, 32, "none"), torch.arange(8)
    exact = torch.arange(1.0, 129.0, dtype=torch.float64).reshape(8, 16)  # bfloat16 holds these
    way = products.Way("one", ours=False)
    products.check(way, lambda: spoil(exact.bfloat16()), case, exact, rows)
    assert (way.status, way.reason) == (status, reason)


def test_kernels_that_lack_a_build_are_shown_and_those_for_other_calls_are_not(products):
    reasons = {
        "cutlass.linear_act": (Rejection(ReasonCode.NEEDS_BUILD, "not in the cache"),),
        "cutlass_dsl.linear_act": (Rejection(ReasonCode.NOT_INSTALLED, "no nvidia-cutlass-dsl"),),
        "torch.other": (
            Rejection(ReasonCode.SCALE_FORMAT, "no blocks"),
            Rejection(ReasonCode.NEEDS_BUILD, "nor built"),
        ),
        "inductor.linear_act": (Rejection(ReasonCode.NEEDS_BUILD, "torch.compile takes part itself"),),
    }
    shown = dict(products.missing(Field(None, (), reasons), {"cutlass.linear_act": "nvcc is missing"}))
    assert shown == {
        "cutlass.linear_act": "nvcc is missing",
        "cutlass_dsl.linear_act": "not_installed: no nvidia-cutlass-dsl",
    }


def test_an_interrupted_run_writes_what_it_has(products, tmp_path, monkeypatch, capsys):
    def measure(result, *_):
        way = products.Way("F.linear", ours=False, status="timed", samples_us=[2.0, 4.0, 9.0])
        result.ways += [way, products.Way("torch.compile", ours=False)]
        if result.case is products.SMALL_CASES[1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(products, "measure", measure)
    with pytest.raises(typer.Exit) as left:
        products.main(op=["linear_act"], device="cpu", small=True, output=tmp_path)
    assert left.value.exit_code == 130
    found = json.loads((tmp_path / "products_linear_act-cpu.json").read_text())
    assert found["interrupted"] is True
    times = [(way["status"], way.get("latency_us")) for product in found["products"] for way in product["ways"]]
    assert times == [("timed", 4.0), ("untimed", None)] * 2
    assert "interrupted" in capsys.readouterr().out
