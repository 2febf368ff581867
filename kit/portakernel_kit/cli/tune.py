"""``portakernel tune``: measures which kernel is the fastest that is right, and keeps it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from portakernel.cli.options import DTypes, FirstDevice, Json, Shapes, Values

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel.tuning.key import Regime
    from portakernel.words.target import Device
    from portakernel_kit.tune.job import Job
    from portakernel_kit.tune.session import Session

Names = list[str] | None
RegimeName = Literal["graph/cold", "graph/warm", "eager/cold", "eager/warm"]
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def command(
    ops: Annotated[Names, typer.Argument(metavar="OP", help="The ops to measure [default: every op].")] = None,
    calls: Annotated[
        Path | None, typer.Option("--calls", metavar="FILE", help="A YAML file that lists calls, in place of ops.")
    ] = None,
    dtype: DTypes = None,
    shape: Shapes = None,
    parameters: Values = None,
    drawn: Annotated[
        int, typer.Option("--drawn", metavar="N", min=0, help="N calls of sizes drawn from what models use.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Draws the inputs, and sizes.")] = 0,
    training: Annotated[bool, typer.Option("--training", help="Forward for training, and gradients, too.")] = False,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="No new call after this, as 90s, 10m or 2h.")
    ] = None,
    device: FirstDevice = None,
    regime: Annotated[
        RegimeName | None,
        typer.Option("--regime", help="Replays of CUDA graphs or eager calls, from a cold or warm cache."),
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Again what another driver or torch measured, or a busy device.")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Only put each op's records into one file, and drop lines that are none.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure which kernel is the fastest of those that are right, call by call, and keep it for later processes.

    Every kernel that can serve a call is held against the float64 reference first, then timed in turns with the others
    on the same operands. What is kept decides in processes that start later: a kernel replaces the one that priorities
    pick where it takes at most 0.98 of its time, with 99 % certainty. The calls with the most device time come first;
    what is kept already is not measured again, unless a kernel has changed since.

    On devices without graphs eager calls are measured. Exits with 0 when all is measured or kept, 1 when a call could
    not be, or the budget left some, 130 when interrupted: what was measured until then is kept.

    For example:

        portakernel tune --calls service.yaml --budget 10m
        portakernel tune rms_norm attention --training
        portakernel tune --drawn 60 --seed 7 --regime eager/cold --json
        portakernel tune --compact
    """
    from portakernel.cli.output import page, print_json
    from portakernel.config import Config
    from portakernel.deciding.explaining import first_device
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher
    from portakernel.tuning.key import Regime
    from portakernel.tuning.place import own_root

    root = own_root(Config.from_environment().tuning_dir)
    if compact:
        if ops or calls or drawn or shape:
            raise ArgumentValueError("--compact rewrites what is kept and measures nothing; give it alone")
        _compact(root, page(), json=json)
        return
    now = dispatcher()
    where = now.registry.device(device) if device is not None else first_device(now.registry)
    asked = Regime(regime or Regime.GRAPH_COLD)
    wanted = asked.on(where.target.vendor)
    words = tuple(shape or ()), tuple(dtype or ()), tuple(parameters or ())
    jobs = _jobs(calls, ops, words, drawn, seed, where, wanted, training=training)
    limit = seconds_of(budget) if budget is not None else None
    out = page()
    if regime is not None and wanted is not asked and not json:
        out.line(f"{where.name} has no graphs: {wanted} is measured in place of {asked}", "doubt")
    session, status = _measured(root, where, jobs, limit, stale=stale)
    if json:
        print_json({"regime": str(wanted), "device": where.torch_device, **session.to_json(), "kept": status.kept})
    else:
        _print(out, session, status.kept)
    if status.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(1 if session.refused or session.left else 0)


def seconds_of(text: str) -> float:
    """A time as ``90s``, ``10m`` or ``2h``.

    Raises:
        ArgumentValueError: it is none.
    """
    from portakernel.errors import ArgumentValueError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if found is None:
        raise ArgumentValueError(f"--budget {text!r} is no time; give a number and s, m or h, such as 10m")
    return float(found[1]) * _UNITS[found[2]]


