"""Records and where they are kept: many writers at once, killed at any moment; torn, foreign, hostile lines."""

from __future__ import annotations

import json
import os
import random
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portakernel.tuning.key import Key, Kind, Regime, canonical
from portakernel.tuning.record import MOST_BYTES, Damaged, Entry, Foreign, Record, Verdict
from portakernel.tuning.store import Writer, compact, files_of, folder_of, read, survey

KIND = Kind("rms_norm", "inference", {"x": "bfloat16"})
KEY = Key(KIND, "nvidia:sm_90", 132, Regime.GRAPH_COLD, {"M": 64, "N": 4096})


def entry(**more: Any) -> Entry:
    return Entry(
        **{"source": "c718", "verdict": Verdict.RIGHT, "us": (4.9, 5.0, 5.1), "rounds": 25, "error": 0.3, **more}
    )


def record(rows: int = 64, at: str = "2026-11-27T00:00:00Z", **more: Any) -> Record:
    key = replace(KEY, dims={"M": rows, "N": 4096})
    kernels = {"triton.rms_norm": entry(), "acme.rms_norm": entry(verdict=Verdict.WRONG, us=None, detail="y[3, 17]")}
    return Record(key, "9f1c", kernels, at, "triton.rms_norm", device="uuid", driver="580", torch="2.11.0", **more)


def test_a_line_is_the_record_that_made_it():
    line = record(busy=True).line()
    assert line.endswith("\n")
    assert "\n" not in line[:-1]
    assert Record.parse(line) == record(busy=True)
    assert record().key.text == record(at="2027-01-01T00:00:00Z").key.text != record(65).key.text


def test_the_order_of_what_a_key_holds_makes_no_other_key():
    other = replace(KEY, dims={"N": 4096, "M": 64})
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
    for day in (2, 3, 1):
        with Writer(tmp_path, "rms_norm") as writer:
            writer.write(record(at=f"2026-01-0{day}T00:00:00Z"))
    assert [found.at[:10] for found in read(tmp_path, "rms_norm").records.values()] == ["2026-01-03"]


OTHER = "of another form"


def resummed(line: str) -> str:
    """A line with the sum of what it holds now."""
    text = line.rpartition(',"sum":"')[0]
    return f'{text},"sum":"{zlib.crc32((text + "}").encode()):08x}"}}\n'


def rewritten(line: str, change: dict[str, Any]) -> str:
    """A whole line of another form."""
    body = {**json.loads(line), **change}
    body.pop("sum")
    text = canonical({name: value for name, value in body.items() if value is not ...})
    return resummed(f'{text[:-1]},"sum":"')


HOSTILE = {
    "torn": (lambda line: line[:-30], "cut short, or altered"),
    "empty object": (lambda line: "{}\n", "cut short, or altered"),
    "no JSON": (lambda line: "hello\n", "cut short, or altered"),
    "zeros": (lambda line: "\0" * 100 + "\n", "cut short, or altered"),
    "other bytes": (lambda line: b"\xff\xfe{}\n", "cut short, or altered"),
    "too long": (lambda line: "x" * MOST_BYTES + "\n", "longer than a record may be"),
    "another version": (lambda line: rewritten(line, {"v": 2}), OTHER),
    "a key more": (lambda line: rewritten(line, {"more": 1}), OTHER),
    "a key less": (lambda line: rewritten(line, {"contract": ...}), OTHER),
    "another verdict": (lambda line: rewritten(line, {"kernels": {"a.b": {"source": "c", "verdict": "fine"}}}), OTHER),
    "times as words": (
        lambda line: rewritten(line, {"kernels": {"a.b": {"source": "c", "verdict": "right", "us": ["1", "2", "3"]}}}),
        OTHER,
    ),
    "a long text": (lambda line: rewritten(line, {"features": {"a": "[" * 20000}}), ""),
    "nested": (
        lambda line: resummed(line.replace('"features":{}', '"features":' + '{"a":' * 5000 + "1" + "}" * 5000)),
        OTHER,
    ),
    "no number": (lambda line: resummed(line.replace('"features":{}', '"features":{"a":NaN}')), OTHER),
    "no JSON, summed": (lambda line: resummed(line.replace('"dims":', '"dims"')), OTHER),
    "a time below zero": (lambda line: resummed(line.replace("4.9,", "-4.9,")), OTHER),
    "a time without end": (lambda line: resummed(line.replace("4.9,", "1e999,")), OTHER),
    "a size below zero": (lambda line: resummed(line.replace('"N":4096', '"N":-1')), OTHER),
    "a size beyond 64 bits": (lambda line: resummed(line.replace('"N":4096', f'"N":{1 << 64}')), OTHER),
    "a size of digits without end": (lambda line: resummed(line.replace('"N":4096', f'"N":{"9" * 9000}')), OTHER),
    "a fraction for a size": (lambda line: resummed(line.replace('"N":4096', '"N":4096.5')), OTHER),
    "another regime": (lambda line: rewritten(line, {"regime": "graph/hot"}), OTHER),
    "a time that is none": (lambda line: rewritten(line, {"at": "tomorrow"}), OTHER),
    "a list": (lambda line: resummed("[" + line), OTHER),
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
    assert dict(found.passed_over) == ({tmp_path / "rms_norm.host-1-0.jsonl": {reason: 1}} if reason else {})


def test_what_stands_in_a_file_s_place_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "rms_norm.a-1-0.jsonl")
    (tmp_path / "rms_norm.b-1-0.jsonl").mkdir()
    (tmp_path / "rms_norm.c-1-0.jsonl").symlink_to("/dev/zero")
    with Writer(tmp_path, "rms_norm") as writer:
        writer.write(record())
    found = read(tmp_path, "rms_norm")
    assert len(found.records) == 1
    assert not found.passed_over
    assert [path.name for path in found.unread] == [f"rms_norm.{name}-1-0.jsonl" for name in "abc"]
    assert read(tmp_path / "nowhere", "rms_norm").records == {}


