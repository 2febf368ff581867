"""JSON files that somebody else may have written: regular, of bounded size and depth; and what JSON cannot hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portakernel.host.regular_file import read_regular

MAX_BYTES = 256 << 20


def read_json(path: Path) -> Any:
    """The file's data.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than ``MAX_BYTES``.
        ValueError: it is no JSON, no UTF-8, or nested deeper than Python's parser goes.
    """
    content = read_regular(path, limit=MAX_BYTES)
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def finite(data: Any) -> Any:
    """``data`` with null in the place of numbers that JSON does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data
