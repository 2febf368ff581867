"""Paths that begin with ``~``, in the home directory of whoever runs the process."""

from __future__ import annotations

import os
import pwd


def expanded(path: str) -> str:
    """``path`` with its ``~`` replaced; as it is for a user without a home directory.

    An empty ``HOME``, which a container may be started with, is none: ``os.path.expanduser`` would take it for ``/``.
    """
    head, slash, rest = path.partition("/")
    if head != "~" or os.environ.get("HOME") != "":
        return os.path.expanduser(path)
    try:
        return pwd.getpwuid(os.getuid()).pw_dir + slash + rest
    except KeyError:  # a user without an account
        return path
