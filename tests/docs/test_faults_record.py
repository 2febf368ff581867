"""What `portakernel faults` found, as docs/faults.json keeps it and docs/conformance.md and the site show it."""

from __future__ import annotations

import json

import pytest
from portakernel_pages import generate
from portakernel_pages.faults import (
    RECORD,
    by_op,
    figures,
    merged,
    ops_table,
    read_output,
    recorded,
    with_figures,
    written,
)

from portakernel.matrix.page import page
from portakernel.matrix.table import support_matrix

CIRCUMSTANCES = {"date": "2026-11-24T15:30:50+00:00", "versions": {"torch": "2.13.0+cpu", "other": "1"}}


def counts(killed, alive, equal=0, not_run=0):
    return {"killed": killed, "alive": alive, "equal": equal, "not_run": not_run}


@pytest.fixture
def output(tmp_path):
    """What comes of a file that `portakernel faults --output` has written."""

    def read(plugin, why, ops, **others):
        path = tmp_path / "faults.json"
        total = {verdict: sum(row[verdict] for row in ops.values()) for verdict in counts(0, 0)}
        rows = [{"name": op, **row, "by": {}} for op, row in ops.items()]
        data = {"circumstances": CIRCUMSTANCES, "interrupted": False, "budget_s": 10.0, "plugin": plugin, "seed": 9}
        data |= {"faults": [{"why": why}], "kernels": [{"mode": "interpreter"}, {"mode": None}]}
        path.write_text(json.dumps({**data, "summary": total, "ops": rows, **others}), encoding="utf-8")
        return read_output(path)

    return read


def test_outputs_are_kept_by_plugin_and_by_who_wrote_the_faults_and_read_as_they_were_written(output, tmp_path):
    first = output("acme", "", {"add": counts(3, 1)})
    assert (first.made, first.modes, first.date, first.versions) == (
        True,
        ("interpreter",),
        "2026-11-24",
        {"torch": "2.13.0+cpu"},
    )
    by_hand = output("acme", "a mask is left out", {"add": counts(1, 1)})
    again = output("acme", "", {"add": counts(4, 0)})
    path = tmp_path / "record.json"
    path.write_text(written(merged(merged((), [first, by_hand]), [again])), encoding="utf-8")
    assert recorded(path) == (by_hand, again)


def test_what_is_not_a_whole_run_is_refused(output, tmp_path):
    with pytest.raises(SystemExit, match="the run was interrupted"):
        output("acme", "", {"add": counts(3, 1)}, interrupted=True)
    path = tmp_path / "other.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"other\.json: needs what `portakernel faults PLUGIN --output FILE` writes"):
        read_output(path)


def test_tables_count_what_was_tried_and_is_not_equal(output):
    found = [
        output("one", "", {"add": counts(3, 1, equal=5), "softmax": counts(0, 0, not_run=2)}),
        output("two", "why", {"add": counts(2, 0, not_run=1)}),
    ]
    assert figures(found[::-1]).splitlines()[2:] == [
        "| written by hand: `two` | 2 |  |  | 1 | 100 % |",
        "| made by the command: `one` | 3 | 1 | 5 | 2 | 75 % |",
    ]
    assert ops_table(found).splitlines()[2:] == [
        "| `add` | 2 of 2 (1 not run) | 3 of 4 |",
        "| `softmax` |  | none tried (2 not run) |",
    ]
    assert by_op(found) == {"add": "faults found: one 3 of 4, two 2 of 2"}
    with pytest.raises(ValueError, match=r"a table that begins '\|  \| killed \|' 0 times"):
        with_figures("nothing", found)


def test_the_record_is_as_it_would_be_written_and_the_figures_are_those_of_it():
    assert RECORD.read_text(encoding="utf-8") == written(recorded())
    for path, text in generate.generated().items():
        if path.name == "conformance.md":
            assert path.read_text(encoding="utf-8") == text, "docs/conformance.md is stale: run `make generate`"


def test_the_matrix_says_it_beside_the_op():
    matrix = support_matrix(generate.first_party(), op="add")
    shown = page(matrix, notes=by_op(recorded()))
    assert f'<span class="note">{by_op(recorded())["add"]}</span>' in shown
    assert '<span class="note">faults found' not in page(matrix)
