"""``portakernel tune`` and ``regret``: one run through, and what their words have to be."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from portakernel.errors import ArgumentValueError
from portakernel.registry.registry import Registry
from portakernel.runtime import dispatcher
from portakernel.tuning.record import Record
from portakernel.tuning.sources import source_digest
from portakernel.tuning.store import Writer
from portakernel.words.target import Device, Target
from portakernel_kit.bench.question import Question
from portakernel_kit.cli.tune_words import device_of_fleet
from portakernel_kit.tune.child import JobError
from portakernel_kit.tune.fleet import Fleet, Outcome
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.session import OneDevice

pytestmark = pytest.mark.usefixtures("forked_measuring")

CALLS = """
calls:
  - {op: softmax, dtype: float32, shape: {x: [4, 64]}, count: 3}
  - {op: softmax, dtype: float32, shape: {x: [64, 64]}}
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PORTAKERNEL_DISABLE", "inductor")  # compiles for seconds
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def calls(tmp_path: Path) -> str:
    file = tmp_path / "calls.yaml"
    file.write_text(CALLS, encoding="utf-8")
    return str(file)


def test_an_interrupted_run_goes_on_and_what_is_kept_is_not_measured_again(
    run: Callable, calls: str, monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    measure = Fleet.run

    def interrupted(fleet: Fleet, jobs: Iterable[Job]) -> Iterator[Any]:
        for number, found in enumerate(measure(fleet, jobs)):
            if number == 1:
                raise KeyboardInterrupt
            yield found

    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "run", interrupted)
        first = run("tune", "--calls", calls, "--device", "cpu", "--json")
    assert (first.status, len(first.json["measured"]), first.json["left"]) == (130, 1, 1)
    second = run("tune", "--calls", calls, "--device", "cpu", "--json")
    assert (second.status, len(second.json["measured"]), second.json["kept"]) == (0, 1, 1)
    third = run("tune", "--calls", calls, "--device", "cpu")
    assert third.status == 0
    assert third.out == f"0 new measurements, 2 kept from before, 0 left, in {store}\n"
    compacted = run("tune", "--compact", "--json").json
    again = run("tune", "--compact").out.splitlines()
    assert again[0].endswith(" softmax: 2 records of 1 file are in one")
    assert again[1] == f"1 op was put together in {store}"
    assert [(one["op"], one["files"], one["records"]) for one in compacted["compacted"]] == [("softmax", 2, 2)]
    assert set(second.json) == {
        "regime", "regime_asked", "seed",
        "store", "measured", "refused", "left", "kept", "devices", "refused_devices", "spread", "interrupted",
    }  # fmt: skip
    shown = second.json["measured"][0]
    assert (shown["op"], shown["regime"], shown["phase"]) == ("softmax", "eager/cold", "inference")
    reference = shown["kernels"]["reference.softmax"]
    assert set(reference) == {"verdict", "us", "rounds", "error", "against_default", "detail"}
    assert reference["verdict"] == "right"


