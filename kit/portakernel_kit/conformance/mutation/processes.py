"""Mutations of many kernels' claims, each kernel in processes of its own: outside its claims it may end them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.conformance.mutation.mutants import mutants
from portakernel_kit.conformance.mutation.mutation import Judged, Listed, Mutated, Mutation, Trying
from portakernel_kit.conformance.mutation.trying import Mutator
from portakernel_kit.conformance.observing.isolation import Asked, Death, run_apart
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.venue import Unavailable, find_venue

Event = Listed | Trying | Judged | Finished


@dataclass(frozen=True, slots=True)
class MutationJob:
    """The mutations of one kernel but those that are ``done``, or ``only`` one."""

    asked: Asked
    seed: int
    done: frozenset[Mutation] = frozenset()
    only: Mutation | None = None

    def events(self) -> Iterator[Event]:
        """Runs it in this process."""
        yield from Mutator(*self.asked.placed(), self.seed).events(self.done, self.only)


def mutate(
    dispatcher: Dispatcher,
    kernels: Sequence[Kernel],
    *,
    seed: int,
    device: Device | None = None,
    patience_s: float = 300.0,
) -> Iterator[tuple[Mutated, Event]]:
    """What is known of each kernel's mutations, filled as events come; its last event is ``Finished``.

    A kernel is tried where ``check`` runs it. What takes longer than ``patience_s`` seconds hangs.
    """
    for kernel in kernels:
        venue = find_venue(dispatcher, kernel, device)
        known = Mutated(kernel.name)
        if isinstance(venue, Unavailable):
            found = mutants(dispatcher, kernel, None, nowhere=f"the kernel cannot run here: {venue.reason}")
            listed = Listed(tuple(mutant.mutation for mutant in found))
            skipped = (Judged(mutant.mutation, "skipped", detail=mutant.untold) for mutant in found)
            events: Iterator[Event] = iter((listed, *skipped, Finished()))
        else:
            job = MutationJob(Asked.of(dispatcher, kernel, device), seed)
            events = _events(job, known, patience_s)
        for event in events:
            if isinstance(event, Listed):
                known.listed, known.device, known.mode = event.mutations, event.device, event.mode
            elif isinstance(event, Judged):
                known.judged.append(event)
            yield known, event


def _events(job: MutationJob, known: Mutated, patience_s: float) -> Iterator[Event]:
    """Those of all processes. What one died of runs again alone, unless it was all that the process had run."""
    only: Mutation | None = None
    while True:
        tried = list[Mutation]()
        done = frozenset(judged.mutation for judged in known.judged)
        for event in run_apart(MutationJob(job.asked, job.seed, done, only), patience_s):
            match event:
                case Listed():
                    if not known.listed:
                        yield event
                case Trying():
                    tried.append(event.mutation)
                    yield event
                case Judged():
                    yield event
                case Finished():
                    if only is None:
                        yield event
                        return
                    only = None
                case Death():
                    if not tried:
                        yield from _unlisted(known, event)
                        return
                    alone = len(tried) == 1 or event.outcome == "hung"
                    only = None if alone else tried[-1]
                    if alone:
                        yield _killed(tried[-1], event)


def _killed(mutation: Mutation, death: Death) -> Judged:
    """A kernel that dies of what was added is noticed by everybody; of what it claims, it proves nothing."""
    return Judged(mutation, "noticed" if mutation.kind == "widened" else "unnoticed", "check", death.text)


def _unlisted(known: Mutated, death: Death) -> Iterator[Event]:
    """A kernel whose process dies before anything is tried."""
    mutation = Mutation("widened", known.subject, "any claim", "")
    yield Listed((mutation,))
    yield Judged(mutation, "unnoticed", detail=f"its claims cannot be mutated: {death.text}\n{death.written}")
    yield Finished()
