"""``portakernel regret``: what it costs to choose kernels by priorities, by measurements, or by a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.interrupting import interrupted_once
from portakernel.cli.options import FirstDevice, Json
from portakernel_kit.cli.tune import RegimeName

if TYPE_CHECKING:
    from portakernel.cli.output import Page
    from portakernel.tuning.choices import Choices
    from portakernel.tuning.key import Regime
    from portakernel.words.target import Device
    from portakernel_kit.tune.job import Facts, Job
    from portakernel_kit.tune.regret import Cell, Summary
    from portakernel_kit.tune.work import Store

Names = list[str] | None
# How many calls are shown, those that lose most.
_SHOWN = 10
# Of an op whose drawn sizes are all kept already: how many more are drawn.
_MOST_DRAWS = 1000


def command(
    ops: Annotated[Names, typer.Argument(metavar="OP", help="The ops to measure [default: every op].")] = None,
    held_out: Annotated[
        int, typer.Option("--held-out", metavar="N", min=1, help="How many calls, of sizes that are not in the store.")
    ] = 60,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Draws the sizes, and inputs.")] = 0,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan to judge, too.")] = None,
    training: Annotated[bool, typer.Option("--training", help="Forward for training, and gradients, too.")] = False,
    device: FirstDevice = None,
    regime: Annotated[
        RegimeName | None,
        typer.Option("--regime", help="Replays of CUDA graphs or eager calls, from a cold or warm cache."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure what choosing by priorities, by what is kept, or by a plan costs over the best kernel, on fresh sizes.

    Sizes are drawn from what models use; those that the store has are left out, and nothing is kept of these
    measurements. Each way of choosing is stated by the geometric mean of its times over the best kernel's, the worst,
    how many calls lose more than 5 %, and harm: how many it makes slower by over 2 % than priorities do.

    What was measured while others used the device is not counted. Exits with 0 when it measured something, 1 when
    nothing, 130 when interrupted by Ctrl-C or SIGTERM: what was measured until then is shown.

    For example:

        portakernel regret --held-out 60 --seed 11
        portakernel regret rms_norm softmax --held-out 20 --plan plan.yaml --json
    """
    from portakernel.cli.list_kernels import chosen_kernels
    from portakernel.cli.output import page, print_json
    from portakernel.contracts import contracts
    from portakernel.deciding.explaining import first_device
    from portakernel.runtime import dispatcher
    from portakernel.tuning.key import Regime
    from portakernel_kit.tune.regret import PRIORITIES, summary

    now = dispatcher()
    drawing = [op for op, contract in contracts().items() if contract.grid is not None and contract.grid.drawn]
    asked = list(dict.fromkeys(ops or drawing))
    for op in asked:
        chosen_kernels(now.registry, op, None)  # a name that nothing has is told before torch is loaded
    where = now.registry.device(device) if device is not None else first_device(now.registry)
    wanted = Regime(regime or Regime.GRAPH_COLD).on(where.target.vendor)
    out = page()
    if (told := wanted.instead_of(regime, where.name)) and not json:
        out.line(told, "doubt")
    with interrupted_once() as close:
        cells, interrupted, busy = _measured(asked, held_out, seed, plan, where, wanted, training=training)
        close()
        ways = [PRIORITIES, "measured", *(["plan"] if plan is not None else [])]
        found = {way: summary(cells, way) for way in ways}
        if json:
            print_json(
                {
                    "device": where.torch_device,
                    "regime": str(wanted),
                    "regime_asked": regime,
                    "seed": seed,
                    "interrupted": interrupted,
                    "busy": busy,
                    "ways": {way: one.to_json() for way, one in found.items()},
                    "cells": [cell.to_json() for cell in cells],
                }
            )
        else:
            _print(out, cells, found, busy)
    if interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if cells else 1)


