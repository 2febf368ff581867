"""What the manifest names: the probe, the mode without a GPU, and compiling ahead, as every Triton plugin has them."""

from __future__ import annotations

from portakernel.authoring.triton import compiling, interpreting, ready

__all__ = ["compiling", "interpreting", "ready"]
