"""What a deployment wants of shadow verification: how often, how much of it, and what follows from a wrong result."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

OnMismatch = Literal["report", "demote"]
ON_MISMATCH: tuple[OnMismatch, ...] = get_args(OnMismatch)

# What checks results; a service may go without.
KIT = "portakernel_kit"
NEEDS_KIT = (
    "shadow verification needs the package portakernel_kit, which portakernel's wheel has, and which is not installed"
    " here: install the whole wheel, or take shadow away"
)

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)"


@dataclass(frozen=True, slots=True)
class ShadowWishes:
    """Shadow verification as it is asked for; ``place`` is where, as messages name it.

    A call is looked at every ``every_s`` seconds at most, if its arguments and results have ``bytes`` at most, and
    while copies and checks take a ``share`` of the time at most. ``folder`` is where wrong calls' tensors are written;
    empty: nowhere.
    """

    every_s: float = 30.0
    bytes: int = 256 << 20
    share: float = 0.001
    on_mismatch: OnMismatch = "report"
    folder: str = ""
    place: str = "shadow"


def seconds_of(value: Any) -> float:
    """The seconds that ``30s``, ``500ms``, ``2min`` or ``1h`` mean.

    Raises:
        ValueError: it is something else, or nothing.
    """
    return _measured(value, _SECONDS, "a time above 0 with its unit, such as 30s, 500ms, 2min or 1h")


def bytes_of(value: Any) -> int:
    """The bytes that ``256 MiB``, ``64KiB`` or ``4096 B`` mean.

    Raises:
        ValueError: it is something else, or nothing.
    """
    return int(_measured(value, _BYTES, "a size above 0 with its unit, such as 256 MiB, 64 KiB or 4096 B"))


def share_of(value: Any) -> float:
    """A share of the time, a number above 0 and up to 1.

    Raises:
        ValueError: it is something else.
    """
    number = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    if not number or not 0 < value <= 1:
        raise ValueError(f"found {value!r}; write a share of the time above 0 and up to 1, such as 0.001")
    return float(value)


def _measured(value: Any, units: dict[str, Any], wanted: str) -> float:
    found = re.fullmatch(_NUMBER, value.strip()) if isinstance(value, str) else None
    if found is None or found[2] not in units or float(found[1]) == 0:
        raise ValueError(f"found {value!r}; write {wanted}")
    return float(found[1]) * float(units[found[2]])
