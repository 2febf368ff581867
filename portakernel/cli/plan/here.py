"""The kinds of devices that this machine has, as plans have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.plan.plan import MadeWith, Place


def places_here(now: Dispatcher) -> Mapping[Place, MadeWith]:
    """This machine's kinds of devices, with driver and torch."""
    from portakernel.host.distributions import version
    from portakernel.plan.plan import MadeWith, Place
    from portakernel.tensors.units import units_of

    torch, found = version("torch") or "", dict[Place, MadeWith]()
    for device in now.registry.reachable_devices():
        if not device.attached and device.torch_device is not None and (units := units_of(device)):
            found.setdefault(Place(str(device.target), units), MadeWith(device.driver or "", torch))
    return found
