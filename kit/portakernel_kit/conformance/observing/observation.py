"""What a kernel's claims refuse, and what came of asking the kernel all the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from portakernel_kit.conformance.outcome import DECLARED
from portakernel_kit.conformance.result import Result

# What came of one refused case.
#   correct   every aspect that the kernel claims elsewhere holds here too
#   wrong     wrong numbers, or memory that is not its own
#   declined  the kernel itself refuses: CannotRun, or an error of arguments that its own code raises
#   raised    any other exception
#   ended     the process ended, or the device's context was lost
#   hung      it did not end in time
#   unjudged  the reference or the kit failed, which says nothing of the kernel
Outcome = Literal["correct", "wrong", "declined", "raised", "ended", "hung", "unjudged"]
# What makes a refusal right.
AGAINST: tuple[Outcome, ...] = ("wrong", "declined", "raised", "ended", "hung")
Verdict = Literal["would_have_worked", "right", "not_tried"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One refused case that the kernel was asked for; ``claim`` is what refuses it, ``detail`` what was wrong."""

    claim: str
    case: str
    outcome: Outcome
    detail: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One claim that refuses requests with ``code`` and ``parameter``, and how many ``cases`` for that alone."""

    claim: str
    code: str
    parameter: str
    cases: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What is going to be run of a kernel: units of its claims, and refused cases.

    ``several`` counts the cases that are refused for more than one reason; they say nothing of either. ``unusable`` is
    why the kernel cannot run here at all, if it cannot.
    """

    units: int
    refusals: tuple[Refusal, ...]
    several: int
    unusable: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A unit of the claims (``claim`` is empty) or a refused case begins: what ends the process next, it ended."""

    claim: str
    case: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to run in this process; ``lost``: because the device's context was lost."""

    lost: bool = False


Event = Planned | Begun | Result | Observation | Finished


@dataclass(frozen=True, slots=True)
class Observed:
    """One claim that refuses, with what came of the cases that were tried; ``left`` were not, for want of time.

    Once a refusal is found right nothing is left.
    """

    refusal: Refusal
    observations: tuple[Observation, ...]
    left: int

    @property
    def verdict(self) -> Verdict:
        """Whether the kernel can do all, or not all, of what was tried."""
        if any(observation.outcome in AGAINST for observation in self.observations):
            return "right"
        return "would_have_worked" if self.of("correct") else "not_tried"

    def of(self, *outcomes: Outcome) -> list[Observation]:
        """The cases that had one of these outcomes."""
        return [observation for observation in self.observations if observation.outcome in outcomes]

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        tried = [{key: value for key, value in asdict(o).items() if key != "claim"} for o in self.observations]
        return {**asdict(self.refusal), "verdict": self.verdict, "left": self.left, "tried": tried}


@dataclass(slots=True)
class Findings:
    """Everything that was found out about one kernel at one place; ``reason`` is why it did not run, if it did not.

    ``asked`` are the refused cases that were begun.
    """

    kernel: str
    op: str
    device: str = ""
    mode: str | None = None
    reason: str = ""
    planned: Planned | None = None
    results: list[Result] = field(default_factory=list[Result])
    asked: set[Begun] = field(default_factory=set[Begun])
    observations: list[Observation] = field(default_factory=list[Observation])
    done: bool = False

    def take(self, event: Event) -> None:
        """Takes in what has come."""
        match event:
            case Planned():
                self.planned, self.reason = event, event.unusable
            case Begun():
                self.asked |= {event} if event.claim else set()
            case Result():
                self.results.append(event)
            case Observation():
                self.observations.append(event)
            case Finished():
                self.done = True

    @property
    def ran(self) -> bool:
        """Whether the kernel can run here, or fails to."""
        return (self.planned is not None and not self.reason) or bool(self.failures)

    @property
    def failures(self) -> list[Result]:
        """The claims that do not hold."""
        return [result for result in self.results if result.status == "failed"]

    def counts(self) -> dict[str, int]:
        """How many results of claims there are of each status; ``declined``: of those skipped, by the kernel itself."""
        found = {status: sum(r.status == status for r in self.results) for status in ("passed", "failed", "skipped")}
        declined = (r.status == "skipped" and r.detail.startswith(DECLARED) for r in self.results)
        return found | {"declined": sum(declined)}

    def observed(self) -> list[Observed]:
        """Each claim that refuses, with what came of it."""
        found = []
        for refusal in self.planned.refusals if self.planned is not None else ():
            mine = tuple(observation for observation in self.observations if observation.claim == refusal.claim)
            left = refusal.cases - sum(begun.claim == refusal.claim for begun in self.asked)
            observed = Observed(refusal, mine, left)
            found.append(replace(observed, left=0) if observed.verdict == "right" else observed)
        return found

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        return {
            "kernel": self.kernel,
            "op": self.op,
            "device": self.device,
            "mode": self.mode,
            "reason": self.reason,
            "done": self.done,
            "claims": self.counts(),
            "failures": [result.to_json() for result in self.failures],
            "refusals": [observed.to_json() for observed in self.observed()],
            "several": self.planned.several if self.planned is not None else 0,
        }
