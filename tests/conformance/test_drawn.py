"""Requests drawn from contracts: what they hold, that they find wrong kernels, and what one costs that dies."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from portakernel.contracts import contract, own_contracts
from portakernel_kit.conformance.claims import possible
from portakernel_kit.conformance.drawn import __main__ as command
from portakernel_kit.conformance.drawn import processes
from portakernel_kit.conformance.drawn.request import draw_request
from portakernel_kit.conformance.drawn.trying import CHOSEN, Begun, Job, Tried, Undefined
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_kit.conformance.observing.isolation import Death
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.trial import Outcome
from portakernel_plugins.torch.attention import flash_cpu as attention_flash_cpu

JOB = Job("cpu", ("attention",), frozenset(), seed=5, first=0, step=1, end=1 << 20, seconds=100.0)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def requests(op, count):
    return [draw_request(contract(op), 5, number) for number in range(count)]


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_a_seed_and_a_number_are_a_request():
    first, again = (requests("attention", 20) for _ in range(2))
    assert first == again
    assert len({json.dumps(drawn.to_json()) for drawn in first}) == 20
    assert draw_request(contract("attention"), 6, 3) != first[3]


@pytest.mark.parametrize("op", sorted(own_contracts()))
def test_requests_are_ones_that_the_op_takes(op):
    for number, drawn in enumerate(requests(op, 25)):
        assert possible(contract(op), drawn.case)
        inputs = draw_inputs(contract(op), drawn.case, drawn.dtypes, "cpu", generator(5, number))
        inputs.contract.check_dtypes({name: str(t.dtype).removeprefix("torch.") for name, t in inputs.given.items()})


def test_every_number_is_drawn_neutral_at_zero_below_next_to_it_and_far_from_it():
    scales = [drawn.case.parameters["scale"] for drawn in requests("attention", 600)]
    assert None in scales
    found = {math.copysign(1.0, scale) * 0.0 if scale == 0 else scale for scale in scales if scale is not None}
    assert {0.0, 1e-30, -1e-30, 1e30, -1e30, -1.0} <= found
    assert {math.copysign(1.0, scale) for scale in scales if scale == 0} == {1.0, -1.0}
    smoothed = {drawn.case.parameters["label_smoothing"] for drawn in requests("cross_entropy", 300)}
    assert {0.0, 1.0, 1e-30} <= smoothed
    assert min(smoothed) == 0.0
    assert max(smoothed) == 1.0


def test_sizes_layouts_features_and_dtypes_are_all_drawn():
    drawn = requests("attention", 600)
    for name in ("B", "S", "T"):
        assert {0, 1} <= {request.case.dims[name] for request in drawn}
        assert max(request.case.dims[name] for request in drawn) > 200
    layouts = {layout for request in drawn for layout in request.case.layouts.values()}
    assert layouts == {"sliced", "transposed", "expanded", "stepped", "offset", "split"}
    assert {name for request in drawn for name in request.case.present} == {"alibi_slopes", "bias", "sinks"}
    assert {request.dtypes["q"] for request in drawn} == {"float32", "float16", "bfloat16"}
    assert {request.case.backward for request in drawn} == {True, False}
    formats = {tuple(r.case.parameters[f"format_{x}"] for x in "ab") for r in requests("scaled_mm", 600)}
    assert len(formats) == 49


def test_a_gradient_is_not_asked_for_where_greater_ones_cancel():
    far = [drawn.case for drawn in requests("attention", 600) if abs(drawn.case.parameters["scale"] or 0.0) > 1e6]
    assert far
    assert not any(case.backward for case in far)


def test_what_bounds_pieces_is_no_less_than_the_longest():
    for drawn in requests("attention_varlen", 200):
        for side in "qk":
            ends, bound = drawn.case.given[f"cu_seqlens_{side}"], drawn.case.parameters[f"max_seqlen_{side}"]
            assert list(ends) == sorted(ends)
            assert ends[-1] == drawn.case.dims["S" if side == "q" else "T"]
            assert bound is None or bound >= max((b - a for a, b in pairwise(ends)), default=0)


# --- what is found ---------------------------------------------------------------------------------------------------


def failures(job):
    events = list(job.events())
    assert events[-1] == Finished()
    return [event for event in events if isinstance(event, Tried) and event.outcome.status == "failed"]


def test_a_kernel_that_is_wrong_for_some_scales_is_found_and_the_right_one_is_not(monkeypatch):
    job = replace(JOB, kernels=frozenset({"torch.attention_flash_cpu"}), first=115, end=140)
    assert failures(job) == []

    def as_given(q, scale):
        return q, q.shape[-1] ** -0.5 if scale is None else scale

    monkeypatch.setattr(attention_flash_cpu, "above_zero", as_given)
    found = [event for event in failures(job) if event.outcome.aspect == "forward"]
    assert found
    for event in found:
        assert event.drawn["parameters"]["causal"]
        assert event.drawn["parameters"]["scale"] <= 0


def test_the_ops_own_call_is_tried_too_and_every_kernel_beside():
    events = list(replace(JOB, end=6).events())
    begun = [event for event in events if isinstance(event, Begun)]
    assert [event.number for event in begun if event.kernel == CHOSEN] == list(range(6))
    assert {"reference.attention", "torch.attention_math"} <= {event.kernel for event in begun}


# --- processes -------------------------------------------------------------------------------------------------------

DEATH = Death("ended", "it ended its process: signal 11 (SIGSEGV)", "")


def test_a_process_goes_on_behind_the_request_that_ended_the_one_before(monkeypatch):
    begun = [Begun(4, "add", "acme.add"), Begun(9, "add", "acme.add"), Begun(12, "add", "acme.add")]
    ends, firsts = iter([DEATH, Finished(lost=True), Finished()]), []

    def apart(job, patience):
        firsts.append(job.first)
        yield begun[len(firsts) - 1]
        yield next(ends)

    monkeypatch.setattr(processes, "run_apart", apart)
    events = list(processes.run_all(replace(JOB, first=2), 1))
    assert events == [begun[0], (begun[0], DEATH), begun[1], begun[2]]
    assert firsts == [2, 5, 10]


def test_processes_take_requests_in_turn(monkeypatch):
    jobs = []

    def apart(job, patience):
        jobs.append((job.first, job.step))
        yield Finished()

    monkeypatch.setattr(processes, "run_apart", apart)
    assert list(processes.run_all(JOB, 3)) == []
    assert sorted(jobs) == [(0, 3), (1, 3), (2, 3)]


def test_a_process_that_cannot_start_is_not_tried_for_ever(monkeypatch):
    monkeypatch.setattr(processes, "run_apart", lambda job, patience: iter([DEATH]))
    assert list(processes.run_all(JOB, 1)) == [DEATH]


def test_failures_are_written_with_what_repeats_them(monkeypatch, tmp_path, capsys):
    begun = Begun(7, "add", "acme.add")
    wrong, right = Outcome("forward", "failed", "sum: 1 of 1 elements differ"), Outcome("forward", "passed")
    drawn = requests("add", 8)[7].to_json()
    events = [
        begun,
        Tried(begun, wrong, drawn),
        Tried(begun, right),
        Undefined(Begun(8, "add", CHOSEN), "no"),
        (begun, DEATH),
    ]
    monkeypatch.setattr(command, "run_all", lambda job, workers: iter(events))
    asked = ["drawn", "--seed", "5", "--op", "add", "--output", str(tmp_path), "--workers", "3"]
    monkeypatch.setattr("sys.argv", asked)
    assert command.main() == 1
    lines = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["number"], line["kernel"], line["aspect"]) for line in lines] == [
        (5, 7, "acme.add", "forward"),
        (5, 7, "acme.add", "ended"),
    ]
    assert lines[0]["request"] == json.loads(json.dumps(drawn))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["kernels"] == {"acme.add": {"requests": 1, "failures": 2}}
    assert (summary["requests"], summary["undefined"], summary["failures"]) == (1, 1, 2)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "seed 5, device cpu, 3 processes",
        "7 acme.add forward sum: 1 of 1 elements differ",
    ]
