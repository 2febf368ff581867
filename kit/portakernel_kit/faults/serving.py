"""A run over faults in one process that has imported what they share, and forks, or spawns, one process for each."""

from __future__ import annotations

import importlib
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from portakernel_kit.conformance.observing.isolation import Asked
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.faults.copies import PackageCopy
from portakernel_kit.faults.evidence import Evidence
from portakernel_kit.faults.fault import DIED, HUNG, LOAD, Fault, Judged
from portakernel_kit.faults.pool import Pool, Ran, Task
from portakernel_kit.faults.sources import NATIVE
from portakernel_kit.faults.trying import Absent, Circumstances, Measuring, Putting, Room

# A unit may take so many times what it takes without a fault, if that is more than the patience.
_SLOWER = 10.0
# How long a spawned process may take until it has imported torch.
_SPAWNED_S = 120.0
# The unchanged kernel's cases are measured for so many budgets, or seconds if that is more: all that fit one, which
# take twice as long while lines are seen.
_CASES = 3.0
_CASES_S = 60.0
# Drawn requests are measured for so much of a fault's budget: beside the cases, as many as will be put to it.
_DRAWN = 1.0


@dataclass(frozen=True, slots=True)
class Working:
    """A sign of life, and what is done meanwhile."""

    doing: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """An unchanged kernel was measured: where, how many requests; ``fails``: why it is wrong without any fault."""

    kernel: str
    place: str
    mode: str | None
    requests: int
    absent: str = ""
    fails: str = ""


Event = Working | Baseline | Judged | Finished


