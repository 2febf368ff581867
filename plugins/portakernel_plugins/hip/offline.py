"""Compiling for GPUs that are not here, as ``portakernel compile`` asks for it."""

from __future__ import annotations

from portakernel.authoring.native import compiling

__all__ = ["compiling"]
