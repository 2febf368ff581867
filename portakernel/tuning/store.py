"""Where records are kept: for each kind of device a folder, in it a file for each op and writer.

A file belongs to the process that made it, which appends whole lines with one ``write`` each: many processes write at
once, and one that dies leaves one torn line at most, the last of its own file. Nothing is rewritten but by ``compact``,
which takes the files of writers that are gone, whose locks are free.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from filelock import FileLock, Timeout

from portakernel.host.regular_file import read_regular
from portakernel.tuning.record import MOST_BYTES, Damaged, Foreign, Record

# The largest file that is read.
MOST_FILE_BYTES = 256 << 20
# How often files are listed again because `compact` put one into another's place meanwhile.
_MOST_LISTINGS = 10
_SUFFIX = ".jsonl"


def folder_of(root: Path, target: str, units: int) -> Path:
    """Where records of one kind of device are: ``nvidia.sm_90-132``."""
    vendor, _, arch = target.partition(":")
    return root / f"{_word(vendor)}.{_word(arch)}-{units}"


@dataclass(slots=True)
class Found:
    """What is kept of an op: of each key the newest record, and what was passed over.

    That are lines, by file and reason, and whole files that cannot be read, with why. A record of a busy device decides
    nothing, and displaces none that may: it stands in ``busy`` while it is the newest.
    """

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    busy: dict[str, Record] = field(default_factory=dict[str, Record])
    passed_over: dict[Path, Counter[str]] = field(default_factory=dict[Path, "Counter[str]"])
    unread: dict[Path, str] = field(default_factory=dict[Path, str])


@dataclass(frozen=True, slots=True)
class Survey:
    """What all folders of a store hold: records, of how many ops and devices, and what was passed over, as ``Found``.

    ``places`` has the number of records by target and units.
    """

    records: int
    ops: int
    places: Mapping[tuple[str, int], int]
    passed_over: Mapping[Path, Counter[str]]
    unread: Mapping[Path, str]


def read(folder: Path, op: str) -> Found:
    """The records of ``op``: whatever lies there, nothing raises. Of equal times the later writer's name wins."""
    found = _read(folder, f"{_word(op)}.*{_SUFFIX}")
    for records in (found.records, found.busy):
        for key in [key for key, record in records.items() if record.key.kind.op != op]:
            del records[key]
    return found


def survey(root: Path) -> Survey:
    """What a store holds, over all kinds of devices; whatever lies there, nothing raises."""
    every, ops, places = Found(), set[str](), Counter[tuple[str, int]]()
    for folder in folders(root):
        found = _read(folder, f"*{_SUFFIX}")
        ops.update(record.key.kind.op for record in found.records.values())
        places.update((record.key.target, record.key.units) for record in found.records.values())
        every.passed_over |= found.passed_over
        every.unread |= found.unread
    return Survey(places.total(), len(ops), places, every.passed_over, every.unread)


def folders(root: Path) -> list[Path]:
    """The folders of all kinds of devices, in an order that is the same everywhere."""
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []


def ops_in(folder: Path) -> list[str]:
    """The ops of which a folder has files, in order, as files' names have them."""
    return sorted({path.name.partition(".")[0] for path in _files(folder, f"*{_SUFFIX}")})


def files_of(folder: Path, op: str) -> list[Path]:
    """The files that hold records of ``op``, in an order that is the same everywhere."""
    return _files(folder, f"{_word(op)}.*{_SUFFIX}")


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else []


def _read(folder: Path, pattern: str) -> Found:
    """The newest record of each key in files of these names, those included that replace others meanwhile."""
    for _ in range(_MOST_LISTINGS):
        try:
            return _newest(_files(folder, pattern))
        except FileNotFoundError:
            continue
    return Found(unread={folder: "its files were replaced again and again"})


def _newest(paths: Sequence[Path]) -> Found:
    """Raises FileNotFoundError where a file is gone."""
    found, newest = Found(), dict[tuple[bool, str], tuple[tuple[str, str], Record]]()
    for path in paths:
        for record in _records(path, found):
            place, order = (record.busy, record.key.text), (record.at, path.name)
            if place not in newest or order >= newest[place][0]:
                newest[place] = order, record
    for (busy, key), (order, record) in newest.items():
        alone = (not busy, key) not in newest
        if not busy or alone:
            found.records[key] = record
        if busy and (alone or order >= newest[False, key][0]):
            found.busy[key] = record
    return found


def _records(path: Path, found: Found) -> Iterator[Record]:
    try:
        content = read_regular(path, limit=MOST_FILE_BYTES, follow=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        found.unread[path] = error.strerror or str(error)
        return
    passed_over = Counter[str]()
    for line in content.split(b"\n"):
        if not line:
            continue
        if len(line) >= MOST_BYTES:
            passed_over["longer than a record may be"] += 1
            continue
        try:
            yield Record.parse(line.decode())
        except (Damaged, UnicodeDecodeError):
            passed_over["cut short, or altered"] += 1
        except Foreign:
            passed_over["of another form"] += 1
    if passed_over:
        found.passed_over[path] = passed_over


class Writer:
    """Appends records of one op; what it wrote is there whenever its process ends."""

    def __init__(self, folder: Path, op: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem, number = f"{_word(op)}.{_word(socket.gethostname())}-{os.getpid()}", 0
        while True:
            path = folder / f"{stem}-{number}{_SUFFIX}"
            self._lock = FileLock(f"{path}.lock")
            try:
                self._lock.acquire(timeout=0)
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
            except (FileExistsError, Timeout):
                self._lock.release(force=True)
                number += 1
            else:
                break
        self.path = path

    def write(self, record: Record) -> None:
        """Adds a record.

        Raises:
            OSError: it cannot be written, whole; what is there of it is passed over.
            ValueError: it is longer than a record may be.
        """
        line = record.line().encode()
        if os.write(self._file, line) != len(line):
            os.write(self._file, b"\n")
            raise OSError(f"{self.path} took a part of a record: the file system is full?")

    def sync(self) -> None:
        """Waits until what was written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Gives the file up: ``compact`` may take it."""
        os.close(self._file)
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Compacted(NamedTuple):
    """How many files were put into one, how many records that has, and how many lines were none and are dropped."""

    files: int
    records: int
    dropped: int


def compact(folder: Path, op: str) -> Compacted:
    """Puts what ``read`` gives of writers that are gone into one file; those that cannot be read stay.

    Whenever it is interrupted, each record is in one file at least.
    """
    held: list[FileLock] = []
    taken: list[Path] = []
    try:
        for path in files_of(folder, op):
            lock = FileLock(f"{path}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            held.append(lock)
            if path.is_file():  # another `compact` may have been here between the listing and the lock
                taken.append(path)
        newest = _newest(taken)
        taken = [path for path in taken if path not in newest.unread]
        if not taken:
            return Compacted(0, 0, 0)
        kept = [*newest.records.values(), *(r for key, r in newest.busy.items() if newest.records[key] is not r)]
        with Writer(folder, op) as writer:
            for record in kept:
                writer.write(record)
            writer.sync()
        for path in taken:
            path.unlink(missing_ok=True)
        return Compacted(len(taken), len(kept), sum(lines.total() for lines in newest.passed_over.values()))
    finally:
        for lock in held:
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", text)
