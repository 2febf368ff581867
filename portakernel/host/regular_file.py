"""Reading a file that somebody else may have put there: a regular one, of bounded size, opened without waiting.

To open a named pipe waits for its writer, to read ``/dev/zero`` never ends, and to open a device can do things to it:
what stands in a file's place is looked at before it is opened, and again once it is open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}
# Not every system has each of them.
_FLAGS = os.O_RDONLY
for _name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def read_regular(
    path: str | Path, *, limit: int, follow: bool = True, trouble: Callable[[os.stat_result], str] = lambda status: ""
) -> bytes:
    """The bytes of the regular file at ``path``, at most ``limit`` of them; without ``follow`` it may be no link.

    ``follow`` is about the last part of the path: a link above it is always followed. ``trouble`` says of the open
    file why it is not to be read, where it is not.

    Raises:
        OSError: it cannot be read, is something else than a regular file (``EISDIR`` for a folder, ``EINVAL``), a link
            that is not followed (``ELOOP``), larger (``EFBIG``), or in trouble (``EPERM``); ``strerror`` says which,
            and what is accepted.
    """
    name = os.fspath(path)
    _check(os.stat(name, follow_symlinks=follow), name, limit)
    descriptor = os.open(name, _FLAGS | (0 if follow else _NO_FOLLOW))
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _check(status, name, limit)
        if refused := trouble(status):
            raise OSError(errno.EPERM, refused, name)
        content = file.read(limit + 1)
    if len(content) > limit:  # one that grows, or of those in /proc, which have no size
        raise OSError(errno.EFBIG, f"has more than {limit} bytes, which is what is accepted", name)
    return content


def _check(status: os.stat_result, name: str, limit: int) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        code = {stat.S_IFDIR: errno.EISDIR, stat.S_IFLNK: errno.ELOOP}.get(kind, errno.EINVAL)
        raise OSError(code, f"is {_KINDS.get(kind, 'of an unknown kind')}; a regular file is accepted", name)
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"has {status.st_size} bytes; at most {limit} are accepted", name)
