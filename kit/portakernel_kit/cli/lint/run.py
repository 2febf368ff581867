"""A run of ``portakernel lint``: asks, shows and writes what comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from portakernel.cli.output import page, print_json
from portakernel.cli.progress import progress
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.explaining import first_device
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.bench.circumstances import circumstances
from portakernel_kit.bench.report import new_file, write_whole
from portakernel_kit.cli.check.report import print_result
from portakernel_kit.cli.lint.report import print_findings, print_summary
from portakernel_kit.conformance.observing import lint as linting
from portakernel_kit.conformance.observing.observation import Begun, Findings, Finished, Planned
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.runner import fresh_seed

Found = TypeVar("Found")


class Run(ABC, Generic[Found]):
    """What runs share, whatever they find: a file that is written as results come, and an end."""

    name: str  # in that of the file

    def __init__(
        self, dispatcher: Dispatcher, where: Device | None, seed: int | None, output: Path | None, *, shows: bool
    ) -> None:
        self.dispatcher, self.where, self.shows, self.out = dispatcher, where, shows, page()
        self.found: list[Found] = []
        self.seed = fresh_seed() if seed is None else seed
        self.interrupted = True  # until the last kernel is done
        device = where if where is not None else first_device(dispatcher.registry)
        self.circumstances = circumstances(dispatcher.registry, device)
        date = self.circumstances["date"]
        self.path = new_file(output, device.name, date, self.name) if output is not None else None
        self.write()

    @abstractmethod
    def _results(self) -> dict[str, Any]:
        """What was found, as JSON-ready data; stable."""

    @abstractmethod
    def _print_rest(self) -> None:
        """Prints what was not shown when it came, and what it comes to."""

    @abstractmethod
    def _holds(self, *, strict: bool) -> bool:
        """Whether something was found out, and nothing bad."""

    def _to_json(self) -> dict[str, Any]:
        head = {"circumstances": self.circumstances, "seed": self.seed, "interrupted": self.interrupted}
        return {**head, **self._results()}

    def write(self) -> None:
        """Writes what is known by now, where a folder was named for it."""
        if self.path is not None:
            write_whole(self._to_json(), self.path)

    def end(self, *, strict: bool) -> int:
        """Prints what comes last; the exit status."""
        self.write()
        if not self.shows:
            print_json({**self._to_json(), "file": str(self.path) if self.path is not None else None})
        else:
            self._print_rest()
            if self.path is not None:
                self.out.line(f"written to {self.path}")
        if self.interrupted:
            return 130
        return 0 if self._holds(strict=strict) else 1


class LintRun(Run[Findings]):
    """What is declared beside what is observed."""

    name = "lint"

    def lint(self, kernels: Sequence[Kernel], **how: Any) -> None:
        """Asks each kernel, with a progress bar on stderr where that is a terminal."""
        total = 0
        with progress("linting", total) as tell:
            for findings, event in linting.lint(self.dispatcher, kernels, seed=self.seed, device=self.where, **how):
                if not self.found or self.found[-1] is not findings:
                    self.found.append(findings)
                match event:
                    case Planned():
                        total += event.units + sum(refusal.cases for refusal in event.refusals)
                        tell(total=total, description=findings.kernel)
                    case Begun():
                        tell(advance=1)
                    case Result() if self.shows and event.status == "failed":
                        print_result(self.out, event, verbose=False)
                    case Finished():
                        tell(completed=total)  # once a refusal is found right, its other cases are left
                        self.write()
                        if self.shows:
                            print_findings(self.out, findings)
                    case _:
                        pass
        self.interrupted = False

    def _results(self) -> dict[str, Any]:
        return {"kernels": [findings.to_json() for findings in self.found]}

    def _print_rest(self) -> None:
        for findings in self.found:
            if not findings.done:
                print_findings(self.out, findings)
        print_summary(self.out, self.found, self.seed, interrupted=self.interrupted)

    def _holds(self, *, strict: bool) -> bool:
        narrow = any(observed.verdict == "would_have_worked" for f in self.found for observed in f.observed())
        bad = any(findings.failures for findings in self.found) or (strict and narrow)
        return not bad and any(findings.ran for findings in self.found)
