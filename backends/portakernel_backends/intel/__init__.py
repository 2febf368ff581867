"""Intel GPUs: their architectures in backend.yaml, found in the kernel's tree of graphics devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portakernel.authoring import hookimpl

if TYPE_CHECKING:
    from portakernel.authoring import Device


@hookimpl
def portakernel_targets() -> list[Device]:
    """The devices that ``probe.find`` finds; the probe is imported when they are first asked for."""
    from portakernel_backends.intel.probe import find

    return find()
