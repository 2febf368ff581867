"""A run of ``portakernel faults``: chooses faults, tries them, shows and writes what comes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from portakernel.cli.output import page, print_json
from portakernel.cli.progress import progress
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.bench.circumstances import software
from portakernel_kit.bench.report import write_whole
from portakernel_kit.cli.faults.report import print_baseline, print_judged, print_summary
from portakernel_kit.faults import running
from portakernel_kit.faults.fault import Fault, Judged
from portakernel_kit.faults.known import equal_faults, find_known, read_known, stale
from portakernel_kit.faults.listing import faults_of_files, list_faults, spread
from portakernel_kit.faults.results import Results, digest, resumed
from portakernel_kit.faults.running import Terms
from portakernel_kit.faults.serving import Baseline
from portakernel_kit.faults.sources import Sources
from portakernel_kit.faults.written import read_written

# The file is written so often at most: with thousands of faults it takes a while.
_WRITING_S = 1.0


class FaultsRun:
    """The faults of some kernels of one plugin.

    Raises:
        ArgumentValueError: the plugin has no folder, or ``output`` holds something else.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        kernels: Sequence[Kernel],
        terms: Terms,
        where: Device | None,
        output: Path | None,
        equal: Path | None,
        *,
        shows: bool,
        verbose: bool,
    ) -> None:
        self.dispatcher, self.kernels, self.terms, self.where = dispatcher, list(kernels), terms, where
        self.output, self.equal, self.shows, self.verbose = output, equal, shows, verbose
        self.out, self.interrupted, self.written_at = page(), False, 0.0
        plugin = self.kernels[0].plugin
        entry = dispatcher.registry.manager.plugins.get(plugin)
        if entry is None:
            raise ArgumentValueError(f"{plugin} has no package of its own whose source could be changed")
        self.sources = Sources.of(entry[0])
        ops = {kernel.name: kernel.op for kernel in self.kernels}
        self.results = Results(plugin, terms.seed, digest(self.sources), ops)
        self.circumstances = software(dispatcher.registry)
        self.faults: list[Fault] = []
        self.written: Path | None = None

    def choose(self, written: Path | None, ids: Sequence[str]) -> None:
        """Settles which faults are tried: those written by hand, or of every file; of these, the ones named.

        Raises:
            ManifestError: a file of faults is wrong.
            UnknownNameError: there is no such fault.
        """
        self.written = written
        if written is not None:
            every = read_written(written, self.sources, self.kernels, self.dispatcher.registry.kernels.keys())
            if self.terms.proving:
                every = [fault for fault in every if fault.shows]
        else:
            listing = list_faults(self.sources, self.kernels)
            every, self.results.excluded, self.results.unread = list(listing.faults), listing.excluded, listing.unread
        known = {fault.id: fault for fault in every}
        for unknown in (name for name in ids if name not in known):
            raise UnknownNameError("fault", unknown, known)
        chosen = [known[name] for name in ids] if ids else every
        self.results.listed = len(chosen)
        ops = self.results.ops
        chosen = spread(chosen, lambda fault: ops[fault.kernels[0]], self.terms.seed)
        done = [] if ids else self._done(chosen)
        # one that is asked for by name is tried, whatever is known of it
        done += [] if ids or written is not None else self._equal(chosen)
        self.results.judged += done
        judged = {one.fault for one in done}
        self.faults = [fault for fault in chosen if fault not in judged]
        reached = {name for fault in self.faults for name in fault.kernels}
        self.kernels = [kernel for kernel in self.kernels if kernel.name in reached]

    def _done(self, faults: Sequence[Fault]) -> list[Judged]:
        return resumed(self.output, self.results, faults) if self.output is not None else []

    def _equal(self, faults: Sequence[Fault]) -> list[Judged]:
        """Those that are known to be equal; entries that fit nothing any more are told."""
        path = self.equal if self.equal is not None else find_known(Path.cwd(), self.sources.folder)
        if path is None:
            return []
        entries = read_known(path, self.results.plugin)
        self.results.stale = stale(faults_of_files(self.sources, {entry.identity[0] for entry in entries}), entries)
        return [Judged(fault, "equal", detail=entry.why) for fault, entry in equal_faults(faults, entries).items()]

    def over(self) -> int:
        """Tries them, with a progress bar; the exit status."""
        judged_before = len([one for one in self.results.judged if one.verdict not in ("equal", "not_run")])
        most = None if self.terms.most is None else max(0, self.terms.most - judged_before)
        terms = replace(self.terms, most=most)
        total = len(self.faults) if most is None else min(most, len(self.faults))
        self._write(last=True)
        try:
            with progress("measuring", total) as tell:
                for event in self._events(terms):
                    if isinstance(event, Baseline):
                        known = [one for one in self.results.baselines if one.kernel != event.kernel]
                        self.results.baselines = [*known, event]
                        self._show_baseline(event)
                        self._write()
                        tell(description=event.kernel)
                    elif isinstance(event, Judged):
                        self.results.judged.append(event)
                        self._show(event)
                        self._write()
                        tell(advance=int(event.verdict != "not_run" or most is None), description=event.fault.file)
        except KeyboardInterrupt:
            self.interrupted = True
        self._write(last=True)
        if not self.shows:
            print_json({**self._to_json(), "file": str(self.output) if self.output is not None else None})
        else:
            print_summary(self.out, self.results, self._again(), interrupted=self.interrupted)
        if self.interrupted:
            return 130
        return 0 if self.results.holds() else 1

    def _events(self, terms: Terms) -> Any:
        if terms.most == 0:
            return iter(())
        return running.try_faults(self.dispatcher, self.sources, self.kernels, self.faults, terms, self.where)

    def _show_baseline(self, baseline: Baseline) -> None:
        if self.shows and (self.verbose or baseline.fails or baseline.absent):
            print_baseline(self.out, baseline)

    def _show(self, judged: Judged) -> None:
        if self.shows and (self.verbose or judged.verdict in ("alive", "unproven")):
            print_judged(self.out, judged)

    def _again(self) -> str:
        """The command that tries one fault again, but for its name."""
        source = f" --from {self.written}" if self.written is not None else ""
        return f"portakernel faults {self.results.plugin}{source} --seed {self.terms.seed} --fault"

    def _to_json(self) -> dict[str, Any]:
        head = {"circumstances": self.circumstances, "interrupted": self.interrupted}
        return {**head, "budget_s": self.terms.budget_s, **self.results.to_json()}

    def _write(self, *, last: bool = False) -> None:
        """Writes what is known by now, where a file was named for it."""
        now = time.monotonic()
        if self.output is None or (not last and now < self.written_at + _WRITING_S):
            return
        self.written_at = now
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._to_json(), self.output)
        except OSError as error:
            text = f"no results can be written to {self.output}: {error.strerror or error}"
            raise ArgumentValueError(f"{text}; name a file that can be written with --output") from error
