"""Drawn requests in processes of their own: what one costs that dies, and what is told of it."""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch

from portakernel import runtime
from portakernel.errors import ArgumentValueError
from portakernel_kit.conformance.drawn import processes, trying
from portakernel_kit.conformance.drawn.levels import levels_of
from portakernel_kit.conformance.drawn.processes import Budget, Drawing, parse_budget
from portakernel_kit.conformance.drawn.trying import Begun, Covered, Drew, Job
from portakernel_kit.conformance.observing.isolation import Asked, Death
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.result import Result

PASSED = Result("torch.softmax_cpu", "softmax", "softmax[drawn 0]", "forward", "passed")
FAILED = replace(PASSED, status="failed", detail="off")
DEATH = Death("ended", "it ended its process: signal 11 (SIGSEGV)", "")


def begun(turn):
    return Begun("torch.softmax_cpu", turn, f"request {turn}")


@pytest.fixture(autouse=True)
def _nothing_stays_bounded(monkeypatch):
    """Other tests run in this process, too."""
    monkeypatch.setattr(trying, "bound_memory", lambda: None)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def drawing():
    now = runtime.dispatcher()
    return Drawing(now, [now.registry.kernels["torch.softmax_cpu"]], 3, Budget(60.0))


@pytest.fixture
def apart(monkeypatch):
    """Puts these events of one process after the other in the place of processes; returns their jobs."""

    def replaced(*events):
        jobs, left = [], iter(events)

        def run(job, patience, stopped):
            jobs.append(job)
            yield from next(left)

        monkeypatch.setattr(processes, "run_apart", run)
        return jobs

    return replaced


def test_a_process_goes_on_behind_the_request_that_ended_the_one_before(drawing, apart):
    first = [begun(0), Drew(begun(0), (PASSED,), "request 0"), begun(1), DEATH]
    second = [begun(2), Drew(begun(2), (PASSED,), "request 2"), Covered("torch.softmax_cpu", 3, 4), Finished()]
    jobs = apart(first, second)
    found = list(drawing.results())
    assert [(result.case, result.status) for result in found] == [
        ("softmax[drawn 0]", "passed"),
        ("softmax[drawn 1]", "failed"),
        ("softmax[drawn 0]", "passed"),
    ]
    assert found[1].detail == f"{DEATH.text}\nagain: portakernel check --one 'request 1'"
    assert [(job.first, job.done) for job in jobs] == [(0, frozenset()), (1, {"torch.softmax_cpu"})]
    pairs, by_kernel = {"pairs_asked": 3, "pairs_possible": 4}, {"torch.softmax_cpu": 2}
    assert drawing.to_json() == {"requests": 2, "first": 2, **pairs, "by_kernel": by_kernel}


def test_a_kernel_that_ended_a_process_goes_on_behind_the_request_that_did(drawing):
    asked = Asked.of(drawing.dispatcher, *drawing.kernels, None)
    lines = {}
    for job in (Job((asked,), 3, 60.0, 0), Job((asked,), 3, 60.0, 1, frozenset({"torch.softmax_cpu"}))):
        events = (event for event in job.events() if isinstance(event, Begun))
        for event in islice(events, 3):
            lines.setdefault(event.turn, set()).add(event.request)
    assert sorted(lines) == [0, 1, 2, 3, 4]
    assert all(len(requests) == 1 for requests in lines.values())


def test_requests_are_left_out_for_as_long_as_there_is_time_and_none_of_their_pairs_counts(drawing):
    asked = Asked.of(drawing.dispatcher, *drawing.kernels, None)
    begin = time.monotonic()
    covered, _ = Job((asked,), 3, 0.5, 1_000_000, left_out=1_000_000).events()
    assert time.monotonic() - begin < 20
    assert isinstance(covered, Covered)
    assert covered.asked == 0 < covered.possible