@pytest.mark.parametrize("when", ["before", "while"])
def test_what_sigterm_ends_is_shown_all_the_same(
    run: Callable, calls: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def ended(fleet: Fleet, *_: object) -> Iterator[Any]:
        signal.raise_signal(signal.SIGTERM)
        return iter(())

    monkeypatch.setattr(Fleet, "run" if when == "while" else "__init__", ended)
    before = signal.getsignal(signal.SIGTERM)
    found = run("tune", "--calls", calls, "--device", "cpu", "--json")
    assert (found.status, found.json["interrupted"], found.json["left"]) == (130, True, 2)
    assert signal.getsignal(signal.SIGTERM) is before


def test_regret_does_not_count_what_was_measured_beside_others(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = OneDevice.run

    def busy(device: OneDevice, jobs: Iterable[Job]) -> Iterator[Any]:
        for number, (job, found) in enumerate(measured(device, jobs)):
            assert isinstance(found, Record)
            yield job, replace(found, busy=number == 1)

    monkeypatch.setattr(OneDevice, "run", busy)
    words = ("regret", "softmax", "--held-out", "2", "--seed", "5", "--device", "cpu")
    found = run(*words, "--json").json
    assert (len(found["cells"]), found["busy"]) == (1, 1)
    assert "others used the device while 1 more was measured: not counted" in " ".join(run(*words).out.split())


def test_regret_of_no_call_gives_no_numbers(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneDevice, "run", lambda *_: iter(()))
    words = ("regret", "softmax", "--held-out", "1", "--seed", "5", "--device", "cpu")
    found = run(*words, "--json")
    assert found.status == 1
    assert found.json["ways"]["measured"] == {
        "cells": 0, "geometric_mean": None, "worst": None, "worst_call": None, "beyond_5_percent": None,
        "differs": 0, "harm": 0,
    }  # fmt: skip
    shown = run(*words).out.strip().splitlines()
    assert shown[0] == "Over the best kernel, 0 calls that are not in the store"
    assert shown[3].split() == ["measured", "–", "–", "–", "0", "0"]


def test_regret_measures_sizes_that_the_store_lacks_with_what_has_to_be_built(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PORTAKERNEL_DISABLE")
    found = run("regret", "softmax", "--held-out", "1", "--seed", "5", "--device", "cpu", "--json")
    cells, busy = len(found.json["cells"]), found.json["busy"]
    # where other processes have the processors, the one call counts for nothing
    assert (cells, busy) in ((1, 0), (0, 1)), found.err
    assert found.status == (0 if cells else 1)
    keys = {"device", "regime", "regime_asked", "seed", "interrupted", "busy", "ways", "cells"}
    assert set(found.json) == keys
    assert (found.json["regime"], found.json["regime_asked"]) == ("eager/cold", None)
    assert set(found.json["ways"]) == {"priorities", "measured"}
    assert found.json["ways"]["measured"]["cells"] == cells
    assert found.json["ways"]["measured"]["harm"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tune --budget soon", "--budget 'soon' is no time; give a number and s, m or h, such as 10m"),
        ("tune softmax --budget 0s", "--budget '0s' leaves no time to measure; give more than 0, such as 10m"),
        ("tune softmax --budget 10", "--budget '10' is no time; give a number and s, m or h, such as 10m"),
        ("tune --compact softmax", "--compact rewrites what is kept and measures nothing; give it alone, without OP"),
        ("tune --compact --stale --seed 3", "give it alone, without --seed and --stale"),
        ("tune --compact --dtype float32 --set eps=1", "give it alone, without --dtype and --set"),
        ("tune --compact --training --budget 3m", "give it alone, without --training and --budget"),
        ("tune --compact --device cpu --engine ray", "give it alone, without --device and --engine"),
        ("tune --compact --regime eager/warm", "give it alone, without --regime"),
        ("tune softmax --regime wrong", "'wrong' is not one of 'graph/cold', 'graph/warm', 'eager/cold', 'eager/warm'"),
        ("tune softmax --engine rayy", "'rayy' is not one of 'local', 'ray'"),
        (
            "tune softmax --engine ray --device cpu",
            "--engine ray measures on the GPUs of a cluster, all of them; leave",
        ),
        ("tune softmax --device all --device cpu", "--device all is every device; leave out --device cpu"),
        ("tune softmax --device cuda:99", "unknown device 'cuda:99'; known: "),
        ("tune softmax --drawn 3 --shape x=4x4 --device cpu", "--drawn draws sizes; leave out --shape\n"),
        (
            "tune softmax add --shape x=4x4 --device cpu",
            "--shape and --set are of one op; name it alone (2 are asked for)",
        ),
        ("tune softmax --dtype float33 --device cpu", "unknown dtype 'float33'; did you mean 'float32'"),
        ("tune softmx", "unknown op 'softmx'; did you mean 'softmax'"),
        ("tune no_such_op", "unknown op 'no_such_op'"),
        ("regret no_such_op", "unknown op 'no_such_op'"),
        ("tune --device cpu:7", "device"),
    ],
)
def test_words_that_ask_for_nothing_are_refused(run: Callable, words: str, message: str) -> None:
    found = run(words)
    assert found.status == 2
    assert message in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dtype float16", "lists whole calls; leave out --shape, --dtype, --set and --drawn"),
        ("--training", "say `training: true` themselves; leave out --training"),
        ("rms_norm", "lists no call of rms_norm; it has softmax"),
        ("softmx", "unknown op 'softmx'; did you mean 'softmax'"),
    ],
)
def test_a_file_lists_whole_calls(run: Callable, calls: str, words: str, message: str) -> None:
    found = run("tune", "--calls", calls, "--device", "cpu", *words.split())
    assert found.status == 2
    assert message in found.err


