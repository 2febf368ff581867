"""What there is to measure and in which order, what a store has already, and a session that writes what comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from portakernel.calling.arguments import Arguments
from portakernel.claims.request import Phase
from portakernel.cli.calls_file import load_calls
from portakernel.contracts import contract
from portakernel.errors import ManifestError
from portakernel.runtime import dispatcher
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.tuning.store import Writer, folder_of, read
from portakernel.warming.outcome import Call
from portakernel_kit.bench.operands import draw
from portakernel_kit.tune.child import JobError
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.regret import Cell, cell_of, summary
from portakernel_kit.tune.session import Session
from portakernel_kit.tune.work import Store, jobs_of_calls, work

NOW = dispatcher()
CPU = next(device for device in NOW.registry.devices if device.torch_device == "cpu")
TARGET = CPU.target
# Of the ops that are asked for here: to read the sources of all kernels takes every worker three seconds.
KERNELS = [kernel for kernel in NOW.registry.kernels.values() if kernel.op in ("softmax", "rms_norm")]
SOURCES = {kernel.name: source_digest(kernel) for kernel in KERNELS}
FACTS = Facts(str(TARGET), 2, "digest", "", "2.13", SOURCES)
SMALL = Call("softmax", "float32", {"x": (4, 64)})


def jobs(*calls: Call) -> list[Job]:
    return jobs_of_calls(calls, TARGET, Regime.EAGER_COLD)


def record(job: Job, **more: Any) -> Record:
    """What a worker with FACTS would keep of a job."""
    request = replace(job.request(TARGET), device=CPU)
    decided = NOW.decide(request)
    names = [one.kernel.name for one in decided.candidates if one.status in ("chosen", "eligible")]
    kernels = {name: Entry(source=SOURCES[name], verdict=Verdict.RIGHT, us=(1.0, 2.0, 3.0)) for name in names}
    fields = {"contract": contract_digest(contract(job.op)), "kernels": kernels, "torch": FACTS.torch, **more}
    return Record(job.key(TARGET, 2, NOW.registry), at="2026-11-27T00:00:00Z", default=names[0], **fields)


def kept(root: Path, *records: Record) -> Store:
    for one in records:
        with Writer(folder_of(root, one.key.target, one.key.units), one.key.kind.op) as writer:
            writer.write(one)
    return Store(root, NOW)


def test_calls_are_jobs_of_their_phases_and_what_is_listed_again_counts_for_more():
    training = replace(SMALL, training=True, count=5)
    found = jobs(SMALL, replace(SMALL, count=3), training, SMALL)
    assert [(job.phase, job.count) for job in found] == [("inference", 5), ("training", 5), ("backward", 5)]
    assert found[0].shapes == {"x": (4, 64)}
    assert found[0].dtypes == {"x": "float32"}
    norm = Call(
        "rms_norm", {"x": "bfloat16", "weight": "float32"}, {"x": [2, 8], "weight": [8]}, parameters={"eps": 1e-3}
    )
    assert jobs(norm)[0].values == {"eps": 1e-3}


def test_a_job_s_key_is_that_of_the_call_itself():
    calls = load_calls(Path(__file__).parents[2] / "examples" / "service.yaml")
    for job in jobs(*calls):
        arguments = Arguments(contract(job.op), NOW.registry)
        request = draw(job.question(TARGET), arguments, torch.device("cpu"), 0).request(Phase(job.phase))
        kind = Kind.of(request, NOW.registry.for_op(job.op))
        key = Key(kind, str(TARGET), 2, Regime.EAGER_COLD, dict(request.dims))
        assert job.key(TARGET, 2, NOW.registry).text == key.text


def test_what_takes_the_most_device_time_comes_first(tmp_path):
    often, large = replace(SMALL, count=1000), replace(SMALL, shape={"x": (4096, 4096)})
    found = work(jobs(SMALL, large, replace(often, shape={"x": (8, 64)})), Store(tmp_path, NOW), [FACTS])
    assert [job.shapes["x"] for job, _ in found.jobs] == [(4096, 4096), (8, 64), (4, 64)]
    assert found.kept == 0


def test_what_a_store_has_is_not_measured_again_unless_something_changed(tmp_path):
    (job,) = jobs(SMALL)
    whole = record(job)
    assert kept(tmp_path / "a", whole).is_done(job, FACTS)
    assert work([job], kept(tmp_path / "b", whole), [FACTS]).kept == 1
    assert not Store(tmp_path / "none", NOW).is_done(job, FACTS)
    assert not kept(tmp_path / "c", replace(whole, contract="other")).is_done(job, FACTS)
    assert not kept(tmp_path / "d", whole).is_done(job, replace(FACTS, units=3))
    name = whole.default
    assert not kept(tmp_path / "e", whole).is_done(job, replace(FACTS, sources={**SOURCES, name: "new"}))
    fewer = {other: entry for other, entry in whole.kernels.items() if other != name}
    assert not kept(tmp_path / "f", replace(whole, kernels=fewer)).is_done(job, FACTS)


def test_stale_repeats_what_another_torch_measured_or_a_busy_device(tmp_path):
    (job,) = jobs(SMALL)
    for number, changed in enumerate((record(job, torch="2.12"), record(job, busy=True), record(job, driver="1"))):
        store = kept(tmp_path / str(number), changed)
        assert store.is_done(job, FACTS)
        assert not store.is_done(job, FACTS, stale=True)
    assert kept(tmp_path / "same", record(job)).is_done(job, FACTS, stale=True)


def test_beside_a_busy_record_an_older_one_counts(tmp_path):
    (job,) = jobs(SMALL)
    later = "2026-11-28T00:00:00Z"
    both = kept(tmp_path / "both", record(job), replace(record(job, busy=True), at=later))
    assert [one.busy for one in both.of(job, FACTS)] == [True, False]
    assert both.is_done(job, FACTS, stale=True)
    # one that counts no more leaves the busy one, which is not repeated unless that is asked for
    void = replace(record(job), contract="other")
    store = kept(tmp_path / "void", void, replace(record(job, busy=True), at=later))
    assert store.is_done(job, FACTS)
    assert not store.is_done(job, FACTS, stale=True)


def test_calls_of_one_key_are_measured_once(tmp_path):
    flat, folded = SMALL, replace(SMALL, shape={"x": (2, 2, 64)}, count=4)
    found = work(jobs(flat, folded, replace(SMALL, shape={"x": (8, 64)})), Store(tmp_path, NOW), [FACTS])
    assert sorted((job.shapes["x"], job.count) for job, _ in found.jobs) == [((4, 64), 5), ((8, 64), 1)]
    (job, _) = jobs(flat, folded)
    done = work(jobs(flat, folded), kept(tmp_path / "kept", record(job)), [FACTS])
    assert (done.jobs, done.kept) == ((), 1)


def test_a_kernel_that_ended_its_process_is_not_asked_again_until_it_changes(tmp_path):
    (job,) = jobs(SMALL)
    whole = record(job)
    name = whole.default
    ended = Entry(source=SOURCES[name], verdict=Verdict.CRASHED, detail="SIGSEGV")
    store = kept(tmp_path, replace(whole, kernels={**whole.kernels, name: ended}))
    assert store.with_known(job, FACTS).known == {name: ended.model_dump(mode="json")}
    assert store.with_known(job, replace(FACTS, sources={**SOURCES, name: "new"})).known == {}


class Engine:
    """Has a record of each job, but of some a reason; each takes a second of ``clock``."""

    def __init__(self, clock: list[float], refusing: str = "") -> None:
        self.clock, self.refusing = clock, refusing

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Record | JobError]]:
        for job in jobs:
            self.clock[0] += 1.0
            yield job, JobError("no memory") if job.op == self.refusing else record(job)

    def close(self) -> None:
        """Nothing to close."""


def several(count: int) -> list[Job]:
    return jobs(*(replace(SMALL, shape={"x": (rows, 64)}) for rows in range(1, count + 1)))


def test_a_session_writes_each_record_as_it_comes_and_ends_with_its_budget(tmp_path):
    clock = [0.0]
    session = Session(tmp_path, Engine(clock), 2.5, lambda: clock[0])
    told = list[dict[str, Any]]()
    session.run(several(5), lambda **progress: told.append(progress))
    assert (len(session.measured), session.left) == (3, 2)
    assert len(read(folder_of(tmp_path, str(TARGET), 2), "softmax").records) == 3
    assert [one["completed"] for one in told if "completed" in one] == [1, 2, 3]
    assert Session(tmp_path, Engine(clock)).left == 0


def test_an_interrupt_loses_nothing_and_the_next_session_goes_on(tmp_path):
    class Interrupted(Engine):
        def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Record | JobError]]:
            for number, found in enumerate(super().run(jobs)):
                if number == 2:
                    raise KeyboardInterrupt
                yield found

    with pytest.raises(KeyboardInterrupt):
        Session(tmp_path, Interrupted([0.0])).run(several(5))
    todo = work(several(5), Store(tmp_path, NOW), [FACTS])
    assert (len(todo.jobs), todo.kept) == (3, 2)
    session = Session(tmp_path, Engine([0.0]))
    session.run(job for job, _ in todo.jobs)
    assert work(several(5), Store(tmp_path, NOW), [FACTS]).jobs == ()


def test_a_job_that_is_refused_is_told_and_the_others_are_measured(tmp_path):
    norm = Call("rms_norm", "float32", {"x": (4, 64), "weight": (64,)})
    session = Session(tmp_path, Engine([0.0], refusing="rms_norm"))
    session.run(jobs(SMALL, norm))
    assert [(job.op, reason) for job, reason in session.refused] == [("rms_norm", "no memory")]
    assert len(session.measured) == 1
    shown = session.to_json()
    assert shown["refused"] == [{"call": "rms_norm x 4×64, weight 64 float32 inference", "reason": "no memory"}]
    assert shown["measured"][0]["dims"] == {"M": 4, "N": 64}


def cell(priorities: float, measured: float, *, same: bool = False) -> Cell:
    chosen = {"priorities": ("a.a", priorities), "measured": ("a.a" if same else "a.b", measured)}
    return Cell(f"call {priorities} {measured}", "a.c", 1.0, chosen)


def test_regret_is_the_geometric_mean_over_the_best_and_harm_what_was_made_slower():
    cells = [cell(1.21, 1.0), cell(1.0, 1.0, same=True), cell(1.0, 1.03), cell(1.0, 1.01)]
    by_priority, by_time = summary(cells, "priorities"), summary(cells, "measured")
    assert by_priority.geometric_mean == pytest.approx(1.21**0.25)
    assert (by_priority.worst, by_priority.lost_share, by_priority.harm) == (1.21, 0.25, 0)
    assert by_time.geometric_mean == pytest.approx((1.03 * 1.01) ** 0.25)
    assert (by_time.differs, by_time.harm, by_time.worst_call) == (3, 1, "call 1.0 1.03")
    nothing = summary([], "measured")
    assert (nothing.cells, nothing.geometric_mean, nothing.worst, nothing.worst_call) == (0, None, None, None)
    assert (nothing.lost_share, nothing.differs, nothing.harm) == (None, 0, 0)


def test_a_cell_has_the_choice_s_kernel_unless_it_could_not_serve():
    (job,) = jobs(SMALL)
    whole = record(job)
    first, second = whole.default, next(name for name in whole.kernels if name != whole.default)
    times = {first: 10.0, second: 8.0}
    kernels = {name: Entry(source="s", verdict=Verdict.RIGHT, us=(us, us, us)) for name, us in times.items()}
    timed = replace(whole, kernels=kernels)

    def choices(kernel: str) -> Choices:
        return Choices([Choice(kernel, timed.key.kind, {"M": (1, 8)}, "x")])

    found = cell_of(timed, {"measured": choices(second), "plan": choices("gone.kernel")})
    assert found is not None
    assert found.best == second
    assert found.chosen == {"priorities": (first, 1.25), "measured": (second, 1.0), "plan": (first, 1.25)}
    wrong = replace(timed, kernels={**kernels, second: Entry(source="s", verdict=Verdict.WRONG)})
    assert cell_of(wrong, {"measured": choices(second)}).chosen["measured"] == (first, 1.0)  # type: ignore[union-attr]
    assert cell_of(replace(timed, kernels={}), {}) is None


def test_a_calls_file_may_count(tmp_path):
    file = tmp_path / "calls.yaml"
    file.write_text("calls:\n  - {op: softmax, dtype: float32, shape: {x: [4, 64]}, count: 7}\n")
    assert [call.count for call in load_calls(file)] == [7]
    file.write_text("calls:\n  - {op: softmax, dtype: float32, shape: {x: [4, 64]}, count: 0}\n")
    with pytest.raises(ManifestError, match="count"):
        load_calls(file)


def test_an_empty_calls_file_is_told_how_one_begins(tmp_path):
    file = tmp_path / "calls.yaml"
    file.write_text("# to be recorded\n")
    with pytest.raises(ManifestError) as caught:
        load_calls(file)
    assert str(caught.value) == f"{file}:1: holds no keys; the first is `calls:`"


def test_a_job_s_operands_lie_as_its_call_s_and_it_is_kept_under_their_layout():
    call = Call("rms_norm", "float32", {"x": (8, 64), "weight": (64,)}, strides={"x": (128, 1)}, training=True)
    plain, *_ = jobs(replace(call, strides={}))
    forward, backward = jobs(call)
    job = Job.from_json(json.loads(json.dumps(forward.to_json())))
    assert job == forward
    operands = draw(job.question(TARGET), Arguments(contract("rms_norm"), NOW.registry), torch.device("cpu"), 0)
    x = operands.tensors[0]
    assert x is not None
    assert (tuple(x.shape), x.stride()) == ((8, 64), (128, 1))
    kernels = NOW.registry.for_op("rms_norm")
    kind = Kind.of(operands.request(Phase.TRAINING), kernels)
    assert job.key(TARGET, 2, NOW.registry).kind == kind
    assert kind.layout
    assert kind.layout == backward.key(TARGET, 2, NOW.registry).kind.layout
    assert not plain.key(TARGET, 2, NOW.registry).kind.layout
    assert "(x strides 128×1)" in job.name


def test_backward_reads_an_output_where_one_stands_for_an_argument_however_that_lies():
    shapes = {"x": (8, 64), "residual": (8, 64), "weight": (64,)}
    forward, backward = jobs(Call("add_rms_norm", "float32", shapes, strides={"x": (128, 1)}, training=True))
    assert forward.key(TARGET, 2, NOW.registry).kind.layout
    assert not backward.key(TARGET, 2, NOW.registry).kind.layout