def test_the_pairs_of_requests_that_were_put_to_a_kernel_count_whichever_process_did(drawing):
    asked = Asked.of(drawing.dispatcher, *drawing.kernels, None)
    counts = []
    # turns before the fifth are left out, were of a process that has ended, or are of this one
    for turns, left_out in ([5], 5), ([5], 0), ([0, 1, 2, 3, 4, 5], 0):
        tried = trying._tried(asked, 3, left_out)
        for turn in turns:
            assert list(tried.ask(turn, math.inf, all_pairs=False))
        counts.append(tried.covered()[0])
    unit, covering = tried.requests.at(5), tried.requests.covering
    levels = levels_of(tried.suite.contract, unit.case, dict(unit.dtypes))
    assert counts[0] == len(covering.asked.intersection(covering.within(levels)))
    assert counts[0] < counts[1] == counts[2] == len(covering.asked)


def test_pairs_count_that_were_all_asked_for_by_processes_that_have_ended(drawing):
    asked = Asked.of(drawing.dispatcher, *drawing.kernels, None)
    tried = trying._tried(asked, 3, 0)
    assert list(tried.ask(1_000_000, math.inf, all_pairs=True)) == []
    asked_for, possible = tried.covered()
    assert asked_for == possible > 0


def test_jobs_say_how_many_requests_are_left_out(drawing, apart):
    jobs = apart([begun(4), DEATH], [Finished()])
    drawing.first = 4
    list(drawing.results())
    assert [(job.first, job.left_out, job.done) for job in jobs] == [(4, 4, set()), (4, 4, {"torch.softmax_cpu"})]


def test_of_a_request_that_fails_the_smallest_is_told_or_itself_where_that_ends_the_process(drawing, apart):
    small = replace(FAILED, detail="off alike")
    failing = [begun(0), Drew(begun(0), (FAILED,), "large", is_last=False)]
    apart([*failing, Drew(begun(0), (small,), "small"), Finished()])
    assert [r.detail for r in drawing.results()] == ["off alike\nagain: portakernel check --one 'small'"]
    apart([*failing, DEATH], [Finished()])
    assert [r.detail for r in drawing.results()] == ["off\nagain: portakernel check --one 'large'"]


def test_a_kernel_whose_requests_end_their_processes_is_left_after_some(drawing, apart):
    jobs = apart(*([begun(turn), DEATH] for turn in range(9)))
    assert len(list(drawing.results())) == len(jobs) == 3


def test_a_process_that_cannot_start_is_said(drawing, apart):
    apart([DEATH])
    with pytest.raises(RuntimeError, match="no process that runs drawn requests could begin: it ended its process"):
        list(drawing.results())


def test_no_budget_starts_no_process(drawing, apart):
    jobs = apart()
    drawing.budget = Budget(0.0)
    assert list(drawing.results()) == jobs == []


def test_in_turn_each_kernel_is_asked_until_every_pair_was(fork_server, monkeypatch):
    monkeypatch.setattr("portakernel_kit.conformance.observing.isolation.get_context", lambda _: fork_server)
    now = runtime.dispatcher()
    kernels = [now.registry.kernels[name] for name in ("torch.add", "torch.softmax_cpu")]
    drawing = Drawing(now, kernels, 3, parse_budget("all"))
    found = Counter[str]()
    for result in islice(drawing.results(), 400):
        found[result.kernel] += 1
        assert result.status != "failed", result.detail
    assert found["torch.add"] > 100 < found["torch.softmax_cpu"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90", 90), ("60s", 60), ("1.5m", 90), ("2h", 7200), ("all", float("inf"))]
)
def test_a_budget_is_a_time_or_all(text, seconds):
    assert parse_budget(text) == Budget(seconds, all_pairs=text == "all")


def test_what_is_no_budget_is_refused():
    with pytest.raises(ArgumentValueError, match=json.dumps("10 minutes").replace('"', "'")):
        parse_budget("10 minutes")


def test_who_stops_listening_ends_the_processes(forked_observers, drawing):
    results = drawing.results()
    assert next(results).status == "passed"
    (process,) = multiprocessing.active_children()
    results.close()  # as Ctrl-C does, long before the budget is used up
    assert not process.is_alive()
