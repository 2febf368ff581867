"""Which groups of a weight's columns PyTorch's 4-bit products take. No torch here."""

from __future__ import annotations

from portakernel.authoring import ReasonCode, Rejection

_SIZES = (32, 64, 128)


def check_groups(K: int, group: int) -> Rejection | None:
    """None where groups have a size that is taken, and all of them that size; else what is asked for."""
    if group not in _SIZES:
        return Rejection(ReasonCode.LIMIT, f"takes groups of {', '.join(map(str, _SIZES))}; this is {group}", "group")
    if K % group:
        return Rejection(ReasonCode.LIMIT, f"takes whole groups, K a multiple of {group}; this is {K}", "K")
    return None
