"""A worker on a clock of its own: kernels that are fast, wrong, that raise, crash, or never return."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass, field

from portakernel.errors import ArgumentValueError
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Record, Verdict
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.measuring import At, DeclinedError, Judgement, measure

TARGET, UNITS = "nvidia:sm_90", 132
# What each takes, in µs, and in which order priorities have them.
TRUE_US = {"acme.first": 10.0, "acme.fast": 9.0, "acme.wrong": 5.0, "acme.slow": 90.0, "acme.unjudged": 4.0}
SOURCES = {name: f"of {name}" for name in (*TRUE_US, "acme.raises", "acme.declines", "acme.crashes", "acme.hangs")}
PLAIN = tuple(TRUE_US)


@dataclass(slots=True)
class FakeJudge:
    """Says what its kernels are."""

    late: str = ""

    def before(self, name: str) -> Judgement:
        match name:
            case "acme.wrong":
                return Judgement(Verdict.WRONG, "y[3, 17]: 1.9 units, 0.51 allowed", 3.7)
            case "acme.unjudged":
                return Judgement(Verdict.UNJUDGED, "too large")
            case "acme.crashes":
                os.kill(os.getpid(), signal.SIGKILL)
            case "acme.hangs":
                threading.Event().wait()
            case "acme.raises":
                raise RuntimeError("no such thing\nand more")
        return Judgement(Verdict.RIGHT, error=0.3)

    def after(self, name: str) -> Judgement:
        return Judgement(Verdict.WRONG, "stale", 2.0) if name == self.late else Judgement(Verdict.RIGHT, error=0.4)


@dataclass(slots=True)
class FakeTimer:
    """A clock that drifts by 3 % a round, with 1 % of each kernel's own and 2 outliers in 100."""

    seed: int = 0
    copies: float = 0.0
    failing: str = ""
    lost: bool = False
    rounds: dict[str, int] = field(default_factory=dict[str, int])

    def prepare(self, name: str) -> float:
        if name == "acme.declines":
            raise DeclinedError("it cannot be captured")
        return TRUE_US[name]

    def settle(self, longest_us: float) -> None:
        assert longest_us <= 3 * TRUE_US["acme.first"]

    def time(self, name: str, number: int) -> float:
        self.rounds[name] = self.rounds.get(name, 0) + 1
        if name == self.failing:
            raise RuntimeError("illegal memory access")
        own = random.Random(f"{self.seed} {number} {name}")
        outlier = own.uniform(1.3, 2.5) if own.random() < 0.02 else 1.0
        return TRUE_US[name] * random.Random(f"{self.seed} {number}").gauss(1.0, 0.03) * own.gauss(1.0, 0.01) * outlier

    def copy(self, number: int) -> float | None:
        return 10.0 + self.copies * number

    def is_lost(self) -> bool:
        return self.lost


@dataclass(slots=True)
class FakeWorker:
    """Measures the kernels of ``order`` on that clock."""

    order: tuple[str, ...]

    def facts(self) -> Facts:
        return Facts(TARGET, UNITS, "digest", "580", "2.11", SOURCES)

    def measure(self, job: Job, at: At) -> Record:
        from portakernel.tuning.record import Entry

        if job.op == "broken":
            raise RuntimeError("out of memory\nand more")
        if job.op == "unfit":
            raise ArgumentValueError("it does not fit")
        known = {name: Entry.model_validate(entry) for name, entry in job.known.items()}
        found = measure(self.order, SOURCES, FakeJudge(), FakeTimer(job.seed), at, known=known, seed=job.seed)
        dims = {"M": job.shapes["x"][0], "N": job.shapes["x"][1]}
        key = Key(Kind(job.op, job.phase, job.dtypes), TARGET, UNITS, Regime(job.regime), dims)
        return Record(key, "contract", found.entries, "2026-11-27T00:00:00Z", self.order[0], busy=found.busy)


def plain(torch_device: str) -> FakeWorker:
    return FakeWorker(PLAIN)


def dangerous(torch_device: str) -> FakeWorker:
    return FakeWorker(("acme.crashes", "acme.first", "acme.hangs", "acme.raises", "acme.declines", "acme.fast"))


def hopeless(torch_device: str) -> FakeWorker:
    os._exit(3)
