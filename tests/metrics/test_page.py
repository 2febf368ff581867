"""What docs/metrics.md shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from portakernel.deciding.tallies import Source
from portakernel.metrics.definitions import METRICS
from portakernel.tuning.silences import SILENCES

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(portakernel\.[a-z.]+)` \| (\w+)(?:, (\w+))? \| (.*?) \|", re.MULTILINE)


def test_the_table_has_every_metric_with_what_it_counts_by() -> None:
    shown = {name: (kind, unit, re.findall(r"`(\w+)`", by)) for name, kind, unit, by in ROW.findall(PAGE)}
    assert shown == {
        metric.name: (metric.kind, "s" if metric.unit == "s" else "", list(metric.labels)) for metric in METRICS
    }


def test_the_reasons_and_sources_are_all_named() -> None:
    assert re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE) == ["reason", *filter(None, SILENCES)]
    assert all(f"`{word}`" in PAGE for word in Source.__args__)  # type: ignore[attr-defined]


def test_the_python_shown_runs(monkeypatch: Any) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="lacks portakernel[opentelemetry]")
    prometheus = pytest.importorskip("prometheus_client", reason="lacks portakernel[prometheus]")
    monkeypatch.setattr(prometheus, "REGISTRY", prometheus.CollectorRegistry())
    shown = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    exec(compile(shown[1], "docs/metrics.md", "exec"), given := {})
    assert b"# TYPE portakernel_calls_total counter" in prometheus.generate_latest(prometheus.REGISTRY)
    given["instruments"].close()


def test_the_queries_ask_for_what_there_is() -> None:
    prometheus = pytest.importorskip("portakernel.metrics.prometheus", reason="lacks portakernel[prometheus]")
    names = [family.name for family in prometheus.Collector().describe()]
    offered = {*names, *(f"{name}_total" for name in names)}
    labels = {label for metric in METRICS for label in metric.labels} | {"instance"}
    queries = re.search(r"```promql\n(.*?)```", PAGE, re.DOTALL)
    assert queries is not None
    asked = set(re.findall(r"portakernel_\w+", queries[1]))
    assert asked
    assert asked <= offered
    grouped = re.findall(r"(?:by|on|ignoring) \(([\w, ]+)\)", queries[1])
    assert {word for words in grouped for word in words.split(", ")} <= labels
