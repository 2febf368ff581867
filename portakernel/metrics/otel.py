"""The metrics as OpenTelemetry's observable instruments: whoever exports them reads them, and no call adds to any."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from portakernel.errors import ArgumentTypeError
from portakernel.host.locks import make_lock
from portakernel.metrics.definitions import METRICS, Metric
from portakernel.metrics.readings import prepare, values

_SCOPE = "portakernel"


class Instrumentation:
    """The instruments of one meter provider. OpenTelemetry forgets no instrument: closed, they observe nothing."""

    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        """Has nothing more observed; ``instrument`` with the same provider begins again."""
        self.is_open = False

    def __enter__(self) -> Instrumentation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def create(self, provider: MeterProvider) -> None:
        """Makes the instruments, once."""
        meter = provider.get_meter(_SCOPE, version("portakernel"))
        for metric in METRICS:
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            observe = functools.partial(self._observe, metric)
            make(metric.name, [observe], unit=metric.unit, description=metric.description)

    def _observe(self, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
        del options  # its timeout: a reading takes less than a millisecond
        if not self.is_open:
            return
        for by, value in values(metric).items():
            yield Observation(value, dict(zip(metric.labels, by, strict=True)))


class _Known:
    """The instrumentation of each provider that has one; a provider that is gone takes its own with it."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[MeterProvider, Instrumentation] = weakref.WeakKeyDictionary()
        self._lock = make_lock()

    def of(self, provider: MeterProvider) -> Instrumentation:
        with self._lock:
            made = self._made.get(provider)
            if made is None:
                made = self._made[provider] = Instrumentation()
                made.create(provider)
            made.is_open = True
            return made


_known = _Known()


def instrumentation(meter_provider: MeterProvider | None) -> Instrumentation:
    """The instruments of a provider, by default of the process's (``portakernel.metrics.instrument``).

    Raises:
        ArgumentTypeError: it is no meter provider.
    """
    given: Any = get_meter_provider() if meter_provider is None else meter_provider
    if not isinstance(given, MeterProvider):
        text = "instrument takes an OpenTelemetry MeterProvider, or nothing for the one that the process has set"
        raise ArgumentTypeError(f"{text}; this is {given!r}")
    prepare()
    return _known.of(given)
