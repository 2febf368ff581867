"""Folders in which compiled code is kept: whether one can be trusted and used, and what is said where it cannot."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from portakernel.errors import PortakernelWarning
from portakernel.host.home import expanded
from portakernel.host.ownership import trouble_at, trouble_with
from portakernel.host.private_folder import remove_abandoned

_REASONS = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is beyond its quota",
    errno.EROFS: "is read-only",
    errno.EACCES: "cannot be written",
    errno.EPERM: "cannot be written",
    errno.EEXIST: "is no directory",
    errno.ENOTDIR: "is no directory",
}

_HOMELESS = "is in a home directory, which this user does not have"
_PROBE = "portakernel-probe-"


class CacheWarning(PortakernelWarning):
    """A folder with compiled code cannot be used as it is; what serves instead."""


def default_folder() -> str:
    """Where portakernel keeps things, if nobody says otherwise; it begins with ``~`` for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(root if os.path.isabs(root) else expanded("~/.cache"), "portakernel")


def is_the_folders(error: OSError) -> bool:
    """Whether an error is one of those by which a folder refuses what is written into it."""
    return error.errno in _REASONS


def described(error: OSError) -> str:
    """Why a folder cannot be used, in words that follow its name."""
    return f"{_REASONS.get(error.errno or 0, 'cannot be used')} ({error.strerror or type(error).__name__})"


def distrust(folder: Path) -> str:
    """Why code from ``folder`` must not be run, in words that follow its name; empty where it may.

    Somebody else can write it, or exchange it; or it is in the home directory of a user who has none.
    """
    if folder.parts[:1] == ("~",):
        return _HOMELESS
    return trouble_at(folder)


def distrust_inside(folder: Path) -> str:
    """Why code in what ``folder`` itself holds must not be run, in words that follow its name; empty where it may.

    Of each entry its own mode and owner are asked, not those of what is in it: that was made under the same mask. A
    folder that nobody else may enter keeps them from all of it.

    Raises:
        OSError: it cannot be read.
    """
    if not folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):
        return ""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # another process took it away
            continue
        link = stat.S_ISLNK(status.st_mode)
        if found := trouble_at(Path(path)) if link else trouble_with(status):
            return f"holds {name}, which {found}"
    return ""


def make_folder(folder: Path) -> None:
    """Makes a folder, and those that lead to it, which this user alone may enter, whatever the process's mask.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def trouble(folder: Path, *, size: int = 0, runs: bool = False) -> str:
    """Why ``folder`` cannot keep code, in words that follow its name; empty where it can.

    What is done there is tried, as neither mode nor quota tells: a file of ``size`` bytes is written. ``runs``: it
    holds libraries that are loaded from there.
    """
    # somebody else may have made it first
    if found := distrust(folder) or refusal(folder, size=size) or distrust(folder):
        return found
    try:
        options = os.statvfs(folder).f_flag
    except OSError as error:
        return described(error)
    if runs and options & getattr(os, "ST_NOEXEC", 0):
        return "is on a file system that is mounted noexec, and libraries are loaded from there"
    return ""


def refusal(folder: Path, *, size: int = 0) -> str:
    """Why nothing can be written into ``folder``, which is made, in words that follow its name; empty where it can.

    A file of ``size`` bytes is written there, and taken away. Whoever else may write there is not asked.
    """
    if folder.parts[:1] == ("~",):
        return _HOMELESS
    try:
        make_folder(folder)
        remove_abandoned(folder, _PROBE)
        with tempfile.TemporaryDirectory(prefix=_PROBE, dir=folder) as tried:
            written = Path(tried, "written")
            written.write_bytes(bytes(size))
            written.replace(Path(tried, "kernel"))
    except OSError as error:
        return described(error)
    return ""
