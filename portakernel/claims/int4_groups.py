"""Which groups of a 4-bit weight's columns other libraries' products take: checks that manifests name."""

from __future__ import annotations

from portakernel.claims.capability import ReasonCode, Rejection

_SIZES = (32, 64, 128)


def check_groups(K: int, group: int) -> Rejection | None:  # noqa: N803 - the contract's letter
    """None where groups have 32, 64 or 128 columns, and each has as many; else what is asked for."""
    if group not in _SIZES:
        return Rejection(ReasonCode.LIMIT, f"takes groups of {', '.join(map(str, _SIZES))}; this is {group}", "group")
    if K % group:
        return Rejection(ReasonCode.LIMIT, f"takes whole groups, K a multiple of {group}; this is {K}", "K")
    return None


def check_groups_or_all(K: int, group: int) -> Rejection | None:  # noqa: N803
    """The same; one group of all columns is taken too."""
    return None if group == -1 else check_groups(K, group)
