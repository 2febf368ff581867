"""Calls of two threads that meet at chosen points: one stops there, the other makes a whole call, the first goes on.

Threads that merely run at once meet where they happen to. Here every step of a call's Python is a point, so that a
buffer or a setting which is kept between calls, filled in one step and read in a later one, is found each time.
"""

from __future__ import annotations

import dis
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

# A call that has not returned by then waits for a lock that the first one holds, which then goes on.
_PATIENCE_S = 0.5
# After so many of those there are no more meetings: each costs its time.
_MOST_WAITING = 3
# Behind these something may have been written that another call can write, too.
_EFFECTS = ("CALL", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_ATTR")
_STANDARD, *_OTHERS = (f"{Path(file).parent}{os.sep}" for file in (os.__file__, torch.__file__, __file__))


def _is_left_out(file: str) -> bool:
    """Whether a file is Python's, torch's or the kit's own: its lines are no part of a kernel."""
    return file.startswith(tuple(_OTHERS)) or (file.startswith(_STANDARD) and "site-packages" not in file)


def _points(code: CodeType) -> frozenset[int]:
    """The instructions of a function at which another call may come in."""
    if _is_left_out(code.co_filename):
        return frozenset()
    found, effect = set[int](), False
    for instruction in dis.get_instructions(code):
        if effect or instruction.starts_line:
            found.add(instruction.offset)
        effect = instruction.opname.startswith(_EFFECTS)
    return frozenset(found)


@dataclass(slots=True)
class Meeting:
    """A call, and what another thread does at each of its points, or ``only`` at the one with this number.

    ``before`` runs in the first thread, ``other`` in the second. ``places`` are the points, file and line, in the
    order in which they were come to.
    """

    other: Callable[[], None]
    before: Callable[[], None]
    only: int | None = None
    places: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    _left: dict[tuple[CodeType, int], set[int]] = field(default_factory=dict[tuple[CodeType, int], set[int]])
    _known: dict[CodeType, frozenset[int]] = field(default_factory=dict[CodeType, frozenset[int]])
    _asked: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue[bool])
    _done: queue.SimpleQueue[BaseException | None] = field(default_factory=queue.SimpleQueue[BaseException | None])
    _waiting: int = 0
    _is_under_way: bool = False
    _raised: list[BaseException] = field(default_factory=list[BaseException])

    @contextmanager
    def at_every_point(self) -> Iterator[None]:
        """Inside, calls of this thread meet those of another.

        Raises:
            Exception: what the other thread's call has raised.
        """
        thread = threading.Thread(target=self._work, args=(torch.get_num_threads(),), daemon=True)
        thread.start()
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            self._asked.put(False)
            thread.join()
        if self._is_under_way:
            self._finish(None)
        if self._raised:
            raise self._raised[0]

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)  # a new thread begins with what the process began with, which sums otherwise
        while self._asked.get():
            try:
                self.other()
            except Exception as error:  # noqa: BLE001 - a kernel's: raised where the call that it met is made
                self._done.put(error)
            else:
                self._done.put(None)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """A tracer: the steps of a function that has points are followed."""
        code = frame.f_code
        points = self._known.get(code)
        if points is None:
            points = self._known[code] = _points(code)
        if not points:
            return None
        # where it was called from: what a helper does for one caller it may not do for another
        caller = frame.f_back.f_lasti if frame.f_back is not None else -1
        left = self._left.setdefault((code, caller), set(points))
        frame.f_trace_opcodes = True

        def step(frame: FrameType, _event: str, _argument: Any) -> Any:
            if frame.f_lasti in left:
                left.discard(frame.f_lasti)
                self._meet(code.co_filename, frame.f_lineno)
            return step

        return step

    def _meet(self, file: str, line: int) -> None:
        number = len(self.places)
        self.places.append((file, line))
        if self.only not in (None, number) or self._waiting >= _MOST_WAITING or self._raised:
            return
        if not self._is_under_way:
            self.before()
            self._asked.put(True)
            self._is_under_way = True
            self._finish(_PATIENCE_S)
        else:
            self._finish(0.0)

    def _finish(self, patience_s: float | None) -> None:
        try:
            error = self._done.get(timeout=patience_s)
        except queue.Empty:
            self._waiting += patience_s != 0.0
            return
        self._is_under_way = False
        if error is not None:
            self._raised.append(error)  # not raised here: a kernel might catch it
