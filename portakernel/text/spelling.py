"""A value spelled out whole, so that equal text means equal values; a ``repr`` is for people, and short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_PLAIN = frozenset({str, int, float, bool, type(None)})  # nine in ten of the values


def spelled(value: Any) -> str:
    """All of ``value``: dataclasses by their fields (less those with ``repr=False``), sets in order."""
    if type(value) in _PLAIN:
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{field.name}={spelled(getattr(value, field.name))}" for field in fields(value) if field.repr)
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{spelled(key)}: {spelled(held)}' for key, held in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(spelled, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(spelled, value))}]"
    return repr(value)
