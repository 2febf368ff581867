"""The process's own shadow verification: one sampler, and the one thread that gives it its turns and judges."""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from portakernel.calling.known_callers import known_callers
from portakernel.deciding.shadow_wishes import KIT, NEEDS_KIT, ShadowWishes
from portakernel.errors import MissingPackageError, ShadowWarning
from portakernel.host.forks import unsplit
from portakernel.host.locks import make_lock
from portakernel.shadow.counts import COUNTS
from portakernel.tuning.record import Verdict

if TYPE_CHECKING:
    from portakernel.calling.caller import OpCaller
    from portakernel.shadow.sampler import Sampler

# How long the end of the process waits for a check that is under way: it runs native code, which must not outlive it.
_LONGEST_S = 30.0


def judge(
    caller: OpCaller, candidate: Any, tensors: Sequence[Any], values: Sequence[Any], results: Sequence[Any]
) -> tuple[Verdict, str]:
    """The kit's verdict, which is loaded when there is something to judge (``portakernel_kit.shadow.judge``)."""
    found: tuple[Verdict, str] = importlib.import_module(f"{KIT}.shadow").judge(
        caller, candidate.placement.decision, tensors, values, results
    )
    return found


class _Worker:
    """A sampler and its thread; in a forked child the thread begins anew."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._work, name="portakernel shadow", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        sampler = self.sampler
        waiting, every = sampler.waiting, sampler.wishes.every_s
        turn = time.monotonic() + every
        while True:
            try:
                sample = waiting.get(timeout=max(turn - time.monotonic(), 0.0))
            except queue.Empty:
                sampler.turn()
                turn = time.monotonic() + every
                continue
            if sample is None:
                return
            try:
                with unsplit("a check of shadow verification"):
                    sampler.check(sample)
            except ShadowWarning as warning:  # no call is there to raise it
                sys.stderr.write(f"ShadowWarning: {warning}\n")

    def end(self) -> None:
        """Has it looked at no more, once a check under way is done."""
        self.sampler.disarm()
        self.sampler.waiting.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_LONGEST_S)
        self.sampler.disarm()

    def in_child(self) -> None:
        """Goes on in a forked child: what waited there is its parent's."""
        self.sampler.disarm()
        self.sampler.waiting = queue.SimpleQueue()
        self._begin()


class _Process:
    """Who asked for shadow verification, and the worker while there is one."""

    def __init__(self) -> None:
        self.worker: _Worker | None = None
        self.followed: ShadowWishes | None = None
        self._lock = make_lock()

    @functools.cached_property
    def _hooks(self) -> bool:
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_child)
        return True

    def start(self, wishes: ShadowWishes) -> None:
        from portakernel.shadow.sampler import Sampler

        with self._lock:
            if self.worker is not None and self.worker.sampler.wishes == wishes:
                return
            self.stop()
            assert self._hooks
            self.worker = _Worker(Sampler(wishes, known_callers, judge, COUNTS))
            COUNTS.state = f"shadow verification is on ({wishes.place})"

    def stop(self) -> None:
        with self._lock:
            worker, self.worker = self.worker, None
            if worker is not None:
                worker.end()
            COUNTS.state = "shadow verification is off"

    def _in_child(self) -> None:
        if self.worker is not None:
            self.worker.in_child()


_process = _Process()
_CONFIGURED = "portakernel.shadow.configure"


def start(wishes: ShadowWishes) -> None:
    """Has calls looked at as ``wishes`` has it from now on, in the place of what was wished before.

    Raises:
        MissingPackageError: the kit, which judges results, is not installed.
    """
    if importlib.util.find_spec(KIT) is None:
        raise MissingPackageError(NEEDS_KIT, name=KIT)
    _process.start(wishes)


def stop() -> None:
    """Has no more calls looked at."""
    _process.stop()


def follow(wishes: ShadowWishes | None, *, anew: bool = False) -> None:
    """Does as policy files say, which say nothing of it where it is None; what a program configured goes before.

    What was stopped since stays so, unless files were loaded ``anew``.

    Raises:
        MissingPackageError: the kit, which judges results, is not installed.
    """
    worker, before = _process.worker, _process.followed
    _process.followed = wishes
    if (worker is not None and worker.sampler.wishes.place == _CONFIGURED) or (wishes == before and not anew):
        return
    if wishes is None:
        stop()
    else:
        start(wishes)
