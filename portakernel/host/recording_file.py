"""The file that kinds of calls are counted in: several processes add to one, each when it ends.

It is YAML: ``calls`` lists them, each with its ``count``, ``traced`` the ops that graphs were made of.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from portakernel.errors import ArgumentValueError
from portakernel.host.output_file import write_at_once

_HEAD = "# Kinds of calls, and how often they were made: for --calls of `portakernel warmup`, `bench`, `tune`.\n"
_TRACED = """\
# Traced into graphs: calls that a graph keeps whole are counted above when they run. What torch.compile dissolves into
# its graph is not, and no plan speaks of it.
traced"""


def line(entry: Mapping[str, Any]) -> str:
    """A kind of call on a line, as YAML has it."""
    import yaml

    return yaml.safe_dump(dict(entry), default_flow_style=True, sort_keys=False, width=1 << 30).strip()


def counted(path: Path) -> tuple[Counter[str], set[str]]:
    """The kinds in a file, as lines, with their counts, and the ops that were traced; nothing where there is none.

    Raises:
        ArgumentValueError: it is no such file; says why, and what to do.
        OSError: it cannot be read.
    """
    import yaml

    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Counter(), set()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = str(error).partition("\n")[0]
        raise ArgumentValueError(f"{path} {_refused(f'is no YAML ({what})')}") from error
    found, listed = Counter[str](), _listed(data)
    if listed is None:
        raise ArgumentValueError(f"{path} {_refused('lists no calls')}")
    for entry in listed:
        count = entry.pop("count", 1)
        found[line(entry)] += count
    return found, set((data or {}).get("traced") or ())


def _refused(why: str) -> str:
    return f"{why}, and a recording adds to what is there: name another file, or move this one away"


def _listed(data: Any) -> list[dict[str, Any]] | None:
    """The entries of what a file holds; None where that is no recording."""
    if data is None:  # an empty file
        return []
    if not isinstance(data, dict) or not data.keys() <= {"calls", "traced"}:
        return None
    listed = data.get("calls") or []
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and "op" in entry for entry in listed):
        return None
    counts = [entry.get("count", 1) for entry in listed]
    return listed if all(type(count) is int for count in counts) else None


def put(path: Path, counts: Mapping[str, int], traced: Iterable[str]) -> None:
    """Puts a recording in the place of what is there.

    Raises:
        OSError: it cannot be written.
    """
    ordered = sorted(counts.items(), key=lambda kind: (-kind[1], kind[0]))
    lines = [f"  - {kind[:-1]}, count: {count}}}\n" for kind, count in ordered]
    ops = ", ".join(sorted(traced))
    text = (_HEAD + "calls:\n" + "".join(lines) if lines else _HEAD) + (f"{_TRACED}: [{ops}]\n" if ops else "")
    write_at_once(path, text)


def add(path: Path, counts: Mapping[str, int], traced: Collection[str]) -> None:
    """Adds to a recording, or begins it; others who do so meanwhile wait.

    Raises:
        ArgumentValueError: what is there is none; it stays.
        OSError: it cannot be read or written.
    """
    with _alone(Path(f"{path}.lock")):
        known, of_others = counted(path)
        known.update(counts)
        put(path, known, {*traced, *of_others})


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds the lock file at ``path``, which is there no longer than somebody holds it or waits for it."""
    try:
        import fcntl
    except ImportError:  # Windows, where a lock file goes with its lock
        from filelock import FileLock

        with FileLock(path):
            yield
        return
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
        os.close(descriptor)  # who held it before has taken the file away
    try:
        yield
    finally:
        os.unlink(path)
        os.close(descriptor)
