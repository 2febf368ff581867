"""Records and where they are kept: many writers at once, killed at any moment; lines that are torn, foreign or hostile."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import pytest

from portakernel.tuning.record import MOST_BYTES, Damaged, Entry, Foreign, Key, Record, Verdict
from portakernel.tuning.store import Writer, compact, files_of, folder_of, read

KEY = Key("rms_norm", "inference", "nvidia:sm_90", 132, "graph/cold", {"x": "bfloat16"}, dims={"M": 64, "N": 4096})


def entry(**more: Any) -> Entry:
    return Entry(**{"source": "c718", "verdict": Verdict.RIGHT, "us": (4.9, 5.0, 5.1), "rounds": 25, "error": 0.3, **more})


def record(rows: int = 64, at: str = "2026-11-27T00:00:00Z", **more: Any) -> Record:
    key = Key(**{**{name: getattr(KEY, name) for name in Key.__slots__}, "dims": {"M": rows, "N": 4096}})
    kernels = {"triton.rms_norm": entry(), "acme.rms_norm": entry(verdict=Verdict.WRONG, us=None, detail="y[3, 17]")}
    return Record(key, "9f1c", kernels, at, device="uuid", driver="580", torch="2.11.0", **more)


def test_a_line_is_the_record_that_made_it():
    line = record(busy=True).line()
    assert line.endswith("\n")
    assert "\n" not in line[:-1]
    assert Record.parse(line) == record(busy=True)
    assert record().key.text == record(at="2027-01-01T00:00:00Z").key.text != record(65).key.text


def test_the_order_of_what_a_key_holds_makes_no_other_key():
    other = Key(*(getattr(KEY, name) for name in Key.__slots__[:-1]), dims={"N": 4096, "M": 64})
    assert other.text == KEY.text


@pytest.mark.parametrize("place", range(0, 400, 7))
def test_any_change_of_a_line_is_noticed(place):
    line = record().line()
    with pytest.raises((Damaged, Foreign)):
        Record.parse(line[:place] + ("x" if line[place] != "x" else "y") + line[place + 1 :])
    with pytest.raises(Damaged):
        Record.parse(line[:place])


def test_a_record_that_is_too_long_is_not_written(tmp_path):
    kernels = {f"acme.k{n}": entry(detail="long " * 300) for n in range(60)}
    with Writer(tmp_path, "rms_norm") as writer, pytest.raises(ValueError, match=f"at most {MOST_BYTES} are kept"):
        writer.write(Record(KEY, "9f1c", kernels, "now"))
    assert read(tmp_path, "rms_norm").records == {}


def test_of_a_key_the_newest_record_is_used_whatever_the_order_of_files(tmp_path):
    for at in ("2026-01-02", "2026-01-03", "2026-01-01"):
        with Writer(tmp_path, "rms_norm") as writer:
            writer.write(record(at=at))
    assert [found.at for found in read(tmp_path, "rms_norm").records.values()] == ["2026-01-03"]


def rewritten(line: str, change: dict[str, Any]) -> str:
    """A whole line of another form."""
    from portakernel.tuning import record as module

    body = {**json.loads(line), **change}
    body.pop("sum")
    text = module.canonical({name: value for name, value in body.items() if value is not ...})
    return f'{text[:-1]},"sum":"{module._sum(text)}"}}\n'


HOSTILE = {
    "torn": (lambda line: line[:-30], "cut short, or altered"),
    "empty object": (lambda line: "{}\n", "cut short, or altered"),
    "no JSON": (lambda line: "hello\n", "cut short, or altered"),
    "zeros": (lambda line: "\0" * 100 + "\n", "cut short, or altered"),
    "other bytes": (lambda line: b"\xff\xfe{}\n", "cut short, or altered"),
    "too long": (lambda line: "x" * MOST_BYTES + "\n", "longer than a record may be"),
    "another version": (lambda line: rewritten(line, {"v": 2}), "of another form"),
    "a key more": (lambda line: rewritten(line, {"more": 1}), "of another form"),
    "a key less": (lambda line: rewritten(line, {"contract": ...}), "of another form"),
    "another verdict": (lambda line: rewritten(line, {"kernels": {"a.b": {"source": "c", "verdict": "fine"}}}), "of another form"),
    "times as words": (
        lambda line: rewritten(line, {"kernels": {"a.b": {"source": "c", "verdict": "right", "us": ["1", "2", "3"]}}}),
        "of another form",
    ),
    "nested": (lambda line: rewritten(line, {"features": {"a": "[" * 20000}}), ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_record_is_passed_over_and_counted_and_hides_nothing(tmp_path, name):
    make, reason = HOSTILE[name]
    bad = make(record().line())
    content = record(1).line().encode() + (bad if isinstance(bad, bytes) else bad.encode())
    content += b"" if content.endswith(b"\n") else b"\n"
    (tmp_path / "rms_norm.host-1-0.jsonl").write_bytes(content + record(2).line().encode())
    found = read(tmp_path, "rms_norm")
    rows = {one.key.dims["M"] for one in found.records.values()}
    assert rows >= {1, 2}
    assert dict(found.passed_over) == ({reason: 1} if reason else {})


def test_what_stands_in_a_file_s_place_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "rms_norm.a-1-0.jsonl")
    (tmp_path / "rms_norm.b-1-0.jsonl").mkdir()
    (tmp_path / "rms_norm.c-1-0.jsonl").symlink_to("/dev/zero")
    with Writer(tmp_path, "rms_norm") as writer:
        writer.write(record())
    found = read(tmp_path, "rms_norm")
    assert len(found.records) == 1
    assert sum(found.passed_over.values()) == 3
    assert read(tmp_path / "nowhere", "rms_norm").records == {}


def test_another_op_s_records_are_not_this_one_s(tmp_path):
    with Writer(tmp_path, "rms_norm_quantize") as writer:
        writer.write(record())
    assert read(tmp_path, "rms_norm").records == {}
    assert folder_of(tmp_path, "nvidia:sm_90", 132).name == "nvidia_sm_90-132"


def write_many(folder: Path, first: int, count: int, done: Any) -> None:
    with Writer(folder, "rms_norm") as writer:
        for rows in range(first, first + count):
            writer.write(record(rows))
            done.send(rows)


def test_sixteen_writers_that_are_killed_at_random_lose_nothing_that_they_wrote(tmp_path):
    context, source = multiprocessing.get_context("fork"), random.Random(1)
    writers, ends = [], []
    for n in range(16):
        end, done = context.Pipe(duplex=False)
        writer = context.Process(target=write_many, args=(tmp_path, 1000 * n, 200, done))
        writer.start()
        done.close()
        writers.append(writer)
        ends.append(end)
    told: set[int] = set()
    for n, (writer, end) in enumerate(zip(writers, ends, strict=True)):
        least = source.randrange(150) if n % 2 else 200
        try:
            while True:
                told.add(end.recv())
                if len(told & set(range(1000 * n, 1000 * n + 200))) >= least and n % 2:
                    writer.kill()
        except (EOFError, ConnectionResetError):
            writer.join()
    found = {one.key.dims["M"] for one in read(tmp_path, "rms_norm").records.values()}
    assert told <= found
    assert {1000 * n + k for n in range(0, 16, 2) for k in range(200)} <= found
    files, kept = compact(tmp_path, "rms_norm")
    assert (files, kept) == (16, len(found))
    assert {one.key.dims["M"] for one in read(tmp_path, "rms_norm").records.values()} == found
    assert len(files_of(tmp_path, "rms_norm")) == 1


def test_compacting_leaves_a_writer_s_own_file_alone(tmp_path):
    with Writer(tmp_path, "rms_norm") as gone:
        gone.write(record(1))
    with Writer(tmp_path, "rms_norm") as there:
        there.write(record(2))
        assert compact(tmp_path, "rms_norm") == (1, 1)
        there.write(record(3))
        assert there.path in files_of(tmp_path, "rms_norm")
    assert len(read(tmp_path, "rms_norm").records) == 3
    assert compact(tmp_path, "none") == (0, 0)
