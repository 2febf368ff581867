"""Units built ahead of calls, side by side: what ``portakernel build`` does."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from portakernel.claims.capability import CannotRun, Rejection
from portakernel.native.code_object import CodeObject
from portakernel.native.diagnosis import CompilerOutputError
from portakernel.native.process import GIVEN_UP
from portakernel.native.unit import Unit, label
from portakernel.offline.workers import cores
from portakernel.words.target import Target

# What nvcc takes for a CUTLASS kernel for sm_90a, of which as many are built side by side as memory has room for.
_BUILD_BYTES = 3 << 30


@dataclass(frozen=True, slots=True)
class Built:
    """What came of one unit for one target; ``told`` is what the compiler wrote where it failed."""

    unit: Unit
    target: Target
    outcome: CodeObject | Rejection
    seconds: float
    told: str = ""

    @property
    def label(self) -> str:
        """The unit in words: its source, and what is defined in it."""
        return label(self.unit.source, self.unit.for_target(self.target))

    @property
    def verdict(self) -> str:
        """``built``, ``kept`` where the cache had it, ``fails``."""
        if isinstance(self.outcome, Rejection):
            return "fails"
        return "built" if self.outcome.seconds else "kept"

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON-ready data; stable."""
        failed = self.outcome if isinstance(self.outcome, Rejection) else None
        made = self.outcome if isinstance(self.outcome, CodeObject) else None
        return {
            "source": self.label,
            "names": list(self.unit.names),
            "target": str(self.target),
            "verdict": self.verdict,
            "code": str(failed.code) if failed else "",
            "reason": failed.text if failed else "",
            "key": made.key if made else "",
            "compiler": made.compiler if made else "",
            "bytes": len(made.code) if made else 0,
            "seconds": round(self.seconds, 3),
        }


def build_all(units: Iterable[tuple[Unit, Target]], workers: int | None = None) -> Generator[Built, None, None]:
    """What comes of each unit and target, as it comes; by default as many at a time as cores and memory allow.

    When the iteration is given up, or an exception passes, the compilers that run are ended.
    """
    todo = list(dict.fromkeys(units))
    given_up = threading.Event()
    pool = ThreadPoolExecutor(max_workers=workers or _side_by_side())
    try:
        token = GIVEN_UP.set(given_up)
        try:
            waiting = [pool.submit(contextvars.copy_context().run, _build, unit, target) for unit, target in todo]
        finally:
            GIVEN_UP.reset(token)
        for done in as_completed(waiting):
            yield done.result()
    finally:
        given_up.set()
        pool.shutdown(cancel_futures=True)


def _build(unit: Unit, target: Target) -> Built:
    begin = time.perf_counter()
    outcome: CodeObject | Rejection
    told = ""
    try:
        outcome = unit.build(target)
    except CannotRun as declared:
        outcome = declared.rejection
        told = str(declared.__cause__) if isinstance(declared.__cause__, CompilerOutputError) else ""
    return Built(unit, target, outcome, time.perf_counter() - begin, told)


def _side_by_side() -> int:
    names: Sequence[str] = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if not set(names) <= os.sysconf_names.keys():
        return cores()
    pages, size = map(os.sysconf, names)
    return max(1, min(cores(), pages * size // _BUILD_BYTES))
