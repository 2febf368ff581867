"""Shadow verification: while a process serves, some calls are held against the float64 reference (docs/shadow.md).

A policy file asks for it with ``shadow:``, a program with ``configure``. One placement at a time is armed, and only for
its next call: calls that are not looked at run what they run without.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from portakernel.deciding.shadow_wishes import ON_MISMATCH, OnMismatch, ShadowWishes, bytes_of, seconds_of, share_of
from portakernel.errors import ArgumentValueError, nearest
from portakernel.host.as_written import as_written
from portakernel.shadow.counts import COUNTS, Report

__all__ = ["Report", "configure", "report", "stop"]


@as_written
def configure(
    *,
    every: str | float = "30s",
    bytes: str | int = "256 MiB",
    share: float = 0.001,
    on_mismatch: OnMismatch = "report",
    folder: str | os.PathLike[str] | None = None,
) -> None:
    """Has the process's calls looked at from now on, whatever policy files say, until ``stop``.

    At most one call in the time ``every`` (``"30s"``, or seconds) is copied and held against the reference, if its
    arguments and results have ``bytes`` at most (``"256 MiB"``, or a number), and while copies and checks take a
    ``share`` of the time at most. ``on_mismatch="demote"`` lets the next kernel serve calls of that kind; with a
    ``folder``, tensors of wrong calls are written there, and nowhere else.

    Raises:
        ArgumentValueError: a value is not of that form.
        MissingPackageError: portakernel_kit, which judges results, is not installed.
    """
    from portakernel.shadow.process import start

    if on_mismatch not in ON_MISMATCH:
        text = f"found {on_mismatch!r}; {nearest(str(on_mismatch), ON_MISMATCH)}"
        raise ArgumentValueError(f"shadow.configure: on_mismatch: {text}")
    start(
        ShadowWishes(
            _accepted("every", seconds_of, f"{every}s" if isinstance(every, (int, float)) else every),
            _accepted("bytes", bytes_of, f"{bytes} B" if isinstance(bytes, int) else bytes),
            _accepted("share", share_of, share),
            on_mismatch,
            "" if folder is None else os.fspath(folder),
            "portakernel.shadow.configure",
        )
    )


@as_written
def stop() -> None:
    """Has no more calls looked at, whoever asked for it; what was counted stays. A check under way ends first."""
    from portakernel.shadow.process import stop as stop_here

    stop_here()


def report() -> Report:
    """What was looked at so far: checked, mismatched and skipped by reason, for each kernel."""
    return COUNTS.report()


def _accepted(name: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ArgumentValueError(f"shadow.configure: {name}: {error}") from error
