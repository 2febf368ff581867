"""What OpenTelemetry and Prometheus read: the numbers that portakernel counts, and no work in any call for it."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.errors import ArgumentTypeError, MissingPackageError
from portakernel.metrics.definitions import METRICS
from portakernel.registry.registry import Registry
from portakernel.runtime import caller, dispatcher
from portakernel.tensors.compilation import compilations

metrics_sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="lacks portakernel[opentelemetry]")
prometheus = pytest.importorskip("prometheus_client", reason="lacks portakernel[prometheus]")

Series = Mapping[tuple[tuple[str, str], ...], float]
X = torch.ones(4, 8)
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class Telemetry:
    """A meter provider with a reader in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        self.reader = InMemoryMetricReader()
        self.provider = metrics_sdk.MeterProvider(metric_readers=[self.reader])

    def series(self, name: str) -> Series:
        data = self.reader.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return {tuple(sorted(point.attributes.items())): point.value for point in points}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.provider.shutdown()


def scraped(registry: Any, name: str) -> Series:
    """The series of a metric in what Prometheus is served."""
    text = prometheus.generate_latest(registry).decode()
    found = [(labels, float(value)) for each, labels, value in LINE.findall(text) if each == name]
    return {tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels))): value for labels, value in found}


@pytest.fixture
def registry() -> Any:
    dispatcher()  # other tests may have made one of their own
    made = prometheus.CollectorRegistry()
    made.register(portakernel.metrics.collector())
    return made


def grown(after: Series, before: Series) -> dict[tuple[tuple[str, str], ...], float]:
    return {by: value - before.get(by, 0) for by, value in after.items() if value != before.get(by, 0)}


def test_both_count_the_calls_that_stats_counts(telemetry: Telemetry, registry: Any) -> None:
    portakernel.metrics.instrument(telemetry.provider)
    ops.add(X, X)
    before = telemetry.series("portakernel.calls"), scraped(registry, "portakernel_calls_total")
    for _ in range(7):
        ops.add(X, X)
    after = telemetry.series("portakernel.calls"), scraped(registry, "portakernel_calls_total")
    served = portakernel.explain("add", X, X)
    by = {
        "op": "add", "kernel": served.chosen.name, "phase": "inference", "target": str(served.target)
    }  # fmt: skip
    assert [grown(*pair) for pair in zip(after, before, strict=True)] == [{tuple(sorted(by.items())): 7}] * 2
    assert {tuple(sorted(key)): value for key, value in after[0].items()} == after[1]
    total = {
        (("kernel", row.kernel), ("op", row.op), ("phase", row.phase), ("target", row.target))
        for row in portakernel.stats()
    }
    assert after[1].keys() == total


def test_a_fallback_names_the_kernel_that_could_not_serve(registry: Any) -> None:
    before = scraped(registry, "portakernel_fallbacks_total")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with portakernel.policy(prefer="triton.add"):
            served = portakernel.explain("add", X, X).chosen.name
            for _ in range(3):
                ops.add(X, X)
    found = grown(scraped(registry, "portakernel_fallbacks_total"), before)
    assert found == {(("instead_of", "triton.add"), ("kernel", served), ("op", "add")): 3}


def test_decisions_are_counted_by_what_named_the_kernel_and_take_time(registry: Any) -> None:
    def read() -> tuple[Series, Series]:
        return scraped(registry, "portakernel_decisions_total"), scraped(
            registry, "portakernel_decision_duration_seconds_total"
        )

    caller("add").table.clear()
    before = read()
    for _ in range(2):
        ops.add(X, X)
    with portakernel.use("reference.add"):
        ops.add(X, X)
    decisions, seconds = (grown(*pair) for pair in zip(read(), before, strict=True))
    assert decisions == {
        (("op", "add"), ("source", "priority")): 1,
        (("op", "add"), ("source", "policy")): 1,
    }
    assert list(seconds) == [(("op", "add"),)]
    assert 0 < seconds[("op", "add"),] < 60


