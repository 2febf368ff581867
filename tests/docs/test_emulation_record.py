"""What was proven of the emulator, as docs/emulation.json keeps it and docs/emulation.md shows it."""

from __future__ import annotations

import json
import re

import pytest
from portakernel_pages import generate
from portakernel_pages.emulated import (
    comparison,
    coverage,
    merged,
    mutants,
    read_outputs,
    reasons,
    reasons_of,
    recorded,
    with_tables,
    written,
)

CIRCUMSTANCES = {"date": "2026-11-27T21:19:45+00:00"}


def row(kernel, target, instructions):
    return {
        "kernel": kernel, "device": f"{target} (emulated)", "case": "add[instructions]", "status": "passed",
        "instructions": instructions,
    }  # fmt: skip


@pytest.fixture
def output(tmp_path):
    """A file of JSON."""

    def make(name, **content):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return make


def check(output, name, *rows):
    return output(name, circumstances=CIRCUMSTANCES, results=[{"kernel": "acme.add", "case": "add[x]"}, *rows])


def test_an_instruction_is_executed_where_any_kernels_cases_execute_it(output):
    paths = [
        check(output, "one", row("acme.add", "amd:gfx942", {"v_add_f32": True, "s_nop": False, "v_exp_f32": False})),
        check(output, "two", row("acme.exp", "amd:gfx942", {"v_exp_f32": True, "s_nop": False})),
        check(output, "three", row("acme.add", "amd:gfx1201", {"v_add_f32": True})),
    ]
    made = read_outputs(paths)
    assert made["coverage"] == [
        {
            "target": "amd:gfx1201", "kernels": 1, "instructions": 1, "executed": 1, "date": "2026-11-27", "never": {},
        },
        {
            "target": "amd:gfx942", "kernels": 2, "instructions": 3, "executed": 2, "date": "2026-11-27",
            "never": {"s_nop": ["acme.add", "acme.exp"]},
        },
    ]  # fmt: skip
    assert coverage(made).splitlines()[2:] == [
        "| `amd:gfx1201` | 1 | 1 | 1 (100.0 %) | none |",
        "| `amd:gfx942` | 2 | 3 | 2 (66.7 %) | `s_nop` |",
    ]


def test_a_targets_rows_are_replaced_and_others_stay(output):
    known = read_outputs(
        [check(output, "old", *(row("acme.add", f"amd:{a}", {"a": False}) for a in ("gfx942", "gfx950")))]
    )
    now = merged(known, read_outputs([check(output, "new", row("acme.add", "amd:gfx942", {"a": True}))]))
    assert [(one["target"], one["executed"]) for one in now["coverage"]] == [("amd:gfx942", 1), ("amd:gfx950", 0)]


def test_a_comparison_is_kept_with_its_exceptions_and_read_as_it_was_written(output, tmp_path):
    rows = [
        {"target": "amd:gfx942", "instructions": 900, "compared": 900, "cases": 12345, "unlike": 0, "seeds": 3},
    ]  # fmt: skip
    exceptions = [{"instructions": ["v_sin_f32"], "reason": "the unit takes turns"}]
    path = output("differential", comparison=rows, exceptions=exceptions, elsewhere=[])
    made = merged({}, read_outputs([path]))
    assert comparison(made).splitlines()[2:] == ["| `amd:gfx942` | 900 of 900 | 12 345 | 3 | 0 |"]
    path = tmp_path / "record.json"
    path.write_text(written(made), encoding="utf-8")
    assert recorded(path) == made


def test_mutants_are_kept_by_their_judge(output):
    def told(by, noticed):
        row = {"by": by, "handlers": 2, "noticed": noticed, "missed": ["v_sqrt_f16 1"], "equal": 3}
        return output(f"{by}{noticed}", mutants=[row])

    known = read_outputs([told("tests", 8), told("pseudocode", 7)])
    assert mutants(merged(known, read_outputs([told("tests", 9)]))).splitlines()[2:] == [
        "| pseudocode | 2 | 7 | 1 | 3 | 87.5 % |", "| tests | 2 | 9 | 1 | 3 | 90.0 % |",
    ]  # fmt: skip


def test_files_that_prove_nothing_of_the_emulator_are_refused_by_name(output):
    path = output("bench", cells=[])
    with pytest.raises(SystemExit) as raised:
        read_outputs([path])
    assert str(raised.value) == (
        f"{path}: needs what `portakernel check --emulate TARGET --json` prints of whole kernels (not with --drawn), "
        "or what tests/emulation/differential.py or mutants.py writes with --json"
    )


def test_the_page_has_the_tables_of_the_record():
    page = generate._DOCS / "emulation.md"
    assert with_tables(page.read_text(encoding="utf-8"), recorded()) == page.read_text(encoding="utf-8")


def test_a_page_without_one_of_the_tables_is_refused():
    with pytest.raises(ValueError, match=re.escape("begins '| target | kernels |' 0 times; once is needed")):
        with_tables("no table", recorded())


def test_nothing_that_is_recorded_was_unlike():
    assert [row["target"] for row in recorded()["comparison"] if row["unlike"]] == []


def never_executed():
    return [
        (row["target"], name, kernel)
        for row in recorded()["coverage"]
        for name, kernels in row["never"].items()
        for kernel in kernels
    ]


def test_whatever_no_case_executes_has_a_reason():
    """Add it to docs/never_executed.yaml once it is known; a case that executes it is better."""
    known = reasons()
    assert [place for place in never_executed() if not reasons_of(*place[1:], known)] == []


def test_every_reason_is_of_something_that_no_case_executes():
    places = never_executed()
    for reason in reasons():
        unused = {n for n in reason.instructions if not any(reasons_of(n, k, [reason]) for _, m, k in places if m == n)}
        assert not unused, reason.why
        assert {k for _, n, k in places if n in reason.instructions} >= set(reason.kernels), reason.why
