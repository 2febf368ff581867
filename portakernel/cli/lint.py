"""``portakernel lint``: what manifests declare beside what is observed, refusals included."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.check import find_device, print_result
from portakernel.cli.options import FoundDevice, Json, OnlyOp, OnlyPlugin, Output, Seed

if TYPE_CHECKING:
    from portakernel.conformance.observation import Findings
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.registry.kernel import Kernel
    from portakernel.words.target import Device


def command(
    plugin: OnlyPlugin = None,
    op: OnlyOp = None,
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel; repeatable.")
    ] = None,
    device: FoundDevice = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="S", min=0.0, help="How long to try what each kernel's claims refuse [default: 20]."
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", metavar="S", min=1.0, help="How long one case may take; it hangs after that.")
    ] = 300.0,
    no_claims: Annotated[
        bool, typer.Option("--no-claims", help="Only what is refused; `portakernel check` has the rest.")
    ] = False,
    targets: Annotated[
        bool,
        typer.Option("--targets", help="Ask kernels whose targets leave out all devices here for one of them, too."),
    ] = False,
    mutate: Annotated[
        bool,
        typer.Option("--mutate", help="Change the manifests, one claim or key at a time: somebody has to notice."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="A refusal that would have worked counts as a failure.")
    ] = False,
    seed: Seed = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Hold what kernels declare against what is observed: claims that fail, refusals that would have worked.

    Every claim is checked, as `portakernel check` does. Then each kernel is asked for what a single one of its claims
    refuses, in a process of its own, which may die of it: a refusal is right where the kernel is wrong, refuses by
    itself, raises, hangs or ends the process, and too narrow where all that is tried is correct.

    With --mutate the kit itself is put to the test, on copies of the manifests: each claim is widened, which a case
    has to refute; each is removed, which has to be found to have worked; and each required key is removed, which
    `portakernel validate` has to name.

    Exits with 0 when every claim holds, 1 when one fails or nothing ran, 130 when interrupted; with --mutate, with 1
    when a mutation goes unnoticed or none was noticed.

    For example:

        portakernel lint --plugin triton --device cuda:0
        portakernel lint --kernel torch.rms_norm --no-claims --seconds 60
        portakernel lint --plugin acme --strict --output results --json
        portakernel lint --plugin acme --mutate
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.errors import ArgumentValueError, UnknownNameError
    from portakernel.runtime import dispatcher

    now = dispatcher()
    kernels = chosen_kernels(now.registry, op, plugin)  # a name that nothing has is told before torch is loaded
    names = [chosen.name for chosen in kernels]
    if unknown := next((name for name in kernel or () if name not in names), None):
        raise UnknownNameError("kernel", unknown, names)
    asked = [chosen for chosen in kernels if not kernel or chosen.name in kernel]
    where = find_device(now.registry, device) if device is not None else None
    if mutate:
        if seconds is not None or no_claims or targets:
            given = "--seconds" if seconds is not None else "--no-claims" if no_claims else "--targets"
            raise ArgumentValueError(
                f"{given} does not go with --mutate, which tries each mutation by itself; drop one"
            )
        from portakernel.cli.mutations import run_mutations

        whole = plugin if op is None and not kernel else None
        raise typer.Exit(run_mutations(now, asked, whole, where, seed, output, patience, shows=not json, strict=strict))
    seconds = 20.0 if seconds is None else seconds
    run = _Run(now, where, seed, output, shows=not json)
    with suppress(KeyboardInterrupt):
        run.lint(asked, where, seconds=seconds, patience_s=patience, claims=not no_claims, targets=targets)
    raise typer.Exit(run.end(strict=strict))


class _Run:
    """A run of the command: asks, shows and writes what comes."""

    def __init__(
        self, dispatcher: Dispatcher, where: Device | None, seed: int | None, output: Path | None, *, shows: bool
    ) -> None:
        from portakernel.bench.circumstances import circumstances
        from portakernel.bench.report import new_file
        from portakernel.cli.output import page
        from portakernel.conformance.runner import fresh_seed
        from portakernel.deciding.explaining import first_device

        self.dispatcher, self.shows, self.out = dispatcher, shows, page()
        self.seed = fresh_seed() if seed is None else seed
        self.found: list[Findings] = []
        self.interrupted = True  # until the last kernel is done
        device = where if where is not None else first_device(dispatcher.registry)
        self.circumstances = circumstances(dispatcher.registry, device)
        date = self.circumstances["date"]
        self.path = new_file(output, device.name, date, "lint") if output is not None else None
        self._write()

    def lint(self, kernels: Sequence[Kernel], where: Device | None, **how: Any) -> None:
        """Asks each kernel, with a progress bar on stderr where that is a terminal."""
        from portakernel.cli.lint_report import print_findings
        from portakernel.cli.progress import progress
        from portakernel.conformance.lint import lint
        from portakernel.conformance.observation import Begun, Finished, Planned
        from portakernel.conformance.result import Result

        total = 0
        with progress("linting", total) as tell:
            for findings, event in lint(self.dispatcher, kernels, seed=self.seed, device=where, **how):
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
                        self._write()
                        if self.shows:
                            print_findings(self.out, findings)
                    case _:
                        pass
        self.interrupted = False

    def end(self, *, strict: bool) -> int:
        """Prints what comes last; the exit status."""
        from portakernel.cli.lint_report import print_findings, print_summary
        from portakernel.cli.output import print_json

        self._write()
        if not self.shows:
            print_json({**self._to_json(), "file": str(self.path) if self.path is not None else None})
        else:
            for findings in self.found:
                if not findings.done:
                    print_findings(self.out, findings)
            print_summary(self.out, self.found, self.seed, interrupted=self.interrupted)
            if self.path is not None:
                self.out.line(f"written to {self.path}")
        if self.interrupted:
            return 130
        narrow = any(observed.verdict == "would_have_worked" for f in self.found for observed in f.observed())
        bad = any(findings.failures for findings in self.found) or (strict and narrow)
        return 0 if not bad and any(findings.ran for findings in self.found) else 1

    def _to_json(self) -> dict[str, Any]:
        return {
            "circumstances": self.circumstances,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "kernels": [findings.to_json() for findings in self.found],
        }

    def _write(self) -> None:
        from portakernel.bench.report import write_whole

        if self.path is not None:
            write_whole(self._to_json(), self.path)