def test_calls_that_no_measurement_chose_are_counted_by_the_reason(registry: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(dispatcher().routes, "measured", None)
    caller("add").table.clear()
    before = scraped(registry, "portakernel_unmeasured_total")
    for _ in range(5):
        ops.add(X, X)
    with portakernel.use("reference.add"):  # whom a policy names nobody was to measure
        ops.add(X, X)
    found = grown(scraped(registry, "portakernel_unmeasured_total"), before)
    assert found == {(("op", "add"), ("reason", "no_record")): 5}


def test_a_cleared_table_takes_no_counter_back(registry: Any) -> None:
    ops.add(X, X)
    names = ("portakernel_calls_total", "portakernel_unmeasured_total", "portakernel_decisions_total")
    before = [scraped(registry, name) for name in names]
    caller("add").table.clear()
    for name, series in zip(names, before, strict=True):
        after = scraped(registry, name)
        assert all(after[by] >= value for by, value in series.items()), name


def test_what_calls_compile_is_counted_and_timed(registry: Any) -> None:
    by = (("compiler", "triton"), ("function", "of_a_test"))
    before = scraped(registry, "portakernel_compilations_total").get(by, 0)
    seconds = scraped(registry, "portakernel_compile_duration_seconds_total").get(by, 0)
    with pytest.raises(ZeroDivisionError), compilations().timed("triton", "of_a_test"):
        _ = 1 / 0
    assert scraped(registry, "portakernel_compilations_total")[by] == before + 1
    assert scraped(registry, "portakernel_compile_duration_seconds_total")[by] > seconds


def test_the_plan_in_force_is_named_by_its_digest(registry: Any, telemetry: Telemetry, monkeypatch: Any) -> None:
    portakernel.metrics.instrument(telemetry.provider)
    monkeypatch.setattr(dispatcher().routes, "plan", None)
    assert scraped(registry, "portakernel_plan_info") == telemetry.series("portakernel.plan.info") == {}
    from portakernel.plan.plan import Plan

    plan = Plan({}, {}, lock="everything")
    monkeypatch.setattr(dispatcher().routes, "plan", plan)
    expected = {(("digest", plan.digest), ("lock", "everything")): 1}
    assert scraped(registry, "portakernel_plan_info") == telemetry.series("portakernel.plan.info") == expected


def test_shapes_make_no_series_there_are_at_most_kernels_times_phases(registry: Any) -> None:
    for rows in range(1, 40):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(rows, 8, dtype=dtype)
            ops.add(x, x)
            ops.add(x.requires_grad_(), x).sum().backward()
    kernels: Registry = dispatcher().registry
    series = [by for by in scraped(registry, "portakernel_calls_total") if ("op", "add") in by]
    targets = {dict(by)["target"] for by in series}
    assert 0 < len(series) <= len(kernels.for_op("add")) * 4 * len(targets)
    assert {key for metric in METRICS for key in metric.labels} == {
        "op", "kernel", "phase", "target", "instead_of", "source", "compiler", "function", "reason", "digest", "lock"
    }  # fmt: skip


def test_scrapes_beside_calls_of_other_threads_never_fall_and_miss_no_call(registry: Any) -> None:
    def read() -> float:
        return sum(value for by, value in scraped(registry, "portakernel_calls_total").items() if ("op", "add") in by)

    def work() -> None:
        for _ in range(400):
            ops.add(X, X)
        caller("add").table.clear()

    ops.add(X, X)
    before = [read()]
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        before.append(read())
    for thread in threads:
        thread.join()
    before.append(read())
    assert before == sorted(before)
    # a call that runs while another thread forgets its placement is counted by nobody
    assert 1200 - 3 * 3 <= before[-1] - before[0] <= 1200


def test_instrumenting_a_provider_again_counts_nothing_twice(telemetry: Telemetry) -> None:
    first = portakernel.metrics.instrument(telemetry.provider)
    ops.add(X, X)
    before = telemetry.series("portakernel.calls")
    assert portakernel.metrics.instrument(telemetry.provider) is first
    assert telemetry.series("portakernel.calls") == before


def test_closed_it_observes_nothing_until_it_is_asked_for_again(telemetry: Telemetry) -> None:
    ops.add(X, X)
    with portakernel.metrics.instrument(telemetry.provider):
        before = telemetry.series("portakernel.calls")
        assert before
    assert telemetry.series("portakernel.calls") == {}
    portakernel.metrics.instrument(telemetry.provider)
    assert telemetry.series("portakernel.calls") == before


def test_a_registry_takes_the_collector_once_and_gives_it_back(registry: Any) -> None:
    again = portakernel.metrics.collector()
    with pytest.raises(ValueError, match=r"^Duplicated timeseries in CollectorRegistry: .*portakernel_calls"):
        registry.register(again)
    empty = prometheus.CollectorRegistry()
    empty.register(again)
    empty.unregister(again)
    assert prometheus.generate_latest(empty) == b""


def test_calls_run_what_they_run_without_metrics(telemetry: Telemetry, monkeypatch: Any) -> None:
    ops.add(X, X)
    before = ops.add, dict(caller("add").table.entries)
    runs = [placement.run for placement in before[1].values()]
    portakernel.metrics.instrument(telemetry.provider)
    collecting = portakernel.metrics.collector()
    monkeypatch.setattr("portakernel.metrics.readings.values", lambda metric: pytest.fail("read by a call"))
    ops.add(X, X)
    assert (ops.add, caller("add").table.entries) == before
    assert [placement.run for placement in caller("add").table.entries.values()] == runs
    del collecting


def test_something_else_than_a_provider_is_told() -> None:
    text = "instrument takes an OpenTelemetry MeterProvider, or nothing for the one that the process has set"
    with pytest.raises(ArgumentTypeError, match=rf"^{text}; this is 'otlp'$"):
        portakernel.metrics.instrument("otlp")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "rendering", "make", "text"),
    [
        ("opentelemetry", "otel", portakernel.metrics.instrument, "opentelemetry-api, {} 'portakernel[opentelemetry]'"),
        (
            "prometheus_client",
            "prometheus",
            portakernel.metrics.collector,
            "prometheus-client, {} 'portakernel[prometheus]'",
        ),
    ],
)
def test_without_the_package_the_error_names_the_extra(
    module: str, rendering: str, make: Any, text: str, monkeypatch: Any
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"portakernel.metrics.{rendering}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    whole = text.format("which is not installed: pip install")
    with pytest.raises(MissingPackageError, match=rf"^these metrics need {re.escape(whole)}$"):
        make()


CHILD = """
import multiprocessing, warnings
import prometheus_client, torch
import portakernel
from portakernel import ops
warnings.simplefilter("ignore", DeprecationWarning)
registry = prometheus_client.CollectorRegistry()
registry.register(portakernel.metrics.collector())
x = torch.ones(4)
def tell(who, calls):
    for _ in range(calls):
        ops.add(x, x)
    found = [sample.value for family in registry.collect() for sample in family.samples
             if sample.name == "portakernel_calls_total"]
    print(who, found, flush=True)
def child():
    tell("child", 3)
    start(lambda: tell("grandchild", 5))
def start(work):
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
tell("parent", 20)
start(child)
tell("parent", 1)
"""


def test_a_forked_child_reports_its_own_calls_alone(python: Any) -> None:
    done = python("-c", CHILD)
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        ["parent [20]", "child [3]", "grandchild [5]", "parent [21]"],
    )
