"""One call measured: every contender judged, timed in turns with the others, and judged again; no torch, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from portakernel.claims.capability import CannotRun
from portakernel.text.printable import one_line
from portakernel.tuning.ranking import Race, spread
from portakernel.tuning.record import Entry, Verdict

T = TypeVar("T")

# How many times as long as the default's a call may take to be timed at all.
_HOPELESS = 3.0
# What the tenth of rounds in which a copy took longest takes over the tenth in which it took least: others at work.
BUSY = 1.10
_MOST_DETAIL = 300

# Told before a kernel is touched: whoever ends the process is known then.
At = Callable[[str], None]


class DeclinedError(Exception):
    """A kernel that cannot be timed in the regime that is asked for."""


class DeviceLostError(Exception):
    """The device answers no more, after ``kernel`` was at work."""

    def __init__(self, kernel: str, reason: str) -> None:
        self.kernel, self.reason = kernel, reason
        super().__init__(f"{kernel}: {reason}")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether results are right: RIGHT, WRONG or UNJUDGED; ``error`` is in units of the op's tolerance."""

    verdict: Verdict
    detail: str = ""
    error: float | None = None


class Judge(Protocol):
    """Says whether kernels are right."""

    def before(self, name: str) -> Judgement:
        """Of fresh calls, on two draws; raises what the kernel raises."""
        ...

    def after(self, name: str) -> Judgement:
        """Of what the last timed launch has left; raises what the kernel raises."""
        ...


class Timer(Protocol):
    """Times kernels in one regime, all on the same operands."""

    def prepare(self, name: str) -> float:
        """Makes a kernel ready, and says about how long a call takes, in microseconds.

        Raises:
            DeclinedError: it cannot be timed in this regime. Whatever the kernel raises propagates.
        """
        ...

    def settle(self, longest_us: float) -> None:
        """Decides how many launches a round has, from the longest of those that take part."""
        ...

    def time(self, name: str, number: int) -> float:
        """The time of a call in the round of this number, in microseconds."""
        ...

    def copy(self, number: int) -> float | None:
        """The time of a plain copy in that round; None where there is none."""
        ...

    def is_lost(self) -> bool:
        """Whether the device answers no more."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of each kernel, and whether others used the device meanwhile."""

    entries: Mapping[str, Entry]
    busy: bool = False


def measure(
    order: Sequence[str],
    sources: Mapping[str, str],
    judge: Judge,
    timer: Timer,
    at: At = lambda _: None,
    *,
    known: Mapping[str, Entry] | None = None,
    busy: float = BUSY,
    seed: int = 0,
) -> Measured:
    """Measures the kernels of ``order``, in which priorities have them: the first is the default.

    ``known`` are not asked. Of those that take many times as long as the default one call is timed, and no round. Where
    the default cannot run, the first that can is in its place.

    Raises:
        DeviceLostError: a kernel has broken the device for all.
    """
    run = _Run(sources, judge, timer, at, dict(known or {}))
    calls = {name: us for name in order if name not in run.entries and (us := run.prepared(name)) is not None}
    if not calls:
        return Measured(run.entries)
    default = next(iter(calls))
    racing = [name for name, us in calls.items() if us <= _HOPELESS * calls[default]]
    for name in set(calls) - set(racing):
        run.note(name, us=(calls[name], calls[name], calls[name]), rounds=1)
    timer.settle(max(calls[name] for name in racing))
    race, copies = Race(racing, default, seed), list[float]()
    while turn := race.turn():
        number = len(race.times[default])
        race.add({name: us for name in turn if (us := run.timed(name, number)) is not None})
        if (copy := timer.copy(number)) is not None:
            copies.append(copy)
    for name, (times, rounds, against) in race.results().items():
        if run.entries[name].verdict is Verdict.RIGHT:
            run.note(name, us=times, rounds=rounds, against=against)
    for name in racing:
        run.judged_again(name)
    return Measured(run.entries, busy=_varies(copies, busy))


class _Run:
    """The entries so far, and the steps of which each may fail."""

    def __init__(
        self, sources: Mapping[str, str], judge: Judge, timer: Timer, at: At, entries: dict[str, Entry]
    ) -> None:
        self._sources, self._judge, self._timer, self._at, self.entries = sources, judge, timer, at, entries

    def note(self, name: str, **what: object) -> None:
        """Changes a kernel's entry."""
        entry = self.entries.get(name) or Entry(source=self._sources[name], verdict=Verdict.RIGHT)
        self.entries[name] = Entry.model_validate({**entry.model_dump(), **what})

    def prepared(self, name: str) -> float | None:
        """About how long a call takes of a kernel that is right; None of one that cannot win, or cannot be timed."""
        judgement = self._step(name, self._judge.before)
        if judgement is None:
            return None
        self._judged(name, judgement)
        return self._step(name, self._timer.prepare) if judgement.verdict is Verdict.RIGHT else None

    def timed(self, name: str, number: int) -> float | None:
        """The time in a round; None of a kernel that raised."""
        return self._step(name, lambda known: self._timer.time(known, number))

    def judged_again(self, name: str) -> None:
        """Holds what the last launch left, and keeps the worse of both."""
        entry = self.entries[name]
        if entry.verdict is not Verdict.RIGHT:
            return
        judgement = self._step(name, self._judge.after)
        if judgement is not None and judgement.verdict is Verdict.WRONG:
            self._judged(name, Judgement(Verdict.WRONG, f"after it was timed: {judgement.detail}", judgement.error))
        elif judgement is not None and judgement.error is not None:
            self.note(name, error=max(judgement.error, entry.error or 0.0))

    def _judged(self, name: str, judgement: Judgement) -> None:
        detail = one_line(judgement.detail)[:_MOST_DETAIL]
        self.note(name, verdict=judgement.verdict, detail=detail, error=judgement.error)

    def _step(self, name: str, step: Callable[[str], T]) -> T | None:
        self._at(name)
        try:
            return step(name)
        except (DeclinedError, CannotRun) as error:
            self._ended(name, Verdict.DECLINED, error)
        except (Exception, SystemExit) as error:
            if self._timer.is_lost():
                raise DeviceLostError(name, _text(error)) from error
            self._ended(name, Verdict.FAILED, error)
        return None

    def _ended(self, name: str, verdict: Verdict, error: BaseException) -> None:
        self.entries[name] = Entry(source=self._sources[name], verdict=verdict, detail=_text(error))


def _text(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    kind = "" if isinstance(error, DeclinedError) else f"{type(error).__name__}: "
    return one_line(f"{kind}{first}" if first else type(error).__name__)[:_MOST_DETAIL]


def _varies(copies: Sequence[float], limit: float) -> bool:
    """Whether the device was shared: the same copy took now more, now less."""
    if len(copies) < 2:
        return False
    low, _, high = spread(copies)
    return high > limit * low
