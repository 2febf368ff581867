"""Kernels are observed in processes of their own, and what ends one is told and survived."""

from __future__ import annotations

import pytest

from portakernel.words.target import Device, Target
from portakernel_kit.conformance.observing import lint as linting
from portakernel_kit.conformance.observing.isolation import Death
from portakernel_kit.conformance.observing.lint import lint
from portakernel_kit.conformance.observing.observation import Begun, Findings, Finished, Observation, Planned, Refusal
from portakernel_kit.conformance.result import Result

pytestmark = pytest.mark.usefixtures("forked_observers")

SEED = 20261122
DEADLY = """

def add(x, y, *, out=None, works=add):
    if x.dtype is torch.float16:
        {deed}
    return works(x, y, out=out)
"""


def linted(dispatcher, name="acme.add", **how) -> Findings:
    """The findings when the last event has come; each event is in them when it comes."""
    found = None
    for findings, event in lint(dispatcher, [dispatcher.registry.kernels[name]], seed=SEED, **how):
        found = findings
        if isinstance(event, Result):
            assert event in findings.results
    assert found is not None
    assert found.done
    return found


@pytest.mark.parametrize(
    ("deed", "outcome", "detail", "patience_s"),
    [
        ("os.abort()", "ended", "it ended its process: signal 6 (SIGABRT)", 300.0),
        (
            "os.write(2, b'out of luck'); os._exit(3)",
            "ended",
            "it ended its process: exit status 3: out of luck",
            300.0,
        ),
        ("threading.Event().wait()", "hung", "it did not end within 5 seconds", 5.0),
    ],
    ids=["aborts", "exits", "hangs"],
)
def test_kernel_that_dies_outside_its_claims_is_rightly_refused_and_the_rest_is_tried(
    acme, deed, outcome, detail, patience_s
):
    dispatcher = acme("dtypes: {x: [float32], y: [x]}", DEADLY.replace("{deed}", deed))
    found = linted(dispatcher, claims=False, seconds=600.0, patience_s=patience_s)
    told = {o.refusal.claim: o for o in found.observed()}
    (death,) = told["x not float16"].observations
    assert (death.outcome, death.detail) == (outcome, detail)
    assert told["x not float16"].verdict == "right"
    assert told["x not bfloat16"].verdict == "would_have_worked"
    assert len(told["x not bfloat16"].observations) == told["x not bfloat16"].refusal.cases
    if "abort" in deed:
        assert "Fatal Python error: Aborted" in death.traceback


def test_claims_and_refusals_of_a_kernel_of_portakernels_own(acme):
    found = linted(acme("dtypes: {x: [float32], y: [x]}"), "torch.add")
    assert found.failures == []
    assert found.counts()["passed"] > 100
    assert (found.reason, found.mode, found.kernel, found.op) == ("", None, "torch.add", "add")


def test_kernel_for_other_hardware_cannot_run_here_and_says_which(acme):
    dispatcher = acme("dtypes: {x: [float32], y: [x]}")
    device = Device(Target("acme", "npu1"), "NPU", "npu:0")
    found = linted(dispatcher, device=device)
    assert (found.reason, found.ran) == ("serves cpu any; here: acme:npu1", False)
    assert found.to_json()["refusals"] == []


def test_device_that_the_targets_leave_out_is_asked_for_where_somebody_wants_it(acme):
    dispatcher = acme("dtypes: {x: [float32], y: [x]}, targets: {nvidia: any}")
    assert linted(dispatcher).reason.startswith("serves nvidia any; here: ")
    found = linted(dispatcher, targets=True, seconds=600.0)
    (observed,) = found.observed()
    assert observed.refusal.claim.startswith("not on cpu:")
    assert (observed.refusal.code, observed.refusal.parameter) == ("vendor", "target")
    assert observed.verdict == "would_have_worked"
    assert found.results == []


# --- what is to blame for a death, told by processes that are made up ------------------------------------------------

PLANNED = Planned(3, (Refusal("x not float16", "dtype", "x", 2),), 0)
ONE, TWO, THREE = (Begun("", f"add[{name}]") for name in ("one", "two", "three"))
OUTSIDE, FURTHER = (Begun("x not float16", f"add[{name}, x=float16]") for name in ("one", "two"))
ENDED = Death("ended", "it ended its process: signal 11 (SIGSEGV)", "what it wrote")
HUNG = Death("hung", "it did not end within 300 seconds", "")


