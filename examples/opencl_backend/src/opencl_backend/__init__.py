"""OpenCL devices that share PyTorch's CPU tensors: a backend and a plugin in one package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portakernel.authoring import hookimpl

if TYPE_CHECKING:
    from portakernel.authoring import Device


@hookimpl
def portakernel_targets() -> list[Device]:
    """The devices that ``probe.find`` finds; pyopencl is imported when they are first asked for."""
    from opencl_backend.probe import find

    return find()
