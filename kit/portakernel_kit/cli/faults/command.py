"""``portakernel faults``: which faults in the source of kernels the conformance kit finds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portakernel.cli.options import FoundDevice, Json, OnlyKernels, OnlyOp, Seed, Workers

# Each has a copy of what kernels keep and, on a GPU, of what its driver does.
_MOST_WORKERS = 8


def command(
    plugin: Annotated[str, typer.Argument(metavar="PLUGIN", help="The plugin, as `portakernel list` names it.")],
    op: OnlyOp = None,
    kernel: OnlyKernels = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="ID", help="Only this fault, as a survivor's line names it.")
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="How long requests are put to one fault: 10s, 1m.")
    ] = "10s",
    patience: Annotated[
        float,
        typer.Option("--patience", metavar="S", min=0.1, help="A fault of which nothing comes for so long hangs."),
    ] = 20.0,
    most: Annotated[
        int | None,
        typer.Option("--most", metavar="N", min=1, help="Try N faults, of all ops, files and kinds [default: all]."),
    ] = None,
    written: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Faults written by hand: a YAML file, or a folder of them."),
    ] = None,
    by_witness: Annotated[
        bool,
        typer.Option("--by-witness", help="Only the request that is to show each fault written by hand: does it?"),
    ] = False,
    equal: Annotated[
        Path | None,
        typer.Option("--equal", metavar="FILE", help="Known equal faults [default: faults.yaml of the project]."),
    ] = None,
    device: FoundDevice = None,
    workers: Workers = None,
    seed: Seed = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write the results there as JSON, as they come, and go on there."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every fault, not just survivors.")] = False,
    json: Json = False,
) -> None:
    """Put faults into the source of kernels, one at a time, and see whether the conformance kit finds each.

    The plugin's package is copied; of each kernel, every file that it reaches is changed in one place: another
    operator, number, dtype, mask, stride, condition, a call left out. Cases and drawn requests that run the line are
    put to it, in a process of its own, until one fails. What survives is equal to the original, or a hole in the kit.

    Exits with 0 when faults were found and none survived, 1 otherwise, 130 when interrupted.

    For example:

        portakernel faults acme --op rms_norm --most 100
        portakernel faults acme --output faults.json
        portakernel faults acme --fault 1f3c09ab52
        portakernel faults acme --from faults/ --by-witness
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.errors import ArgumentValueError, UnknownNameError
    from portakernel.offline.workers import cores
    from portakernel.runtime import dispatcher

    now = dispatcher()
    asked = chosen_kernels(now.registry, op, plugin, kernel)
    if not asked:
        raise UnknownNameError("op", op or "", {k.op for k in chosen_kernels(now.registry, None, plugin)}, where=plugin)
    if by_witness and written is None:
        raise ArgumentValueError("--by-witness runs what faults written by hand say; name them with --from")
    where = now.registry.device(device) if device is not None else None

    from portakernel_kit.cli.faults.run import FaultsRun
    from portakernel_kit.conformance.drawn.processes import parse_budget
    from portakernel_kit.conformance.runner import fresh_seed
    from portakernel_kit.faults.running import Terms

    seconds = parse_budget(budget).seconds
    if seconds <= 0:  # what no request was put to would be told alive
        text = f"--budget {budget} puts no request to a fault"
        raise ArgumentValueError(f"{text}; it takes a time above 0, such as 10s or 1m, or all")
    many = workers if workers is not None else min(_MOST_WORKERS, cores())
    terms = Terms(fresh_seed() if seed is None else seed, seconds, patience, most, many, by_witness)
    run = FaultsRun(now, asked, terms, where, output, equal, shows=not json, verbose=verbose)
    run.choose(written, fault or [])
    raise typer.Exit(run.over())
