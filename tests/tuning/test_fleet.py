"""Many devices: what each measures, what a lost worker costs, and that the store is that of one process."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleet_worker
import pytest
import tuning_worker
from tuning_worker import PLAIN, SOURCES, TARGET, UNITS

from portakernel.errors import ArgumentValueError
from portakernel.registry.registry import Registry
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.store import folder_of, read
from portakernel.words.target import Device, Target
from portakernel_kit.tune.child import Child, JobError
from portakernel_kit.tune.fleet import SHARED_EVERY, Fleet, Outcome, crashed_record
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.local_workers import LocalWorkers, seen_alone
from portakernel_kit.tune.ray_workers import RayWorkers
from portakernel_kit.tune.session import Engine, OneDevice, Session

FACTS = Facts(TARGET, UNITS, "a", "580", "2.11", SOURCES)


def jobs(count: int) -> list[Job]:
    return [Job("rms_norm", "inference", {"x": (i, 64)}, {"x": "bfloat16"}, "graph/cold", seed=i) for i in range(count)]


def record_of(job: Job, facts: Facts, us: float = 10.0) -> Record:
    found = tuning_worker.plain("").measure(job, lambda _: None)
    entries = {name: replace_us(entry, us) for name, entry in found.kernels.items()}
    key = replace(found.key, target=facts.target, units=facts.units)
    return replace(found, key=key, kernels=entries, device=facts.device, driver=facts.driver)


def replace_us(entry: Entry, us: float) -> Entry:
    return entry.model_copy(update={"us": (us, us, us)} if entry.us else {})


class FakeWorkers:
    """Devices that answer in turn, the one that was asked first first; ``dies`` says which job ends which worker."""

    def __init__(
        self, devices: Mapping[str, Facts | str], dies: Callable[[str, Job, int], bool] = lambda *_: False
    ) -> None:
        self.devices, self.dies = devices, dies
        self.given: list[tuple[str, Job]] = []
        self.waiting: deque[tuple[str, Job]] = deque()
        self.times: Counter[str] = Counter()

    def facts(self) -> Mapping[str, Facts | str]:
        return self.devices

    def submit(self, device: str, job: Job) -> None:
        assert device not in [busy for busy, _ in self.waiting], "it has a job already"
        self.given.append((device, job))
        self.waiting.append((device, job))

    def next(self) -> Outcome:
        device, job = self.waiting.popleft()
        self.times[job.name] += 1
        facts = self.devices[device]
        assert isinstance(facts, Facts)
        if self.dies(device, job, self.times[job.name]):
            return Outcome(device, lost="it ended")
        return Outcome(device, record_of(job, facts, us=10.0 + len(device)))

    def close(self) -> None:
        self.waiting.clear()


def crashed(job: Job, facts: Facts, reason: str) -> Record:
    entry = Entry(source="s", verdict=Verdict.CRASHED, detail=reason)
    return replace(record_of(job, facts), kernels={"acme.first": entry})


def fleet(devices: Mapping[str, Facts | str], **more: Any) -> tuple[Fleet, FakeWorkers]:
    workers = FakeWorkers(devices, **more)
    return Fleet(workers, SOURCES, crashed), workers


def numbers(given: list[tuple[str, Job]], device: str) -> list[int]:
    return [job.shapes["x"][0] for at, job in given if at == device]


def test_devices_that_are_alike_share_the_work_and_each_measures_every_twentieth_call() -> None:
    one, workers = fleet({"a": FACTS, "bb": replace(FACTS, device="b")})
    found = list(one.run(jobs(100)))
    times = Counter(job.shapes["x"][0] for job, _ in found)
    assert times == {i: 2 if i % SHARED_EVERY == 0 else 1 for i in range(100)}
    assert all({0, 20, 40, 60, 80} <= set(numbers(workers.given, device)) for device in ("a", "bb"))
    assert min(len(numbers(workers.given, device)) for device in ("a", "bb")) > 40
    spread = one.spread()
    assert spread is not None
    assert (spread.calls, spread.median, spread.worst) == (5, 12 / 11, 12 / 11)
    assert spread.where.endswith(" at M=80, N=64")


def test_each_kind_of_device_and_each_driver_measures_all() -> None:
    others = {
        "b": replace(FACTS, units=114),
        "c": replace(FACTS, driver="590"),
        "d": replace(FACTS, target="amd:gfx942"),
    }
    one, workers = fleet({"a": FACTS, **others})
    found = list(one.run(jobs(25)))
    assert len(found) == 100
    assert all(numbers(workers.given, device) == list(range(25)) for device in "abcd")
    assert one.spread() is None


def test_what_a_store_has_of_one_kind_of_device_is_measured_on_the_others_alone() -> None:
    workers = FakeWorkers({"a": FACTS, "b": replace(FACTS, units=114)})
    done = Fleet(workers, SOURCES, crashed, done=lambda job, facts: facts.units == 114 and job.seed != 3)
    assert len(list(done.run(jobs(5)))) == 6
    assert numbers(workers.given, "b") == [3]


def test_jobs_are_taken_as_devices_get_free() -> None:
    taken = list[int]()

    def given() -> Iterator[Job]:
        for job in jobs(50):
            taken.append(job.shapes["x"][0])
            yield job

    one, _ = fleet({"a": FACTS, "bb": FACTS})
    running = one.run(given())
    next(running)
    assert len(taken) <= 2


def test_another_source_is_refused_before_anything_is_measured() -> None:
    foreign = replace(FACTS, sources={**SOURCES, "acme.fast": "another"})
    lacking = replace(FACTS, sources={name: SOURCES[name] for name in SOURCES if name != "acme.fast"})
    one, workers = fleet({"a": FACTS, "b": foreign, "c": lacking, "d": "no driver"})
    list(one.run(jobs(3)))
    assert {device for device, _ in workers.given} == {"a"}
    text = "acme.fast has the source {} there, and of acme.fast here: install the same packages on both"
    assert one.refused == {"b": text.format("another"), "c": text.format("none"), "d": "no driver"}
    with pytest.raises(ArgumentValueError, match=r"^no device can measure: b: acme\.fast has the source another there"):
        fleet({"b": foreign})
    with pytest.raises(ArgumentValueError, match=r"^no device can measure: there is none$"):
        fleet({})


def test_a_lost_workers_call_is_tried_once_elsewhere() -> None:
    one, workers = fleet({"a": FACTS, "bb": FACTS}, dies=lambda device, job, _: device == "a" and job.seed == 7)
    one_first = {job.seed: found for job, found in one.run(jobs(40))}
    tried = [device for device, job in workers.given if job.seed == 7]
    assert tried in (["a", "bb"], ["bb"])
    assert all(isinstance(found, Record) and found.kernels.keys() == set(PLAIN) for found in one_first.values())
    assert len(one_first) == 40


def test_a_call_that_ends_two_workers_is_crashed_and_the_rest_goes_on() -> None:
    one, workers = fleet({"a": FACTS, "bb": FACTS}, dies=lambda _, job, __: job.seed == 7)
    found = {job.seed: record for job, record in one.run(jobs(30))}
    assert sorted(device for device, job in workers.given if job.seed == 7) == ["a", "bb"]
    record = found[7]
    assert isinstance(record, Record)
    assert [(entry.verdict, entry.detail) for entry in record.kernels.values()] == [(Verdict.CRASHED, "it ended")]
    assert sorted(found) == list(range(30))


def test_one_device_alone_tries_again_itself() -> None:
    one, workers = fleet({"a": FACTS}, dies=lambda _, job, times: job.seed == 3 and times == 1)
    found = {job.seed: record for job, record in one.run(jobs(6))}
    assert numbers(workers.given, "a") == [0, 1, 2, 3, 3, 4, 5]
    assert len(found) == 6


def test_a_device_that_is_gone_gets_nothing_more_and_what_nobody_can_measure_is_left() -> None:
    one, workers = fleet({"a": FACTS, "bb": FACTS}, dies=lambda device, *_: device == "a")
    found = {job.seed for job, _ in one.run(jobs(30))}
    assert found == set(range(30))
    assert len(numbers(workers.given, "a")) == 2
    none, _ = fleet({"a": FACTS, "bb": FACTS}, dies=lambda *_: True)
    outcomes = [record for _, record in none.run(jobs(30))]
    assert all(isinstance(record, Record) and "acme.first" in record.kernels for record in outcomes)
    assert len(outcomes) + len(none.left) <= 4


def test_a_job_that_does_not_fit_is_said_and_not_repeated() -> None:
    class Refusing(FakeWorkers):
        def next(self) -> Outcome:
            device, _ = self.waiting.popleft()
            return Outcome(device, JobError("no such op"))

    workers = Refusing({"a": FACTS})
    found = list(Fleet(workers, SOURCES, crashed).run(jobs(2)))
    assert [str(outcome) for _, outcome in found] == ["no such op", "no such op"]
    assert len(workers.given) == 2


def test_a_crashed_call_has_each_kernel_of_its_op_and_a_key_of_its_own(registry: Registry) -> None:
    job = Job("softmax", "inference", {"x": (4, 64)}, {"x": "float32"}, "graph/cold")
    facts = replace(FACTS, sources={"triton.softmax": "s"})
    record = crashed_record(registry, lambda: "2026-11-27T00:00:00Z")(job, facts, "SIGKILL")
    assert record.key == job.key(Target.parse(TARGET), UNITS, registry)
    assert record.kernels.keys() == {kernel.name for kernel in registry.for_op("softmax")}
    assert record.kernels["triton.softmax"].source == "s"
    assert {entry.verdict for entry in record.kernels.values()} == {Verdict.CRASHED}
    assert Record.parse(record.line()) == record


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()


# --- processes -------------------------------------------------------------------------------------------------------


def device(name: str, vendor: str = "cpu", uuid: str | None = None) -> Device:
    return Device(Target(vendor, "any"), name, name, uuid)


@pytest.mark.parametrize(
    ("device", "seen"),
    [
        (device("cuda:3", "nvidia", "GPU-1"), ("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})),
        (device("cuda:3", "amd", "GPU-2"), ("cuda:0", {"ROCR_VISIBLE_DEVICES": "GPU-2", "HIP_VISIBLE_DEVICES": "0"})),
        (device("cuda:3", "amd"), ("cuda:3", {})),
        (device("xpu:1", "intel", "0000"), ("xpu:1", {})),
        (device("cpu"), ("cpu", {})),
    ],
)
def test_a_process_sees_its_device_alone_by_its_identity(device: Device, seen: Any) -> None:
    assert seen_alone(device) == seen


def store(root: Path, engine: Engine, count: int) -> dict[str, Any]:
    """What a session writes: by key the kernels' entries."""
    session = Session(root, engine)
    session.run(jobs(count))
    engine.close()
    assert session.refused == []
    records = read(folder_of(root, TARGET, UNITS), "rms_norm").records
    return {text: dict(record.kernels) for text, record in records.items()}


