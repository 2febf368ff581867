"""Which lines of a package run: a fault in one that never does proves nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class LineTracer:
    """Sees the lines that run in the files of a folder, by name relative to it; in other files it costs little."""

    def __init__(self, folder: Path) -> None:
        self.prefix = f"{folder}/"
        self._names = dict[CodeType, str | None]()
        self.seen = dict[str, set[int]]()

    def taken(self) -> dict[str, frozenset[int]]:
        """What was seen since it was taken last."""
        seen, self.seen = self.seen, {}
        return {name: frozenset(lines) for name, lines in seen.items()}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, lines are seen, in threads that begin there too."""
        before = sys.gettrace()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        code = frame.f_code
        if code not in self._names:
            file = code.co_filename
            self._names[code] = file.removeprefix(self.prefix) if file.startswith(self.prefix) else None
        name = self._names[code]
        if name is None:
            return None
        seen = self.seen.setdefault(name, set())
        seen.add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            del argument
            if event == "line":
                # another unit may have begun since this frame did
                self.seen.setdefault(name, seen).add(frame.f_lineno)
            return line

        return line
