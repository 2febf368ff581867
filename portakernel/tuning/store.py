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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from portakernel.host.regular_file import read_regular
from portakernel.tuning.record import MOST_BYTES, Damaged, Foreign, Record

# The largest file that is read.
MOST_FILE_BYTES = 256 << 20


def folder_of(root: Path, target: str, units: int) -> Path:
    """Where records of one kind of device are."""
    return root / f"{_word(target)}-{units}"


@dataclass(slots=True)
class Found:
    """What a folder holds of an op: of each key the newest record, and the lines that were passed over, by reason."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    passed_over: Counter[str] = field(default_factory=Counter[str])


def read(folder: Path, op: str) -> Found:
    """The records of ``op``: whatever lies there, nothing raises. Of equal times the later writer's name wins."""
    found, place = Found(), {}
    for path in files_of(folder, op):
        for record in _records(path, found.passed_over):
            order = (record.at, path.name)
            if record.key.op == op and order >= place.get(record.key.text, ("", "")):
                found.records[record.key.text], place[record.key.text] = record, order
    return found


def files_of(folder: Path, op: str) -> list[Path]:
    """The files that hold records of ``op``, in an order that is the same everywhere."""
    return sorted(folder.glob(f"{_word(op)}.*.jsonl")) if folder.is_dir() else []


def _records(path: Path, passed_over: Counter[str]) -> Iterator[Record]:
    try:
        content = read_regular(path, limit=MOST_FILE_BYTES, follow=False)
    except OSError as error:
        passed_over[f"file: {error.strerror}"] += 1
        return
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


class Writer:
    """Appends records of one op; what it wrote is there whenever its process ends."""

    def __init__(self, folder: Path, op: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem, number = f"{_word(op)}.{_word(socket.gethostname())}-{os.getpid()}", 0
        while True:
            path = folder / f"{stem}-{number}.jsonl"
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
        """
        line = record.line().encode()
        if os.write(self._file, line) != len(line):
            os.write(self._file, b"\n")
            raise OSError(f"{self.path} took a part of a record: the file system is full?")

    def close(self) -> None:
        """Gives the file up: ``compact`` may take it."""
        os.close(self._file)
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def compact(folder: Path, op: str) -> tuple[int, int]:
    """Puts the newest records of writers that are gone into one file; how many files there were, and records are.

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
            taken.append(path)
        newest = _newest(taken)
        if not taken:
            return 0, 0
        with Writer(folder, op) as writer:
            for record in newest.values():
                writer.write(record)
            os.fsync(writer._file)  # noqa: SLF001 - its own module's
        for path in taken:
            path.unlink(missing_ok=True)
        return len(taken), len(newest)
    finally:
        for lock in held:
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)


def _newest(paths: list[Path]) -> Mapping[str, Record]:
    found: dict[str, tuple[tuple[str, str], Record]] = {}
    for path in paths:
        for record in _records(path, Counter()):
            order = (record.at, path.name)
            if order >= found.get(record.key.text, (("", ""), record))[0]:
                found[record.key.text] = order, record
    return {key: record for key, (_, record) in found.items()}


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", text)
