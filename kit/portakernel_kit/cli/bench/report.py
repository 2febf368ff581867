"""How ``portakernel bench`` shows what it measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from portakernel.cli.output import Cell, Page, Style
from portakernel_kit.bench.results import Cell as Measurement

if TYPE_CHECKING:
    from portakernel_kit.bench.launches import LaunchCell
    from portakernel_kit.bench.report import Report

_PICKED = "picked"
_KINDS = {"own": "a kernel written for portakernel", "foreign": "one that another package has"}
# How many of the calls that lose most are shown.
_SHOWN = 10


def print_cell(out: Page, cell: Measurement) -> None:
    """A table of one request: faster kernels first, then the plain copy, then those without a time and why."""
    found = cell.to_json()
    dtypes = ", ".join(f"{name} {dtype}" for name, dtype in cell.dtypes.items())
    work = f"{cell.bytes / 1e6:.4g} MB, {cell.flops / 1e9:.4g} GFLOP"
    out.heading(f"{cell.op} {cell.case} {cell.phase}")
    out.line(f"{dtypes}; {work}", "faint", indent=2)
    in_flops = cell.bound == "compute"
    headers = ("kernel", "", "µs", "p20–p80", "TFLOP/s" if in_flops else "TB/s", "% of copy", "× best")
    rows = [_kernel_row(row, in_flops=in_flops) for row in found["kernels"] if row["latency_us"] is not None]
    if cell.copy is not None:
        rate = "" if in_flops else f"{cell.bytes / cell.copy.median_us / 1e6:.3g}"
        spread = f"{_time(cell.copy.p20_us)}–{_time(cell.copy.p80_us)}"
        rows.append(("a plain copy", "", _time(cell.copy.median_us), spread, rate, "", ""))
    if rows:
        out.table(rows, headers, indent=2, right=(2, 3, 4, 5, 6))
    if cell.rival is not None:
        name, ratio = cell.rival
        text = f"the fastest of other plugins, {name}, takes {ratio:.3f} times as long as what is picked"
        out.line(text, "good" if ratio >= 1 else "doubt", indent=2)
    for row in found["kernels"]:
        if row["latency_us"] is None:
            style: Style = "faint" if row["status"] == "slow" else "bad"
            out.line(f"{row['kernel']} {row['status']}: {row['reason']}", style, indent=2)
    if not cell.kernels:
        out.line("no kernel takes part: `portakernel explain` says why each cannot serve", "bad", indent=2)
    elif cell.chosen is not None and all(m.kernel != cell.chosen for m in cell.kernels):
        out.line(f"dispatch picks {cell.chosen}, which was not measured", "faint", indent=2)
    for name, rejections in cell.rejected.items():
        reasons = "; ".join(f"{rejection['code']}: {rejection['text']}" for rejection in rejections)
        out.line(f"cannot serve: {name} ({reasons})", "faint", indent=2)
    if cell.checked_against is None:
        if not cell.reference_failure:  # the op is at fault, as each kernel's line says
            return
        text = f"nothing was compared: neither the reference ({cell.reference_failure}) nor another kernel ran"
        out.line(text, "doubt", indent=2)
    elif not cell.checked_against.startswith("reference."):
        text = f"compared with {cell.checked_against}: the reference cannot run here ({cell.reference_failure})"
        out.line(text, "doubt", indent=2)


def print_launches(out: Page, cell: LaunchCell, *, on_cpu: bool) -> None:
    """A table of what a launch of each kernel costs the host."""
    out.heading(f"{cell.op} {cell.case}: the host's time for a call of the kernel")
    if on_cpu:
        out.line("on a CPU a call is the whole computation", "faint", indent=2)
    rows = []
    for row in cell.to_json()["kernels"]:
        times = [_time(row[key]) if row[key] is not None else "" for key in ("host_us", "p20_us", "p80_us")]
        spread = f"{times[1]}–{times[2]}" if times[1] else ""
        rows.append((row["kernel"], _picked(row), times[0] or "failed", spread))
    if rows:
        out.table(rows, ("kernel", "", "µs", "p20–p80"), indent=2, right=(2, 3))
    else:
        out.line("no kernel takes part: `portakernel explain` says why each cannot serve", "bad", indent=2)
    for row in cell.kernels:
        if row.reason:
            out.line(f"{row.kernel} failed: {row.reason}", "bad", indent=2)


def print_end(out: Page, report: Report, files: Sequence[str]) -> None:
    """What is true of the whole run: how well dispatch picks, what was left out, where the results are."""
    found = report.to_json()
    routing = found["routing"]
    if report.interrupted:
        out.heading("Interrupted; that is what was measured until then.")
    if routing["cells"]:
        out.heading("What dispatch picks, over the best")
        mean, worst = routing["geometric_mean"], routing["worst"]
        style: Style = "good" if mean <= 1.02 and worst <= 1.05 else "doubt"
        text = f"geometric mean {mean:.3f} of {routing['cells']}; worst {worst:.3f}, {routing['worst_case']}"
        out.line(text, style, indent=2)
        for kind, words in _KINDS.items():
            behind = routing[kind]
            if behind["cells"] and behind["beyond_5_percent"]:
                share, worst = behind["beyond_5_percent"], behind["worst"]
                text = f"{share:.0%} of {behind['cells']} lose more than 5 % to {words}; worst {worst:.3f}"
                out.line(f"{text}, {behind['worst_case']}", "doubt", indent=2)
        if losses := report.losses():
            out.heading("Loses more than 5 %" + (f", {_SHOWN} of {len(losses)} calls" if len(losses) > _SHOWN else ""))
            rows = [
                (f"{cell.op} {cell.case} {cell.phase}", str(cell.chosen), faster, f"{ratio:.2f}")
                for cell, faster, ratio in losses[:_SHOWN]
            ]
            out.table(rows, ("call", "picked", "faster", "×"), indent=2, right=(3,))
    if report.left_out:
        out.heading("Left out")
        for entry in report.left_out:
            out.line(f"{entry.op} {entry.case} {entry.phase}: {entry.reason}", "faint", indent=2)
    if files:
        out.heading("Written")
        for file in files:
            out.line(file, indent=2)


def print_comparison(out: Page, rows: Sequence[Mapping[str, Any]]) -> None:
    """Each kernel's time now beside that of an earlier result."""
    out.heading("Now over before")
    if not rows:
        out.line("the two results have no measurement in common", "doubt", indent=2)
        return
    table = [
        (
            f"{row['op']} {row['case']} {row['phase']}",
            ", ".join(dict.fromkeys(row["dtypes"].values())),
            row["kernel"],
            _time(row["before_us"]),
            _time(row["latency_us"]),
            Cell(f"{row['ratio']:.3f}", "bad" if row["ratio"] > 1.05 else "good" if row["ratio"] < 0.95 else ""),
        )
        for row in rows
    ]
    out.table(table, ("request", "dtypes", "kernel", "before µs", "µs", "ratio"), indent=2, right=(3, 4, 5))
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    out.line(f"geometric mean {mean:.3f} of {len(rows)}", indent=2)


def _kernel_row(row: Mapping[str, Any], *, in_flops: bool) -> tuple[str | Cell, ...]:
    rate = row["tflop_per_s"] if in_flops else row["tb_per_s"]
    percent = "" if in_flops or row["copy_percent"] is None else f"{row['copy_percent']:.0f}"
    ratio = row["ratio_to_best"]
    style: Style = "good" if ratio is not None and ratio <= 1.02 else ""
    return (
        row["kernel"],
        _picked(row),
        Cell(_time(row["latency_us"]), style),
        f"{_time(row['p20_us'])}–{_time(row['p80_us'])}",
        f"{rate:.3g}",
        percent,
        f"{ratio:.2f}" if ratio is not None else "",
    )


def _picked(row: Mapping[str, Any]) -> Cell:
    return Cell(_PICKED if row["chosen"] else "", "strong")


def _time(latency_us: float) -> str:
    """Three digits before a kernel takes a millisecond, whole microseconds from there."""
    return f"{latency_us:.3g}" if latency_us < 1000 else f"{latency_us:.0f}"
