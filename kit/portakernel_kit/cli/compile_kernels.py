"""``portakernel compile``: kernels compiled for targets that are not in this machine, and what the compiler made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json, OnlyOp, OnlyPlugin, Workers

if TYPE_CHECKING:
    from portakernel.cli.output import Cell, Page
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.offline.job import Job
    from portakernel.offline.outcome import Outcome
    from portakernel.registry.kernel import Kernel
    from portakernel.words.target import Target
    from portakernel_kit.cli.run.counting import Counted


def command(
    plugin: OnlyPlugin = None,
    op: OnlyOp = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="VENDOR:ARCH", help="For this target, be it absent; repeatable."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every case of the op in each of its dtypes, not one for each kernel.")
    ] = False,
    count: Annotated[
        bool,
        typer.Option(
            "--count", help="What each call executes in the emulator: instructions and bytes. No time; AMD's targets."
        ),
    ] = False,
    workers: Workers = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every function, not just failures.")] = False,
    json: Json = False,
) -> None:
    """Compile kernels for targets that are not here, and read what the compiler did.

    Nothing is run: that a kernel compiles, or holds the instruction that its claim implies (native), says nothing of
    its numbers. With --count calls are then emulated, and what they execute is counted. Exits with 0 when all that is
    claimed compiles, 1 on any failure or when nothing is claimed, 130 when interrupted.

    For example:

        portakernel compile --plugin triton --target amd:gfx942
        portakernel compile --op rms_norm --target nvidia:sm_90 --target nvidia:sm_100 --all
        portakernel compile --plugin triton --target amd:gfx1201 --json
        portakernel compile --plugin triton --op softmax --target amd:gfx942 --count
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.cli.output import page, print_json
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher

    now = dispatcher()
    if not target:
        text = "compile: give one --target or more, such as --target amd:gfx942; `portakernel list` names the vendors'"
        raise ArgumentValueError(f"{text} architectures")
    chosen = chosen_kernels(now.registry, op, plugin)
    kernels = [k for k in chosen if now.registry.offline(k.plugin) is not None]
    if not kernels:
        raise ArgumentValueError(_nothing_compiles(now) if chosen else _no_such_kernel(now, op, plugin))
    targets = [now.registry.target(text) for text in dict.fromkeys(target)]
    if count:
        from portakernel.emulation.session import check_target

        for one in targets:
            check_target(one)
    found: list[Outcome] = []
    counted: list[Counted] = []
    interrupted = False
    try:
        for outcome in _outcomes(now, kernels, targets, every=every, workers=workers):
            found.append(outcome)
            if not json and (verbose or outcome.verdict == "fails"):
                _print_outcome(page(), outcome)
        if count:
            compiled = [outcome for outcome in found if outcome.verdict in ("native", "compiles")]
            counted.extend(_counts(now, compiled, kernels, targets, every=every))
    except KeyboardInterrupt:
        interrupted = True
    if json:
        from portakernel_kit.bench.circumstances import software

        outcomes = [outcome.to_json() for outcome in found]
        known = software(now.registry)
        counts: dict[str, Any] = {"counts": [each.to_json() for each in counted]} if count else {}
        print_json({"circumstances": known, "interrupted": interrupted, "outcomes": outcomes, **counts})
    else:
        _print_summary(page(), found, interrupted=interrupted)
        if counted:
            from portakernel_kit.cli.run.counting import print_counted

            print_counted(page(), counted)
    if interrupted:
        raise typer.Exit(130)
    claimed = [outcome for outcome in found if outcome.verdict != "unclaimed"]
    right = all(outcome.verdict != "fails" for outcome in claimed) and all(not each.error for each in counted)
    raise typer.Exit(0 if claimed and right else 1)


def _no_such_kernel(now: Dispatcher, op: str | None, plugin: str | None) -> str:
    ops = sorted({kernel.op for kernel in now.registry.kernels.values() if kernel.plugin == plugin})
    asked = "no kernels" if op is None else f"no kernel for {op}; it has them for {', '.join(ops) or 'no op'}"
    return f"compile: plugin {plugin} has {asked}"


