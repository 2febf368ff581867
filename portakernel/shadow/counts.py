"""What shadow verification has counted in this process, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from portakernel.host.locks import make_lock
from portakernel.text.printable import brief, one_line

# Why a call, or a turn, was passed over. captured: its stream was being captured; gradient: autograd was recording;
# bytes: it has too many; share: checks have had their share of the time; unjudged: the reference cannot say, or not in
# seconds; declined: the kernel said CannotRun; error: something failed, and the report says what.
Skip = Literal["captured", "gradient", "bytes", "share", "unjudged", "declined", "error"]
SKIPS: tuple[Skip, ...] = get_args(Skip)
_MOST_TEXTS = 32


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of looking at a kernel's calls."""

    op: str
    kernel: str
    checked: int
    mismatched: int
    skipped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, by kernel; ``wrong`` says what was wrong, ``errors`` what failed.

    ``seconds`` are what copies and checks took; ``state`` says who asked for them, or that nothing is looked at.
    """

    state: str
    kernels: tuple[Looked, ...]
    wrong: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def checked(self) -> int:
        """How many calls were held against the reference."""
        return sum(one.checked for one in self.kernels)

    @property
    def mismatched(self) -> int:
        """How many of them were wrong."""
        return sum(one.mismatched for one in self.kernels)

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many were passed over, by reason."""
        return dict(sum((Counter(one.skipped) for one in self.kernels), Counter[str]()))

    def __repr__(self) -> str:
        return brief(f"<Report: {self.checked} checked, {self.mismatched} mismatched; {self.state}>")

    def __str__(self) -> str:
        lines = [self.state, f"{self.checked} checked, {self.mismatched} mismatched in {self.seconds:.3g} s"]
        for one in self.kernels:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(one.skipped.items()))
            skipped = f"; skipped: {reasons}" if reasons else ""
            lines.append(f"  {one.kernel}: {one.checked} checked, {one.mismatched} mismatched{skipped}")
        lines += [f"  wrong: {text}" for text in self.wrong]
        lines += [f"  error: {text}" for text in self.errors]
        lines += [f"  wrong: {text}" for text in self.wrong]
        lines += [f"  error: {text}" for text in self.errors]
        return "\n".join(lines)


class Counts:
    """The counters, by op and kernel; they only ever grow."""

    def __init__(self) -> None:
        self.state = "shadow verification is off"
        self._checked = Counter[tuple[str, ...]]()
        self._mismatched = Counter[tuple[str, ...]]()
        self._skipped = Counter[tuple[str, ...]]()
        self._wrong: list[str] = []
        self._errors: list[str] = []
        self._seconds = 0.0
        self._lock = make_lock()

    def check(self, op: str, kernel: str, wrong: str = "") -> None:
        """Counts a check, and what was wrong with the result."""
        with self._lock:
            self._checked[op, kernel] += 1
            if wrong:
                self._mismatched[op, kernel] += 1
                self._keep(self._wrong, f"{kernel}: {wrong}")

    def skip(self, op: str, kernel: str, reason: Skip, error: str = "") -> None:
        """Counts a call that was passed over."""
        with self._lock:
            self._skipped[op, kernel, reason] += 1
            if error:
                self._keep(self._errors, f"{kernel}: {error}")

    def spend(self, seconds: float) -> None:
        """Counts time that copies and checks took."""
        with self._lock:
            self._seconds += seconds

    def _keep(self, texts: list[str], text: str) -> None:
        text = one_line(text)
        if text not in texts and len(texts) < _MOST_TEXTS:
            texts.append(text)

    def checked(self) -> Mapping[tuple[str, ...], int]:
        """Calls that were held against the reference, by op and kernel."""
        with self._lock:
            return {**self._checked}

    def mismatched(self) -> Mapping[tuple[str, ...], int]:
        """Those of them that were wrong."""
        with self._lock:
            return {**self._mismatched}

    def skipped(self) -> Mapping[tuple[str, ...], int]:
        """Calls that were passed over, by op, kernel and reason."""
        with self._lock:
            return {**self._skipped}

    def report(self) -> Report:
        """All of it."""
        with self._lock:
            names = sorted({*self._checked, *(by[:2] for by in self._skipped)})
            kernels = tuple(
                Looked(
                    op, kernel, self._checked[op, kernel], self._mismatched[op, kernel],
                    {by[2]: count for by, count in self._skipped.items() if by[:2] == (op, kernel)},
                )
                for op, kernel, *_ in names
            )  # fmt: skip
            return Report(self.state, kernels, tuple(self._wrong), tuple(self._errors), self._seconds)


# The process's own.
COUNTS = Counts()
