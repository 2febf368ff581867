"""``portakernel tune``: measures which kernel is the fastest that is right, and keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from portakernel.cli.interrupting import interrupted_once
from portakernel.cli.options import DTypes, Json, Shapes, Values

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel.words.target import Device
    from portakernel_kit.tune.fleet import Spread, Workers
    from portakernel_kit.tune.job import Job
    from portakernel_kit.tune.session import Session

Names = list[str] | None
RegimeName = Literal["graph/cold", "graph/warm", "eager/cold", "eager/warm"]


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
    device: Annotated[
        Names,
        typer.Option(
            "--device", metavar="DEVICE", help="Where, such as cuda:0, or all; repeatable [default: the first]."
        ),
    ] = None,
    regime: Annotated[
        RegimeName | None,
        typer.Option("--regime", help="Replays of CUDA graphs or eager calls, from a cold or warm cache."),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option("--engine", help="Processes here, or actors of a Ray cluster.")
    ] = "local",
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

    On devices without graphs eager calls are measured. Several devices of one kind share the calls; of every 20 the
    first is measured on each, which shows how much cards differ. With --engine ray these are the GPUs of a cluster,
    RAY_ADDRESS naming it. Exits with 0 when all is measured or kept, 1 when a call could not be, or the budget left
    some, 130 when interrupted by Ctrl-C or SIGTERM: what was measured until then is kept, and shown.

    For example:

        portakernel tune --calls service.yaml --budget 10m
        portakernel tune rms_norm attention --training
        portakernel tune --drawn 60 --seed 7 --regime eager/cold --json
        portakernel tune --calls service.yaml --device all
        portakernel tune --compact
    """
    from portakernel.cli.output import page, print_json
    from portakernel.config import Config
    from portakernel.errors import ArgumentValueError
    from portakernel.runtime import dispatcher
    from portakernel.tuning.key import Regime
    from portakernel.tuning.place import REMEDY, own_root, writing_trouble
    from portakernel_kit.cli.tune_words import (
        device_of_fleet,
        devices_of,
        jobs_of,
        refuse_beside_compact,
        seconds_of,
    )
    from portakernel_kit.tune.local_workers import LocalWorkers
    from portakernel_kit.tune.ray_workers import RayWorkers

    root = own_root(Config.from_environment().tuning_dir)
    if found := writing_trouble(root):  # told before hours are spent on what cannot be kept
        raise ArgumentValueError(f"the store of measurements {root} {found}; {REMEDY}")
    if compact:
        refuse_beside_compact(
            {
                "OP": ops, "--calls": calls, "--shape": shape, "--dtype": dtype, "--set": parameters, "--drawn": drawn,
                "--seed": seed, "--training": training, "--budget": budget, "--device": device, "--regime": regime,
                "--engine": engine != "local", "--stale": stale,
            }
        )  # fmt: skip
        _compact(root, page(), json=json)
        return
    limit = seconds_of(budget) if budget is not None else None
    if engine == "ray" and device:
        raise ArgumentValueError("--engine ray measures on the GPUs of a cluster, all of them; leave out --device")
    words = tuple(shape or ()), tuple(dtype or ()), tuple(parameters or ())
    out = page()
    with interrupted_once() as close:
        with ExitStack() as held:
            workers: Workers | None = None
            devices: Sequence[Device] = ()
            if engine == "ray":  # whose devices this machine need not have
                workers = held.enter_context(closing(RayWorkers()))
                where = device_of_fleet(workers.facts())
            else:
                devices = devices_of(dispatcher().registry, device or ())
                where = devices[0]
            wanted = Regime(regime or Regime.GRAPH_COLD).on(where.target.vendor)
            jobs = jobs_of(calls, ops, words, drawn, seed, where, wanted, training=training)
            if (told := wanted.instead_of(regime, where.name)) and not json:
                out.line(told, "doubt")
            if drawn and not json:
                out.line(f"sizes are those that --seed {seed} draws", "faint")
            workers = workers or held.enter_context(closing(LocalWorkers(devices)))
            session, status = _measured(root, workers, jobs, limit, stale=stale)
            close()
        if json:
            how = {"regime": str(wanted), "regime_asked": regime, "seed": seed}
            print_json({**how, **session.to_json(), **status.to_json()})
        else:
            _print(out, session, status)
    if status.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(1 if session.refused or session.left else 0)