def _nothing_compiles(now: Dispatcher) -> str:
    able = [name for name in now.registry.plugins() if now.registry.offline(name) is not None]
    text = "compile: no such kernel is from a plugin that compiles for targets that are not here (`offline:`)"
    return f"{text}; these are: {', '.join(able) or 'none of the installed ones'}"


def _outcomes(
    now: Dispatcher, kernels: Sequence[Kernel], targets: Sequence[Target], *, every: bool, workers: int | None
) -> Iterator[Outcome]:
    """What comes of each kernel and target, as it comes, with a progress bar on stderr where that is a terminal."""
    from portakernel.cli.progress import progress
    from portakernel.offline.outcome import Outcome
    from portakernel.offline.workers import compile_all
    from portakernel_kit.conformance.offline_jobs import jobs

    planned: list[Job] = []
    for kernel in kernels:
        for target in targets:
            made = jobs(now, kernel, target, every=every)
            planned += made
            if not made:
                yield Outcome(kernel.name, str(target), "")
    with progress("compiling", len(planned)) as tell:
        for outcome in compile_all(planned, workers):
            tell(advance=1, description=f"{outcome.kernel} for {outcome.target}")
            yield outcome


def _counts(
    now: Dispatcher, compiled: Sequence[Outcome], kernels: Sequence[Kernel], targets: Sequence[Target], *, every: bool
) -> Iterator[Counted]:
    """What the calls that compiled execute."""
    from portakernel.cli.progress import progress
    from portakernel_kit.cli.run.counting import counted

    wanted = {outcome.call for outcome in compiled}
    with progress("counting", len(wanted)) as tell:
        for kernel in kernels:
            for target in targets:
                for each in counted(now, kernel, target, wanted, every=every):
                    tell(advance=1, description=f"{kernel.name} for {target}")
                    yield each


def _print_outcome(out: Page, outcome: Outcome) -> None:
    style: Any = {"fails": "bad", "unclaimed": "faint"}.get(outcome.verdict, "good")
    out.line(f"{outcome.verdict} {outcome.call or f'{outcome.kernel} for {outcome.target}'}", style)
    if outcome.reason:
        out.line(outcome.reason, indent=4)
    for f in outcome.functions:
        text = f"{f.function}: {f.registers} registers, {f.spilled_bytes} bytes spilled, {f.shared_bytes} shared"
        out.line(text, "faint", indent=4)


def _print_summary(out: Page, outcomes: Sequence[Outcome], *, interrupted: bool) -> None:
    """For each kernel and target what failed, or the best that was found, and the most of each resource."""
    from portakernel.cli.output import Cell

    out.heading("Interrupted; until then:" if interrupted else "Compiled, not run")
    by_pair: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        by_pair.setdefault((outcome.kernel, outcome.target), []).append(outcome)
    rows: list[tuple[str | Cell, ...]] = []
    for (kernel, target), found in sorted(by_pair.items()):
        failed = [outcome for outcome in found if outcome.verdict == "fails"]
        native = any(outcome.verdict == "native" for outcome in found)
        verdict = f"fails {len(failed)} of {len(found)}" if failed else "native" if native else found[0].verdict
        style: Any = "bad" if failed else "faint" if verdict == "unclaimed" else "good"
        resources = [str(max(o.most(name) for o in found)) for name in ("registers", "spilled_bytes", "shared_bytes")]
        seconds = f"{sum(outcome.seconds for outcome in found):.1f}"
        rows.append((kernel, target, Cell(verdict, style), *resources, seconds))
    if rows:
        columns = ("kernel", "target", "verdict", "registers", "spilled bytes", "shared bytes", "seconds")
        out.table(rows, columns, indent=2, right=(3, 4, 5, 6))
    for target in sorted({outcome.target for outcome in outcomes if not outcome.is_judged}):
        text = f"{target}: no backend says how much memory a program may share there; shared bytes were not judged"
        out.line(text, "doubt", indent=2)
