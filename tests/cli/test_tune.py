"""``portakernel tune`` and ``regret``: one run through, and what their words have to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portakernel_kit.tune.fleet import Fleet
from portakernel_kit.tune.job import Job

CALLS = """
calls:
  - {op: softmax, dtype: float32, shape: {x: [4, 64]}, count: 3}
  - {op: softmax, dtype: float32, shape: {x: [64, 64]}}
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    assert [(one["op"], one["files"], one["records"]) for one in compacted["compacted"]] == [("softmax", 2, 2)]
    assert set(second.json) == {
        "regime", "store", "measured", "refused", "left", "kept", "devices", "refused_devices", "spread", "interrupted",
    }  # fmt: skip
    shown = second.json["measured"][0]
    assert (shown["op"], shown["regime"], shown["phase"]) == ("softmax", "eager/cold", "inference")
    reference = shown["kernels"]["reference.softmax"]
    assert set(reference) == {"verdict", "us", "rounds", "error", "against_default", "detail"}
    assert reference["verdict"] == "right"


def test_regret_measures_sizes_that_the_store_lacks(run: Callable) -> None:
    found = run("regret", "softmax", "--held-out", "1", "--seed", "5", "--device", "cpu", "--json")
    assert found.status == 0, found.err
    assert set(found.json) == {"device", "regime", "seed", "interrupted", "busy", "ways", "cells"}
    assert set(found.json["ways"]) == {"priorities", "measured"}
    assert found.json["ways"]["measured"]["cells"] == len(found.json["cells"]) == 1
    assert found.json["ways"]["measured"]["harm"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tune --budget soon", "--budget 'soon' is no time; give a number and s, m or h, such as 10m"),
        ("tune --compact softmax", "--compact rewrites what is kept and measures nothing; give it alone"),
        ("tune no_such_op", "unknown op 'no_such_op'"),
        ("regret no_such_op", "unknown op 'no_such_op'"),
        ("tune --device cpu:7", "device"),
    ],
)
def test_words_that_ask_for_nothing_are_refused(run: Callable, words: str, message: str) -> None:
    found = run(words)
    assert found.status == 2
    assert message in found.err


def test_a_file_lists_whole_calls(run: Callable, calls: str) -> None:
    found = run("tune", "--calls", calls, "--dtype", "float16")
    assert found.status == 2
    assert f"tune: {calls} lists whole calls; leave out --shape, --dtype, --set and --drawn" in found.err


def test_compacting_an_empty_store_says_so(run: Callable, store: Path) -> None:
    assert run("tune", "--compact").out == f"nothing to put together in {store}\n"
