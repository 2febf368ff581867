"""Writes the tables of what `portakernel bench` measured: each library's time on each case, ours beside the best peer.

    portakernel bench --device cuda:0 --backward --build --output benchmarks/results
    python benchmarks/kernel_tables.py benchmarks/results/bench-nvidia-h200-*.json

The cases that the contracts' grids call core go into the README, all of them into
`benchmarks/results/kernels-DEVICE.md`. Of several results of one case the latest counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from portakernel.contracts import contract
from portakernel_kit.bench.plots import draw

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- kernels: benchmarks/kernel_tables.py writes these lines -->", "<!-- kernels end -->"
# Columns, where anything of theirs was timed.
OURS = {"triton": "Triton", "hip": "HIP", "cutlass": "CUTLASS", "cutlass_dsl": "CuTe DSL"}
# `inductor` is what torch.compile makes of the op's reference.
PEERS = {
    "liger": "Liger",
    "quack": "QuACK",
    "flashinfer": "FlashInfer",
    "conch": "Conch",
    "flash_attn": "FlashAttention-4",
    "inductor": "torch.compile",
    "torch": "torch",
}

Cell = Mapping[str, Any]


def latest(results: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Every case once, in the order of the oldest result that has it."""
    found: dict[tuple[str, str, str, str], Cell] = {}
    for result in sorted(results, key=lambda result: result["circumstances"]["date"]):
        for cell in result["cells"]:
            found[cell["op"], cell["case"], cell["phase"], str(sorted(cell["dtypes"].items()))] = cell
    return list(found.values())


def times(cell: Cell) -> dict[str, float]:
    """The time in microseconds of each plugin's fastest kernel that is right."""
    found: dict[str, float] = {}
    for kernel in cell["kernels"]:
        plugin = kernel["kernel"].partition(".")[0]
        if kernel["status"] == "timed":
            found[plugin] = min(kernel["latency_us"], found.get(plugin, float("inf")))
    return found


def table(cells: Sequence[Cell], *, without: str = "") -> list[str]:
    """A Markdown table: times in microseconds, the share of copy's speed, and how much longer the best peer takes."""
    timed = [(cell, {name: time for name, time in times(cell).items() if name != without}) for cell in cells]
    timed = [(cell, found) for cell, found in timed if found.keys() & OURS.keys()]
    columns = {name: head for name, head in (OURS | PEERS).items() if any(name in found for _, found in timed)}
    heads = ["case", *columns.values(), "of copy", "best peer ÷ picked"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for cell, found in timed:
        best = min((found[name] for name in PEERS if name in found), default=None)
        picked = next(kernel["latency_us"] for kernel in cell["kernels"] if kernel["chosen"])
        name = f"{cell['op']} {cell['case']}" + (" backward" if cell["phase"] == "backward" else "")
        of_copy = cell["copy_us"] / picked if cell["copy_us"] and cell["bound"] == "memory" else None
        row = [name, *(microseconds(found.get(column)) for column in columns)]
        row.append(f"{of_copy:.0%}".replace("%", " %") if of_copy is not None else "")
        row.append("" if best is None else f"{best / picked:.2f}")
        lines.append(f"| {' | '.join(row)} |")
    return lines


def tables(cells: Sequence[Cell]) -> list[str]:
    """One table of what Triton has a kernel for, one of the products.

    A product's reference multiplies in float32: what torch.compile makes of it is not what it makes of a user's.
    """
    ops = {cell["op"] for cell in cells if "triton" in times(cell)}
    products = [cell for cell in cells if cell["op"] not in ops]
    lines = table([cell for cell in cells if cell["op"] in ops])
    return [*lines, "", *table(products, without="inductor")] if products else lines


def microseconds(value: float | None) -> str:
    """Three digits, or none where nothing was timed."""
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def is_core(cell: Cell) -> bool:
    """Whether the case is one that libraries are compared on."""
    rows = contract(cell["op"]).grid
    return rows is not None and any(row.core and row.name == cell["case"] for row in rows.rows)


def newest_of(results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The circumstances of the latest run."""
    found: Mapping[str, Any] = max(results, key=lambda result: result["circumstances"]["date"])["circumstances"]
    return found


def where(results: Sequence[Mapping[str, Any]]) -> str:
    """Device, versions and dates, in a sentence."""
    newest = newest_of(results)
    versions: dict[str, str] = {}
    for result in results:
        versions |= result["circumstances"]["versions"]
    days = sorted({result["circumstances"]["date"][:10] for result in results})
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    driver = f", driver {newest['driver']}" if newest["driver"] else ""
    return f"{newest['device']}{driver}, Python {newest['python']}; {shown}; {' and '.join(days)}."


def main(
    files: Annotated[list[Path], typer.Argument(help="Results of `portakernel bench --output`.")],
    plots: Annotated[Path | None, typer.Option(help="Draw every op there too, as PNG and SVG (matplotlib).")] = None,
) -> None:
    """Write the README's table and the whole one."""
    results = [json.loads(path.read_text()) for path in files]
    devices = {result["circumstances"]["device"] for result in results}
    if len(devices) != 1:
        raise typer.BadParameter(f"results of one device are wanted, not of {', '.join(sorted(devices))}")
    cells = latest(results)
    slug = re.sub(r"[^a-z0-9]+", "-", devices.pop().lower()).strip("-")
    whole = [
        "# Every kernel on every case",
        "",
        f"bfloat16 unless said otherwise. {where(results)}",
        "",
        *tables(cells),
    ]
    (ROOT / "benchmarks" / "results" / f"kernels-{slug}.md").write_text("\n".join(whole) + "\n")
    readme = ROOT / "README.md"
    text = readme.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise typer.BadParameter(f"README.md has to hold {BEGIN} and {END} once each")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        draw({"circumstances": newest_of(results), "cells": cells}, plots / slug)
    core = tables([cell for cell in cells if is_core(cell)])
    readme.write_text("\n".join([before + BEGIN, where(results), "", *core, END]) + after)


if __name__ == "__main__":
    typer.run(main)