def alone(root: Path, count: int) -> dict[str, Any]:
    return store(root, OneDevice(Child(make="tuning_worker:plain")), count)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(fleet_worker.FOLDER, str(tmp_path))
    return tmp_path


def test_two_processes_one_of_which_ends_give_the_store_of_one(folder: Path) -> None:
    workers = LocalWorkers([device("a"), device("b")], make="fleet_worker:mortal")
    assert store(folder / "two", Fleet(workers, SOURCES, crashed), 12) == alone(folder / "one", 12)
    assert (folder / "ended").exists()


def test_a_call_that_ends_every_process_is_crashed(folder: Path) -> None:
    workers = LocalWorkers([device("a"), device("b")], make="fleet_worker:ends_for_ever")
    found, known = store(folder / "two", Fleet(workers, SOURCES, crashed), 9), alone(folder / "one", 9)
    assert found.keys() == known.keys()
    (other,) = [text for text in known if found[text] != known[text]]
    assert {entry.verdict for entry in found[other].values()} == {Verdict.CRASHED}


def test_processes_with_other_sources_or_none_at_all_are_refused() -> None:
    for make, said in (
        ("fleet_worker:foreign", "acme.fast has the source another"),
        ("tuning_worker:hopeless", "ended"),
    ):
        workers = LocalWorkers([device("a")], make=make)
        with pytest.raises(ArgumentValueError, match=said):
            Fleet(workers, SOURCES, crashed)
        workers.close()


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of this machine with two devices that are none, which tells nobody of it."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="lacks ray: pip install 'portakernel[ray]'")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), fleet_worker.FOLDER: str(folder)}
    ray.init(
        address="local",
        num_cpus=2,
        resources={"clock": 2},
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": variables},
    )
    yield ray
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_two_actors_one_of_which_is_killed_give_the_store_of_one_process(folder: Path) -> None:
    workers = RayWorkers(resource="clock", torch_device="cpu", make="fleet_worker:kills_its_actor")
    assert list(workers.actors) == ["ray:0", "ray:1"]
    one = Fleet(workers, SOURCES, crashed)
    assert store(folder / "ray", one, 12) == alone(folder / "one", 12)
    assert (folder / "ended").exists()
    assert one.left == []


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentValueError, match=r"^the engine ray needs Ray, .* pip install 'portakernel\[ray\]'$"):
        RayWorkers()
