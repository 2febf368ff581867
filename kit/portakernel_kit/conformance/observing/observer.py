"""Asks a kernel, in this process, for what it claims and for what its claims refuse; one event after the other."""

from __future__ import annotations

import functools
import random
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from portakernel.calling.fast.generated import MARK
from portakernel.contract.case import Case
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import REFERENCE
from portakernel_kit.conformance.observing.observation import (
    AGAINST,
    Begun,
    Event,
    Finished,
    Observation,
    Outcome,
    Planned,
    Refusal,
)
from portakernel_kit.conformance.outcome import DECLARED
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.suite import CLAIM_CODES, Suite, most_elements
from portakernel_kit.conformance.trial import is_lost
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.venue import Venue
from portakernel_kit.conformance.widening import Widening, cases_beyond, on_target, widened, widenings

# So many counterexamples make a refusal right; of those that end or block their process one is enough.
_ENOUGH = 3
_FATAL = ("ended", "hung")
# Raised by a plugin's own code, these are its way to refuse an argument.
_REFUSING = ("ValueError", "TypeError", "NotImplementedError")
_FRAME = re.compile(r'^ *File "(.+?)", line ', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Known:
    """What was run already, and observed; ``only`` is the one thing to run, if it is one."""

    done: frozenset[Begun] = frozenset()
    observations: tuple[Observation, ...] = ()
    only: Begun | None = None


@dataclass(slots=True)
class Trials:
    """The cases that one claim alone refuses, the suite of the kernel without it, and what came of them so far.

    ``beyond`` names the cases that were made for the claim, and that the kit has of no other kernel.
    """

    widening: Widening
    suite: Suite
    units: Sequence[Unit]
    beyond: frozenset[str] = frozenset()
    observed: list[Observation] = field(default_factory=list[Observation])

    @property
    def decided(self) -> bool:
        """Whether the refusal is right, so that further cases say nothing new."""
        against = [observation.outcome for observation in self.observed if observation.outcome in AGAINST]
        return len(against) >= _ENOUGH or any(outcome in _FATAL for outcome in against)


class Observer:
    """One kernel at one venue. What is planned, and each case's inputs, depend on the seed alone."""

    def __init__(self, dispatcher: Dispatcher, kernel: Kernel, venue: Venue, seed: int) -> None:
        self.suite = Suite(dispatcher, kernel, venue, seed)
        self.dispatcher, self.kernel, self.venue, self.seed = dispatcher, kernel, venue, seed
        self._answers: dict[str, bool] = {}

    def events(self, seconds: float, *, claims: bool = True, known: Known | None = None) -> Iterator[Event]:
        """What is planned, then each unit of the claims, then refused cases for so many seconds.

        Refusals take turns, so that each is tried before one is tried at length.
        """
        known = known if known is not None else Known()
        units = self.suite.units() if claims else ()
        trials = list(self.trials())
        yield self._planned(len(units), trials)
        for unit in units:
            begun = Begun("", unit.name)
            if begun in known.done or known.only not in (None, begun):
                continue
            yield begun
            results = []
            for result in self.suite.run(unit):
                results.append(result)
                yield result
            if any(result.status == "failed" for result in results) and is_lost(self.venue.torch_device):
                yield Finished(lost=True)
                return
        deadline = time.perf_counter() + seconds
        for of, unit in _turns(trials, known.observations, self.seed):
            begun = Begun(of.widening.claim, unit.name)
            if begun in known.done or known.only not in (None, begun):
                continue
            if known.only is None and time.perf_counter() > deadline:
                break
            yield begun
            found = self.observe(of, unit)
            if found is None:
                continue
            of.observed.append(found)
            yield found
            if found.outcome in _FATAL:
                yield Finished(lost=True)
                return
        yield Finished()

    # --- what is tried ---------------------------------------------------------------------------------------------

    def trials(self) -> Iterator[Trials]:
        """Each claim that refuses something, with the cases that are refused for it alone."""
        if self.suite.variants:
            found = widenings(self.suite.contract, self.kernel, self.suite.variants)
        else:
            found = (on_target(self.kernel, target) for target in self.venue.targets)
        for widening in found:
            of = self.trials_of(widening)
            # what other variants take is not refused, nor a dtype that is taken beside others, or that the op takes not
            if of.units or not (widening.partial or widening.shown_by or self._beside_others(widening, of)):
                yield of

    def trials_of(self, widening: Widening) -> Trials:
        """The cases that the widened claim alone refuses."""
        contract, most = self.suite.contract, most_elements(self.venue)
        more = cases_beyond(contract, widening, self._claimed_cases.values(), most)
        changed = widened(self.dispatcher, widening.kernel)
        suite = Suite(changed, widening.kernel, self.venue, self.seed, all_builds=True, more=more)
        if widening.shown_by is not None:
            units = [unit for unit in self.claimed if self._would_not_do(unit, widening)]
            return Trials(widening, suite, units if widening.shown_by != "graph" or self.venue.captures else [])
        refused = [unit for unit in suite.case_units if not self.served(unit)]
        beyond = frozenset(case.name for case in more)
        return Trials(widening, suite, [unit for unit in refused if suite.would_run(unit)], beyond)

    def _would_not_do(self, unit: Unit, widening: Widening) -> bool:
        """Whether the claim refuses a case that is served where nobody asks for what it leaves out."""
        asked = frozenset({widening.required} if widening.required is not None else set[str]())
        return bool(self.suite.rejections(unit, phase=widening.phase, requires=asked))

    def _beside_others(self, widening: Widening, of: Trials) -> bool:
        """Whether a dtype that the claim leaves out is taken beside others, or never by the op."""
        about = (widening.parameter, widening.dtype)
        refused = [unit for unit in of.suite.case_units if not self.served(unit)]
        taken = any(about in unit.dtypes for unit in self.claimed)
        return widening.dtype is not None and (taken or all(about not in unit.dtypes for unit in refused))

    @functools.cached_property
    def claimed(self) -> list[Unit]:
        """The cases that the kernel serves."""
        return [unit for unit in self.suite.case_units if self.served(unit)]

    @property
    def _claimed_cases(self) -> dict[str, Case]:
        return {unit.case.name: unit.case for unit in self.claimed if unit.case is not None}

    def served(self, unit: Unit) -> bool:
        """Whether the kernel claims the case; names tell cases apart, be they made for one claim or another."""
        if unit.name not in self._answers:
            self._answers[unit.name] = self.suite.would_run(unit)
        return self._answers[unit.name]

    def _planned(self, units: int, trials: Sequence[Trials]) -> Planned:
        refusals = tuple(
            Refusal(of.widening.claim, str(of.widening.code), of.widening.parameter, len(of.units)) for of in trials
        )
        alone = {unit.name for of in trials for unit in of.units}
        if not alone and (unusable := self.unusable()):
            return Planned(units, (), 0, unusable)
        # the reference claims whatever the op accepts
        reference = self.dispatcher.registry.kernels[f"{REFERENCE}.{self.kernel.op}"]
        widest = Suite(self.dispatcher, reference, self.venue, self.seed)
        possible = (unit for unit in widest.case_units if widest.would_run(unit))
        return Planned(units, refusals, sum(unit.name not in alone and not self.served(unit) for unit in possible))

    def unusable(self) -> str:
        """Why the kernel cannot run here, whatever it claims; empty where it can."""
        for unit in self.suite.case_units:
            rejections = self.suite.rejections(unit)
            if not rejections:
                return ""
            if not {rejection.code for rejection in rejections} & CLAIM_CODES:
                return "; ".join(f"{rejection.code}: {rejection.text}" for rejection in rejections)
        return ""

    # --- what came of it -------------------------------------------------------------------------------------------

    def observe(self, of: Trials, unit: Unit) -> Observation | None:
        """What comes of a refused case; None where it shows nothing of what the claim is about."""
        claim, asked_for = of.widening.claim, of.widening.shown_by
        try:
            results = list(of.suite.run(unit))
        except Exception as error:  # noqa: BLE001 - what a kernel raises is a result: this is the reference, or the kit
            text = f"{type(error).__name__}: {error}"
            return Observation(claim, unit.name, "unjudged", text, traceback.format_exc())
        shown_by = asked_for or "forward"
        results = [result for result in results if asked_for is None or result.aspect == shown_by]
        for result in results:
            if (outcome := self._outcome(result)) is not None:
                detail = f"{result.aspect}: {result.detail}"
                if outcome in AGAINST and is_lost(self.venue.torch_device):
                    outcome, detail = "ended", f"{detail}; the device's context is lost"
                return Observation(claim, unit.name, outcome, detail, result.traceback)
        shown = any(result.aspect == shown_by and result.status == "passed" for result in results)
        return Observation(claim, unit.name, "correct") if shown else None

    def _outcome(self, result: Result) -> Outcome | None:
        """What speaks against the kernel in a result, if anything does."""
        if result.status == "skipped" and result.detail.startswith(DECLARED):
            return "declined"
        if result.status != "failed":
            return None
        if not result.traceback:
            return "wrong"
        frames = _FRAME.findall(result.traceback)
        # a kernel's calls go through its launcher; what else is raised there speaks of what it is judged by
        if result.aspect != "claim" and not any(frame.startswith(MARK) for frame in frames):
            return "unjudged"
        folder = self.kernel.package.folder if self.kernel.package is not None else None
        own = folder is not None and Path(frames[-1]).is_relative_to(folder)
        return "declined" if own and result.detail.partition(":")[0] in _REFUSING else "raised"


def _turns(trials: Sequence[Trials], known: Sequence[Observation], seed: int) -> Iterator[tuple[Trials, Unit]]:
    """Cases of the claims in turn, in any order, until each claim's are all tried or its refusal is found right."""
    waiting: list[tuple[Trials, Iterator[Unit]]] = []
    for of in trials:
        of.observed += [observation for observation in known if observation.claim == of.widening.claim]
        # the op's first cases are its simplest: of a part of the cases, chance makes a fair one
        shuffled = random.Random(f"{seed} {of.widening.claim}").sample(of.units, len(of.units))
        waiting.append((of, iter(shuffled)))
    while waiting:
        still: list[tuple[Trials, Iterator[Unit]]] = []
        for of, units in waiting:
            unit = None if of.decided else next(units, None)
            if unit is not None:
                yield of, unit
                still.append((of, units))
        waiting = still
