"""What is known of one client in this process: its enabled layers, their instances, the calls, the trials."""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch

from portakernel.errors import ClientWarning
from portakernel.integrations.ledger import Ledger, Row

# Set on instances, so that a trace, which may hold no instance as a constant, can name one by its number.
_NUMBER = "_portakernel_number"


@dataclass(frozen=True, slots=True)
class EnabledLayer:
    """A layer of the client that an op serves, and which of the client's settings to change where no call comes."""

    layer: str
    op: str
    remedy: str


class Client:
    """One client's enabled layers, the instances that were made of them, its calls, and what trials found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self._enabled: dict[str, EnabledLayer] = {}
        self._numbers = itertools.count()
        self._instances: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._adapters: dict[str, Any] = {}
        self._made: dict[str, int] = {}
        self._verdicts: dict[tuple[str, Hashable], str] = {}
        self._warned: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    @property
    def enabled(self) -> tuple[EnabledLayer, ...]:
        """The layers that ops serve now."""
        return tuple(self._enabled.values())

    def enable(self, layer: EnabledLayer) -> None:
        """An op serves this layer from now on; again changes nothing."""
        with self._lock:
            self._enabled.setdefault(layer.layer, layer)

    def disable(self) -> None:
        """No layer is enabled any more. What was counted stays; trials are held anew."""
        with self._lock:
            self._enabled.clear()
            self._verdicts.clear()

    def born(self, layer: str, instance: Any) -> None:
        """An instance of a layer was made, which an op is to serve; again changes nothing."""
        with self._lock:
            if self._instances.get(getattr(instance, _NUMBER, -1)) is instance:
                return
            number = next(self._numbers)
            setattr(instance, _NUMBER, number)
            self._instances[number] = instance
            self._made[layer] = self._made.get(layer, 0) + 1

    def forget(self, instance: Any) -> None:
        """An instance that is no longer to be served, as if it had never been given to ``born``."""
        with self._lock:
            self._instances.pop(vars(instance).pop(_NUMBER, -1), None)

    def adopt(self, layer: str, adapter: Any) -> None:
        """What serves a layer, so that a trace, which knows names alone, can reach it."""
        self._adapters[layer] = adapter

    def adapter(self, layer: str) -> Any:
        """What was adopted for a layer."""
        return self._adapters[layer]

    def instance(self, number: int) -> Any:
        """The instance of a number; None where it is gone, or was made in another process."""
        return self._instances.get(number)

    def verdict(self, layer: str, kind: Hashable) -> str | None:
        """What a trial of this kind of call found: empty, or why the op stands back. None where none was held."""
        return self._verdicts.get((layer, kind))

    def decide(self, layer: str, kind: Hashable, verdict: str) -> str:
        """Keeps what a trial found; where the op stands back, with a warning."""
        kept = self._verdicts.setdefault((layer, kind), verdict)
        if kept:
            self.warn(layer, f"{self.name}'s {layer} computes for itself, portakernel stands back: {kept}")
        return kept

    def warn(self, layer: str, text: str) -> None:
        """Warns, once per layer and text."""
        with self._lock:
            if (layer, text) in self._warned:
                return
            self._warned.add((layer, text))
        warnings.warn(text, ClientWarning, stacklevel=3)

    def bypassed(self) -> tuple[Row, ...]:
        """The enabled layers of which there are instances, and to which no call came."""
        return tuple(
            Row(each.op, f"{self._made[each.layer]} made, no call reached them; {each.remedy}", 0, 0, each.layer, True)
            for each in self.enabled
            if self._made.get(each.layer) and not self.ledger.has_met(each.layer)
        )

    def absent(self) -> tuple[Row, ...]:
        """The enabled layers of which no instance was made since."""
        reason = "no instance was made since it was enabled"
        return tuple(Row(each.op, reason, 0, 0, each.layer) for each in self.enabled if not self._made.get(each.layer))

    def report(self) -> tuple[Row, ...]:
        """What calls came to, most first; then what was bypassed, and enabled layers that the model lacks."""
        absent = tuple(row for row in self.absent() if not self.ledger.has_met(row.layer))
        return self.ledger.rows() + self.bypassed() + absent

    def stepped(self, excused: Collection[str] = ()) -> None:
        """A whole step of the client is done: an enabled layer without a call is bypassed, and warned of.

        ``excused`` layers are not: they are known to be served where no call is counted.
        """
        for row in self.bypassed():
            if row.layer in excused:
                continue
            self.warn(row.layer, f"{self.name}'s {row.layer} is enabled and bypassed: {row.refused}")


@functools.cache
def client(name: str) -> Client:
    """The process's record of a client."""
    return Client(name)


def number_of(instance: Any) -> int:
    """The number of an instance that was given to ``Client.born``; read in traces, where it is a constant."""
    number: int = instance._portakernel_number
    return number


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]  # torch.compiler is untyped
def _record_trace(name: str, layer: str, op: str, refused: str) -> bool:
    # Run while tracing, and not part of the graph: a counter inside would be guarded, and every call compiled anew.
    client(name).ledger.count(op, refused, traced=True, layer=layer)
    return True


def record(name: str, op: str, refused: str = "", layer: str = "") -> None:
    """Counts a call of a client that ``op`` serves, or that it leaves to the client because of ``refused``."""
    if torch.compiler.is_compiling():
        _record_trace(name, layer, op, refused)
    else:
        client(name).ledger.count(op, refused, traced=False, layer=layer)