@pytest.mark.parametrize("command", ["tune", "bench"])
def test_calls_on_another_device_are_refused_before_anything_is_measured(
    run: Callable, calls: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(Fleet, "run", lambda *_: pytest.fail("something was measured"))
    file = Path(calls)
    listed = file.read_text(encoding="utf-8").replace("count: 3", "device: 'cuda:0'")
    file.write_text(listed, encoding="utf-8")
    ran = run(command, "--calls", calls, "--device", "cpu")
    assert ran.status == 2
    assert f"{calls} lists calls on cuda:0: unknown device 'cuda:0'" in ran.err
    gpu = Device(Target("nvidia", "sm_90"), "A GPU", "cuda:0")
    with monkeypatch.context() as patched:
        patched.setattr(Registry, "devices", [*dispatcher().registry.devices, gpu])
        ran = run(command, "--calls", calls, "--device", "cpu")
    assert ran.status == 2
    assert f"{calls} lists calls on cuda:0, and " in ran.err
    assert ran.err.endswith(" (cpu) is measured; give --device cuda:0, or leave `device` out of these calls\n")


def test_calls_of_a_file_may_name_the_device_that_is_measured(
    run: Callable, calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "run", lambda *_: iter(()))
    monkeypatch.setattr("portakernel_kit.tune.ray_workers.RayWorkers", Cluster)
    file = Path(calls)
    listed = file.read_text(encoding="utf-8")
    file.write_text(listed.replace("count: 3", "device: cpu"), encoding="utf-8")
    assert run("tune", "--calls", calls, "--device", "cpu", "--json").json["left"] == 2
    assert "lists calls on cpu, and " in run("tune", "--calls", calls, "--engine", "ray").err
    file.write_text(listed.replace("count: 3", "device: 'cuda:0'"), encoding="utf-8")
    assert run("tune", "--calls", calls, "--engine", "ray", "--json").json["left"] == 2


def test_sizes_of_accelerators_leave_a_cpu_nothing(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Question, "too_large", lambda *_, **__: True)
    found = run("tune", "softmax", "--device", "cpu")
    assert found.status == 2
    assert re.search(
        "tune: none of [0-9]+ calls to softmax is of a size for .*; give sizes with --shape, or", found.err
    )


@pytest.mark.parametrize("words", ["tune softmax --drawn 1", "regret softmax --held-out 1"])
def test_a_regime_of_graphs_is_explained_where_there_are_none(
    run: Callable, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(Fleet, "run", lambda *_: iter(()))
    monkeypatch.setattr(OneDevice, "run", lambda *_: iter(()))
    told = " has no graphs, which graph/warm would time: eager/warm is what counts there\n"
    assert told in run(f"{words} --device cpu --regime graph/warm").out
    found = run(f"{words} --device cpu --regime graph/warm --json").json
    assert (found["regime"], found["regime_asked"]) == ("eager/warm", "graph/warm")


def test_without_ray_its_extra_is_named(run: Callable, calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    found = run("tune", "--calls", calls, "--engine", "ray")
    assert found.status == 2
    assert "the engine ray needs Ray, which is not installed: pip install 'portakernel[ray]'" in found.err


class Cluster:
    """The GPUs of a cluster whose head node, where the tests run, has none."""

    given: ClassVar[list[Job]] = []

    def facts(self) -> dict[str, Facts | str]:
        sources = {name: source_digest(kernel) for name, kernel in dispatcher().registry.kernels.items()}
        return {"ray:0": "it is broken", "ray:1": Facts("nvidia:sm_90", 132, driver="580", sources=sources)}

    def submit(self, device: str, job: Job) -> None:
        assert device == "ray:1"
        self.given.append(job)

    def next(self) -> Outcome:
        return Outcome("ray:1", JobError("not here"))

    def close(self) -> None:
        """Nothing is held."""


def test_calls_are_those_of_the_cluster_and_not_of_the_machine_that_asks(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portakernel_kit.tune.ray_workers.RayWorkers", Cluster)
    found = run("tune softmax --engine ray --drawn 2 --json").json
    assert (found["regime"], found["devices"]) == ("graph/cold", ["ray:1"])
    assert found["refused_devices"] == {"ray:0": "it is broken"}
    assert [(job.op, job.regime, job.dtypes) for job in Cluster.given] == [
        ("softmax", "graph/cold", {"x": "bfloat16"}),
    ] * 2


def test_a_cluster_of_several_vendors_is_tuned_vendor_by_vendor() -> None:
    both = {"a": Facts("nvidia:sm_90", 132), "b": Facts("amd:gfx942", 304)}
    with pytest.raises(ArgumentValueError, match="the devices are of amd and nvidia; tune each vendor's by itself"):
        device_of_fleet(both)
    with pytest.raises(ArgumentValueError, match="no device can measure: a: it is broken"):
        device_of_fleet({"a": "it is broken"})


def test_drawn_sizes_name_their_seed(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "run", lambda *_: iter(()))
    words = "tune softmax --device cpu --drawn 1"
    told = run(words).out
    assert "sizes are those that --seed 0 draws\n" in told
    assert "has no graphs" not in told  # nobody asked for them
    assert run(f"{words} --seed 7 --json").json["seed"] == 7


@pytest.mark.parametrize("words", ["tune --calls {calls} --device cpu", "tune --compact", "tune --compact --json"])
@pytest.mark.parametrize(
    ("below", "said"),
    [("", "is no directory"), ("/of/a/file", "is no directory"), ("\0full", "is full (No space left on device)")],
)
def test_a_store_that_cannot_be_written_is_refused_before_anything_is_measured(
    run: Callable, calls: str, store: Path, monkeypatch: pytest.MonkeyPatch, words: str, below: str, said: str
) -> None:
    monkeypatch.setattr(Fleet, "run", lambda *_: pytest.fail("something was measured"))
    if below == "\0full":
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(Path, "write_bytes", mock.Mock(side_effect=full))
    else:
        store.write_text("no folder", encoding="utf-8")
        monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", root := f"{store}{below}")
        store = Path(root)
    found = run(words.format(calls=calls))
    assert found.status == 2
    text = found.json["error"]["message"] if "--json" in words else found.err
    assert f"the store of measurements {store} {said}" in text
    assert "PORTAKERNEL_TUNING_DIR names another folder" in text


def test_a_store_that_fills_up_is_told_and_not_a_traceback(
    run: Callable, calls: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Writer, "write", mock.Mock(side_effect=full))
    found = run("tune", "--calls", calls, "--device", "cpu")
    assert found.status == 2
    assert f"a record cannot be written into {store}: No space left on device" in found.err
    assert "what was measured before it is kept" in found.err


def test_compacting_a_folder_that_cannot_be_written_says_so(
    run: Callable, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := store / "cpu.x86_64-2").mkdir(parents=True)
    (folder / "softmax.host-1-0.jsonl").write_text("", encoding="utf-8")
    denied = OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))
    monkeypatch.setattr("portakernel.tuning.store.compact", mock.Mock(side_effect=denied))
    found = run("tune", "--compact")
    assert found.status == 2
    assert f"{store} cannot be compacted: Read-only file system ({folder})" in found.err


def test_compacting_says_what_it_drops(run: Callable, store: Path) -> None:
    (folder := store / "cpu.x86_64-2").mkdir(parents=True)
    (folder / "softmax.host-1-0.jsonl").write_text("torn\n", encoding="utf-8")
    (folder / "add.host-1-0.jsonl").write_text("torn\n{}\n", encoding="utf-8")
    (folder / "add.host-2-0.jsonl").write_text("", encoding="utf-8")
    assert run("tune", "--compact").out == (
        "cpu.x86_64-2 add: 0 records of 2 files are in one\n"
        "  2 lines were no records and are dropped\n"
        "cpu.x86_64-2 softmax: 0 records of 1 file are in one\n"
        "  1 line was no record and is dropped\n"
        f"2 ops were put together in {store}\n"
    )
    assert [one["dropped"] for one in run("tune", "--compact", "--json").json["compacted"]] == [0, 0]


def test_compacting_an_empty_store_says_so(run: Callable, store: Path) -> None:
    assert run("tune", "--compact").out == f"nothing to put together in {store}\n"
