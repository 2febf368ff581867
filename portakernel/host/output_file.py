"""Whether a file can be written later: asked before the work whose outcome it is to hold."""

from __future__ import annotations

import tempfile
from pathlib import Path


def obstacle(path: Path) -> str:
    """Why there can be no such file, as the rest of a sentence that begins with its name; empty where it can be made.

    It is tried: permissions alone say nothing of a mount that is read-only, or of a quota. Nothing stays.
    """
    if path.is_dir():
        return "is a folder; give the file to write"
    if path.exists() and not path.is_file():
        return "is no regular file, but a device, a pipe or a socket; give one"
    if not path.parent.is_dir():
        return f"cannot be written: there is no folder {path.parent}; make it, or give another file"
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        return f"cannot be written: {path.parent}: {error.strerror or error}; give a file in a folder that can be"
    return ""
