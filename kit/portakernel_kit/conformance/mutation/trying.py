"""Tries mutations of one kernel's claims, in this process: who of the kit notices them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.readiness import Readiness, installed_version
from portakernel.errors import ManifestError
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.claims import elements
from portakernel_kit.conformance.mutation.absence import absent
from portakernel_kit.conformance.mutation.mutants import Mutant, mutants
from portakernel_kit.conformance.mutation.mutation import By, Judged, Listed, Mutation, Trying, Verdict
from portakernel_kit.conformance.mutation.spelling import differences, entry_index, read_back
from portakernel_kit.conformance.mutation.spoiling import Spoiler
from portakernel_kit.conformance.observing.observation import AGAINST, Finished, Observation
from portakernel_kit.conformance.observing.observer import Observer, Trials
from portakernel_kit.conformance.outcome import DECLARED
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.venue import Venue
from portakernel_kit.conformance.widening import cases_beyond, widened

# Of what a widened claim admits so many cases are tried, or for so long; the first that fails is enough.
_MOST_CASES = 60
_LONGEST_S = 3.0
_EVERYWHERE = 1 << 62


class Mutator:
    """One kernel at one venue; each mutation is written into its manifest's data and read back before it is tried."""

    def __init__(self, dispatcher: Dispatcher, kernel: Kernel, venue: Venue, seed: int) -> None:
        self.dispatcher, self.kernel, self.venue, self.seed = dispatcher, kernel, venue, seed
        self.package, self.loaded = dispatcher.registry.manager.plugins[kernel.plugin]
        self.index = entry_index(self.loaded, kernel)
        self.observer = Observer(dispatcher, kernel, venue, seed)

    def events(
        self, done: frozenset[Mutation] = frozenset(), only: Mutation | None = None
    ) -> Iterator[Listed | Trying | Judged | Finished]:
        """What is going to be tried, then each mutation with what came of it, without those that are ``done``."""
        found = mutants(self.dispatcher, self.kernel, self.venue)
        yield Listed(tuple(mutant.mutation for mutant in found), str(self.venue), self.venue.mode)
        # a kernel that is switched off is tried as if it were on
        unusable = self.observer.unusable() if self.kernel.disabled is None else ""
        for mutant in found:
            if mutant.mutation in done or only not in (None, mutant.mutation):
                continue
            yield Trying(mutant.mutation)
            try:
                yield self.judge(replace(mutant, untold=unusable or mutant.untold))
            except Exception as error:  # noqa: BLE001 - a plugin's module may raise anything; nothing is proven by it
                detail = f"could not be judged: {type(error).__name__}: {error}"
                yield Judged(mutant.mutation, "unnoticed", detail=detail)
        yield Finished()

    def judge(self, mutant: Mutant) -> Judged:
        """Who notices the mutation."""
        mutation = mutant.mutation
        if mutant.untold or self.index is None:
            return Judged(mutation, "skipped", detail=mutant.untold or "a hook lists the kernel, and no manifest")
        try:
            read = read_back(self.package, self.loaded, self.index, mutant.kernel, self.dispatcher.registry.spaces)
        except ManifestError as error:
            return Judged(mutation, "noticed", "validate", error.problems[0])
        if unread := differences(mutant.kernel, read):
            return Judged(mutation, "unnoticed", detail=f"what the manifest says of {', '.join(unread)} is not read")
        if mutant.absent:
            return self._without_module(mutation, mutant.absent, read)
        if mutant.widening is None:
            return self._removed(mutation, read)
        observer = self.observer
        if mutant.beside is not None and mutant.beside.torch_device is not None:
            place = Venue(mutant.beside.torch_device, (mutant.beside.target,), mutant.beside)
            observer = Observer(self.dispatcher, self.kernel, place, self.seed)
        return self._widened(mutation, observer, observer.trials_of(replace(mutant.widening, kernel=read)))

    # --- claims widened --------------------------------------------------------------------------------------------

    def _widened(self, mutation: Mutation, observer: Observer, of: Trials) -> Judged:
        """The kit has to fail in a case that only now is claimed, or to miss one."""
        correct, unjudged = list[Unit](), list[Observation]()
        start = time.perf_counter()
        for unit in self._some(mutation, of.units):
            if correct and time.perf_counter() > start + _LONGEST_S:
                break
            found = observer.observe(of, unit)
            if found is None:
                continue
            if found.outcome in AGAINST:
                beyond = unit.case is not None and unit.case.name in of.beyond
                by: By = "lint" if beyond or DECLARED in found.detail else "check"
                return Judged(mutation, "noticed", by, f"{found.case} {found.detail}")
            if found.outcome == "correct":
                correct.append(unit)
            else:
                unjudged.append(found)
        if correct:
            return self._works(mutation, observer, of, correct)
        if problems := self._uncovered(of.widening.kernel):
            return Judged(mutation, "noticed", "check", f"coverage: {problems[0]}")
        if unjudged:
            return Judged(mutation, "unnoticed", detail=f"{unjudged[0].case} cannot be judged: {unjudged[0].detail}")
        verdict, detail = self._untold(of)
        return Judged(mutation, verdict, detail=detail)

    def _works(self, mutation: Mutation, observer: Observer, of: Trials, correct: Sequence[Unit]) -> Judged:
        """The kernel would have worked, provided that the kit sees wrong results of it in such a case."""

        def size(unit: Unit) -> int:
            return elements(self.observer.suite.contract, unit.case) if unit.case is not None else 0

        largest, kernel = max(correct, key=size), of.widening.kernel
        told = f"correct in {len(correct)} of {len(of.units)}: {largest.name}"
        spoiler = Spoiler()
        wrong = spoiler.over(widened(self.dispatcher, kernel), kernel)
        suite = Suite(wrong, kernel, observer.venue, self.seed, all_builds=True, more=of.suite.more)
        seen = observer.observe(Trials(of.widening, suite, [largest]), largest)
        if spoiler.spoils and (seen is None or seen.outcome not in AGAINST):
            return Judged(mutation, "unnoticed", detail=f"{largest.name} passes with wrong results too")
        return Judged(mutation, "would_have_worked", "lint", told)

    def _uncovered(self, kernel: Kernel) -> list[str]:
        """The claims that no case tests, and that were not made before."""
        before = Suite(self.dispatcher, self.kernel, self.venue, self.seed)
        after = Suite(widened(self.dispatcher, kernel), kernel, self.venue, self.seed)
        known = before.uncovered()
        return [problem for problem in after.uncovered() if problem not in known]

    def _untold(self, of: Trials) -> tuple[Verdict, str]:
        """Why nothing speaks for or against a widened claim."""
        widening, contract = of.widening, self.observer.suite.contract
        if of.units:
            return "unnoticed", f"none of {len(of.units)} cases that it admits shows whether it holds"
        if widening.partial:
            return "skipped", "another variant takes it"
        if widening.shown_by == "graph" and not self.venue.captures:
            return "skipped", "calls are captured in graphs on CUDA and HIP devices alone"
        if widening.shown_by is not None:
            return "skipped", f"no case that the kernel claims shows {widening.shown_by}"
        if widening.dtype is not None:
            return "skipped", f"{contract.op} takes it beside none of the other dtypes that are claimed"
        if widening.bound is not None and not of.beyond:
            claimed = [unit.case for unit in self.observer.claimed if unit.case is not None]
            possible = cases_beyond(contract, widening, claimed, _EVERYWHERE)
            why = (
                "a case beyond it is too large to run here" if possible else f"{contract.op} itself takes no such call"
            )
            return "skipped", why
        return "unnoticed", "no case of the kit is refused for it alone"

    def _without_module(self, mutation: Mutation, module: str, kernel: Kernel) -> Judged:
        """Without the module the kernel has to fail; where it does not, it needs less than it says."""
        if installed_version(module) is None:
            return Judged(mutation, "skipped", detail=f"{module} is not here, so that the kernel cannot be tried")
        unit = next(iter(self._some(mutation, self.observer.claimed)), None)
        if unit is None:
            return Judged(mutation, "skipped", detail="the kernel serves no case here")
        with absent(module, self.package.module):
            changed = widened(self.dispatcher, kernel)
            changed.readiness = Readiness(self.dispatcher.registry.manager)
            results = list(Suite(changed, kernel, self.venue, self.seed, all_builds=True).run(unit))
        if all(result.status == "passed" for result in results):
            return Judged(mutation, "would_have_worked", "lint", f"{unit.name} is correct without {module}")
        # its own probe may have noticed that the module is not there
        told = next(result for result in results if result.status != "passed")
        if module not in told.detail:
            return Judged(mutation, "skipped", detail=f"{told.aspect}: {told.detail}")
        return Judged(mutation, "noticed", "check", f"{unit.name} {told.aspect}: {told.detail}")

    # --- claims removed --------------------------------------------------------------------------------------------

    def _removed(self, mutation: Mutation, kernel: Kernel) -> Judged:
        """Lint has to find that what is refused now would have worked."""
        narrow = Observer(widened(self.dispatcher, kernel), kernel, self.venue, self.seed)
        several = 0
        for of in narrow.trials():
            if mutation.parameter not in ("", of.widening.parameter):
                continue
            shown_by = of.widening.shown_by
            units = [unit for unit in of.units if shown_by is not None or self.observer.served(unit)]
            for unit in self._some(mutation, units):
                found = narrow.observe(of, unit)
                if found is not None and found.outcome == "correct":
                    return Judged(mutation, "noticed", "lint", f"{of.widening.claim}: {found.case} would have worked")
                if found is not None:
                    return Judged(mutation, "unnoticed", detail=f"{found.case}: {found.outcome} {found.detail}")
        lost = [unit for unit in self.observer.claimed if not narrow.served(unit)]
        several = sum(len({r.parameter for r in narrow.suite.rejections(unit)}) > 1 for unit in lost)
        if mutation.parameter == "graph_capture" and not self.venue.captures:
            return Judged(mutation, "skipped", detail="calls are captured in graphs on CUDA and HIP devices alone")
        if not lost:
            return Judged(mutation, "skipped", detail="no case shows it, or another variant takes it")
        if several == len(lost):
            detail = f"{several} cases are refused for several reasons, which lint counts and does not try"
            return Judged(mutation, "skipped", detail=detail)
        return Judged(
            mutation, "unnoticed", detail=f"{len(lost)} cases are refused, of which lint tries none: {lost[0].name}"
        )

    def _some(self, mutation: Mutation, units: Sequence[Unit]) -> list[Unit]:
        """A fair part of the cases, the same in every process."""
        source = random.Random(f"{self.seed} {mutation.claim}")
        return source.sample(list(units), min(_MOST_CASES, len(units)))
