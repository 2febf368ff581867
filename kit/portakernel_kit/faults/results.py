"""What came of faults, for each op and each kind, and the file that it is kept in."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from portakernel.errors import ArgumentValueError
from portakernel_kit.faults.fault import VERDICTS, Fault, Judged, Verdict
from portakernel_kit.faults.known import Known
from portakernel_kit.faults.serving import Baseline
from portakernel_kit.faults.sources import NATIVE, Sources

# Those that a later run need not try again.
_KEPT: frozenset[str] = frozenset(get_args(Verdict)) - {"equal"}


@dataclass(frozen=True, slots=True)
class Row:
    """How many faults of an op, or of a kind, came to what; ``by`` counts who killed them."""

    name: str
    verdicts: Counter[Verdict]
    by: Counter[str]

    @property
    def rate(self) -> float | None:
        """The part that was killed of those that were tried; None where none was."""
        tried = self.verdicts["killed"] + self.verdicts["alive"]
        return self.verdicts["killed"] / tried if tried else None

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        counts: dict[str, Any] = {verdict: self.verdicts[verdict] for verdict in VERDICTS}
        return {"name": self.name, "faults": self.verdicts.total(), **counts, "by": dict(self.by), "rate": self.rate}


@dataclass
class Results:
    """What is known by now of one run."""

    plugin: str
    seed: int
    sources: str
    ops: Mapping[str, str]
    excluded: Counter[str] = field(default_factory=Counter[str])
    unread: tuple[str, ...] = ()
    stale: tuple[Known, ...] = ()
    listed: int = 0
    judged: list[Judged] = field(default_factory=list[Judged])
    baselines: list[Baseline] = field(default_factory=list[Baseline])

    @property
    def total(self) -> Row:
        """All of them, each counted once."""
        return _row("all", self.judged)

    def by_op(self) -> list[Row]:
        """A row for each op; a fault in a file that kernels of several ops reach is in each."""
        return _rows(self.judged, lambda fault: {self.ops[name] for name in fault.kernels})

    def by_kind(self) -> list[Row]:
        """A row for each kind."""
        return _rows(self.judged, lambda fault: {fault.kind})

    @property
    def fails(self) -> list[Baseline]:
        """The kernels that are wrong without any fault."""
        return [baseline for baseline in self.baselines if baseline.fails]

    def holds(self) -> bool:
        """Whether faults were found out, and none is alive."""
        verdicts = self.total.verdicts
        found = verdicts["killed"] + verdicts["proven"] + verdicts["equal"]
        return bool(found) and not (verdicts["alive"] or verdicts["unproven"] or self.fails)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        baseline = ("kernel", "place", "mode", "requests", "absent", "fails")
        return {
            "plugin": self.plugin,
            "seed": self.seed,
            "sources": self.sources,
            "listed": self.listed,
            "kernels": [{key: getattr(one, key) for key in baseline} for one in self.baselines],
            "summary": self.total.to_json(),
            "ops": [row.to_json() for row in self.by_op()],
            "kinds": [row.to_json() for row in self.by_kind()],
            "excluded": [{"rule": rule, "faults": count} for rule, count in self.excluded.items()],
            "unread": list(self.unread),
            "stale": [entry.to_json() for entry in self.stale],
            "faults": [judged.to_json() for judged in self.judged],
        }


def _rows(judged: Sequence[Judged], names: Callable[[Fault], set[str]]) -> list[Row]:
    found: dict[str, list[Judged]] = {}
    for one in judged:
        for name in names(one.fault):
            found.setdefault(name, []).append(one)
    return [_row(name, found[name]) for name in sorted(found)]


def _row(name: str, judged: Iterable[Judged]) -> Row:
    every = list(judged)
    by = Counter(one.by for one in every if one.verdict in ("killed", "proven"))
    return Row(name, Counter(one.verdict for one in every), by)


def digest(sources: Sources) -> str:
    """What tells one state of a plugin's sources from another."""
    found = hashlib.sha256()
    for file in sorted(sources.folder.rglob("*")):
        if file.suffix in (".py", ".yaml", *NATIVE) and file.is_file():
            found.update(f"{sources.name(file)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def resumed(path: Path, results: Results, faults: Iterable[Fault]) -> list[Judged]:
    """What an earlier run has written of these faults; nothing where the sources were others.

    Raises:
        ArgumentValueError: the file holds something else.
    """
    if not path.is_file() or not path.stat().st_size:
        return []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        plugin, sources, entries = document["plugin"], document["sources"], document["faults"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        text = f"{path} holds no results of `portakernel faults`"
        raise ArgumentValueError(f"{text}; name another file with --output, or remove it") from error
    if plugin != results.plugin:
        raise ArgumentValueError(f"{path} holds faults of {plugin}, not of {results.plugin}; name another file")
    if sources != results.sources:
        return []
    known = {fault.id: fault for fault in faults}
    return [
        _judged(known[entry["id"]], entry) for entry in entries if entry["id"] in known and entry["verdict"] in _KEPT
    ]


def _judged(fault: Fault, entry: Mapping[str, Any]) -> Judged:
    keys = ("by", "kernel", "case", "detail", "asked", "seconds", "again")
    return Judged(fault, cast("Verdict", entry["verdict"]), **{key: entry[key] for key in keys})
