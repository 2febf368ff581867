"""One fault in the source of kernels, and what came of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

# killed    a request fails
# alive     none of those that were put to it fails: equal to the original, or a hole in the kit
# equal     a list of known ones says that no request can fail, and why
# not_run   no request comes to its line here: a path for other hardware; proves nothing
# proven    the request that is to show a fault passes without it and fails with it
# unproven  it does not
Verdict = Literal["killed", "alive", "equal", "not_run", "proven", "unproven"]
VERDICTS: tuple[Verdict, ...] = ("killed", "alive", "equal", "not_run", "proven", "unproven")
# What tells a fault from others, as a list of known ones names it.
IDENTITY = ("file", "text", "kind", "before", "after", "occurrence")
# Beside the aspects of the kit (``portakernel_kit.conformance.result``) these end a fault.
LOAD, DIED, HUNG = "load", "died", "hung"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file the text ``before`` is replaced by ``after``: from byte ``start`` up to byte ``end``.

    ``first`` and ``last`` are the lines of its statement: if none of them runs, neither does the fault.
    """

    line: int
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class Fault:
    """One piece of a file's text replaced by another; ``file`` is relative to the plugin's package.

    Its identity holds no line numbers, so that it survives edits elsewhere: ``text`` is the line as it was, and
    ``occurrence`` tells equal faults of equal lines apart. ``untold``: whether its line runs cannot be seen.
    """

    file: str
    text: str
    kind: str
    before: str
    after: str
    occurrence: int
    place: Place
    kernels: tuple[str, ...] = ()
    untold: bool = False
    why: str = ""
    shows: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str, str, int]:
        """What tells it from others, as a list of known faults writes it."""
        return self.file, self.text, self.kind, self.before, self.after, self.occurrence

    @cached_property
    def id(self) -> str:
        """The identity in ten letters."""
        return hashlib.sha256("\0".join(map(str, self.identity)).encode()).hexdigest()[:10]

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.file}:{self.place.line}"

    def applied(self, source: bytes) -> bytes:
        """The file with the fault in it; every other byte stays."""
        return source[: self.place.start] + self.after.encode() + source[self.place.end :]

    def to_json(self) -> dict[str, Any]:
        """The fault as JSON-ready data; stable."""
        told = dict(zip(IDENTITY, self.identity, strict=True))
        return {"id": self.id, **told, "line": self.place.line, "kernels": list(self.kernels), "why": self.why}


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a fault: ``by`` an aspect of the kit, or load, died or hung, in a ``case`` of a ``kernel``.

    ``asked`` is how many requests were put to it, ``again`` the command that repeats one which was drawn.
    """

    fault: Fault
    verdict: Verdict
    by: str = ""
    kernel: str = ""
    case: str = ""
    detail: str = ""
    asked: int = 0
    seconds: float = 0.0
    again: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        keys = ("verdict", "by", "kernel", "case", "detail", "asked", "seconds", "again")
        return {**self.fault.to_json(), **{key: getattr(self, key) for key in keys}}


def numbered(faults: Iterable[Fault]) -> Iterator[Fault]:
    """The faults with their occurrences: equal replacements of equal lines of a file are counted."""
    seen: Counter[tuple[str | int, ...]] = Counter()
    for fault in faults:
        key = fault.identity[:-1]
        yield replace(fault, occurrence=seen[key])
        seen[key] += 1
