"""Requests that are drawn from what models use: every op has them, and a seed gives the same ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from portakernel.claims.request import Phase
from portakernel.contract import GridRow
from portakernel.contract.production import DECODERS, ENCODERS
from portakernel.contracts import contract, own_contracts
from portakernel.errors import ArgumentValueError
from portakernel.words.target import Device, Target
from portakernel_kit.bench.contenders import Filter
from portakernel_kit.bench.question import drawn_rows, launch_row, questions
from portakernel_kit.bench.results import Cell, Latency, LeftOut, Measured, routing
from portakernel_kit.bench.suite import Plan, Suite
from portakernel_kit.cli.bench.requests import Words

HERE = Target("cpu", "x86_64")
CUDA = Device(Target("nvidia", "sm_90"), "a GPU that is not here", "cuda:0")
OPS = own_contracts()


def drawn(op: str, count: int, seed: int = 0) -> list[GridRow]:
    return list(islice(drawn_rows(op, seed), count))


@pytest.mark.parametrize("op", OPS)
def test_every_draw_makes_a_request_that_costs_something(op: str) -> None:
    rows = drawn(op, 150, seed=1)
    for dtype in ("float32", "bfloat16"):
        asked = questions(op, rows, [dtype], HERE)
        assert all(question.cost.bytes > 0 and question.cost.flops > 0 for question in asked)
    assert len({row.name for row in rows}) > 30  # no table


@pytest.mark.parametrize("op", OPS)
def test_a_seed_gives_the_same_and_a_longer_draw_begins_with_a_shorter_one(op: str) -> None:
    assert drawn(op, 20, seed=5) == drawn(op, 40, seed=5)[:20]
    assert drawn(op, 20, seed=5) != drawn(op, 20, seed=6)


def test_draws_have_what_tables_leave_out() -> None:
    shapes = [row.shapes["x"] for row in drawn("rms_norm", 300)]
    assert any(columns <= 128 for _, columns in shapes)
    assert any(rows == 1 for rows, _ in shapes)
    assert any(rows % 2 and rows > 512 for rows, _ in shapes)
    assert any(row.shapes["weight"][0] % 8 for row in drawn("linear_act", 300))
    assert any(row.shapes["logits"][1] % 8 for row in drawn("cross_entropy", 300))
    for op, name in (("rms_norm", "x"), ("layer_norm", "x"), ("softmax", "x"), ("gelu_and_mul", "x")):
        assert any((row.shapes[name][1] // (1 + (op == "gelu_and_mul"))) % 8 for row in drawn(op, 300))
    assert {64, 80, 96, 128} <= {row.shapes["x"][1] for row in drawn("rms_norm", 600)}
    assert {197, 257, 577, 1500, 4097, 1001, 50257} <= {row.shapes["x"][1] for row in drawn("softmax", 900)}
    assert {32001, 50257, 151669, 1000, 1001} <= {row.shapes["logits"][1] for row in drawn("cross_entropy", 600)}
    products = [row.shapes["weight"] for row in drawn("linear_act", 600)]
    assert any(min(outputs, inputs) <= 16 and max(outputs, inputs) > 1024 for outputs, inputs in products)  # LoRA
    assert {80, 96, 128} <= {row.shapes["q"][-1] for row in drawn("attention", 300)}
    # what is quantised goes into products, which take no odd number of terms
    assert not any(row.shapes["x"][1] % 8 for row in drawn("quantize_fp8", 300))
    lengths = [row.given["seq_lens"] for row in drawn("paged_attention", 300)]
    assert any(len(set(found)) > 3 for found in lengths)
    assert {row.dtypes.get("key_cache") for row in drawn("paged_attention", 300)} == {None, "float8_e4m3fn"}
    windows = [row for row in drawn("paged_attention", 300) if "window" in row.values]
    assert any(row.dtypes for row in windows)  # a feature leaves dtypes as they are


def test_heads_are_split_as_devices_can() -> None:
    models = (*DECODERS, *(model for model, _ in ENCODERS))
    assert all(model.heads % model.key_heads == 0 for model in models)
    for row in drawn("attention", 300):
        assert row.shapes["q"][2] % row.shapes["k"][2] == 0


def test_an_op_whose_contract_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from portakernel_kit.bench import question

    known = contract("rms_norm")
    assert known.grid is not None
    silent = replace(known, grid=replace(known.grid, drawn=None))
    monkeypatch.setattr(question, "contract", lambda _: silent)
    with pytest.raises(ArgumentValueError, match="its contract does not say what models ask of it"):
        drawn_rows("rms_norm", 0)


def test_drawn_ops_without_backward_kernels_have_forward_alone_and_are_no_gap() -> None:
    import torch

    from portakernel.runtime import dispatcher

    asked = [q for op in ("quantize_fp8", "rms_norm") for q in questions(op, [launch_row(op)], ["float32"], HERE)]
    drawn = Plan(tuple(asked), backward=True, drawn=True)
    step = replace(launch_row("rms_norm"), trained=False)
    assert drawn.phases(contract("rms_norm"), step) == (Phase.INFERENCE,)
    assert len(replace(drawn, drawn=False).phases(contract("rms_norm"), step)) == 2
    suite = Suite(dispatcher(), torch.device("cpu"), Filter(plugins=("reference",)), seconds=0.0)
    found = list(suite.run(drawn))
    assert [(one.op, one.phase) for one in found] == [
        ("quantize_fp8", "forward"),
        ("rms_norm", "forward"),
        ("rms_norm", "backward"),
    ]
    assert not any(isinstance(one, LeftOut) for one in found)
    assert len(found) == drawn.cells()


def test_what_inference_alone_asks_for_is_said() -> None:
    steps = [row for row in drawn("attention", 200) if row.shapes["q"][1] == 1]
    assert steps
    assert not any(row.trained for row in steps)
    assert any(row.trained for row in drawn("attention", 20))
    sampled = [row for row in drawn("softmax", 200) if not row.trained]
    assert all(row.shapes["x"][1] > 30000 for row in sampled)
    gradients = Words(drawn=40, seed=3, trained=True).questions(["attention", "rms_norm"], CUDA)
    assert len(gradients) == 40
    assert all(question.row.trained for question in gradients)


def cell(times: dict[str, float], chosen: str, case: str = "1×1") -> Cell:
    kernels = tuple(Measured(name, "timed", Latency(us, us, us, 1, 1)) for name, us in times.items())
    of, measured = ("rms_norm", case, "forward", {}, {}, {}), (chosen, None, "", None, kernels)
    return Cell(*of, 1, 1, "memory", *measured, foreign=frozenset({"liger"}))


def test_what_is_lost_to_own_kernels_and_to_other_packages_is_told_apart() -> None:
    found = cell({"triton.rms_norm": 11.0, "hip.rms_norm": 10.0, "liger.rms_norm": 12.0}, "triton.rms_norm")
    assert found.behind(foreign=False) == ("hip.rms_norm", 1.1)
    assert found.behind(foreign=True) == ("liger.rms_norm", 11 / 12)
    assert found.behind() == ("hip.rms_norm", 1.1)
    other = cell({"triton.rms_norm": 10.0, "liger.rms_norm": 8.0}, "triton.rms_norm", "2×2")
    alone = cell({"triton.rms_norm": 10.0}, "triton.rms_norm", "3×3")
    told = routing([found, other, alone, cell({"triton.rms_norm": 1.0}, "cutlass.rms_norm")])
    assert told["cells"] == 3
    assert (told["own"]["cells"], told["own"]["beyond_5_percent"]) == (3, 1 / 3)
    assert (told["own"]["worst"], told["own"]["worst_case"]) == (1.1, "rms_norm 1×1 forward")
    assert (told["foreign"]["cells"], told["foreign"]["beyond_5_percent"]) == (2, 0.5)
    assert (told["foreign"]["worst"], told["foreign"]["worst_case"]) == (1.25, "rms_norm 2×2 forward")
    assert routing([])["own"]["beyond_5_percent"] is None


def test_kernels_that_are_compared_by_steps_are_not_compared_by_the_devices_times() -> None:
    found = cell({"torch.rms_norm": 9.0, "triton.rms_norm": 6.0, "hip.rms_norm": 8.7}, "torch.rms_norm")
    assert found.faster_than_chosen() == ("triton.rms_norm",)
    stepped = replace(found, steps={"torch.rms_norm": 100.0, "triton.rms_norm": 200.0})
    assert stepped.behind() == ("hip.rms_norm", pytest.approx(9 / 8.7))
    assert stepped.faster_than_chosen() == ()
    slower = replace(found, steps={"torch.rms_norm": 110.0, "triton.rms_norm": 100.0})
    assert slower.behind() == ("triton.rms_norm", pytest.approx(1.1))
