"""What is wrong with a file, as ``portakernel validate`` tells it: file, line, key and text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portakernel.text.printable import one_line

_PLACE = re.compile(r":(\d+)(?:: (\S+?(?=: )))?: (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where; ``line`` and ``key`` are None where it is the whole file, or no file."""

    file: str
    line: int | None
    key: str | None
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        return ": ".join(filter(None, (place, self.key, self.text)))

    def to_json(self) -> dict[str, Any]:
        """The problem as JSON-ready data; stable."""
        return {"file": self.file, "line": self.line, "key": self.key, "text": self.text}


def problems_in(file: Path, texts: Sequence[str]) -> list[Problem]:
    """The core's sentences, which begin with the file and line, taken apart."""
    found = []
    for text in texts:
        rest = text.removeprefix(one_line(str(file)))
        place = _PLACE.fullmatch(rest)
        if rest != text and place:
            key = place[2].lstrip(".") if place[2] else None
            found.append(Problem(str(file), int(place[1]), key, place[3]))
        else:
            found.append(Problem(str(file), None, None, rest.removeprefix(": ")))
    return found
