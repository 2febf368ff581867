"""The pictures of ``portakernel bench --plot``: legend, title and labels lie inside the figure, for long names too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portakernel_kit.bench import plots

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

NAMES = {
    "two": ("triton.rms_norm", "torch.rms_norm"),
    "twelve": tuple(f"inductor.add_rms_norm_quantize_{i}" for i in range(12)),
    "long": ("a" * 120, "a_plugin.that_has_a_name_of_many_words" * 3),
    "none": (),
}


def cells(count: int, kernels: tuple[str, ...], bound: str) -> list[dict[str, Any]]:
    """So many requests, each with a time of each kernel."""
    rows = [{"kernel": kernel, "latency_us": 3.0, "tb_per_s": 1.0, "tflop_per_s": 2.0} for kernel in kernels]
    cell = {"op": "rms_norm", "phase": "forward", "bound": bound, "dtypes": {"x": "bfloat16"}, "bytes": 1e9}
    return [{**cell, "case": f"a case of many rows {i}", "copy_us": 300.0, "kernels": rows} for i in range(count)]


@pytest.mark.parametrize("bound", ["memory", "compute"])
@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("kernels", NAMES.values(), ids=NAMES)
def test_all_that_is_written_lies_inside_the_figure(kernels: tuple[str, ...], count: int, bound: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    title = "rms_norm, forward · NVIDIA H100 80GB HBM3 of a host with a long name · 2026-11-27"
    figure = plots._figure(cells(count, kernels, bound), title)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = figure.get_size_inches() * figure.dpi
    axes, legends = figure.axes[0], figure.legends
    renderer = canvas.get_renderer()
    texts = [text for legend in legends for text in legend.get_texts()]
    for written in (*legends, *texts, axes.title, axes.yaxis.label, *axes.get_xticklabels()):
        box = written.get_window_extent(renderer)
        if written.get_visible() and box.width:
            assert (box.x0 >= 0, box.x1 <= width) == (True, True), written
            assert (box.y0 >= 0, box.y1 <= height) == (True, True), written
    assert [text.get_text().replace("\n", "") for text in texts] == list(kernels)
    colours = [tuple(bars[0].get_facecolor()) for bars in axes.containers]
    assert len({*colours}) == len(kernels)
    # and leaves the axes their room
    assert axes.get_window_extent(renderer).height > 0.35 * height
    below = axes.get_window_extent(renderer).y0
    assert all(legend.get_window_extent(renderer).y1 <= below for legend in legends)


def test_each_op_and_phase_is_drawn_into_files_of_its_own(tmp_path: Path) -> None:
    circumstances = {"device": "NVIDIA H100", "date": "2026-11-27T00:00:00+00:00"}
    report = {"cells": cells(2, NAMES["two"], "memory"), "circumstances": circumstances}
    written = plots.draw(report, tmp_path / "bench")
    assert [path.name for path in written] == ["bench-rms_norm-forward.png", "bench-rms_norm-forward.svg"]
    assert all(path.stat().st_size > 1000 for path in written)
