"""Which masks a kernel in Triton can have inlined: asked also where Triton is not installed."""

from __future__ import annotations

from portakernel.authoring import ReasonCode, Rejection, masks

_BUILT_IN = frozenset(mask.name for mask in masks.BUILT_IN)


def check(mask: str) -> Rejection | None:
    """Why no kernel can have the mask inlined; None where it can."""
    if mask in _BUILT_IN or masks.named(mask).triton is not None:
        return None
    text = f"mask {mask!r} was registered without a Triton function; give portakernel.masks.register triton= one"
    return Rejection(ReasonCode.FEATURE, text, "mask")
