"""Files that are no decisions, given to ``portakernel diff``: each ends with status 2 and a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import os

import pytest

DECISION = {
    "op": "add",
    "target": "nvidia:sm_90",
    "request": {"phase": "inference", "dtypes": {}, "dims": {}, "features": {}, "formats": {}, "requires": []},
    "chosen": None,
    "why": "",
    "candidates": [],
}
SHEET = {"schema_version": 1, "portakernel": "0.1", "targets": ["nvidia:sm_90"], "decisions": [DECISION]}
WRITES_ONE = "; `portakernel explain --all --target TARGET --json` writes one"


def _diff(content=None):
    """``portakernel diff`` of a good file and one with ``content``; of a good file twice where it is None."""
    from portakernel.cli import main

    with open("good.json", "w", encoding="utf-8") as good:
        json.dump(SHEET, good)
    if content is not None:
        with open("bad.json", "wb") as bad:
            bad.write(content.encode("latin-1"))
    return _ended(main, "good.json" if content is None else "bad.json")


def _ended(main, name):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["diff", "good.json", name])
    return status, out.getvalue(), err.getvalue()


def _diff_with(kind):
    """``portakernel diff`` of a good file and something else that stands in a file's place."""
    from portakernel.cli import main

    with open("good.json", "w", encoding="utf-8") as good:
        json.dump(SHEET, good)
    match kind:
        case "pipe":
            os.mkfifo("bad.json")
        case "folder":
            os.mkdir("bad.json")
        case "zeros":
            os.symlink("/dev/zero", "bad.json")
        case "loop":
            os.symlink("bad.json", "bad.json")
        case "large":
            with open("bad.json", "wb") as large:
                large.truncate(1 << 40)
        case "locked":
            with open("bad.json", "wb"):
                os.chmod("bad.json", 0)
            if os.access("bad.json", os.R_OK):  # root reads everything
                os.remove("bad.json")
    return _ended(main, "bad.json")


def _with(**keys):
    return json.dumps({**SHEET, **keys})


def test_good_files_are_compared(fault):
    status, out, err = fault(_diff).returned
    assert (status, out, err) == (0, "1 decisions compared: 0 chose another kernel, 1 are the same\n", "")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Invalid JSON: EOF while parsing a value"),
        ("\0" * 4096, "Invalid JSON: expected value"),
        ("\x80\xff\xfe", "Invalid JSON: "),
        ("[" * 5_000_000, "Invalid JSON: recursion limit exceeded"),
        ('{"a":' * 1_000_000, "Invalid JSON: recursion limit exceeded"),
        (_with(targets=[[]])[:-1] + ',"x":' + "[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        ("9" * 10_000_000, "Invalid JSON: number out of range"),
        ("null", "Input should be an object"),
        ("[1, 2]", "Input should be an object"),
        ('"' + "\\ud800" + '"', "Invalid JSON: "),
        ('{"schema_version": 1}', "portakernel: Field required; decisions: Field required"),
        (_with(schema_version="1"), "schema_version: Input should be a valid integer"),
        (_with(decisions={}), "decisions: Input should be a valid "),
        (_with(decisions=[3] * 1000), "decisions.0: Input should be an object"),
        (_with(decisions=[{**DECISION, "chosen": 3}]), "decisions.0.chosen: Input should be a valid string"),
        (
            _with(decisions=[{**DECISION, "candidates": [{"kernel": "a.b", "status": "odd", "rejections": []}]}]),
            "decisions.0.candidates.0.status: Input should be 'chosen', 'eligible' or 'rejected'",
        ),
    ],
    ids=range(16),
)
def test_garbage_is_refused_with_what_is_wrong(fault, content, says):
    status, out, err = fault(_diff, content, seconds=30).returned
    assert (status, out) == (2, "")
    assert err.startswith(f"portakernel: bad.json holds no decisions: {says}")
    assert err.endswith(f"{WRITES_ONE}\n")
    assert len(err) < 1000


def test_a_file_of_another_version_is_refused(fault):
    status, out, err = fault(_diff, _with(schema_version=2, portakernel="9.0")).returned
    text = "bad.json has schema_version 2, written by portakernel 9.0; this one reads 1"
    assert (status, out, err) == (2, "", f"portakernel: {text}\n")


def test_one_question_twice_is_refused_however_many_there_are(fault):
    many = [{**DECISION, "op": f"op{i}"} for i in range(30_000)]
    status, out, err = fault(_diff, _with(decisions=[*many, many[0]]), seconds=30).returned
    text = "bad.json has two decisions of op0 on nvidia:sm_90 for inference; one for each is accepted"
    assert (status, out, err) == (2, "", f"portakernel: {text}\n")


def test_names_that_a_terminal_obeys_are_shown(fault):
    named = {**DECISION, "chosen": "\x1b]0;owned\x07\x1b[2Jevil", "why": "\x9b31m"}
    status, out, err = fault(_diff, _with(decisions=[named])).returned
    assert (status, err) == (1, "")
    assert not set(out) & {"\x1b", "\x07", "\x9b"}
    assert "none -> \\x1b]0;owned\\x07\\x1b[2Jevil" in out


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("pipe", "it is a named pipe; a regular file is accepted"),
        ("folder", "it is a folder; a regular file is accepted"),
        ("zeros", "it is a character device; a regular file is accepted"),
        ("loop", "it says 'Too many levels of symbolic links'"),
        ("large", f"it has {1 << 40} bytes; at most {64 << 20} are accepted"),
        ("locked", "it says '"),
        ("missing", "it says 'No such file or directory'"),
    ],
)
def test_what_stands_in_a_files_place_is_refused_without_waiting(fault, kind, says):
    status, out, err = fault(_diff_with, kind, seconds=20).returned
    assert (status, out) == (2, "")
    assert err.startswith(f"portakernel: bad.json cannot be read: {says}")
    assert err.endswith(f"{WRITES_ONE}\n")
