"""What was measured on devices like this machine's, as the choices that a process follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from portakernel.deciding.routes import Place
from portakernel.host.distributions import version
from portakernel.registry.registry import Registry
from portakernel.tuning.choices import Choices
from portakernel.tuning.key import Kind, Regime
from portakernel.tuning.measured import Measured, places
from portakernel.tuning.silences import Silence


class Measurements:
    """The records of several stores, of which the first goes first, in one regime; read op by op, when first asked."""

    def __init__(self, registry: Registry, roots: Sequence[Path], regime: Regime) -> None:
        self._registry, self._roots, self._regime = registry, tuple(roots), regime
        self._places = places(self._roots)
        self._known: dict[tuple[str, Place], Measured] = {}

    def places(self) -> tuple[Place, ...]:
        """The kinds of devices that there are records of."""
        return self._places

    def choices(self, op: str, place: Place) -> Choices:
        """The choices for an op on one kind of device."""
        return self._of(op, place).choices

    def notes(self, kind: Kind, dims: Mapping[str, int], place: Place, driver: str) -> tuple[str, ...]:
        """What there is to say of a call on a device of this kind beside its choice."""
        return self._of(kind.op, place).notes(kind, dims, driver=driver, torch=version("torch") or "")

    def silence(self, kind: Kind, dims: Mapping[str, int], place: Place) -> Silence:
        """Why nothing is decided of a call on a device of this kind, in a word; empty where something is."""
        return self._of(kind.op, place).silence(kind, dims)

    def wrong(self, op: str, place: Place) -> Mapping[str, Mapping[str, str]]:
        """By kind of call the kernels that were wrong while they served on a device of this kind."""
        return self._of(op, place).wrong

    def _of(self, op: str, place: Place) -> Measured:
        if (known := self._known.get((op, place))) is None:
            kernels = self._registry.for_op(op)
            known = Measured(self._roots, op, *place, self._regime, kernels, self._registry.spaces)
            self._known[op, place] = known
        return known
