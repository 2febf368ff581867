"""One line on stderr when a process ends: which kernels served how many calls (``PORTAKERNEL_LOG=summary``)."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import util
from typing import TYPE_CHECKING

from portakernel.text.printable import exception_text

if TYPE_CHECKING:
    from portakernel.calling.caller import OpCaller

# A line of calls: the op, the kernel that served, on which target, and the better ones that could not.
Line = tuple[str, str, str, tuple[str, ...]]
Reasons = Mapping[tuple[str, str], tuple[str, ...]]


class Summary:
    """Tells once a process, at its end, what was served since it began; a forked child tells of its own calls.

    ``callers`` gives those that there are at that moment.
    """

    def __init__(self, callers: Callable[[], Iterable[OpCaller]]) -> None:
        self._callers = callers
        self._told_by: int | None = None
        self._main = os.getpid()
        self._at_fork: Counter[Line] = Counter()
        self._inherited: Counter[Line] = Counter()

    def register(self) -> None:
        """Has the summary told when this process, or one that is forked from it, ends."""
        atexit.register(self.tell)
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)
        self._at_end_of_worker()
        util.register_after_fork(self, Summary._at_end_of_worker)

    def tell(self) -> None:
        """Prints the line, if any call was served; whatever goes wrong, a process that ends is left in peace."""
        pid = os.getpid()
        if self._told_by == pid or sys.stderr is None:
            return
        self._told_by = pid
        who = "portakernel" if pid == self._main else f"portakernel (process {pid})"
        try:
            calls = lines(self._callers()) - self._inherited
            told = sentence(calls, reasons(self._callers())) if calls else ""
        except Exception as error:  # noqa: BLE001 - a log line is not worth a traceback at exit
            told = f"no summary: {exception_text(error)}"
        # a stream that is closed by now takes no line
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{who}: {told}\n" if told else "")
            sys.stderr.flush()

    def _before_fork(self) -> None:
        self._at_fork = lines(self._callers())

    def _in_child(self) -> None:
        self._inherited = self._at_fork

    def _at_end_of_worker(self) -> None:
        # multiprocessing's forked workers end without atexit, and drop their parent's finalizers when they start
        util.Finalize(None, self.tell, exitpriority=0)


def sentence(calls: Mapping[Line, int], why: Reasons) -> str:
    """``3 calls: add by triton.add 2 (amd:gfx942), reference.add 1 (amd:gfx942, fallback from triton.add: layout)``."""
    total = sum(calls.values())
    ops: dict[str, list[str]] = {}
    for (op, kernel, target, fallback), number in sorted(calls.items(), key=lambda item: (-item[1], item[0])):
        notes = [f"{name}: {', '.join(codes)}" if (codes := why.get((op, name))) else name for name in fallback]
        place = f"{target}, fallback from {' and '.join(notes)}" if notes else target
        ops.setdefault(op, []).append(f"{kernel} {number} ({place})")
    served = "; ".join(f"{op} by {', '.join(parts)}" for op, parts in ops.items())
    return f"{total} call{'s' * (total != 1)}: {served}"


def reasons(callers: Iterable[OpCaller]) -> Reasons:
    """The codes for which kernels were passed over, by op and kernel; of the kinds of calls still remembered."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for caller in callers:
        for placement in list(caller.table.entries.values()):
            for name in placement.fallback:
                codes = (str(rejection.code) for rejection in placement.decision.candidate(name).rejections)
                found.setdefault((caller.contract.op, name), {}).update(dict.fromkeys(codes))
    return {key: tuple(codes) for key, codes in found.items()}


def lines(callers: Iterable[OpCaller]) -> Counter[Line]:
    """The calls of all phases together."""
    total: Counter[Line] = Counter()
    for caller in callers:
        for use, calls in caller.table.counts().items():
            total[use.op, use.kernel, use.target, use.fallback] += calls
    return total