def test_another_op_s_records_are_not_this_one_s(tmp_path):
    with Writer(tmp_path, "rms_norm_quantize") as writer:
        writer.write(record())
    assert read(tmp_path, "rms_norm").records == {}
    assert folder_of(tmp_path, "nvidia:sm_90", 132).name == "nvidia.sm_90-132"


def test_a_survey_counts_what_all_folders_hold_and_what_was_passed_over(tmp_path):
    for units, lines in (
        (132, [record(1).line(), "{}\n"]),
        (78, [record(1).line(), rewritten(record().line(), {"v": 2})]),
    ):
        folder = folder_of(tmp_path, "nvidia:sm_90", units)
        folder.mkdir()
        (folder / "rms_norm.host-1-0.jsonl").write_text("".join(lines))
    found = survey(tmp_path)
    assert (found.records, found.ops) == (2, 1)
    assert dict(found.places) == {("nvidia:sm_90", 132): 2}
    files = {units: folder_of(tmp_path, "nvidia:sm_90", units) / "rms_norm.host-1-0.jsonl" for units in (132, 78)}
    assert dict(found.passed_over) == {files[132]: {"cut short, or altered": 1}, files[78]: {OTHER: 1}}
    assert survey(tmp_path / "nowhere").records == 0


def test_a_reader_misses_nothing_of_a_file_that_is_put_into_another_meanwhile(tmp_path, monkeypatch):
    from portakernel.tuning import store

    with Writer(tmp_path, "rms_norm") as writer:
        writer.write(record(1))
    listings = []

    def listed(folder: Path, pattern: str) -> list[Path]:
        found = sorted(folder.glob(pattern))
        if not listings:
            listings.append(found)
            assert compact(folder, "rms_norm") == (1, 1, 0)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(store, "_files", listed)
        patched.setattr(store, "files_of", lambda folder, op: sorted(folder.glob(f"{op}.*.jsonl")))
        assert len(read(tmp_path, "rms_norm").records) == 1


# Not forked from here: what other tests imported may have threads, as JAX has.
WRITER = """
import runpy, sys
from pathlib import Path
tests, first = runpy.run_path(sys.argv[1]), int(sys.argv[3])
with tests["Writer"](Path(sys.argv[2]), "rms_norm") as writer:
    for rows in range(first, first + 200):
        writer.write(tests["record"](rows))
        print(rows, flush=True)
"""


def test_sixteen_writers_that_are_killed_at_random_lose_nothing_that_they_wrote(tmp_path, forked_interpreter):
    source, command = random.Random(1), [str(forked_interpreter()), "-c", WRITER, __file__, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(1000 * n)], stdout=subprocess.PIPE, text=True) for n in range(16)]
    told: set[int] = set()
    for n, writer in enumerate(writers):
        assert writer.stdout is not None
        least = source.randrange(1, 150)
        with writer.stdout as lines:
            for count, line in enumerate(lines, start=1):
                told.add(int(line))
                if n % 2 and count == least:
                    writer.kill()
        writer.wait()
    found = {one.key.dims["M"] for one in read(tmp_path, "rms_norm").records.values()}
    assert told <= found
    assert {1000 * n + k for n in range(0, 16, 2) for k in range(200)} <= found
    files, kept, _ = compact(tmp_path, "rms_norm")
    assert (files, kept) == (16, len(found))
    assert {one.key.dims["M"] for one in read(tmp_path, "rms_norm").records.values()} == found
    assert len(files_of(tmp_path, "rms_norm")) == 1


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("days", [(1, 2), (2, 1)])
def test_a_record_of_a_busy_device_displaces_nothing(tmp_path, days, compacted):
    good, busy = (f"2026-01-0{day}T00:00:00Z" for day in days)
    for one in (record(at=good), record(at=busy, busy=True), record(65, at=busy, busy=True)):
        with Writer(tmp_path, "rms_norm") as writer:
            writer.write(one)
    if compacted:
        assert compact(tmp_path, "rms_norm") == (3, 3 if busy > good else 2, 0)
    found = read(tmp_path, "rms_norm")
    assert {(one.key.dims["M"], one.busy) for one in found.records.values()} == {(64, False), (65, True)}
    assert {one.key.dims["M"] for one in found.busy.values()} == ({64, 65} if busy > good else {65})


def test_compacting_counts_the_lines_that_it_drops_and_leaves_what_it_cannot_read(tmp_path):
    with Writer(tmp_path, "rms_norm") as writer:
        writer.write(record(1))
    with writer.path.open("ab") as file:
        file.write(b"torn\n{}\n")
    (elsewhere := tmp_path / "elsewhere").write_text("", encoding="utf-8")
    (linked := tmp_path / "rms_norm.linked-1-0.jsonl").symlink_to(elsewhere)
    assert compact(tmp_path, "rms_norm") == (1, 1, 2)
    assert linked.is_symlink()
    assert compact(tmp_path, "rms_norm") == (1, 1, 0)


def test_compacting_leaves_a_writer_s_own_file_alone(tmp_path):
    with Writer(tmp_path, "rms_norm") as gone:
        gone.write(record(1))
    with Writer(tmp_path, "rms_norm") as there:
        there.write(record(2))
        assert compact(tmp_path, "rms_norm") == (1, 1, 0)
        there.write(record(3))
        assert there.path in files_of(tmp_path, "rms_norm")
    assert len(read(tmp_path, "rms_norm").records) == 3
    assert compact(tmp_path, "none") == (0, 0, 0)
