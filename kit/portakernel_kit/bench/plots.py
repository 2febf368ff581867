"""A picture of a report: for each op and phase, how fast each kernel is on each request. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portakernel.errors import ArgumentValueError

# Sizes of letters in points, 72 an inch; what a legend has beside a name (its colour, what is between columns), and
# around it, in inches.
_SMALL, _TITLE, _POINTS = 8.5, 12.0, 72
_HANDLE, _MARGIN = 0.65, 0.15
# As many bars differ without another palette.
_COLOURS = 10


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
    from matplotlib import colormaps  # pyright: ignore[reportMissingImports] - an optional requirement
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] - an optional requirement

    kernels = list(dict.fromkeys(row["kernel"] for cell in cells for row in cell["kernels"] if row["latency_us"]))
    inches = max(6.0, 1.2 + 1.1 * len(cells))
    names = {kernel: _fitting(kernel, inches - _HANDLE - 2 * _MARGIN, _SMALL) for kernel in kernels}
    columns, legend_inches = _columns(list(names.values()), inches)
    figure = Figure(figsize=(inches, 5.0 + legend_inches), layout="constrained")
    axes: Any = figure.subplots()
    if len(kernels) > _COLOURS:
        axes.set_prop_cycle(color=list(colormaps["tab20"](range(20))))
    in_flops = all(cell["bound"] == "compute" for cell in cells)
    rate = "tflop_per_s" if in_flops else "tb_per_s"
    width = 0.8 / max(len(kernels), 1)
    for place, kernel in enumerate(kernels):
        heights = [next((row[rate] for row in cell["kernels"] if row["kernel"] == kernel), None) for cell in cells]
        left = [number + (place - (len(kernels) - 1) / 2) * width for number in range(len(cells))]
        axes.bar(left, [height or 0.0 for height in heights], width, label=names[kernel])
    if not in_flops:
        copies = [cell["bytes"] / cell["copy_us"] / 1e6 if cell["copy_us"] else None for cell in cells]
        for number, copy in enumerate(copies):
            if copy is not None:
                axes.hlines(copy, number - 0.45, number + 0.45, colors="black", linestyles="dashed", linewidth=1)
    labels = [f"{cell['case']}\n{', '.join(dict.fromkeys(cell['dtypes'].values()))}" for cell in cells]
    axes.set_xticks(range(len(cells)), labels, rotation=30, ha="right")
    axes.set_ylabel("TFLOP/s" if in_flops else "TB/s (dashed: a plain copy)")
    axes.set_title(_fitting(title, inches - 1.5, _TITLE), fontsize=_TITLE)
    # below the axes and as wide as the picture at most: beside them it took their room, and long names its edge
    if kernels:
        figure.legend(fontsize=_SMALL, loc="outside lower center", ncols=columns)
    return figure


def _fitting(text: str, inches: float, size: float) -> str:
    """``text`` in lines of at most so many inches, in letters of ``size`` points; a long word is broken."""
    wide = _inches(text, size)
    if wide <= inches:
        return text
    letters = int(len(text) * inches / wide) + 1
    while letters > 1:
        lines = textwrap.wrap(text, letters)
        if all(_inches(line, size) <= inches for line in lines):
            return "\n".join(lines)
        letters -= 1
    return text


def _columns(names: Sequence[str], inches: float) -> tuple[int, float]:
    """How many columns of the legend have room side by side, and how high it is then."""
    lines = [name.splitlines() or [""] for name in names]
    widest = max((_inches(line, _SMALL) for several in lines for line in several), default=0.0)
    columns = max(1, min(len(names), int((inches - 2 * _MARGIN) / (widest + _HANDLE))))
    rows = -(-len(names) // columns)
    return columns, 2 * _MARGIN + rows * max((len(several) for several in lines), default=0) * _SMALL * 1.5 / _POINTS


def _inches(text: str, size: float) -> float:
    """How wide a line is."""
    from matplotlib.textpath import TextPath  # pyright: ignore[reportMissingImports] - an optional requirement

    # without a letter there is no path to measure
    return float(TextPath((0, 0), text, size=size).get_extents().width) / _POINTS if text.strip() else 0.0
