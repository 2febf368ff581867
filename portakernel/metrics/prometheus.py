"""The metrics as a collector for prometheus_client: a scrape reads them, and no call adds to any."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from portakernel.metrics.definitions import METRICS, Metric, Values
from portakernel.metrics.readings import prepare, values


class Collector:
    """What a Prometheus registry collects of this process; registered with ``REGISTRY.register(collector)``."""

    def __init__(self) -> None:
        prepare()

    def describe(self) -> Iterator[Family]:
        """The metrics without values: by their names a registry notices that it has them already."""
        yield from map(_family, METRICS)

    def collect(self) -> Iterator[Family]:
        """The metrics with their values now."""
        for metric in METRICS:
            yield _family(metric, values(metric))


def _family(metric: Metric, read: Values | None = None) -> Family:
    name = metric.name.replace(".", "_") + "_seconds" * (metric.unit == "s")
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = made(name, metric.description, labels=metric.labels)
    for by, value in (read or {}).items():
        family.add_metric(by, value)
    return family
