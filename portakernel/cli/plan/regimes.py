"""Whose times a plan states: the regime that its file names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.plan.plan import Place
    from portakernel.tuning.key import Regime


def decides_here() -> Regime | None:
    """The regime that ``PORTAKERNEL_TUNING`` names; None where it is ``off``."""
    from portakernel.config import Config
    from portakernel.tuning.key import Regime

    found = Config.from_environment().tuning
    return None if found == "off" else Regime(found)


def regime_of_file(places: Iterable[Place], wanted: Regime) -> Regime:
    """The one regime that a file names: where all its devices answer in the same one that, else what was wanted."""
    answering = {wanted.on(place.target.partition(":")[0]) for place in places}
    return answering.pop() if len(answering) == 1 else wanted
