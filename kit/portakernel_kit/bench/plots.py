"""A picture of a report: for each op and phase, how fast each kernel is on each request. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portakernel.errors import ArgumentValueError


def check_plots() -> None:
    """Nothing, where matplotlib can be imported.

    Raises:
        ArgumentValueError: it is not installed; says how to.
    """
    try:
        import matplotlib.figure  # noqa: F401 - whether it can be  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise ArgumentValueError(
            f"--plot draws with matplotlib, which cannot be imported ({error}); pip install 'portakernel[plots]', or"
            " pip install matplotlib"
        ) from error


def draw(report: Mapping[str, Any], stem: Path) -> list[Path]:
    """Draws a report (as JSON-ready data) into ``stem-<op>-<phase>.png`` and ``.svg``; which files these are.

    Memory-bound requests are drawn in TB/s with the plain copy as a line, compute-bound ones in TFLOP/s.
    """
    check_plots()
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in report["cells"]:
        groups.setdefault((cell["op"], cell["phase"]), []).append(cell)
    written: list[Path] = []
    for (op, phase), cells in groups.items():
        title = f"{op}, {phase} · {report['circumstances']['device']} · {report['circumstances']['date'][:10]}"
        figure = _figure(cells, title)
        for kind in ("png", "svg"):
            path = stem.with_name(f"{stem.name}-{op}-{phase}.{kind}")
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


def _figure(cells: Sequence[Mapping[str, Any]], title: str) -> Any:
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] - an optional requirement

    kernels = list(dict.fromkeys(row["kernel"] for cell in cells for row in cell["kernels"] if row["latency_us"]))
    figure = Figure(figsize=(max(6.0, 1.2 + 1.1 * len(cells)), 5.5), layout="constrained")
    axes: Any = figure.subplots()
    in_flops = all(cell["bound"] == "compute" for cell in cells)
    rate = "tflop_per_s" if in_flops else "tb_per_s"
    width = 0.8 / max(len(kernels), 1)
    for place, kernel in enumerate(kernels):
        heights = [next((row[rate] for row in cell["kernels"] if row["kernel"] == kernel), None) for cell in cells]
        left = [number + (place - (len(kernels) - 1) / 2) * width for number in range(len(cells))]
        axes.bar(left, [height or 0.0 for height in heights], width, label=kernel)
    if not in_flops:
        copies = [cell["bytes"] / cell["copy_us"] / 1e6 if cell["copy_us"] else None for cell in cells]
        for number, copy in enumerate(copies):
            if copy is not None:
                axes.hlines(copy, number - 0.45, number + 0.45, colors="black", linestyles="dashed", linewidth=1)
    labels = [f"{cell['case']}\n{', '.join(dict.fromkeys(cell['dtypes'].values()))}" for cell in cells]
    axes.set_xticks(range(len(cells)), labels, rotation=30, ha="right")
    axes.set_ylabel("TFLOP/s" if in_flops else "TB/s (dashed: a plain copy)")
    axes.set_title(title)
    figure.legend(fontsize="small", loc="outside upper right")
    return figure
