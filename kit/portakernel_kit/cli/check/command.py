"""``portakernel check``: the conformance kit, run on the installed kernels."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.interrupting import interrupted_once
from portakernel.cli.options import FoundDevice, Json, OnlyKernels, OnlyOp, OnlyPlugin, Seed
from portakernel_kit.cli.check.report import NOT_READY, modes_of, print_result, print_summary, summarise

if TYPE_CHECKING:
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel_kit.conformance.drawn.processes import Drawing
    from portakernel_kit.conformance.result import Result
    from portakernel_kit.conformance.venue import Where


def command(
    plugin: OnlyPlugin = None,
    op: OnlyOp = None,
    kernel: OnlyKernels = None,
    device: FoundDevice = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            "--emulate",
            metavar="TARGET",
            help="In the emulator of AMD's instructions, such as amd:gfx942: Triton and HIP kernels, without a GPU.",
        ),
    ] = None,
    seed: Seed = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="How long requests are drawn beside the cases: 60s, 10m, 0; all: until every pair was asked for."
            "  [default: all, and 2m at most]",
        ),
    ] = None,
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=0, help="Leave out the first N drawn requests of each kernel.")
    ] = 0,
    drawn: Annotated[
        bool, typer.Option("--drawn", help="Drawn requests alone, and not the cases: for long runs with other seeds.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Processes side by side, of a kernel's cases and of drawn requests."
            "  [default: one a core, 8 at most; of cases where they are compiled for a GPU]",
        ),
    ] = None,
    one: Annotated[
        str | None, typer.Option("--one", metavar="JSON", help="The one request that a failure has printed, again.")
    ] = None,
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="Which pairs of features, values, dtypes, layouts and sizes are asked for."),
    ] = False,
    all_builds: Annotated[
        bool,
        typer.Option(
            "--all-builds", help="Every case of kernels that have to be built, not the few that test each claim once."
        ),
    ] = False,
    huge: Annotated[
        bool,
        typer.Option("--huge", help="Calls with more than 2**31 elements, which take tens of GB, and not the cases."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every result, not just failures.")] = False,
    json: Json = False,
) -> None:
    """Prove kernels correct: every case that a kernel claims, the refusal of what it does not, and drawn requests.

    Exits with 0 when all that ran passed, 1 on any failure or when nothing ran, 130 when interrupted.

    For example:

        portakernel check
        portakernel check --plugin triton --op rms_norm --device cuda:0
        portakernel check --kernel triton.rms_norm --kernel triton.softmax
        portakernel check --plugin acme --budget 10m --workers 4
        portakernel check --plugin acme --device cuda:0 --drawn --budget 1h
        portakernel check --plugin acme --coverage
        portakernel check --device cuda:0 --huge
        portakernel check --plugin triton --op rms_norm --emulate amd:gfx942 --budget 0
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.cli.output import page, print_json
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher
    from portakernel_kit.conformance import runner
    from portakernel_kit.conformance.drawn.processes import DEFAULT_BUDGET, Budget, parse_budget

    if drawn and huge:
        raise ArgumentValueError("check: --huge draws no requests, and --drawn runs nothing else; leave one out")
    now = dispatcher()
    chosen_kernels(now.registry, op, plugin, kernel)  # a name that nothing has is told before torch is loaded
    where: Where = now.registry.device(device) if device is not None else None
    if emulate is not None:
        from portakernel_kit.cli.check.emulated import emulated_kernels

        others = {"--device": device, "--huge": huge, "--coverage": coverage}
        where, kernel = emulated_kernels(now, emulate, plugin, op, kernel, [name for name, on in others.items() if on])
        plugin = op = None
    seed = runner.fresh_seed() if seed is None else seed
    within = DEFAULT_BUDGET if budget is None else parse_budget(budget)
    asked: dict[str, Any] = {"plugin": plugin, "op": op, "names": kernel, "device": where}
    if coverage:
        from portakernel_kit.cli.check.coverage import show

        raise typer.Exit(show(now, seed=seed, json=json, **asked))
    known: dict[str, Any] = {**asked, "all_builds": all_builds, "huge": huge}
    drawing = None
    if one is not None:
        found = runner.again(now, one, where)
    else:
        terms: dict[str, Any] = {"budget": Budget(0.0) if huge else within, "first": first, "workers": workers}
        drawing = runner.drawing(now, seed=seed, **terms, **asked)
        found = timed(drawing)
        if not drawn:
            cases = runner.check(now, seed=seed, workers=workers, **known)
            found = itertools.chain(progressing(cases, runner.plan(now, **known)), found)
    results: list[Result] = []
    out = page()
    interrupted = False
    with interrupted_once() as close:
        try:
            for result in found:
                results.append(result)
                # of a request that is asked for alone, why it is refused is all that there is to say
                refused = one is not None and result.status == "skipped" and result.aspect == "claim"
                if not json and (verbose or refused or result.status == "failed"):
                    print_result(out, result, verbose=verbose)
        except KeyboardInterrupt:
            interrupted = True
        close()
        summary = summarise(results)
        # what a manifest says of itself runs nothing
        ran = any(result.status != "skipped" and result.aspect not in ("boundary", "coverage") for result in results)
        requests = drawing.to_json() if drawing is not None else {}
        if json:
            from portakernel_kit.bench.circumstances import software

            shown = [result.to_json() for result in results]
            circumstances = {**software(now.registry), "device": _name_of_device(now, where, results)}
            head = {"circumstances": circumstances, "seed": seed, "interrupted": interrupted, "drawn": requests}
            print_json({**head, "summary": summary, "results": shown})
        else:
            why = NOT_READY
            if one is not None and any(result.device for result in results):  # what has no place to run names none
                why = "the request was not put to the kernel, for the reason above"
            elif drawn and drawing is not None and drawing.kernels:
                why = _why_none_was_drawn(drawing) if not requests["requests"] else "the reasons are above"
            elif any(result.status == "passed" for result in results):
                why = f"no case was put to a kernel, and what passed are claims alone; {NOT_READY}"
            print_summary(
                out, summary, modes_of(results), seed, requests, interrupted=interrupted, why="" if ran else why
            )
    if interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if ran and not any(result.status == "failed" for result in results) else 1)