def _measured(
    ops: Sequence[str],
    count: int,
    seed: int,
    plan: Path | None,
    where: Device,
    regime: Regime,
    *,
    training: bool,
) -> tuple[list[Cell], bool, int]:
    """The calls that were measured, whether that was interrupted, and how many more beside others at work."""
    from portakernel.cli.progress import progress
    from portakernel.config import Config
    from portakernel.runtime import dispatcher
    from portakernel.tuning.place import own_root
    from portakernel.tuning.record import Record
    from portakernel_kit.tune.child import Child
    from portakernel_kit.tune.regret import cell_of
    from portakernel_kit.tune.session import OneDevice
    from portakernel_kit.tune.work import Store

    cells: list[Cell] = []
    busy, interrupted = 0, False
    root = own_root(Config.from_environment().tuning_dir)
    with Child(where.torch_device or "cpu") as child:
        try:
            facts = child.facts()
            jobs = _jobs(ops, count, seed, where, regime, Store(root, dispatcher()), facts, training=training)
            ways = _ways(root, plan, facts, regime)
            with progress("measuring", len(jobs), eta=True) as tell:
                for job, found in OneDevice(child).run(jobs):
                    tell(description=job.name, advance=1)
                    if isinstance(found, Record) and found.busy:
                        busy += 1
                    elif isinstance(found, Record):
                        cell = cell_of(found, {way: choose(job.op) for way, choose in ways.items()})
                        cells += [cell] if cell is not None else []
        except KeyboardInterrupt:
            interrupted = True
    return cells, interrupted, busy


def _jobs(
    ops: Sequence[str],
    count: int,
    seed: int,
    where: Device,
    regime: Regime,
    store: Store,
    facts: Facts,
    *,
    training: bool,
) -> list[Job]:
    """Drawn calls that the store does not have, op after op in turn."""
    found: list[Job] = []
    drawing = {op: _drawn(op, seed, where, regime, store, facts, training=training) for op in ops}
    while len(found) < count and drawing:
        for op in list(drawing):
            job = next(drawing[op], None)
            if job is None:
                del drawing[op]
            elif len(found) < count:
                found.append(job)
    return found


def _drawn(
    op: str, seed: int, where: Device, regime: Regime, store: Store, facts: Facts, *, training: bool
) -> Iterator[Job]:
    from itertools import islice

    from portakernel_kit.bench.question import drawn_rows, questions
    from portakernel_kit.tune.work import jobs_of_questions

    on_cpu, seen = where.torch_device == "cpu", set[str]()
    for row in islice(drawn_rows(op, seed), _MOST_DRAWS):
        asked = questions(op, [row], ["float32" if on_cpu else "bfloat16"], where.target)
        for job in jobs_of_questions(asked, regime, training=training, seed=seed):
            fits = not (on_cpu and asked[0].too_large(on_cpu=True, free_bytes=None))
            if fits and (key := store.key(job, facts).text) not in seen and not store.of(job, facts):
                seen.add(key)
                yield job


def _ways(root: Path, plan: Path | None, facts: Facts, regime: Regime) -> dict[str, Callable[[str], Choices]]:
    """The choices for an op by each way but priorities."""
    import functools

    from portakernel.plan import read_plan
    from portakernel.runtime import dispatcher
    from portakernel.tuning.measured import measured_choices
    from portakernel.tuning.place import defaults_root

    registry = dispatcher().registry

    @functools.cache
    def measured(op: str) -> Choices:
        roots, kernels = (root, defaults_root()), registry.for_op(op)
        return measured_choices(roots, op, facts.target, facts.units, regime, kernels, registry.spaces)

    ways: dict[str, Callable[[str], Choices]] = {"measured": measured}
    if plan is not None:
        read = read_plan(plan, registry)
        ways["plan"] = lambda op: read.choices(op, (facts.target, facts.units))
    return ways


def _print(out: Page, cells: Sequence[Cell], found: dict[str, Summary], busy: int) -> None:
    out.heading(f"Over the best kernel, {len(cells)} calls that are not in the store")
    rows = [
        (
            way,
            _number(one.geometric_mean, ".4f"),
            _number(one.worst, ".3f"),
            _number(one.lost_share, ".0%"),
            str(one.differs),
            str(one.harm),
        )
        for way, one in found.items()
    ]
    out.table(rows, ("way", "mean", "worst", "> 5 %", "other kernel", "harm"), indent=2, right=(1, 2, 3, 4, 5))
    worst = sorted(cells, key=lambda cell: -cell.chosen["measured"][1])[:_SHOWN]
    if shown := [cell for cell in worst if cell.chosen["measured"][1] > 1.0]:
        out.heading("Loses most")
        table = [(c.call, c.chosen["measured"][0], c.best, f"{c.chosen['measured'][1]:.2f}") for c in shown]
        out.table(table, ("call", "measured picks", "best", "×"), indent=2, right=(3,))
    if busy:
        text = f"others used the device while {busy} more {'were' if busy != 1 else 'was'} measured: not counted"
        out.line(text, "doubt", indent=2)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
