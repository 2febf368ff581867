"""Everything that the kit asks of one kernel at one place, unit by unit."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from portakernel import runtime
from portakernel.calling.caller import OpCaller
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase
from portakernel.contract import Case
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.autograd import Autograd
from portakernel_kit.conformance.boundary import boundary_count, boundary_outcomes
from portakernel_kit.conformance.claims import accepted, case_dtypes, cases_at_limits, elements
from portakernel_kit.conformance.coverage import shared_by_rows, uncovered
from portakernel_kit.conformance.emulator import LAUNCHED_NOTHING
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.graph import Graph, capture_cuda
from portakernel_kit.conformance.inputs import Inputs, draw_inputs, generator, is_present
from portakernel_kit.conformance.op_faults import OpFault, blamed
from portakernel_kit.conformance.outcome import Outcome, attempt, ending_in_words, result_of
from portakernel_kit.conformance.repetition import THREADS as REPEATING_THREADS
from portakernel_kit.conformance.repetition import Repetition, differing
from portakernel_kit.conformance.result import Result, Status
from portakernel_kit.conformance.selection import build_case, claims_in, fewest
from portakernel_kit.conformance.tangents import Tangents
from portakernel_kit.conformance.threads import on_one_thread
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.unit import Ran, Unit, is_plain, shown, told_name
from portakernel_kit.conformance.venue import Venue, refusals
from portakernel_kit.conformance.written import call_before, forward_of

# What a claim refuses; whatever else a refusal says is that the kernel cannot be used here at all.
CLAIM_CODES = frozenset(
    {
        ReasonCode.DTYPE,
        ReasonCode.SCALE_FORMAT,
        ReasonCode.LAYOUT,
        ReasonCode.ALIGNMENT,
        ReasonCode.LIMIT,
        ReasonCode.FEATURE,
        ReasonCode.WORKSPACE,
        ReasonCode.SHARED_MEMORY,
        ReasonCode.CANNOT_RUN,
    }
)
# With these a reference refuses what was drawn, and the op does not take.
_NO_CALL = (ArgumentTypeError, ArgumentValueError, IndexError)
# Sizes at a kernel's limits are tried up to here: a check of the kit, not a load test.
_MAX_ELEMENTS = 1 << 22
# Calls that are made a hundred times are of up to so many.
_REPEATED_ELEMENTS = 1 << 14


def most_elements(venue: Venue) -> int:
    """Up to how many elements a tensor of a case that the kit makes has."""
    return min(_MAX_ELEMENTS, venue.max_elements or _MAX_ELEMENTS)


class Suite:
    """The units of one kernel at one venue; each can be run alone and in any order, with the same inputs.

    Of a kernel that has to be built, a few (``selection``) and what a cache has, unless ``all_builds``.
    ``more`` are cases beside the op's.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        kernel: Kernel,
        venue: Venue,
        seed: int,
        *,
        all_builds: bool = False,
        more: Sequence[Case] = (),
    ) -> None:
        self.dispatcher, self.kernel, self.venue, self.seed, self.more = dispatcher, kernel, venue, seed, more
        self.some_only = kernel.build is not None and not all_builds
        self.contract = contract(kernel.op)
        self.caller = OpCaller(self.contract, dispatcher)
        self.variants = venue.variants(kernel, dispatcher)
        self.cases = (*self.contract.cases, *cases_at_limits(self.contract, self.variants, most_elements(venue)), *more)
        self.ran: dict[str, Ran] = {}
        self.unusable = ""

    @functools.cached_property
    def case_units(self) -> tuple[Unit, ...]:
        """Every case in each of its dtypes."""
        op = self.contract.op
        return tuple(
            Unit("case", f"{op}[{case.name}, {shown(dtypes)}]", case, dtypes)
            for case in self.cases
            for dtypes in self._dtypes(case)
        )

    @functools.cached_property
    def _selected(self) -> tuple[Unit, ...]:
        """The cases that run."""
        if not self.some_only:
            return self.case_units

        def claims(unit: Unit) -> frozenset[object]:
            return claims_in(self.contract, self.variants, unit.case, unit.dtypes) if unit.case else frozenset()

        picked = fewest(self._served, claims, lambda unit: elements(self.contract, unit.case) if unit.case else 0)
        names = {unit.name for unit in picked}
        return tuple(unit for unit in self._served if unit.name in names or self._is_kept(unit))

    @functools.cached_property
    def _served(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.case_units if unit.case is not None and self.would_run(unit))

    def _is_kept(self, unit: Unit) -> bool:
        """Whether a case costs no build: a cache, which all processes share, has what serves it."""
        return self.kernel.built is not None and not self.rejections(unit)

    def would_run(self, unit: Unit) -> bool:
        """Whether the kernel serves a case in these dtypes, or would once it is built."""
        return unit.case is not None and not self.why_refused(unit)

    def _is_served(self, inputs: Inputs, phase: Phase) -> bool:
        return {rejection.code for rejection in self._refusals(inputs, phase)} <= {ReasonCode.NEEDS_BUILD}

    def rejections(
        self, unit: Unit, *, phase: Phase = Phase.INFERENCE, requires: frozenset[str] = frozenset()
    ) -> tuple[Rejection, ...]:
        """Why the kernel does not serve a case in these dtypes."""
        if unit.case is None:
            return ()
        return self._refusals(self._forms(unit.case, dict(unit.dtypes)), phase, requires=requires)

    def why_refused(self, unit: Unit) -> str:
        """Why a case does not run in these dtypes; empty where it does, or where it only has to be built."""
        refused = self._refused(unit.case, None) if unit.case is not None else None
        if refused is not None:
            return refused.detail
        rejections = self.rejections(unit)
        built = {rejection.code for rejection in rejections} <= {ReasonCode.NEEDS_BUILD}
        return "" if built else "; ".join(f"{rejection.code}: {rejection.text}" for rejection in rejections)

    def units(self) -> tuple[Unit, ...]:
        """Every unit, coverage last; the order and the names are the same in every process."""
        op, found = self.contract.op, list(self._selected)
        if self.venue.mode is None and self.contract.gradient != "none":
            plain = self._dtypes(self.contract.cases[0])
            if self.some_only:
                selected = [unit.dtypes for unit in found if unit.case is not None and is_plain(unit.case)]
                plain = tuple(dtypes for dtypes in plain if dtypes in selected)[:1] or plain[:1]
            found += [Unit("autograd", f"{op}[autograd, {shown(d)}]", dtypes=d) for d in plain]
        if self.venue.mode is None and self.kernel.build is None:
            found.append(Unit("repetition", f"{op}[repeated calls]"))
        if self.some_only and len(self._selected) < len(self._served):
            found.append(Unit("unbuilt", f"{op}[other cases]"))
        if self.venue.emulator is not None:
            found.append(Unit("instructions", f"{op}[instructions]"))
        return (*found, Unit("boundary", f"{op}[boundary]"), Unit("coverage", f"{op}[coverage]"))

    def _dtypes(self, case: Case) -> tuple[tuple[tuple[str, str], ...], ...]:
        """The dtypes that a case runs in: all that are claimed in the first case of its choices, else a selection."""
        values = self.contract.values(case.parameters)
        chosen = [values[name] for name in self.contract.choosers]
        alike = (
            c for c in self.cases if [self.contract.values(c.parameters)[n] for n in self.contract.choosers] == chosen
        )
        first = next(alike) is case
        found = [d for v in self.variants for d in case_dtypes(self.contract, v, case, all_of_them=first)]
        return tuple(dict.fromkeys(tuple(dtypes.items()) for dtypes in found))

    def cases_reported(self) -> int:
        """How many different ``case``s the results of all units have; each claim of the boundary is one."""
        claims = boundary_count(self.contract, self.kernel, self.dispatcher.registry.spaces)
        return len(self.units()) - 1 + claims

    def run(self, unit: Unit) -> Iterator[Result]:
        """The results of one unit, as they come."""
        if unit.kind == "boundary":
            for name, outcome in boundary_outcomes(self.contract, self.kernel, self.dispatcher.registry.spaces):
                yield self.result(f"{self.contract.op}[{name}]", outcome)
            return
        outcomes = {
            "case": self._case,
            "drawn": self._case,
            "autograd": self._autograd,
            "coverage": self._coverage,
            "repetition": self._repetition,
            "unbuilt": self._unbuilt,
            "instructions": self._instructions,
        }
        found = ending_in_words(outcomes[unit.kind](unit))
        # through autograd a case runs as a model runs it, with every thread
        name = told_name(self.contract, unit)
        for outcome in on_one_thread(self._until_given_up(unit, found)) if unit.kind in ("case", "drawn") else found:
            yield self.result(name, outcome)

    @property
    def given_up(self) -> str:
        """Why no more calls of the kernel are to be made; empty where they are."""
        return self.venue.emulator.given_up if self.venue.emulator is not None else ""

    def _until_given_up(self, unit: Unit, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        """A case's outcomes, as far as the kernel is called."""
        while not self.given_up:
            try:
                outcome = next(outcomes)
            except StopIteration:
                return
            yield outcome
        self.ran.pop(unit.name, None)  # no claim is to blame for what is left out
        yield Outcome("claim", "skipped", self.given_up)

    def result(self, case: str, outcome: Outcome) -> Result:
        """An outcome as it is reported; with the seed, where that draws it again."""
        seeded = outcome.status == "failed" and outcome.aspect not in ("boundary", "coverage")
        detail = f"{outcome.detail} (seed {self.seed})" if seeded else outcome.detail
        return result_of(self.kernel, self.venue, case, replace(outcome, detail=detail))

    def _instructions(self, _: Unit) -> Iterator[Outcome]:
        """Which instructions of what was launched the cases so far have executed: told, not judged."""
        emulator = self.venue.emulator
        if emulator is None:
            return
        executed = emulator.instructions
        status: Status = "passed" if executed.present else "skipped"
        yield Outcome("coverage", status, str(executed), instructions=executed.by_name())

    # --- cases -----------------------------------------------------------------------------------------------------

    def _inputs(self, case: Case, dtypes: Mapping[str, str], *again: str) -> Inputs:
        source = generator(self.seed, self.contract.op, case.name, *dtypes.values(), *again)
        with blamed(f"drawing the contract's case {case.name!r}"):
            return draw_inputs(
                self.contract, case, dtypes, self.venue.torch_device, source, flushed=self._flushes_products
            )

    @property
    def _flushes_products(self) -> bool:
        """Whether the op's products are sums that matrix units make, and these have no subnormal numbers of 16 bits."""
        return self.venue.flushes_halves and self.contract.tolerance.rule == "plain"

    def _forms(self, case: Case, dtypes: Mapping[str, str]) -> Inputs:
        """The inputs as far as claims see them, which ask for no number."""
        with blamed(f"making tensors of the contract's case {case.name!r}"):
            return draw_inputs(self.contract, case, dtypes, self.venue.torch_device, None)

    def _trial(self, case: Case, dtypes: Mapping[str, str], *again: str, drawn: bool = False) -> Trial:
        inputs = self._inputs(case, dtypes, *again)
        return Trial(self.caller, self.kernel, self.venue, inputs, self._properties(inputs), is_drawn=drawn)

    def _properties(self, inputs: Inputs) -> frozenset[str]:
        """The properties that the kernel claims for a case that it serves; one variant may claim more than another."""
        claimed = frozenset[str]().union(*(variant.properties for variant in self.variants))
        request = self.caller.arguments.request(inputs.tensors, inputs.values, Phase.INFERENCE)
        asked = (replace(request, requires=frozenset({name})) for name in claimed)
        refused = {r.parameter for one in asked for r in refusals(self.dispatcher, self.kernel, self.venue, one)}
        return claimed - refused

    def _refusals(
        self, inputs: Inputs, phase: Phase = Phase.INFERENCE, *, requires: frozenset[str] = frozenset()
    ) -> tuple[Rejection, ...]:
        request = self.caller.arguments.request(inputs.tensors, inputs.values, phase, requires=requires)
        return refusals(self.dispatcher, self.kernel, self.venue, request)

    def _built(self, case: Case, trial: Trial) -> Outcome | None:
        """What went wrong in building, if anything did."""
        if self.kernel.build is None:
            return None

        ready = functools.partial(self._is_served, trial.inputs)
        outcome = attempt("claim", lambda: build_case(self.caller, self.kernel, case, trial.inputs, ready))
        return outcome if outcome.status == "failed" else None

    def _unbuilt(self, _: Unit) -> Iterator[Outcome]:
        left = len(self._served) - len(self._selected)
        text = f"{left} more cases are left out, each of which is a build; `portakernel check --all-builds` runs them"
        yield Outcome("claim", "skipped", text)

    def _refused(self, case: Case, trial: Trial | None) -> Outcome | None:
        """Why the case does not run here, if it does not: an outcome of the aspect ``claim``."""
        size, limit = elements(self.contract, case), self.venue.max_elements
        if limit is not None and size > limit:
            return Outcome("claim", "skipped", f"{size} elements; mode {self.venue.mode!r} takes up to {limit}")
        if case.values == "tiny" and self.venue.flushes_subnormals:
            return Outcome("claim", "skipped", f"{self.venue} takes subnormal numbers for zero")
        rejections = self._refusals(trial.inputs) if trial is not None else ()
        if not rejections:
            return None
        text = "; ".join(f"{rejection.code}: {rejection.text}" for rejection in rejections)
        parameters = ", ".join(sorted({r.parameter for r in rejections if r.parameter}))
        # what it needs is there, and yet it cannot be imported or its probe fails: that is no refusal but a fault
        broken = any(r.code in (ReasonCode.IMPORT_FAILED, ReasonCode.PROBE_FAILED) for r in rejections)
        if not broken and not {rejection.code for rejection in rejections} & CLAIM_CODES:
            self.unusable = text
        return Outcome("claim", "failed" if broken else "skipped", f"refused ({parameters or 'not usable'}): {text}")

    def _case(self, unit: Unit) -> Iterator[Outcome]:
        if unit.case is None:
            return
        case, dtypes = unit.case, dict(unit.dtypes)
        self.ran[unit.name] = Ran(False, False)  # until it has: an op that is at fault ends the case
        refused = self._refused(case, None)
        drawn = unit.kind == "drawn"
        try:
            trial = None if refused else self._trial(case, dtypes, drawn=drawn)
        except OpFault as fault:
            if not drawn or not isinstance(fault.__cause__, _NO_CALL):
                raise
            yield Outcome("claim", "skipped", f"{self.contract.op} has no such call: {fault.__cause__}")
            return
        refused = refused or (self._built(case, trial) if trial else None) or self._refused(case, trial)
        if refused or trial is None:
            yield from [refused] if refused else []
            return
        if drawn:
            before = attempt("forward", lambda: call_before(trial, self._inputs(case, dtypes, "before")))
            if before.status == "failed":
                yield before
                return
        forward = forward_of(trial)
        found, before_it = [], self.venue.emulator.launched if self.venue.emulator else 0
        for outcome in forward.outcomes():
            found.append(outcome)
            yield outcome
        if self.venue.emulator and self.venue.emulator.launched == before_it and forward.calls and forward.computes():
            yield Outcome("claim", "failed", LAUNCHED_NOTHING)
        backward = Backward(trial, generator(self.seed, unit.name, "gradients"))
        for outcome in backward.outcomes() if case.backward else ():
            found.append(outcome)
            yield outcome
        if case.backward and case.values == "normal":
            yield from Tangents(trial, generator(self.seed, unit.name, "tangents")).outcomes()
        if self._is_recorded(case, trial):
            yield attempt("autograd", Autograd(trial, generator(self.seed, unit.name)).gradients)
        if "deterministic" in trial.properties and forward.calls:
            yield attempt("determinism", lambda: forward.repeated() + backward.repeated())
        # tiny numbers, of which a device may flush some, say nothing about graphs
        if forward.calls and self.venue.captures and case.values != "tiny" and not trial.permitted:
            fresh = self._trial(case, dtypes, "graph", drawn=drawn)
            source = generator(self.seed, unit.name, "graph")
            yield from Graph(trial, fresh, source, capture_cuda, case.backward).outcomes()
        yield from trial.memory_outcomes()
        done = {outcome.aspect for outcome in found if outcome.status != "skipped"}
        self.ran[unit.name] = Ran("forward" in done, "backward" in done)

    def _is_recorded(self, case: Case, trial: Trial) -> bool:
        """Whether PyTorch records the kernel's gradient in this case: then it is put to the test in each."""
        ours = self.dispatcher is runtime.dispatcher() and self.venue.mode is None
        recorded = ours and case.backward and self.kernel.saves == "autograd" and self.contract.gradient == "kernel"
        return recorded and not self._refusals(trial.inputs, Phase.TRAINING)

    def _autograd(self, unit: Unit) -> Iterator[Outcome]:
        if self.dispatcher is not runtime.dispatcher():
            yield Outcome("autograd", "skipped", "portakernel.ops belongs to another dispatcher than the one checked")
            return
        ran = [other.case for other in self._selected if other.dtypes == unit.dtypes] if self.some_only else []
        for case in sorted(self.contract.cases, key=lambda case: case not in ran):  # what is built goes first
            plain = is_plain(case) and elements(self.contract, case) > 1
            passed = {t.name for t in self.contract.tensors if is_present(t, case)} - {n for n, _ in unit.dtypes}
            if not plain or passed or self._refused(case, None) or not accepted(self.contract, case, dict(unit.dtypes)):
                continue
            trial = self._trial(case, dict(unit.dtypes))
            if (failed := self._built(case, trial)) is not None:
                yield failed
                return
            if not self._refusals(trial.inputs, Phase.TRAINING):
                autograd = Autograd(trial, generator(self.seed, unit.name))
                yield attempt("autograd", autograd.gradients)
                return
        yield Outcome("autograd", "skipped", "the kernel claims no case that training could run")

    # --- repetition ------------------------------------------------------------------------------------------------

    def _repetition(self, _: Unit) -> Iterator[Outcome]:
        """The largest of the ordinary cases that are small and served, over and over."""

        def size(unit: Unit) -> int:
            return elements(self.contract, unit.case) if unit.case is not None and is_plain(unit.case) else 0

        small = [unit for unit in self._selected if 1 < size(unit) <= _REPEATED_ELEMENTS]
        small.sort(key=size, reverse=True)
        unit = next(filter(self.would_run, small), None)
        if unit is None or unit.case is None:
            yield Outcome("claim", "skipped", "the kernel serves no ordinary case that is small enough to be repeated")
            return
        case, dtypes = unit.case, dict(unit.dtypes)
        trials = [self._trial(case, dtypes, "thread", str(number)) for number in range(REPEATING_THREADS)]
        repetition = Repetition(trials)
        if "deterministic" in trials[0].properties:
            others = differing(self.contract, case, small, self.would_run)
            repetition.others = [self._trial(other, dict(unit.dtypes)) for other, unit in others]
            yield attempt("threads", repetition.threads)
            if self.venue.captures and "graph_capture" in trials[0].properties and not self.contract.mutated:
                yield attempt("graph", repetition.graphs)
        yield attempt("memory", repetition.memory)

    # --- coverage --------------------------------------------------------------------------------------------------

    def _coverage(self, _: Unit) -> Iterator[Outcome]:
        outcome = attempt("coverage", self.uncovered)
        if self.unusable and not any(ran.forward for ran in self.ran.values()):
            outcome = Outcome("coverage", "skipped", f"the kernel cannot be used here: {self.unusable}")
        yield outcome

    def _ran(self, unit: Unit) -> Ran:
        """What ran of a case or, when it has not been run yet, what would."""
        if unit.name not in self.ran and unit.case is not None:
            inputs = self._forms(unit.case, dict(unit.dtypes))
            forward = self._refused(unit.case, None) is None and self._is_served(inputs, Phase.INFERENCE)
            self.ran[unit.name] = Ran(
                forward, forward and unit.case.backward and self._is_served(inputs, Phase.BACKWARD)
            )
        return self.ran[unit.name]

    def uncovered(self) -> list[str]:
        """Every claim that no case puts to the test."""
        cases = [(unit, self._ran(unit)) for unit in self._selected]
        executed = [(unit.case, unit.dtypes) for unit, ran in cases if ran.forward and unit.case is not None]
        backward = any(ran.backward for _, ran in cases)
        # of a kernel that has to be built, as few cases run as test each claim once
        together = self.kernel.build is None
        problems = uncovered(self.contract, self.variants, executed, backward=backward, together=together)
        return [*problems, *self._dependent_rows(unit for unit, ran in cases if ran.forward)]

    def _dependent_rows(self, units: Iterable[Unit]) -> list[str]:
        """Where rows are claimed to be independent, and have a result in common: no case can show that."""
        asked, found = frozenset({"batch_invariant"}), dict[str, None]()
        for unit in units:
            shared = shared_by_rows(self.contract, unit.case) if unit.case is not None else []
            if shared and unit.case is not None and not self.rejections(unit, requires=asked):
                what = f"claims property batch_invariant for {unit.case.name!r}, where rows share {', '.join(shared)}"
                found[what] = None
        return list(found)
