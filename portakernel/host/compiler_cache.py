"""The directory in which somebody else's compiler keeps code, as Triton and Inductor do: another where it will not do.

Such a compiler runs what it finds there, and asks neither who wrote it nor whether it is whole. Where somebody else can
write the directory or exchange it, or where it cannot be written at all, a private one takes its place in this process
and in those that it starts: for whoever uses that compiler here.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.host.cache_folder import CacheWarning, described, distrust, distrust_inside, trouble
from portakernel.host.call_site import callers_level
from portakernel.host.locks import make_lock
from portakernel.host.private_folder import make_private


class CompilerCache:
    """One compiler's directory in this process; ``notes`` says what has to be known of it, and may grow.

    ``name`` is what it is called, ``variable`` sets it, ``default`` is where it is else. ``size`` is what one kernel
    takes there.
    """

    def __init__(self, name: str, variable: str, default: Callable[[], str], *, size: int) -> None:
        self.name, self.variable, self.default, self.size = name, variable, default, size
        self.notes: list[str] = []
        self._settled = ""
        self._lock = make_lock()

    @property
    def folder(self) -> str:
        """The directory that the compiler uses now."""
        named = os.environ.get(self.variable)
        return self.default() if named is None else named

    def use(self, private: str) -> None:
        """Has the compiler use another one, in the processes that this one starts too."""
        os.environ[self.variable] = private

    def adopt(self, folder: Path, private: Path) -> None:
        """Lets the compiler find in ``private`` what it may run of what ``folder`` holds; by default nothing."""

    def settle(self) -> Rejection | None:
        """Sees to it that there is a directory that can be used; why there is none."""
        if self.folder == self._settled:
            return None
        with self._lock:
            folder = Path(self.folder)
            rejection = None
            if found := distrust(folder):
                rejection = self._move(found, "that nobody else can write", None)
            elif found := trouble(folder, size=self.size, runs=True):
                rejection = self.move(found)
            elif found := _inside(folder):
                rejection = self._move(found, "that nobody else can write", folder)
            if rejection is None:
                self._settled = self.folder
            return rejection

    def move(self, found: str) -> Rejection | None:
        """Puts a private directory in the place of one that cannot be written; why that cannot be."""
        return self._move(found, "on a local disk that can be written", Path(self.folder))

    def _move(self, found: str, wanted: str, adopted: Path | None) -> Rejection | None:
        what, remedy = f"{self.name} {self.folder} {found}", f"set {self.variable} to a directory {wanted}"
        try:
            private = make_private(self.variable.partition("_")[0].lower())
            why = trouble(private, size=self.size, runs=True)
        except OSError as error:
            private, why = Path(tempfile.gettempdir()), described(error)
        if why:
            text = f"{what}, and {private}, which would take its place, {why}; make room, or {remedy}"
            return Rejection(ReasonCode.PROBE_FAILED, text)
        if adopted is not None:
            self.adopt(adopted, private)
        self.use(str(private))
        note = f"{what}: {private} serves in its place, and goes when this process ends; {remedy}"
        self.notes.append(note)
        warnings.warn(note, CacheWarning, stacklevel=callers_level())
        return None


def _inside(folder: Path) -> str:
    try:
        return distrust_inside(folder)
    except OSError as error:
        return described(error)
