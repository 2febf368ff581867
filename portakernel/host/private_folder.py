"""Folders that one process uses for itself and then leaves: which of them are in use, and those that nobody is in.

A process that is killed leaves its folder behind. Each holds a lock in it for as long as it is in use, which the system
frees when the process ends, however that was, so that the next one who makes a folder there can take it away. A forked
child holds the lock too, for it may use what its parent has.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from portakernel.host.ownership import trouble_at

_LOCK = ".lock"
# Between the making of a folder and of its lock, which take no time; and where a file system knows no locks.
_JUST_MADE_S, _SURELY_ABANDONED_S = 60.0, 24 * 3600.0


def make_private(purpose: str) -> Path:
    """A fresh folder under the temporary one that this user alone may enter, removed when this process ends.

    Those with the same purpose that killed processes of this user left behind are removed now.

    Raises:
        OSError: there is no place for one, or none that somebody else could not exchange.
    """
    prefix = f"portakernel-{purpose}-"
    remove_abandoned(Path(tempfile.gettempdir()), prefix)
    private, owner = Path(tempfile.mkdtemp(prefix=prefix)), os.getpid()
    if found := trouble_at(private):
        private.rmdir()
        raise OSError(errno.EPERM, f"what is in it {found}", str(private))
    _lock(private)

    def remove() -> None:
        if os.getpid() == owner:  # a forked child ends before the one that made it
            shutil.rmtree(private, ignore_errors=True)

    atexit.register(remove)
    return private


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Inside, nobody takes ``folder``, which was just made, for abandoned; its lock is gone afterwards."""
    descriptor = _lock(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / _LOCK).unlink()
        if descriptor is not None:
            os.close(descriptor)


def remove_abandoned(root: Path, prefix: str) -> None:
    """Removes this user's folders in ``root`` with such names that nobody is in any more."""
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.startswith(prefix) and _is_abandoned(Path(entry.path)):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """The descriptor that holds the folder's lock, for as long as it is open; None where locks do not work."""
    descriptor = -1
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
            with suppress(OSError):
                (folder / _LOCK).unlink()  # an unlocked one would say that nobody is there
        return None
    return descriptor


def _is_abandoned(folder: Path) -> bool:
    status = folder.lstat()
    age = time.time() - status.st_mtime
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or age < _JUST_MADE_S:
        return False
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return age > _SURELY_ABANDONED_S
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES) and age > _SURELY_ABANDONED_S
    finally:
        os.close(descriptor)
    return True
