"""What would help most: which steps there are, what they weigh, and their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_reports import served, workload

from portakernel.report.content import Broken, Improvement, PassedOver, PlanState
from portakernel.report.improvements import NO_WORKLOAD, improvements
from portakernel.report.losses import ASSUMED, Loss, Losses
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.store import Writer, folder_of

INSTALL = PassedOver("fast.add", ("needs fast",), "pip install fast")


def record(root: Path, times: dict[str, float], *, target: str = "nvidia:sm_90", m: int = 8, **more: Any) -> None:
    """Keeps a record of ``add`` with these times; the first kernel is the default."""
    key = Key(Kind("add", "inference", {"x": "float32"}), target, 132, Regime.GRAPH_COLD, {"M": m})
    verdicts = more.pop("verdicts", {})
    kernels = {
        name: Entry(source="0", verdict=verdicts.get(name, Verdict.RIGHT), us=(us, us, us))
        for name, us in times.items()
    }
    with Writer(folder_of(root, target, 132), "add") as writer:
        writer.write(Record(key, "0", kernels, "2026-11-27T00:00:00Z", next(iter(times)), **more))


def helps(*decisions: Any, plan: PlanState | None = None, losses: Losses | None = None) -> tuple[Improvement, ...]:
    return improvements(workload(*decisions), plan, (), (), losses or Losses([]))


def test_a_loss_is_the_mean_of_the_records_of_the_same_target_before_those_of_others(tmp_path: Path) -> None:
    def asked(slow: str, fast: str) -> Loss | None:
        return Losses([tmp_path]).between("add", slow, fast, "nvidia:sm_90")

    assert asked("slow", "fast") is None
    record(tmp_path, {"slow": 10.0, "fast": 1.0}, target="amd:gfx942")
    assert asked("slow", "fast") == Loss(0.9, "the mean of 1 record of add, on other hardware")
    record(tmp_path, {"slow": 10.0, "fast": 5.0})
    record(tmp_path, {"slow": 10.0, "fast": 7.0, "other": 20.0}, m=16)
    assert asked("slow", "fast") == Loss(pytest.approx(0.4), "the mean of 2 records of add on nvidia:sm_90")
    # who is faster already loses nothing
    assert asked("fast", "slow") == Loss(0.0, "the mean of 2 records of add on nvidia:sm_90")


def test_neither_what_is_wrong_nor_what_was_busy_says_what_is_lost(tmp_path: Path) -> None:
    record(tmp_path, {"slow": 10.0, "fast": 1.0}, verdicts={"fast": Verdict.WRONG})
    record(tmp_path, {"slow": 10.0, "fast": 1.0}, m=16, busy=True)
    assert Losses([tmp_path]).between("add", "slow", "fast") is None
    found = Losses([tmp_path]).unmeasured("add")
    assert found is not None
    assert found.part == 0


def test_steps_are_ordered_by_calls_times_loss_whatever_the_calls_alone(tmp_path: Path) -> None:
    record(tmp_path, {"acme.add": 10.0, "fast.add": 2.0})
    known = Losses([tmp_path])
    found = helps(
        served(100, measured=None, measured_why="not measured", op="softmax"),
        served(10, passed_over=(INSTALL,)),
        served(1000, stale=("the driver was another",)),
        losses=known,
    )
    assert [(one.kind, one.calls) for one in found] == [("passed_over", 10), ("unmeasured", 100), ("stale", 1000)]
    assert [one.weight for one in found] == [pytest.approx(8.0), pytest.approx(100 * ASSUMED["unmeasured"]), None]
    assert found[0].basis == "the mean of 1 record of add on nvidia:sm_90"
    assert found[2].basis == ""


def test_calls_that_one_step_helps_are_one_step_with_all_their_calls() -> None:
    found = helps(served(1, passed_over=(INSTALL,)), served(2, passed_over=(INSTALL,), said="add of others"))
    assert [(one.action, one.calls, one.loss) for one in found] == [
        ("pip install fast", 3, pytest.approx(ASSUMED["refused"]))
    ]
    assert found[0].details == ("add on nvidia:sm_90: acme.add serves", "add of others: acme.add serves")


def test_a_reference_on_an_accelerator_names_the_kernel_that_would_serve_and_what_it_takes() -> None:
    (found,) = helps(served(4, kernel="reference.add", slow_reference=True, passed_over=(INSTALL,), rivals=0))
    assert (found.kind, found.action, found.weight) == ("reference", "pip install fast", 2.0)
    assert found.what == "the reference serves in the place of fast.add"
    (found,) = helps(served(4, kernel="reference.add", slow_reference=True, rivals=0))
    assert found.action == "portakernel explain add"


def test_what_has_one_kernel_alone_is_not_to_be_measured() -> None:
    assert helps(served(measured=None, rivals=1)) == ()
    (found,) = helps(served(measured=None, rivals=2))
    assert found.action == "portakernel tune --calls calls.yaml"


def test_a_file_is_quoted_for_a_shell() -> None:
    calls = workload(served(measured=None), file="my calls; rm -rf.yaml")
    (found,) = improvements(calls, None, (), (), Losses([]))
    assert found.action == "portakernel tune --calls 'my calls; rm -rf.yaml'"


def test_what_another_call_alone_would_take_away_is_no_step() -> None:
    assert helps(served(passed_over=(PassedOver("fast.add", ("M is odd",)),))) == ()


def test_kernels_that_are_not_built_are_one_step() -> None:
    unbuilt = [PassedOver(f"{name}.add", ("is not built",), f"warm {name}", True) for name in ("a", "b")]
    (found,) = helps(*(served(passed_over=(one,)) for one in unbuilt))
    assert (found.kind, found.calls) == ("unbuilt", 2)
    assert found.action.startswith("portakernel warmup --calls calls.yaml, and ")


def test_what_fails_comes_first_and_what_is_no_ones_estimate_last() -> None:
    plan = PlanState("plan.yaml", "sha256:0", "everything", problems=("plan.yaml:3: no such kernel",))
    failing = served(1, kernel=None, source="none", why="nothing serves", planned=False)
    broken = Broken("acme", "import", "ValueError", "upgrade acme")
    findings = [{"what": "no compiler", "action": "install gcc"}, {"what": "acme again", "action": "upgrade acme"}]
    found = improvements(workload(failing, served(9, passed_over=(INSTALL,))), plan, [broken], findings, Losses([]))
    kinds = ["plan_refused", "no_kernel", "broken", "passed_over", "finding"]
    assert [one.kind for one in found] == kinds
    assert found[0].details == ("plan.yaml:3: no such kernel",)
    assert found[1].action == "portakernel plan lock plan.yaml --calls calls.yaml"
    assert [one.action for one in found].count("upgrade acme") == 1


def test_without_a_recording_to_make_one_is_the_step() -> None:
    assert improvements(None, None, (), (), Losses([])) == (NO_WORKLOAD,)
