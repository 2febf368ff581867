"""The directory in which Triton keeps what it compiles: whether it can be used, and another where it cannot.

Triton writes each kernel and launcher into a directory before it loads it, ``TRITON_CACHE_DIR`` or one in the home
directory, and does without neither: where that is missing, read-only, full or another user's, no kernel can be
launched. Then a private directory under the temporary one takes its place for this process, and for those that it
starts. What the other holds is still read, where it can be: an image's cache that was filled ahead and is mounted
read-only serves as it is.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from triton import knobs

from portakernel.capability import ReasonCode, Rejection
from portakernel.locks import make_lock

# What one kernel brings: source, intermediate forms and binary.
_KERNEL_BYTES = 256 << 10

_REASONS = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is beyond its quota",
    errno.EROFS: "is read-only",
    errno.EACCES: "cannot be written",
    errno.EPERM: "cannot be written",
    errno.EEXIST: "is no directory",
    errno.ENOTDIR: "is no directory",
}
# What other processes do to a directory while this one uses it, on network file systems (triton#2688, triton#11512).
_PASSING = frozenset({errno.EBUSY, errno.ENOENT, errno.ENOTEMPTY, errno.ESTALE})


class CacheWarning(UserWarning):
    """Triton's cache directory cannot be used; a private one is."""


class CacheFolder:
    """Triton's cache directory in this process; ``notes`` says what has to be known of it, and may grow."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._settled = ""
        self._lock = make_lock()

    def settle(self) -> Rejection | None:
        """Sees to it that there is a directory that can be used; why there is none."""
        # TRITON_CACHE_MANAGER need not keep a directory
        if knobs.cache.dir == self._settled or knobs.cache.manager_class is not None:
            return None
        trouble = _trouble(Path(knobs.cache.dir))
        rejection = None if trouble is None else self._move(trouble)
        if rejection is None:
            self._settled = knobs.cache.dir
        return rejection

    def recover(self, error: OSError) -> bool:
        """Whether what raised ``error`` while Triton compiled may be tried once more: nothing was launched then."""
        if knobs.cache.manager_class is not None:
            return False
        folder = str(knobs.cache.dir)
        inside = isinstance(error.filename, str) and error.filename.startswith(folder)
        if error.errno in _PASSING:
            return inside  # what another process did is done when it is tried again
        if error.errno not in _REASONS or not (inside or error.filename is None):
            return False
        with self._lock:
            if folder != knobs.cache.dir:  # another thread was here
                return True
            return self._move(f"{_REASONS[error.errno]} ({error.strerror})") is None

    def _move(self, trouble: str) -> Rejection | None:
        """Puts a private directory in the place of the one with the trouble; why that cannot be."""
        with self._lock:
            folder = Path(knobs.cache.dir)
            what = f"Triton's cache directory {folder} {trouble}"
            try:
                private = _make_private()
                why = _trouble(private)
            except OSError as error:
                private, why = Path(tempfile.gettempdir()), _reason(error)
            if why is not None:
                text = f"{what}, and {private}, which would take its place, {why}; make room, or set TRITON_CACHE_DIR"
                return Rejection(ReasonCode.PROBE_FAILED, f"{text} to a directory on a local disk that can be written")
            _link(folder, private)
            knobs.cache.dir = str(private)  # and TRITON_CACHE_DIR, for the processes that this one starts
            note = (
                f"{what}: {private} serves in its place, and goes when this process ends; set TRITON_CACHE_DIR to a"
                " directory on a local disk that can be written"
            )
            self.notes.append(note)
            warnings.warn(note, CacheWarning, stacklevel=2)
            return None


FOLDER = CacheFolder()


def _trouble(folder: Path) -> str | None:
    """Why Triton cannot keep kernels in ``folder``: what it does there is tried, as neither mode nor quota tells."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="portakernel-probe-", dir=folder) as tried:
            written = Path(tried, "written")
            written.write_bytes(bytes(_KERNEL_BYTES))
            written.replace(Path(tried, "kernel"))
        options = os.statvfs(folder).f_flag
    except OSError as error:
        return _reason(error)
    if options & getattr(os, "ST_NOEXEC", 0):
        return "is on a file system that is mounted noexec, and Triton loads its launchers from there"
    return None


def _reason(error: OSError) -> str:
    reason = _REASONS.get(error.errno or 0, "cannot be used")
    return f"{reason} ({error.strerror or type(error).__name__})"


def _make_private() -> Path:
    """A fresh directory that this user alone may enter, removed when this process ends."""
    private, owner = Path(tempfile.mkdtemp(prefix=f"portakernel-triton-{os.getuid()}-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child ends before the one that made it
            shutil.rmtree(private, ignore_errors=True)

    atexit.register(remove)
    return private


def _link(folder: Path, private: Path) -> None:
    """Lets Triton find in ``private`` what ``folder`` holds whole; it writes nothing to what it finds."""
    with suppress(OSError):
        for entry in _whole(folder):
            (private / entry.name).symlink_to(entry, target_is_directory=True)


def _whole(folder: Path) -> Iterator[Path]:
    """What is finished: kernels, which have a list of their files, libraries, and Triton's fingerprint.

    It is code: what is other users', but root's, who fills an image's cache, is left out.
    """
    for entry in folder.iterdir():
        with suppress(OSError):
            names = os.listdir(entry)
            finished = any(name.startswith(("__grp__", "fingerprint-")) or name.endswith(".so") for name in names)
            if finished and entry.stat().st_uid in {os.getuid(), 0}:
                yield entry
