"""Who can change a file, or exchange what a path leads to: this user and root alone, or somebody else too.

Code that was kept on disk is run only from where nobody else can have put it. That is asked of modes and owners, not
tried: each folder on the way belongs to this user or to root, and nobody else can write it, unless it is sticky, as
``/tmp`` is, and what is taken from it belongs to this user or to root.

A group that is the user's own, as many systems make one for each user, is nobody else: it has the user's name, is the
user's primary one, and lists no other member. An access control list shows in the mode of its group.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

# As many as Linux follows.
_MOST_LINKS = 40


def trouble_with(status: os.stat_result) -> str:
    """Who else can write a file or folder of this status, in words that follow its name; empty where nobody can."""
    return _foreign_owner(status) or _other_writers(status)


def trouble_at(path: Path) -> str:
    """Who else can change ``path`` or what leads to it, in words that follow the path; empty where nobody can.

    Links are followed as they would be, each held to the same rule as what it leads to. Of what does not exist yet,
    what leads to it is looked at.
    """
    here, shared, links = Path(os.sep), False, 0
    parts = deque(Path(os.path.join(os.getcwd(), path)).parts[1:])
    while True:
        try:
            status = os.lstat(here)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be looked at ({error.strerror}: {here})"
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return f"is reached by the link {here}, which leads to itself"
            if found := _foreign_owner(status):
                return f"is reached by the link {here}, which {found}"
            lead = Path(os.readlink(here))
            parts.extendleft(reversed(lead.parts[lead.is_absolute() :]))
            here, shared = Path(os.sep) if lead.is_absolute() else here.parent, False
            continue
        if not parts:
            return trouble_with(status)
        found = "" if not shared and status.st_uid == _unmapped_user() else _foreign_owner(status)
        others, sticky = _other_writers(status), bool(status.st_mode & stat.S_ISVTX)
        if found or (others and not sticky):
            return f"is below {here}, which {found or others}"
        part, shared = parts.popleft(), bool(others)
        here = here.parent if part == os.pardir else here / part


def _foreign_owner(status: os.stat_result) -> str:
    return "" if status.st_uid in (os.geteuid(), 0) else f"belongs to user {_user(status.st_uid)}"


def _other_writers(status: os.stat_result) -> str:
    user = os.geteuid()
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and not (status.st_uid == user != 0 and _is_private(status.st_gid, user)):
        return f"can be written by group {_group(status.st_gid)}"
    return ""


@lru_cache(maxsize=1)
def _unmapped_user() -> int | None:
    """The number that stands for users whom this user namespace does not know; None in that of the host.

    In a rootless container the folders that lead to a user's may be the host's root's, and belong to this number.
    """
    with suppress(OSError, ValueError):
        ranges = Path("/proc/self/uid_map").read_text("utf-8").split()
        if ranges != ["0", "0", str(2**32 - 1)]:
            return int(Path("/proc/sys/kernel/overflowuid").read_text("utf-8"))
    return None


@lru_cache(maxsize=64)
def _is_private(group: int, user: int) -> bool:
    """Whether a group is this user's own."""
    import grp
    import pwd

    try:
        known, own = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return known.pw_gid == group and own.gr_name == known.pw_name and set(own.gr_mem) <= {known.pw_name}


def _user(number: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    import grp

    try:
        return f"{grp.getgrgid(number).gr_name} ({number})"
    except KeyError:
        return str(number)
