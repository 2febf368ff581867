"""JSON files that somebody else may have written: regular, of bounded size and depth."""

from __future__ import annotations

import json
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