def passed(begun):
    return Result("torch.add", "add", begun.case, "forward", "passed")


@pytest.fixture
def processes(acme, monkeypatch):
    """Lints torch.add over processes with these events; returns the findings, and what each process was told."""

    def run(*scripts):
        jobs = []

        def run_apart(job, patience_s):
            jobs.append(job)
            yield from scripts[len(jobs) - 1]

        monkeypatch.setattr(linting, "run_apart", run_apart)
        found = linted(acme("dtypes: {x: [float32], y: [x]}"), "torch.add")
        assert len(jobs) == len(scripts)
        return found, jobs

    return run


def test_the_first_thing_that_a_process_runs_is_what_it_died_of(processes):
    found, jobs = processes([PLANNED, ONE, ENDED], [PLANNED, TWO, passed(TWO), Finished()])
    (failure,) = found.failures
    assert (failure.case, failure.aspect, failure.traceback) == ("add[one]", "claim", "what it wrote")
    assert failure.detail == f"it ended its process: signal 11 (SIGSEGV) (seed {SEED})"
    assert [result.case for result in found.results] == ["add[one]", "add[two]"]
    assert jobs[1].known.done == {ONE}


def test_what_ran_behind_others_runs_alone_before_it_is_blamed(processes):
    found, jobs = processes(
        [PLANNED, ONE, passed(ONE), TWO, passed(TWO), ENDED],
        [PLANNED, TWO, ENDED],
        [PLANNED, THREE, passed(THREE), Finished()],
    )
    assert [job.known.only for job in jobs] == [None, TWO, None]
    assert [job.known.done for job in jobs] == [frozenset(), {ONE}, {ONE, TWO}]
    assert [(result.case, result.status) for result in found.results] == [
        ("add[one]", "passed"),
        ("add[two]", "failed"),
        ("add[three]", "passed"),
    ]


def test_what_survives_alone_is_not_blamed_for_what_ran_before_it(processes):
    correct = Observation(FURTHER.claim, FURTHER.case, "correct")
    wrong = Observation(OUTSIDE.claim, OUTSIDE.case, "wrong", "forward: wrote beside out")
    found, jobs = processes(
        [PLANNED, OUTSIDE, wrong, FURTHER, ENDED],
        [PLANNED, FURTHER, correct, Finished()],
        [PLANNED, Finished()],
    )
    assert found.observations == [wrong, correct]
    assert jobs[2].known.observations == (wrong, correct)
    assert jobs[2].known.done == {OUTSIDE, FURTHER}


def test_what_hangs_is_blamed_at_once(processes):
    found, _ = processes([PLANNED, ONE, passed(ONE), OUTSIDE, HUNG], [PLANNED, Finished()])
    (observation,) = found.observations
    assert (observation.case, observation.outcome, observation.detail) == (OUTSIDE.case, "hung", HUNG.text)


def test_process_that_lost_its_device_is_replaced(processes):
    lost = Observation(OUTSIDE.claim, OUTSIDE.case, "ended", "an illegal access; the device's context is lost")
    found, jobs = processes([PLANNED, ONE, OUTSIDE, lost, Finished(lost=True)], [PLANNED, Finished()])
    assert found.observations == [lost]
    assert jobs[1].known.done == {ONE, OUTSIDE}


def test_after_three_deaths_in_claims_the_other_claims_are_left_out(processes):
    found, jobs = processes(
        [PLANNED, ONE, ENDED], [PLANNED, TWO, ENDED], [PLANNED, THREE, ENDED], [PLANNED, Finished()]
    )
    assert [job.claims for job in jobs] == [True, True, True, False]
    assert found.counts() == {"passed": 0, "failed": 3, "skipped": 1, "declined": 0}
    assert found.results[-1].detail == "left out, since 3 cases ended their process or hung"


def test_process_that_dies_before_it_runs_anything_fails_the_kernel(processes):
    found, _ = processes([ENDED])
    assert [(result.case, result.status) for result in found.results] == [("add[*]", "failed")]
    assert found.ran


def test_time_for_refusals_runs_on_over_processes(processes):
    _, jobs = processes([PLANNED, OUTSIDE, ENDED], [PLANNED, Finished()])
    assert jobs[0].seconds == 20.0
    assert 0.0 < jobs[1].seconds < 20.0
