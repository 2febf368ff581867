"""Mutations are tried in processes of their own, and what ends one is told."""

from __future__ import annotations

import pytest

from portakernel.words.target import Device, Target
from portakernel_kit.conformance.mutation import processes as mutating
from portakernel_kit.conformance.mutation.mutation import Judged, Listed, Mutated, Mutation, Trying
from portakernel_kit.conformance.mutation.processes import mutate
from portakernel_kit.conformance.observing.isolation import Death
from portakernel_kit.conformance.observing.observation import Finished

pytestmark = pytest.mark.usefixtures("forked_observers")

SEED = 20261122
DEADLY = """

def add(x, y, *, out=None, works=add):
    if x.dtype is torch.float16:
        os.abort()
    return works(x, y, out=out)
"""
CLAIMS = "dtypes: {x: [float32], y: [x]}"
FIRST, SECOND, THIRD = (Mutation("widened", "acme.add", claim, "x") for claim in ("one", "two", "three"))
REMOVED = Mutation("removed", "acme.add", "x as float32", "x")
LISTED = Listed((FIRST, SECOND, THIRD), "cpu:x86_64 (cpu)")
ABORTED = Death("ended", "it ended its process: signal 6 (SIGABRT)", "Fatal Python error: Aborted")
HUNG = Death("hung", "it did not end within 300 seconds", "")


def mutated(dispatcher, **how) -> Mutated:
    """What is known of the kernel acme.add when the last event has come."""
    found = None
    for known, event in mutate(dispatcher, [dispatcher.registry.kernels["acme.add"]], seed=SEED, **how):
        found = known
        assert not isinstance(event, Judged) or known.judged[-1] is event
    assert found is not None
    return found


def test_kernel_that_dies_of_what_was_added_is_noticed_and_the_rest_is_tried(acme):
    found = mutated(acme(CLAIMS, DEADLY))
    told = {judged.mutation.claim: judged for judged in found.judged}
    assert found.left == 0
    assert told["x not float16"].verdict == "noticed"
    assert told["x not float16"].detail == "it ended its process: signal 6 (SIGABRT)"
    assert told["x not bfloat16"].verdict == "would_have_worked"
    assert told["property deterministic"].verdict == "noticed"
    assert found.device.startswith("cpu:")


def test_of_a_kernel_for_other_hardware_nothing_is_tried(acme):
    found = mutated(acme(CLAIMS), device=Device(Target("acme", "npu1"), "NPU", "npu:0"))
    assert {judged.verdict for judged in found.judged} == {"skipped"}
    assert {judged.detail for judged in found.judged} == {"the kernel cannot run here: serves cpu any; here: acme:npu1"}


@pytest.fixture
def processes(acme, monkeypatch):
    """What is known after processes with these events; and which mutations each was told to leave out, or to run."""

    def run(*scripts):
        jobs = []

        def run_apart(job, _):
            jobs.append(job)
            yield from scripts[len(jobs) - 1]

        monkeypatch.setattr(mutating, "run_apart", run_apart)
        found = mutated(acme(CLAIMS))
        assert len(jobs) == len(scripts)
        return found, jobs

    return run


def noticed(mutation):
    return Judged(mutation, "noticed", "check")


def test_what_ran_behind_others_runs_alone_before_it_is_told_to_have_died(processes):
    found, jobs = processes(
        [LISTED, Trying(FIRST), noticed(FIRST), Trying(SECOND), ABORTED],
        [LISTED, Trying(SECOND), noticed(SECOND), Finished()],
        [LISTED, Trying(THIRD), ABORTED],
        [LISTED, Finished()],
    )
    assert [job.only for job in jobs] == [None, SECOND, None, None]
    assert [judged.mutation for judged in found.judged] == [FIRST, SECOND, THIRD]
    assert found.judged[2].detail == ABORTED.text
    assert jobs[3].done == {FIRST, SECOND, THIRD}


def test_what_hangs_is_noticed_at_once(processes):
    found, _ = processes([LISTED, Trying(FIRST), noticed(FIRST), Trying(SECOND), HUNG], [LISTED, Finished()])
    assert [(judged.verdict, judged.detail) for judged in found.judged[1:]] == [("noticed", HUNG.text)]


def test_death_in_what_was_claimed_proves_nothing_of_lint(processes):
    found, _ = processes([Listed((REMOVED,)), Trying(REMOVED), ABORTED], [Listed((REMOVED,)), Finished()])
    assert [judged.verdict for judged in found.judged] == ["unnoticed"]


def test_process_that_dies_before_anything_is_tried_is_no_proof(processes):
    found, _ = processes([ABORTED])
    assert [judged.verdict for judged in found.judged] == ["unnoticed"]
    assert found.judged[0].detail.startswith("its claims cannot be mutated: it ended its process")
