"""``portakernel faults``: on a tiny plugin as it is, and around what is tried."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from portakernel_kit.faults import running
from portakernel_kit.faults.fault import Fault, Judged, Verdict
from portakernel_kit.faults.serving import Baseline

MANIFEST = """\
schema_version: 1
plugin: acme
defaults: {targets: {cpu: any}}
kernels:
  - {op: add, entry: 'acme_for_cli_tests:add', dtypes: {x: [float32], y: [x]}}
"""
SOURCE = """\
import torch


def add(x, y, *, out=None):
    return torch.add(x, y).contiguous() if out is None else torch.add(x, y, out=out)
"""
MEASURED = Baseline("acme.add", "cpu:x86_64 (cpu)", None, 9)
# What is in the place of the text before, and what came of it.
TOLD: dict[tuple[str, str], tuple[Verdict, str, str]] = {
    ("out is None", "True"): ("killed", "out", "sum is not written"),
    ("out is None", "False"): ("alive", "", ""),
    ("x", "y"): ("not_run", "", "its line does not run here"),
}
JUDGED = 4  # x stands in two places


@pytest.fixture
def acme(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a plugin with one kernel, and no list of equal faults in sight."""
    monkeypatch.chdir(tmp_path)
    return install("acme", manifest=MANIFEST, source=SOURCE)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Puts what is ``TOLD`` in the place of what comes of faults; the faults that were to be tried."""

    def replace(*events: Any, raises: type[BaseException] | None = None) -> list[list[str]]:
        asked: list[list[str]] = []

        def try_faults(*given: Any) -> Iterator[Any]:
            faults: Sequence[Fault] = given[3]
            asked.append([fault.after for fault in faults])
            yield from events or [MEASURED]
            for fault in faults:
                if (fault.before, fault.after) in TOLD and not events:
                    verdict, by, detail = TOLD[fault.before, fault.after]
                    yield Judged(fault, verdict, by, "acme.add" if by else "", "add[odd]" if by else "", detail)
            if raises is not None:
                raise raises

        monkeypatch.setattr(running, "try_faults", try_faults)
        return asked

    return replace


def lines(out: str, *wanted: str) -> list[str]:
    """The lines that begin with one of these words."""
    return [line.strip() for line in out.splitlines() if line.strip().startswith(wanted)]


@pytest.mark.usefixtures("forked_observers")
def test_a_plugins_faults_are_found_and_its_files_stay(run: Callable, acme: Path) -> None:
    files = {file: file.read_bytes() for file in acme.rglob("*") if file.is_file()}
    ran = run("faults acme --most 2 --budget 1s --seed 7 --workers 1 --json")
    assert ran.status == 0, ran.out
    assert (ran.json["summary"]["killed"], ran.json["summary"]["alive"]) == (2, 0)
    assert [kernel["fails"] for kernel in ran.json["kernels"]] == [""]
    assert {file: file.read_bytes() for file in acme.rglob("*") if file.is_file()} == files


def test_a_table_tells_what_came_of_them_and_survivors_how_to_try_them_again(
    run: Callable, acme: Path, tried: Callable
) -> None:
    tried()
    ran = run("faults acme --seed 7")
    assert ran.status == 1
    assert lines(ran.out, "add", "all") == [
        "add       4       1      0      1        2  50.0 %  out 1",
        "all       4       1      0      1        2  50.0 %  out 1",
    ]
    (survivor,) = lines(ran.out, "alive ")
    assert "__init__.py:5 condition: `out is None` → `False` in `return torch.add(x, y).contiguous()" in survivor
    name = survivor.split()[1]
    assert f"one of them again: portakernel faults acme --seed 7 --fault {name}" in ran.out
    asked = tried()
    assert run("faults acme --seed 7 --fault", name).status == 2
    assert run(*f"faults acme --seed 7 --fault {name}".split()).status == 1
    assert asked == [["False"]]


def test_what_was_not_proven_is_said_with_its_reason(
    run: Callable, acme: Path, tried: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried()
    assert "nothing was proven" not in run("faults acme --seed 7").out
    for told, said in (
        (("alive", "", ""), ""),
        (("not_run", "", "its line does not run here"), "no fault was put to a kernel: its line does not run here"),
    ):
        monkeypatch.setattr(sys.modules[__name__], "TOLD", dict.fromkeys(TOLD, told))
        ran = run("faults acme --seed 7")
        assert ran.status == 1
        assert lines(ran.out, "nothing was proven") == ([f"nothing was proven: {said}"] if said else [])
    tried(Baseline("acme.add", "", None, 0, "no device"))
    ran = run("faults acme --seed 7")
    said = "nothing was proven: `portakernel doctor` says which kernels are ready here"
    assert lines(ran.out, "nothing was proven") == [said]


def test_a_run_goes_on_where_its_file_ends(run: Callable, acme: Path, tried: Callable, tmp_path: Path) -> None:
    file = tmp_path / "results" / "faults.json"
    tried(raises=KeyboardInterrupt)
    ran = run(f"faults acme --seed 7 --output {file}")
    assert ran.status == 130
    assert "Interrupted, seed 7" in ran.out
    held = json.loads(file.read_text(encoding="utf-8"))
    assert held["interrupted"]
    assert len(held["faults"]) == JUDGED
    asked = tried()
    again = run(f"faults acme --seed 7 --output {file} --json").json
    assert len(asked[0]) == held["listed"] - JUDGED
    assert again["faults"] == held["faults"]
    (acme / "__init__.py").write_text(f"{SOURCE}# other\n", encoding="utf-8")
    run(f"faults acme --seed 7 --output {file}")
    assert len(asked[1]) == held["listed"]


def test_known_equal_faults_are_not_tried_and_stale_ones_are_told(
    run: Callable, acme: Path, tried: Callable, tmp_path: Path
) -> None:
    text = SOURCE.splitlines()[-1].strip()
    entry = {"file": "__init__.py", "text": text, "kind": "condition", "before": "out is None", "after": "False"}
    entries = [{**entry, "why": "so it is"}, {**entry, "after": "Maybe", "why": "so it was"}]
    (tmp_path / "faults.yaml").write_text(json.dumps(entries, indent=1), encoding="utf-8")
    asked = tried()
    ran = run("faults acme --seed 7")
    assert ran.status == 0
    assert "False" not in asked[0]
    (stale,) = lines(ran.out, "stale: ")
    assert f"__init__.py has no condition `out is None` → `Maybe` in `{text}` any more" in stale


def test_a_kernel_that_fails_as_it_is_ends_the_run(run: Callable, acme: Path, tried: Callable) -> None:
    tried(Baseline("acme.add", "cpu", None, 0, fails="add[odd] forward: 3 of 9 elements differ"))
    ran = run("faults acme")
    assert ran.status == 1
    assert ran.out.splitlines() == [
        "acme.add is wrong without any fault: add[odd] forward: 3 of 9 elements differ",
        "nothing was tried: acme fails as it is, which `portakernel check` shows",
    ]


def test_what_cannot_be_tried_is_told(run: Callable, acme: Path, tmp_path: Path) -> None:
    told = {
        "faults": "Missing argument 'PLUGIN'",
        "faults acm": "unknown plugin 'acm'",
        "faults acme --kernel acme.ad": "unknown kernel 'acme.ad'",
        "faults acme --op rms_norm": "unknown op 'rms_norm'",
        "faults acme --by-witness": "name them with --from",
        "faults acme --budget soon": "this is 'soon'",
        "faults acme --budget 0": "--budget 0 puts no request to a fault; it takes a time above 0, such as 10s or 1m",
        "faults acme --budget 0.0m": "--budget 0.0m puts no request to a fault",
        f"faults acme --from {tmp_path / 'no'}": "cannot be read",
        f"faults acme --output {acme}/plugin.yaml": "holds no results",
    }
    for line, text in told.items():
        ran = run(line)
        assert ran.status == 2
        assert text in ran.err
