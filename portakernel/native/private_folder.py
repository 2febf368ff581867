"""A folder that this process alone uses, in the place of one that cannot be written."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def make_private() -> Path:
    """A fresh folder that this user alone may enter, removed when this process ends.

    Raises:
        OSError: there is no place for one.
    """
    private, owner = Path(tempfile.mkdtemp(prefix="portakernel-cache-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child ends before the one that made it
            shutil.rmtree(private, ignore_errors=True)

    atexit.register(remove)
    return private
