"""``portakernel check``: the conformance kit, run on the installed kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import FoundDevice, Json, OnlyOp, OnlyPlugin, Seed

if TYPE_CHECKING:
    from portakernel.cli.output import Page, Style
    from portakernel_kit.conformance.result import Result

STATUSES = ("passed", "failed", "skipped")


def command(
    plugin: OnlyPlugin = None,
    op: OnlyOp = None,
    device: FoundDevice = None,
    seed: Seed = None,
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
    """Prove kernels correct: every case that a kernel claims, and the refusal of what it does not.

    Exits with 0 when all that ran passed, 1 on any failure or when nothing ran, 130 when interrupted.

    For example:

        portakernel check
        portakernel check --plugin triton --op rms_norm --device cuda:0
        portakernel check --plugin acme --json
        portakernel check --device cuda:0 --huge
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.cli.output import page, print_json
    from portakernel.runtime import dispatcher
    from portakernel_kit.conformance import runner

    now = dispatcher()
    chosen_kernels(now.registry, op, plugin)  # a name that nothing has is told before torch is loaded
    where = now.registry.device(device) if device is not None else None
    seed = runner.fresh_seed() if seed is None else seed
    asked: dict[str, Any] = {"plugin": plugin, "op": op, "device": where, "all_builds": all_builds, "huge": huge}
    cases = runner.plan(now, **asked)
    results: list[Result] = []
    out = page()
    interrupted = False
    try:
        for result in progressing(runner.check(now, seed=seed, **asked), cases):
            results.append(result)
            if not json and (verbose or result.status == "failed"):
                print_result(out, result, verbose=verbose)
    except KeyboardInterrupt:
        interrupted = True
    summary = summarise(results)
    if json:
        from portakernel_kit.bench.circumstances import software

        found = [result.to_json() for result in results]
        known = {**software(now.registry), "device": where.name if where is not None else None}
        head = {"circumstances": known, "seed": seed, "interrupted": interrupted}
        print_json({**head, "summary": summary, "results": found})
    else:
        _print_summary(out, summary, modes_of(results), seed, interrupted=interrupted)
    if interrupted:
        raise typer.Exit(130)
    # what a manifest says of itself runs nothing
    ran = any(result.status != "skipped" and result.aspect not in ("boundary", "coverage") for result in results)
    raise typer.Exit(0 if ran and not any(result.status == "failed" for result in results) else 1)


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


def summarise(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For each kernel, how many results of each status, and the reason that matters most: a failure's, or a skip's."""
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        row = rows.setdefault(
            result.kernel, {"kernel": result.kernel, "op": result.op, **dict.fromkeys(STATUSES, 0), "reason": ""}
        )
        worse = result.status == "failed" and not row["failed"]
        if worse or (result.status == "skipped" and not row["reason"]):
            row["reason"] = f"{result.case} {result.aspect}: {result.detail}" if worse else result.detail
        row[result.status] += 1
    return list(rows.values())


def shortened(reason: str) -> str:
    """As much of a reason as a table bears; a failure was printed whole when it came."""
    first = reason.partition("\n")[0]
    return first if len(first) <= 100 else f"{first[:97]}..."


def print_result(out: Page, result: Result, *, verbose: bool) -> None:
    """One result, with what is wrong; ``verbose``: with the traceback, where something was raised."""
    styles: dict[str, Style] = {"passed": "good", "failed": "bad", "skipped": "faint"}
    place = ", ".join(filter(None, (result.device, result.mode)))
    text = f"{result.status} {result.kernel} {result.case} {result.aspect}" + (f" on {place}" if place else "")
    out.line(text, styles[result.status])
    if result.detail:
        out.line(result.detail, indent=4)
    if verbose and result.traceback:
        out.line(result.traceback.rstrip(), "faint", indent=6)


def modes_of(results: Iterable[Result]) -> dict[str, str]:
    """The modes of execution that each kernel ran in, such as an emulator's, where it was not the hardware's own."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        if result.mode and result.status != "skipped":
            found.setdefault(result.kernel, {})[result.mode] = None
    return {kernel: ", ".join(modes) for kernel, modes in found.items()}


def _print_summary(
    out: Page, summary: Sequence[dict[str, Any]], modes: Mapping[str, str], seed: int, *, interrupted: bool
) -> None:
    from portakernel.cli.output import Cell

    out.heading("Interrupted; until then:" if interrupted else f"Conformance, seed {seed}")
    rows = [
        (
            f"{row['kernel']} ({modes[row['kernel']]})" if row["kernel"] in modes else row["kernel"],
            Cell(str(row["passed"]), "good" if row["passed"] else ""),
            Cell(str(row["failed"]), "bad" if row["failed"] else ""),
            str(row["skipped"]),
            shortened(str(row["reason"])),
        )
        for row in summary
    ]
    if rows:
        out.table(rows, ("kernel", *STATUSES, "reason"), indent=2, right=(1, 2, 3))
    if not any(row["passed"] or row["failed"] for row in summary):
        out.line("nothing ran: `portakernel doctor` says which kernels are ready here", "bad", indent=2)