def _name_of_device(now: Dispatcher, asked: Where, results: Sequence[Result]) -> str | None:
    """The name of the device that was asked for, or else of the one that all results come from."""
    if asked is not None:
        return getattr(asked, "name", None)
    places = {result.device for result in results if result.device and result.mode is None}
    found = [device for device in now.registry.devices if f"{device.target} ({device.torch_device})" in places]
    return found[0].name if len(places) == len(found) == 1 else None


def _why_none_was_drawn(drawing: Drawing) -> str:
    """Why no request was, of kernels that could run some, and what to do about it."""
    if drawing.pairs and not any(possible for _, possible in drawing.pairs.values()):
        return "of all that could be drawn these kernels serve nothing here; --coverage says why"
    fewer = f"; so does a smaller --first than {drawing.first}" if drawing.first else ""
    longer = "a --budget that is a time" if math.isinf(drawing.budget.seconds) else "a larger --budget"
    return f"no request was drawn; {longer}, such as 5m, draws some{fewer}"


def progressing(results: Iterable[Result], cases: int) -> Iterator[Result]:
    """The results as they come, with a progress bar on stderr where that is a terminal."""
    from portakernel.cli.progress import progress

    seen: set[tuple[str, str]] = set()
    with progress("checking", cases) as tell:
        for result in results:
            if result.aspect != "boundary":  # whose cases the plan does not count
                seen.add((result.kernel, result.case))
            tell(completed=len(seen), description=result.kernel)
            yield result


def timed(drawing: Drawing) -> Iterator[Result]:
    """The results of drawn requests as they come, with a progress bar of their time."""
    from portakernel.cli.progress import progress

    start = time.monotonic()
    total = 0 if math.isinf(drawing.budget.seconds) else round(drawing.budget.seconds)
    with progress("drawing requests", total) as tell:
        for result in drawing.results():
            tell(completed=min(round(time.monotonic() - start), total), description=result.kernel)
            yield result