@dataclass(frozen=True, slots=True)
class FaultsJob:
    """Faults in the kernels of one plugin, in this order; up to ``most`` of them that run are tried.

    ``folder`` is for copies of ``original``, the plugin's package ``module``. ``absent``: kernels that cannot run here,
    and why. ``built``: those that are built, for which what was built without a fault must not stand. ``proving``: each
    fault is put to the request that is to show it, and to no other.
    """

    asked: Asked
    module: str
    original: Path
    folder: Path
    imports: tuple[str, ...]
    kernels: tuple[str, ...]
    faults: tuple[Fault, ...]
    seed: int
    budget_s: float = 10.0
    patience_s: float = 20.0
    most: int | None = None
    workers: int = 1
    forks: bool = True
    proving: bool = False
    absent: tuple[tuple[str, str], ...] = ()
    built: frozenset[str] = frozenset()

    def events(self) -> Iterator[Event]:
        """Runs it in this process."""
        yield Working("importing")
        for name in self.imports if self.forks else ():
            with suppress(Exception):  # the plugin's own import will say what is wrong
                importlib.import_module(name)
        for number in range(self.workers):  # a process that was lost may have left a fault in a copy
            shutil.rmtree(self._room(number), ignore_errors=True)
        of = Circumstances(self.asked, self.seed, self.module, 1 / self.workers)
        yield from (self._prove(of) if self.proving else self._try(of))
        yield Finished()

    def _room(self, number: int) -> Path:
        return self.folder / f"room{number}"

    def _rooms(self, count: int, filled: Path | None) -> list[Room]:
        rooms = []
        for number in range(count):
            place = self._room(number)
            copied = place / self.original.name
            if copied.is_dir():
                copy = PackageCopy(self.module, self.original, copied)
            else:
                place.mkdir(parents=True, exist_ok=True)
                copy = PackageCopy.make(self.module, self.original, place)
            rooms.append(Room(copy, place / "caches", filled))
        return rooms

    def _patience(self, longest_s: float = 0.0) -> float:
        patience = max(self.patience_s, _SLOWER * longest_s)
        return patience if self.forks else max(patience, _SPAWNED_S)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _try(self, of: Circumstances) -> Iterator[Event]:
        evidence, filled = Evidence(self.seed, absent=dict(self.absent)), self.folder / "filled"
        for event in self._measure(of, evidence, filled):
            yield event
            if isinstance(event, Baseline) and event.fails:
                return
        pool: Pool[Fault] = Pool(of, self._rooms(self.workers, filled), forks=self.forks)
        told, tried = deque[Judged](), 0

        def tasks() -> Iterator[Task[Fault]]:
            nonlocal tried
            for fault in self.faults:
                if self.most is not None and tried >= self.most:
                    return
                if why := evidence.why_not_run(fault):
                    told.append(Judged(fault, "not_run", detail=why))
                    continue
                tried += 1
                fresh = not self.built.isdisjoint(fault.kernels)
                job = Putting(evidence.steps(fault), self.budget_s, more=evidence.drawn_for(fault))
                yield Task(fault, job, fault.file, self._with(fault), is_fresh=fresh)

        alive, unsure = list[Judged](), list[Judged]()
        for found in pool.run(tasks(), lambda fault: self._patience(evidence.slowest_s(fault))):
            while told:
                yield told.popleft()
            if found is None:
                yield Working("trying")
                continue
            judged = evidence.judge(*found)
            if judged.again and judged.again == found[1].new_request:
                unsure.append(judged)
            elif judged.verdict == "alive" and judged.fault.untold and Path(judged.fault.file).suffix in NATIVE:
                alive.append(judged)
            else:
                yield judged
        yield from told
        yield from self._confirmed(pool, unsure)
        yield from self._compiled(pool, evidence, alive)

    def _measure(self, of: Circumstances, evidence: Evidence, filled: Path) -> Iterator[Event]:
        """Each kernel as it is."""
        pool: Pool[str] = Pool(of, self._rooms(min(self.workers, len(self.kernels)) or 1, None), forks=self.forks)
        longest = max(_CASES_S, _CASES * self.budget_s)
        measuring = (
            Task(name, Measuring(name, _DRAWN * self.budget_s, longest), caches=filled) for name in self.kernels
        )
        for found in pool.run(measuring, lambda _: max(_SPAWNED_S, self.patience_s)):
            if found is None:
                yield Working("measuring")
                continue
            name, ran = found
            fails = evidence.add(name, ran)
            place, mode = evidence.places.get(name, ("", None))
            absent = evidence.absent.get(name, "")
            yield Baseline(name, place, mode, len(evidence.measured.get(name, ())), absent, fails)

    def _with(self, fault: Fault) -> bytes:
        return fault.applied((self.original / fault.file).read_bytes())

    def _confirmed(self, pool: Pool[Fault], unsure: list[Judged]) -> Iterator[Event]:
        """Of those that a request killed which was not measured: whether the kernel passes it as it is."""
        by_fault = {one.fault: one for one in unsure}

        def tasks() -> Iterator[Task[Fault]]:
            for fault, one in by_fault.items():
                yield Task(fault, Putting((), self.budget_s, witness=(one.kernel, one.again)))

        for found in pool.run(tasks(), lambda fault: self._patience(by_fault[fault].seconds)):
            if found is None:
                yield Working("confirming")
                continue
            judged = by_fault[found[0]]
            if (failure := _failure(found[1])) is None:
                yield judged
            else:
                detail = f"a request fails without the fault too: {judged.again}: {failure[1]}"
                yield Judged(judged.fault, "alive", detail=detail, asked=judged.asked, seconds=judged.seconds)

    def _compiled(self, pool: Pool[Fault], evidence: Evidence, alive: list[Judged]) -> Iterator[Event]:
        """Of C++ that survives: whether its line is compiled at all, which an error in its place tells."""
        judged = {one.fault: one for one in alive}

        def tasks() -> Iterator[Task[Fault]]:
            for fault in judged:
                lines = (self.original / fault.file).read_bytes().splitlines(keepends=True)
                lines.insert(fault.place.line - 1, b"#error a fault stands here\n")
                yield Task(fault, Putting(evidence.steps(fault), self.budget_s), fault.file, b"".join(lines))

        for found in pool.run(tasks(), lambda _: self._patience()):
            if found is None:
                yield Working("compiling")
                continue
            fault, ran = found
            if evidence.judge(fault, ran).verdict == "alive":
                yield Judged(fault, "not_run", detail="its line is not compiled here")
            else:
                yield judged[fault]

    # --- witnesses ---------------------------------------------------------------------------------------------------

    def _prove(self, of: Circumstances) -> Iterator[Event]:
        """The request that shows a fault passes without it and fails with it."""
        pool: Pool[tuple[Fault, bool]] = Pool(of, self._rooms(self.workers, None), forks=self.forks)
        absent = dict(self.absent)
        for fault in self.faults:
            if fault.kernels[0] in absent:
                yield Judged(fault, "not_run", detail=f"its kernel does not run here: {absent[fault.kernels[0]]}")

        def tasks() -> Iterator[Task[tuple[Fault, bool]]]:
            for fault in (fault for fault in self.faults if fault.kernels[0] not in absent):
                job = Putting((), self.budget_s, witness=(fault.kernels[0], fault.shows))
                yield Task((fault, False), job)
                yield Task((fault, True), job, fault.file, self._with(fault))

        runs = dict[Fault, dict[bool, Ran]]()
        for found in pool.run(tasks(), lambda _: self._patience()):
            if found is None:
                yield Working("proving")
                continue
            (fault, is_faulty), ran = found
            both = runs.setdefault(fault, {})
            both[is_faulty] = ran
            if len(both) > 1:
                yield _proof(fault, both[False], both[True])


def _proof(fault: Fault, without: Ran, faulty: Ran) -> Judged:
    kernel, seconds = fault.kernels[0], without.seconds + faulty.seconds
    before, after = _failure(without), _failure(faulty)
    if before is not None:
        return Judged(fault, "unproven", before[0], kernel, "", f"without the fault: {before[1]}", 1, seconds)
    unrun = [ended.why for ended in without.ended if not ended.ran]
    if unrun or not without.ended:
        detail = f"the request does not run: {unrun[0] if unrun else 'there is none'}"
        return Judged(fault, "unproven", "", kernel, "", detail, 0, seconds)
    if after is None:
        refused = [ended.why for ended in faulty.ended if not ended.ran]
        detail = f"is refused: {refused[0]}" if refused else "passes too"
        return Judged(fault, "unproven", "", kernel, "", f"with the fault the request {detail}", 1, seconds)
    case = faulty.ended[0].unit.name if faulty.ended else ""
    return Judged(fault, "proven", after[0], kernel, case, after[1], 1, seconds, fault.shows)


def _failure(ran: Ran) -> tuple[str, str] | None:
    """By what a run failed, and how; None where it passed."""
    for event in ran.events:
        if isinstance(event, Absent):
            return LOAD, event.why
    for ended in ran.ended:
        if ended.failed is not None:
            return ended.failed.aspect, ended.failed.detail
    if ran.ending != "done":
        return DIED if ran.ending == "died" else HUNG, ran.text
    return None
