"""``portakernel check --emulate``: which kernels the emulator takes, and what is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from portakernel.errors import ArgumentValueError

if TYPE_CHECKING:
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel_kit.conformance.venue import Emulated

_MOST_REASONS = 4


def emulated_kernels(
    now: Dispatcher, text: str, plugin: str | None, op: str | None, names: Sequence[str] | None,
    others: Sequence[str] = (),
) -> tuple[Emulated, list[str]]:  # fmt: skip
    """The place that ``text`` names, and the names of those kernels of a plugin and an op that run there.

    Raises:
        UnknownNameError: there is no such target, plugin or op.
        EmulationError: the target is not emulated, or tinygrad is not installed.
        ArgumentValueError: none of these kernels can be emulated there; or options that do not go with it are given.
    """
    from portakernel.emulation.session import check_target
    from portakernel_kit.conformance.runner import select_kernels
    from portakernel_kit.conformance.venue import Emulated, Unavailable, find_venue

    if others:
        raise ArgumentValueError(f"--emulate runs kernels without a device, on small tensors; leave out {others[0]}")
    where = Emulated(now.registry.target(text))
    check_target(where.target)
    chosen = select_kernels(now, plugin, op, names)
    venues = {kernel.name: find_venue(now, kernel, where) for kernel in chosen}
    able = [name for name, venue in venues.items() if not isinstance(venue, Unavailable)]
    if not able:
        reasons = [f"{name}: {venue.reason}" for name, venue in venues.items() if isinstance(venue, Unavailable)]
        left = len(reasons) - _MOST_REASONS
        told = "\n  ".join(reasons[:_MOST_REASONS] + ([f"and {left} more"] if left > 0 else []))
        raise ArgumentValueError(f"none of these kernels can be emulated on {where.target}:\n  {told}")
    return where, able
