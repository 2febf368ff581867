"""Files that hold an outcome: whether one can be written, asked before the work, and writing it at once."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def unsuitable(path: Path) -> str:
    """Why there can be no such file, by what is there now; empty where nothing is in its way.

    It is the rest of a sentence that begins with the file's name.
    """
    if path.is_dir():
        return "is a folder; give the file to write"
    if path.exists() and not path.is_file():
        return "is no regular file, but a device, a pipe or a socket; give one"
    if not path.parent.is_dir():
        return f"cannot be written: there is no folder {path.parent}; make it, or give another file"
    return ""


def obstacle(path: Path) -> str:
    """Why there can be no such file, as ``unsuitable`` says it; empty where it can be made.

    It is tried: permissions alone say nothing of a mount that is read-only, or of a quota. Nothing stays.
    """
    if why := unsuitable(path):
        return why
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        why = f"no file can be made in {path.parent} ({error.strerror or error})"
        return f"cannot be written: {why}; give one in another folder"
    return ""


def folder_obstacle(path: str) -> str:
    """Why no file can be put into the folder ``path``, made first where it is not there; empty where one can.

    It is the rest of a sentence that begins with the folder's name. As with ``obstacle`` it is tried, and nothing
    stays: of a folder that is not there, the nearest one above it that is.
    """
    above = path
    while not os.path.lexists(above) and os.path.dirname(above) != above:
        above = os.path.dirname(above)
    try:
        if not stat.S_ISDIR(os.stat(above).st_mode):
            return "is no folder" if above == path else f"cannot be made: {above} is no folder"
        os.stat(path)
    except FileNotFoundError:
        if os.path.islink(above):
            return f"cannot be made: {above} is a link to what is not there"
    except OSError as error:
        return f"cannot be used: {error.strerror or error}"
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        refused = f"({error.strerror or error})"
        return f"takes no files {refused}" if above == path else f"cannot be made: {above} takes none {refused}"
    return ""


def write_at_once(path: Path, text: str, *, mode: int | None = None) -> None:
    """Puts ``text`` into the file at ``path``: whoever reads it meanwhile has the old one, or this.

    ``mode`` is who may read and write it, by default whoever might before; a new one others may read.

    Raises:
        OSError: it cannot be written; what was there stays, and nothing is left beside it.
    """
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if mode is None:
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        os.chmod(unfinished, mode)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
