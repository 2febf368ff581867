"""Compiling for GPUs that are not here, as ``portakernel compile`` asks for it."""

from __future__ import annotations

from portakernel.native.offline import compiling

__all__ = ["compiling"]
