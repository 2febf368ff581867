"""Metrics of a process for OpenTelemetry and Prometheus: what serves its calls, and what does not (docs/metrics.md).

Both are pulled: what is read is what portakernel counts anyway, so that a call costs the same with and without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portakernel.metrics.installed import needing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from portakernel.metrics.otel import Instrumentation
    from portakernel.metrics.prometheus import Collector

__all__ = ["collector", "instrument"]


def instrument(meter_provider: MeterProvider | None = None) -> Instrumentation:
    """Offers the metrics to an OpenTelemetry meter provider, by default the process's.

    Needs ``portakernel[opentelemetry]``. A provider that has them already gets them no second time: what is returned is
    what was returned then. Its ``close`` ends it, as does the end of a ``with`` block.

    Raises:
        MissingPackageError: opentelemetry-api is not installed.
        ArgumentTypeError: what is given is no meter provider.
    """
    with needing("opentelemetry", "opentelemetry-api", "opentelemetry"):
        from portakernel.metrics.otel import instrumentation
    return instrumentation(meter_provider)


def collector() -> Collector:
    """A collector for ``prometheus_client.REGISTRY.register``, or another registry; needs ``portakernel[prometheus]``.

    A registry takes it once, and says so of a second one; ``unregister`` takes it away.

    Raises:
        MissingPackageError: prometheus-client is not installed.
    """
    with needing("prometheus_client", "prometheus-client", "prometheus"):
        from portakernel.metrics.prometheus import Collector
    return Collector()