class _Status:
    def __init__(self, kept: int) -> None:
        self.kept, self.interrupted = kept, False


def _jobs(
    calls: Path | None,
    ops: Sequence[str] | None,
    words: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    drawn: int,
    seed: int,
    where: Device,
    regime: Regime,
    *,
    training: bool,
) -> list[Job]:
    """The jobs that the command line asks for."""
    from portakernel.cli.calls_file import load_calls
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.contracts import contracts
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher
    from portakernel_kit.cli.bench.requests import Words
    from portakernel_kit.tune.work import jobs_of_calls, jobs_of_questions

    if calls is not None:
        if any(words) or drawn:
            raise ArgumentValueError(f"tune: {calls} lists whole calls; leave out --shape, --dtype, --set and --drawn")
        listed = [call for call in load_calls(calls) if not ops or call.op in ops]
        return jobs_of_calls(listed, where.target, regime, seed)
    asked = list(dict.fromkeys(ops or (op for op, contract in contracts().items() if contract.grid is not None)))
    for op in asked:
        chosen_kernels(dispatcher().registry, op, None)  # a name that nothing has is told before torch is loaded
    questions = Words(*words, drawn=drawn, seed=seed).questions(asked, where)
    on_cpu = where.torch_device == "cpu" and not words[0]
    fitting = [q for q in questions if not (on_cpu and q.too_large(on_cpu=True, free_bytes=None))]
    return jobs_of_questions(fitting, regime, training=training, seed=seed)


def _measured(
    root: Path, where: Device, jobs: Sequence[Job], budget_s: float | None, *, stale: bool
) -> tuple[Session, _Status]:
    """The session once it is over, with a progress bar."""
    from portakernel.cli.progress import progress
    from portakernel.runtime import dispatcher
    from portakernel_kit.tune.child import Child
    from portakernel_kit.tune.session import OneDevice, Session
    from portakernel_kit.tune.work import Kept, work

    with Child(where.torch_device or "cpu") as child:
        kept = Kept(root, child.facts(), dispatcher())
        todo = work(jobs, kept, where.target, stale=stale)
        session, status = Session(root, OneDevice(child), budget_s), _Status(todo.kept)
        try:
            with progress("measuring", len(todo.jobs), eta=True) as tell:
                session.run((job for job, _ in todo.jobs), tell)
        except KeyboardInterrupt:
            status.interrupted = True
    return session, status


def _compact(root: Path, out: Page, *, json: bool) -> None:
    from portakernel.cli.output import print_json
    from portakernel.tuning.store import compact, folders, ops_in

    found = [
        {"place": folder.name, "op": op, "files": files, "records": records}
        for folder in folders(root)
        for op in ops_in(folder)
        for files, records in [compact(folder, op)]
        if files
    ]
    if json:
        print_json({"store": str(root), "compacted": found})
        return
    for one in found:
        out.line(f"{one['place']} {one['op']}: {one['records']} records of {one['files']} files are in one")
    out.line(
        f"{len(found)} ops were put together in {root}" if found else f"nothing to put together in {root}", "faint"
    )


def _print(out: Page, session: Session, kept: int) -> None:
    """Prints what was measured: who is the fastest, and over whom."""
    from portakernel_kit.tune.winners import winner

    rows = [winner(record) for record in session.measured]
    if rows:
        out.table(rows, ("call", "fastest", "µs", "priorities", "ratio", "at most"), right=(2, 4, 5))
    for job, reason in session.refused:
        out.line(f"not measured: {job.name}: {reason}", "bad")
    busy = sum(record.busy for record in session.measured)
    text = f"{len(session.measured)} new measurements, {kept} kept from before, {session.left} left, in {session.root}"
    out.line(text, "good" if not session.left and not session.refused else "doubt")
    if busy:
        out.line(f"{busy} were made while others used the device and decide nothing; --stale repeats them", "doubt")
