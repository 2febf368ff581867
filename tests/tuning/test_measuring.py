"""Measuring on a clock of its own: verdicts, turns, and what a kernel can do to the process that measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tuning_worker
from tuning_worker import PLAIN, SOURCES, FakeJudge, FakeTimer

from portakernel.tuning.ranking import decide
from portakernel.tuning.record import Entry, Verdict
from portakernel_kit.tune.child import Child, JobError, WorkerLostError
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.measuring import DeviceLostError, measure

JOB = Job("rms_norm", "inference", {"x": (64, 4096)}, {"x": "bfloat16"}, "graph/cold", values={"window": (1, 2)})


def measured(*order: str, judge: FakeJudge | None = None, timer: FakeTimer | None = None, **more: Any) -> Any:
    return measure(order or PLAIN, SOURCES, judge or FakeJudge(), timer or FakeTimer(), **more)


def test_every_kernel_has_a_verdict_and_the_fastest_right_one_wins():
    found = measured(*PLAIN, "acme.raises", "acme.declines")
    verdicts = {name: str(entry.verdict) for name, entry in found.entries.items()}
    assert verdicts == {
        "acme.first": "right", "acme.fast": "right", "acme.wrong": "wrong", "acme.slow": "right",
        "acme.unjudged": "unjudged", "acme.raises": "failed", "acme.declines": "declined",
    }  # fmt: skip
    assert found.entries["acme.wrong"].detail == "y[3, 17]: 1.9 units, 0.51 allowed"
    assert found.entries["acme.raises"].detail == "RuntimeError: no such thing"
    assert found.entries["acme.declines"].detail == "it cannot be captured"
    assert found.entries["acme.first"].error == 0.4
    record = tuning_worker.plain("").measure(JOB, lambda _: None)
    assert decide(record, SOURCES, PLAIN).kernel == "acme.fast"
    assert record.kernels["acme.fast"].against["acme.first"][2] < 0.98


def test_what_cannot_win_is_not_timed_and_a_hopeless_one_runs_no_round():
    timer = FakeTimer()
    found = measured(timer=timer)
    assert set(timer.rounds) == {"acme.first", "acme.fast"}
    assert found.entries["acme.wrong"].us is None
    assert found.entries["acme.slow"].us == (90.0, 90.0, 90.0)
    assert found.entries["acme.slow"].rounds == 1


def test_one_that_is_wrong_after_it_was_timed_cannot_win():
    found = measured(judge=FakeJudge(late="acme.fast"))
    assert found.entries["acme.fast"].verdict is Verdict.WRONG
    assert found.entries["acme.fast"].detail == "after it was timed: stale"


def test_one_that_raises_in_a_round_has_failed_and_one_that_breaks_the_device_ends_it():
    found = measured(timer=FakeTimer(failing="acme.fast"))
    assert found.entries["acme.fast"].verdict is Verdict.FAILED
    assert found.entries["acme.first"].rounds == 9
    with pytest.raises(DeviceLostError, match=r"^acme.fast: RuntimeError: illegal memory access$"):
        measured(timer=FakeTimer(failing="acme.fast", lost=True))


def test_where_the_default_cannot_run_the_next_is_in_its_place():
    found = measured("acme.wrong", "acme.first", "acme.fast")
    assert found.entries["acme.fast"].against.keys() == {"acme.first"}


def test_a_copy_that_varies_tells_of_others():
    assert not measured().busy
    assert measured(timer=FakeTimer(copies=0.1)).busy
    assert not measured(timer=FakeTimer(copies=0.1), busy=1.5).busy


def test_a_kernel_that_is_known_to_end_the_process_is_not_asked():
    known = {"acme.fast": Entry(source="of acme.fast", verdict=Verdict.CRASHED)}
    told = list[str]()
    found = measured(at=told.append, known=known)
    assert found.entries["acme.fast"].verdict is Verdict.CRASHED
    assert set(told) == set(PLAIN) - {"acme.fast"}


def test_a_job_and_facts_come_back_from_json_as_they_were():
    assert Job.from_json(JOB.to_json()) == JOB
    assert JOB.name == "rms_norm x 64×4096 bfloat16 inference"
    facts = Facts("cpu:x86_64", 2, sources={"a.b": "c"})
    assert Facts.from_json(facts.to_json()) == facts


def test_a_child_that_crashes_or_hangs_is_started_again_and_the_next_kernel_has_its_turn(monkeypatch, tmp_path):
    with Child(make="tuning_worker:dangerous", patience_s=8.0) as child:
        record = child.measure(JOB)
        assert {name: str(entry.verdict) for name, entry in record.kernels.items()} == {
            "acme.crashes": "crashed", "acme.first": "right", "acme.hangs": "hung", "acme.raises": "failed",
            "acme.declines": "declined", "acme.fast": "right",
        }  # fmt: skip
        assert record.kernels["acme.crashes"].detail == "its process ended with SIGKILL"
        assert record.kernels["acme.hangs"].detail == "it did not return within 8 s"
        assert record.kernels["acme.crashes"].source == "of acme.crashes"
        assert decide(record, SOURCES, ("acme.first", "acme.fast")).kernel == "acme.fast"


def test_a_child_measures_one_job_after_the_other_and_says_what_it_is():
    with Child(make="tuning_worker:plain") as child:
        assert child.facts() == tuning_worker.plain("").facts()
        again = replace(JOB, seed=7)
        assert [child.measure(job) for job in (JOB, again)] == [
            tuning_worker.plain("").measure(job, lambda _: None) for job in (JOB, again)
        ]


def test_a_job_that_cannot_be_measured_is_refused_and_the_next_is_measured():
    with Child(make="tuning_worker:plain") as child:
        with pytest.raises(JobError, match=r"^ArgumentValueError: it does not fit$"):
            child.measure(replace(JOB, op="unfit"))
        with pytest.raises(JobError, match=r"^RuntimeError: out of memory$"):  # the process is not used again
            child.measure(replace(JOB, op="broken"))
        assert child.measure(JOB).key.kind.op == "rms_norm"


def test_a_child_that_is_given_up_at_work_ends_and_says_nothing(capfd):
    child = Child(make="tuning_worker:plain", advance=lambda _: child.close())
    with pytest.raises(WorkerLostError, match=r"^the process that measures was given up while it was at work$"):
        child.measure(JOB)
    assert "Traceback" not in capfd.readouterr().err


def test_a_child_that_ends_without_a_kernel_at_work_cannot_measure():
    text = r"^the process that measures on cpu ended, and no kernel was at work"
    with Child(make="tuning_worker:hopeless") as child, pytest.raises(WorkerLostError, match=text):
        child.measure(JOB)