@dataclass(slots=True)
class _Status:
    """How a run went beside its records: what was there before, on which devices it ran, how much these differ."""

    kept: int
    devices: Sequence[str]
    refused: Mapping[str, str]
    spread: Spread | None = None
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        found = self.spread
        known = {"calls": found.calls, "median": found.median, "worst": found.worst} if found is not None else None
        return {
            "kept": self.kept,
            "devices": list(self.devices),
            "refused_devices": dict(self.refused),
            "spread": known,
            "interrupted": self.interrupted,
        }


def _measured(
    root: Path, workers: Workers, jobs: Sequence[Job], budget_s: float | None, *, stale: bool
) -> tuple[Session, _Status]:
    """The session once it is over, with a progress bar."""
    from portakernel.cli.progress import progress
    from portakernel.runtime import dispatcher
    from portakernel.tuning.sources import source_digest
    from portakernel_kit.tune.fleet import Fleet, crashed_record
    from portakernel_kit.tune.session import Idle, Session
    from portakernel_kit.tune.work import Store, work

    now = dispatcher()
    registry, store = now.registry, Store(root, now)
    sources = {name: source_digest(kernel) for name, kernel in registry.kernels.items()}
    try:
        fleet = Fleet(
            workers, sources, crashed_record(registry), lambda job, facts: store.is_done(job, facts, stale=stale)
        )
        todo = work(jobs, store, tuple(fleet.devices.values()), stale=stale)
    except KeyboardInterrupt:
        return Session(root, Idle(), left=len(jobs)), _Status(0, (), {}, interrupted=True)
    session, status = Session(root, fleet, budget_s), _Status(todo.kept, tuple(fleet.devices), fleet.refused)
    try:
        with progress("measuring", len(todo.jobs), eta=True) as tell:
            session.run((job for job, _ in todo.jobs), tell)
    except KeyboardInterrupt:
        status.interrupted = True
    status.spread = fleet.spread()
    return session, status


def _compact(root: Path, out: Page, *, json: bool) -> None:
    from portakernel.cli.output import print_json
    from portakernel.errors import PortakernelError
    from portakernel.tuning.store import compact, folders, ops_in

    try:
        found = [
            {"place": folder.name, "op": op, **made._asdict()}
            for folder in folders(root)
            for op in ops_in(folder)
            if (made := compact(folder, op)).files
        ]
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        text = f"{root} cannot be compacted: {error.strerror or error}{where}"
        raise PortakernelError(f"{text}; each record is in one file at least") from error
    if json:
        print_json({"store": str(root), "compacted": found})
        return
    for one in found:
        records, files = _counted(one["records"], "record"), _counted(one["files"], "file")
        verb = "is" if one["records"] == 1 else "are"
        out.line(f"{one['place']} {one['op']}: {records} of {files} {verb} in one")
        if dropped := one["dropped"]:
            none = "was no record and is" if dropped == 1 else "were no records and are"
            out.line(f"{_counted(dropped, 'line')} {none} dropped", "doubt", indent=2)
    ops = f"{_counted(len(found), 'op')} {'was' if len(found) == 1 else 'were'} put together in {root}"
    out.line(ops if found else f"nothing to put together in {root}", "faint")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _print(out: Page, session: Session, status: _Status) -> None:
    """Prints what was measured: who is the fastest, and over whom."""
    from portakernel_kit.tune.winners import winner

    rows = [winner(record) for record in session.measured]
    if rows:
        out.table(rows, ("call", "fastest", "µs", "priorities", "ratio", "at most"), right=(2, 4, 5))
    for job, reason in session.refused:
        out.line(f"not measured: {job.name}: {reason}", "bad")
    busy = sum(record.busy for record in session.measured)
    for name, reason in status.refused.items():
        out.line(f"{name} measures nothing: {reason}", "bad")
    if (found := status.spread) is not None:
        text = (
            f"cards differ by {found.median - 1:.1%} (median of {found.calls} calls), at most by {found.worst - 1:.1%}"
        )
        out.line(f"{text}: {found.where}", "good" if found.worst < 1.05 else "doubt")
    count = len(session.measured)
    text = f"{count} new measurements, {status.kept} kept from before, {session.left} left, in {session.root}"
    out.line(text, "good" if not session.left and not session.refused else "doubt")
    if busy:
        out.line(f"{busy} were made while others used the device and decide nothing; --stale repeats them", "doubt")
