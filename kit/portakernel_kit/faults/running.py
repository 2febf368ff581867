"""Faults of one plugin from beginning to end: what is tried, in a process of its own, and what comes of each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.conformance.observing.isolation import Asked, Death, run_apart
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.venue import Unavailable, Venue, find_venue
from portakernel_kit.faults.fault import Fault, Judged
from portakernel_kit.faults.serving import Baseline, Event, FaultsJob
from portakernel_kit.faults.sources import Sources

# The process gives a sign every few seconds; what is imported at its beginning takes longest.
_SILENCE_S = 180.0
# So many processes may end in a row with nothing new known.
_MOST_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Terms:
    """How faults are tried: seconds for each, seconds without progress, how many, how many at a time."""

    seed: int
    budget_s: float = 10.0
    patience_s: float = 20.0
    most: int | None = None
    workers: int = 1
    proving: bool = False


def try_faults(
    dispatcher: Dispatcher,
    sources: Sources,
    kernels: Sequence[Kernel],
    faults: Sequence[Fault],
    terms: Terms,
    device: Device | None = None,
) -> Iterator[Event]:
    """What comes of each fault, as it comes; ends early where a kernel fails as it is (``Baseline.fails``).

    Nothing of the plugin's package is changed: its copies are.
    """
    if not faults:
        return
    venues = {kernel.name: find_venue(dispatcher, kernel, device) for kernel in kernels}
    forks = all(venue.torch_device == "cpu" for venue in venues.values() if isinstance(venue, Venue))
    absent = tuple((name, venue.reason) for name, venue in venues.items() if isinstance(venue, Unavailable))
    for name, reason in absent:
        yield Baseline(name, "", None, 0, reason)
    files = frozenset[Path]().union(*map(sources.reached, kernels))
    asked = Asked.of(dispatcher, kernels[0], device)
    with tempfile.TemporaryDirectory(prefix="portakernel-faults") as folder:
        job = FaultsJob(
            asked,
            sources.package.module,
            sources.folder,
            Path(folder),
            tuple(sources.foreign_imports(files)),
            tuple(name for name, venue in venues.items() if isinstance(venue, Venue)),
            tuple(faults),
            terms.seed,
            terms.budget_s,
            terms.patience_s,
            terms.most,
            terms.workers,
            forks,
            terms.proving,
            absent,
            frozenset(kernel.name for kernel in kernels if kernel.build is not None),
        )
        yield from _restarted(job)


def _restarted(job: FaultsJob) -> Iterator[Event]:
    """The events of one process after the other, until there is nothing left to do."""
    deaths, text = 0, ""
    while deaths < _MOST_DEATHS:
        known, tried = set[Fault](), 0
        for event in run_apart(job, _SILENCE_S):
            if isinstance(event, Death):
                text = f"the process that tries faults is lost: {event.text}\n{event.written}"
                deaths = 1 if known else deaths + 1
                break
            yield event
            if isinstance(event, Finished) or (isinstance(event, Baseline) and event.fails):
                return
            if isinstance(event, Judged):
                known.add(event.fault)
                tried += event.verdict != "not_run"
        left = tuple(fault for fault in job.faults if fault not in known)
        most = None if job.most is None else max(0, job.most - tried)
        job = replace(job, faults=left, most=most)
    raise RuntimeError(text)
