"""``portakernel bench``: every kernel that can serve a request, timed side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.interrupting import interrupted_once
from portakernel.cli.options import COMMAND_LINE, Deny, DTypes, FirstDevice, Json, OnlyKernels, Output, Shapes, Values

if TYPE_CHECKING:
    from portakernel.registry.registry import Registry
    from portakernel.words.target import Device
    from portakernel_kit.bench.contenders import Filter
    from portakernel_kit.bench.question import Question
    from portakernel_kit.bench.report import Report

Names = list[str] | None


def command(
    ops: Annotated[Names, typer.Argument(metavar="OP", help="The ops to measure [default: every op].")] = None,
    calls: Annotated[
        Path | None, typer.Option("--calls", metavar="FILE", help="A YAML file that lists calls, in place of ops.")
    ] = None,
    dtype: DTypes = None,
    shape: Shapes = None,
    parameters: Values = None,
    device: FirstDevice = None,
    kernel: OnlyKernels = None,
    plugin: Annotated[
        Names, typer.Option("--plugin", metavar="PLUGIN", help="Only this plugin's kernels; repeatable.")
    ] = None,
    deny: Deny = None,
    no_reference: Annotated[bool, typer.Option("--no-reference", help="Do not time the reference.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="Measure gradients too.")] = False,
    no_forward: Annotated[bool, typer.Option("--no-forward", help="Measure gradients alone.")] = False,
    build: Annotated[bool, typer.Option("--build", help="Build the kernels that lack nothing else.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only each op's few main sizes.")] = False,
    drawn: Annotated[
        int, typer.Option("--drawn", metavar="N", min=0, help="N requests of sizes drawn from what models use.")
    ] = 0,
    launch: Annotated[
        bool, typer.Option("--launch", help="Time what a launch costs the host, on a small size.")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="Time replays of calls that were captured in a CUDA or HIP graph.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.0, help="How long to time each request.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Draws the inputs, and sizes.")] = 0,
    output: Output = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw them there too, as PNG and SVG (matplotlib).")] = False,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="Print ratios to an earlier result.")
    ] = None,
    json: Json = False,
) -> None:
    """Time every kernel that can serve a request, side by side, beside a plain copy of as many bytes.

    Each kernel's result is compared with the reference's first; one that differs or raises is shown and not timed. An
    argument given again by --shape begins another request; several --dtype are measured each. --drawn measures what
    --seed draws from the sizes of published models, op after op in turn: sizes that no table is kept of. --calls
    measures what a workload calls, as `portakernel record` writes it.

    Exits with 0 when all that ran was right, 1 when a kernel was wrong or raised, or none was timed, 130 when
    interrupted by Ctrl-C or SIGTERM: what was measured until then is shown.

    For example:

        portakernel bench rms_norm --quick
        portakernel bench rms_norm --shape x=8192x4096 --dtype bfloat16 --backward
        portakernel bench attention linear_act --no-reference --output results --plot
        portakernel bench --drawn 60 --seed 7 --backward
        portakernel bench rms_norm --launch --plugin triton --json
    """
    from portakernel.cli.calls_file import calls_on, load_calls
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.contracts import contracts
    from portakernel.deciding.explaining import first_device
    from portakernel.deciding.policies import make_layer
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher
    from portakernel_kit.bench.question import has_backward_kernels
    from portakernel_kit.bench.report import read_report
    from portakernel_kit.cli.bench.requests import Words, questions_of

    now = dispatcher()
    asked = list(dict.fromkeys(ops or (op for op, contract in contracts().items() if contract.grid is not None)))
    if no_forward and not backward:
        raise ArgumentValueError("--no-forward leaves nothing to measure; add --backward")
    if graph and (backward or launch):
        raise ArgumentValueError("--graph times replays of forward; leave out --backward and --launch")
    if plot and output is None:
        raise ArgumentValueError("--plot draws into the folder of the results; add --output DIR")
    for op in asked:
        chosen_kernels(now.registry, op, None)  # a name that nothing has is told before torch is loaded
    admitted = _filter(now.registry, kernel or (), plugin or (), reference=not no_reference)
    before = read_report(compare) if compare is not None else None
    where = now.registry.device(device) if device is not None else first_device(now.registry)
    if graph and (where.torch_device or "cpu").partition(":")[0] != "cuda":
        raise ArgumentValueError(
            f"--graph captures calls in a CUDA or HIP graph, and {where.name} has none; leave it out"
        )
    idle = [op for op in asked if not has_backward_kernels(contracts()[op])] if drawn and no_forward else []
    if idle == asked:
        raise ArgumentValueError(f"--no-forward: {_no_gradients(idle)}; name other ops, or leave it out")
    asked = [op for op in asked if op not in idle]
    words = (tuple(shape or ()), tuple(dtype or ()), tuple(parameters or ()))
    asked_for = Words(*words, launch=launch, quick=quick, drawn=drawn, seed=seed, trained=no_forward)
    if calls is not None:
        if any(words) or launch or quick or drawn:
            text = "lists whole calls; leave out --shape, --dtype, --set, --launch, --quick and --drawn"
            raise ArgumentValueError(f"bench: {calls} {text}")
        listed = (call for call in load_calls(calls) if not ops or call.op in ops)
        questions = questions_of(calls_on(listed, where, calls), where)
    else:
        questions = asked_for.questions(asked, where)
    if plot:
        from portakernel_kit.bench.plots import check_plots

        check_plots()
    layer = make_layer(COMMAND_LINE, (), (), tuple(deny or ())).check(now.registry)
    token = now.context_layers.set((layer,) if deny else ())
    options = {"seconds": seconds, "seed": seed, "graph": graph, "drawn": drawn}
    run = _Run(where, admitted, options, output, shows=not json)
    if idle and not json:
        run.out.line(f"not drawn: {_no_gradients(idle)}")
    phases = {"forward": not no_forward, "backward": backward}
    with interrupted_once() as close:
        try:
            if launch:
                run.launches(questions)
            else:
                run.cells(questions, **phases, builds=build, chosen_sizes=bool(shape or calls))
        except KeyboardInterrupt:
            pass
        finally:
            now.context_layers.reset(token)
        close()
        status = run.end(before, plot=plot)
    raise typer.Exit(status)


class _Run:
    """A run of the command: measures, shows and writes what comes."""

    def __init__(
        self, where: Device, admitted: Filter, options: dict[str, Any], output: Path | None, *, shows: bool
    ) -> None:
        import torch

        from portakernel.cli.output import page
        from portakernel.runtime import dispatcher
        from portakernel_kit.bench.circumstances import circumstances
        from portakernel_kit.bench.report import Report, new_file

        self.dispatcher, self.where, self.admitted = dispatcher(), where, admitted
        self.options, self.shows, self.out = options, shows, page()
        self.device = torch.device(where.torch_device or "cpu")
        known = circumstances(self.dispatcher.registry, where)
        self.report: Report = Report(known, options)
        self.path = new_file(output, where.name, known["date"]) if output is not None else None
        self._write()

    def cells(
        self, questions: Sequence[Question], *, forward: bool, backward: bool, builds: bool, chosen_sizes: bool
    ) -> None:
        """Measures every request."""
        from portakernel.cli.progress import progress
        from portakernel_kit.bench.results import Cell
        from portakernel_kit.bench.suite import Plan, Suite
        from portakernel_kit.cli.bench.report import print_cell

        of = self.options
        plan = Plan(tuple(questions), forward, backward, chosen_sizes, drawn=bool(of["drawn"]))
        suite = Suite(
            self.dispatcher, self.device, self.admitted, of["seconds"], of["seed"], builds=builds, replays=of["graph"]
        )
        with progress("measuring", plan.cells()) as tell:
            suite.advance = lambda text: tell(description=text)
            for found in suite.run(plan):
                self.report.add(found)
                self._write()
                tell(advance=1)
                if self.shows and isinstance(found, Cell):
                    print_cell(self.out, found)
        self.report.interrupted = False

    def launches(self, questions: Sequence[Question]) -> None:
        """Times the host's part of every op."""
        from portakernel.cli.progress import progress
        from portakernel_kit.bench.launches import time_launches
        from portakernel_kit.bench.stopwatch import stopwatch
        from portakernel_kit.cli.bench.report import print_launches

        watch = stopwatch(self.device)
        with progress("measuring", len(questions)) as tell:
            for question in questions:
                tell(description=f"{question.op} {question.row.name}")
                timing = {name: self.options[name] for name in ("seconds", "seed")}
                found = time_launches(self.dispatcher, question, self.device, watch, self.admitted, **timing)
                self.report.launches.append(found)
                self._write()
                tell(advance=1)
                if self.shows:
                    print_launches(self.out, found, on_cpu=self.device.type == "cpu")
        self.report.interrupted = False

    def end(self, before: dict[str, Any] | None, *, plot: bool) -> int:
        """Prints what comes last, and draws; the exit status."""
        from portakernel.cli.output import print_json
        from portakernel_kit.bench.circumstances import clocks
        from portakernel_kit.bench.report import compare
        from portakernel_kit.cli.bench.report import print_comparison, print_end

        self.report.circumstances["clocks"] = clocks(self.where)  # of a device that is still warm
        self._write()
        report = self.report.to_json()
        comparison = compare(report["cells"], before["cells"]) if before is not None else None
        drawn: list[Path] = []
        if plot and self.path is not None:
            from portakernel_kit.bench.plots import draw

            drawn = draw(report, self.path.with_suffix(""))
        files = [str(path) for path in ([self.path] if self.path is not None else []) + drawn]
        if self.shows:
            print_end(self.out, self.report, files)
            if comparison is not None:
                print_comparison(self.out, comparison)
        else:
            print_json({**report, "comparison": comparison, "files": files})
        return self.report.status()

    def _write(self) -> None:
        if self.path is not None:
            self.report.write(self.path)


def _no_gradients(ops: Sequence[str]) -> str:
    return f"{', '.join(ops)} {'has' if len(ops) == 1 else 'have'} no backward kernels"


def _filter(registry: Registry, kernels: Sequence[str], plugins: Sequence[str], *, reference: bool) -> Filter:
    """Raises UnknownNameError for a name that nothing has."""
    from portakernel.errors import UnknownNameError

    for kind, names, known in (("kernel", kernels, registry.kernels), ("plugin", plugins, registry.plugins())):
        if unknown := next((name for name in names if name not in known), None):
            raise UnknownNameError(kind, unknown, known)
    from portakernel_kit.bench.contenders import Filter

    return Filter(tuple(kernels), tuple(plugins), reference)
