"""A kernel's units in processes of their own: the same results, and what one costs that ends its process."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pytest

from portakernel import runtime
from portakernel.words.target import Device, Target
from portakernel_kit.conformance import runner, unit_processes
from portakernel_kit.conformance.observing.isolation import Death
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.runner import check, run
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Ran
from portakernel_kit.conformance.unit_processes import Begun, Done, UnitProcesses, UnitsJob
from portakernel_kit.conformance.venue import Unavailable, Venue, find_venue

FLOAT32 = "dtypes: {x: [float32], y: [x]}"
# Of a call with so many dimensions the process dies.
DYING = """
def add(x, y, *, out=None):
    if x.dim() == 3:
        print("three is too many", flush=True)
        os._exit(7)
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    return torch.add(x, y, out=out)
"""
DYING_OF_FLOAT16 = DYING.replace("x.dim() == 3", "x.dtype == torch.float16")
ENDED = Death("ended", "it ended its process: signal 11 (SIGSEGV)", "what it wrote")
HUNG = Death("hung", "it did not end within 600 seconds", "")


def found_by(dispatcher, name="acme.add", *, workers=2):
    cpu = next(iter(dispatcher.registry.devices_on("cpu")))
    kernel = dispatcher.registry.kernels[name]
    return list(run(dispatcher, kernel, find_venue(dispatcher, kernel, cpu), seed=3, workers=workers, device=cpu))


def told(results):
    return sorted((r.case, r.aspect, r.status, r.detail, r.device, r.mode or "") for r in results)


@pytest.mark.parametrize("name", ["torch.softmax_cpu", "reference.add"])
def test_in_processes_of_their_own_units_have_the_results_that_they_have_in_this_one(forked_observers, name):
    now = runtime.dispatcher()
    found, here = (found_by(now, name, workers=workers) for workers in (2, 1))
    assert told(found) == told(here)
    assert found[-1].aspect == "coverage"
    assert {"forward", "autograd", "threads", "boundary"} <= {result.aspect for result in found}


def test_a_case_that_ends_its_process_fails_and_the_others_run(forked_observers, acme):
    found = found_by(acme(FLOAT32, DYING))
    (failed,) = [result for result in found if result.status == "failed"]
    name = "add[three dimensions, x=float32, y=float32]"
    assert (failed.case, failed.aspect, failed.traceback) == (name, "forward", "three is too many")
    assert failed.detail == "it ended its process: exit status 7: three is too many (seed 3)"
    assert failed.device.startswith("cpu:")
    ran = {result.case for result in found if (result.aspect, result.status) == ("forward", "passed")}
    assert len(ran) > 10
    assert name not in ran
    assert [result.status for result in found if result.aspect == "coverage"] == ["passed"]


def test_after_three_deaths_what_is_left_says_so_and_no_claim_is_blamed_for_it(forked_observers, acme):
    dispatcher = acme("dtypes: {x: [float16], y: [x]}", DYING_OF_FLOAT16)
    found = found_by(dispatcher)
    died = [result for result in found if result.detail.startswith("it ended its process: exit status 7")]
    assert 3 <= len(died) <= 4  # the process of the third's neighbour was running
    left = [result for result in found if result.detail.startswith("left out after ")]
    assert [result.status for result in left] == ["failed", *["skipped"] * (len(left) - 1)]
    assert ": it ended its process: exit status 7: three is too many" in left[0].detail
    cpu = next(iter(dispatcher.registry.devices_on("cpu")))
    kernel = dispatcher.registry.kernels["acme.add"]
    suite = Suite(dispatcher, kernel, find_venue(dispatcher, kernel, cpu), 3)
    assert {result.case for result in found} >= {unit.name for unit in suite.units() if unit.kind != "boundary"}
    assert [result.status for result in found if result.aspect == "coverage"] == ["passed"]


def test_who_stops_listening_ends_the_processes(forked_observers, acme):
    dispatcher = acme(FLOAT32)
    cpu = next(iter(dispatcher.registry.devices_on("cpu")))
    results = check(dispatcher, names=["acme.add"], device=cpu, seed=3, workers=2)
    assert next(results).status == "passed"
    started = multiprocessing.active_children()
    assert len(started) == 2
    results.close()  # as Ctrl-C does
    assert not any(process.is_alive() for process in started)


# --- what is told of deaths, by processes that are made up -----------------------------------------------------------


@pytest.fixture
def suite(acme):
    dispatcher = acme(FLOAT32)
    kernel = dispatcher.registry.kernels["acme.add"]
    return Suite(
        dispatcher, kernel, find_venue(dispatcher, kernel, next(iter(dispatcher.registry.devices_on("cpu")))), 3
    )


@pytest.fixture
def apart(monkeypatch):
    """Puts these events of one process after the other in the place of processes; returns their jobs."""

    def replaced(*scripts):
        jobs = []

        def run_apart(job, patience_s, stopped):
            jobs.append(job)
            yield from scripts[len(jobs) - 1]

        monkeypatch.setattr(unit_processes, "run_apart", run_apart)
        return jobs

    return replaced


def done(*places):
    return [event for place in places for event in (Begun(place), Done(place, Ran(True, False), ""))]


def failures(results):
    return [(result.case, result.aspect, result.detail) for result in results if result.status == "failed"]


@pytest.mark.parametrize(
    ("end", "text"), [(ENDED, ENDED.text), (HUNG, HUNG.text), (Finished(lost=True), "it lost the device's context")]
)
def test_what_ended_a_process_fails_and_another_goes_on_behind_it(suite, apart, end, text):
    processes = UnitProcesses(suite, None, 1)
    first, second, *others = processes._places()
    jobs = apart([*done(first), Begun(second), end], [*done(*others), Finished()])
    found = list(processes.results())
    assert failures(found) == [(suite.units()[second].name, "forward", f"{text} (seed 3)")]
    assert len(jobs) == 2
    assert suite.units()[second].name not in {r.case for r in found if r.status != "failed"}


def test_processes_that_cannot_begin_leave_every_unit_told_and_one_failed(suite, apart):
    jobs = apart([ENDED], [ENDED])
    processes = UnitProcesses(suite, None, 2)
    names = [suite.units()[place].name for place in processes._places()]
    found = list(processes.results())
    assert len(jobs) == 2
    left = [result for result in found if result.aspect == "claim"]
    assert [result.case for result in left] == names
    text = f"left out after 2 processes of this kernel's; of the last: {ENDED.text}"
    assert failures(found) == [(names[0], "claim", f"{text} (seed 3)")]
    assert (left[0].traceback, left[1].detail) == (ENDED.written, text)


def test_each_unit_is_taken_once_and_those_that_a_process_took_before_it_ended_by_nobody(suite, tmp_path):
    processes = UnitProcesses(suite, suite.venue.device, 1)
    places = processes._places()[:3]
    (tmp_path / str(places[1])).touch()
    job = UnitsJob(processes.asked, 3, places, tmp_path)
    begun = [event.place for event in job.events() if isinstance(event, Begun)]
    assert begun == [places[0], places[2]]
    assert list(job.events()) == [Finished()]


def test_a_device_that_is_lost_ends_the_process_before_the_unit_counts(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(unit_processes, "is_lost", lambda device: device == "cpu")
    processes = UnitProcesses(suite, suite.venue.device, 1)
    events = list(UnitsJob(processes.asked, 3, processes._places(), tmp_path).events())
    assert events[-1] == Finished(lost=True)
    assert not any(isinstance(event, Done) for event in events)
    assert [event.place for event in events if isinstance(event, Begun)] == [processes._places()[0]]


def test_a_kernel_that_cannot_be_used_starts_no_process(make_suite, apart):
    jobs = apart()
    found = list(UnitProcesses(make_suite("torch.add", disable=("torch",)), None, 2).results())
    assert jobs == []
    here = make_suite("torch.add", disable=("torch",))
    assert told(found) == told(result for unit in here.units() for result in here.run(unit))
    assert {result.status for result in found if result.aspect == "claim"} == {"skipped"}
    assert found[-1].detail == "the kernel cannot be used here: disabled: PORTAKERNEL_DISABLE names torch"


def test_several_processes_are_for_gpus_and_plugins_that_compile_where_nobody_says_how_many(monkeypatch):
    monkeypatch.setattr(runner, "cores", lambda: 16)
    gpu = Device(Target("nvidia", "sm_90"), "GPU", "cuda:0")
    venue = Venue("cuda:0", (gpu.target,), gpu)
    now = runtime.dispatcher()
    compiled, other = (now.registry.kernels[name] for name in ("triton.rms_norm", "torch.rms_norm"))
    assert (runner._many(now, compiled, venue), runner._many(now, other, venue)) == (8, 1)
    monkeypatch.setattr(runner, "cores", lambda: 2)
    assert runner._many(now, compiled, venue) == 2
    assert runner._many(now, compiled, replace(venue, mode="interpreter")) == 1
    assert runner._many(now, compiled, replace(venue, torch_device="cpu")) == 1
    assert runner._many(now, compiled, Unavailable("nowhere")) == 1


def test_what_has_to_be_built_runs_here(acme, apart):
    built = "def build(request, tensors, values):\n    return None\n"
    dispatcher = acme(f"build: 'HERE:build', {FLOAT32}", built)
    jobs = apart()
    assert {result.aspect for result in found_by(dispatcher)} >= {"forward", "coverage"}
    assert jobs == []
