"""The directory in which Triton keeps what it compiles: whether it can be used, and another where it cannot.

Triton writes each kernel and launcher into a directory before it loads it, ``TRITON_CACHE_DIR`` or one in the home
directory, and does without neither: where that is missing, read-only, full or somebody else can write it, no kernel can
be launched. Then a private directory under the temporary one takes its place for this process, and for those that it
starts. What the other holds is still read, where it can be and nobody else can have written it: an image's cache that
was filled ahead and is mounted read-only serves as it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from triton import knobs

from portakernel.claims.capability import Rejection
from portakernel.host.cache_folder import CacheWarning, described, is_the_folders
from portakernel.host.compiler_cache import CompilerCache
from portakernel.host.ownership import trouble_with

__all__ = ["FOLDER", "CacheFolder", "CacheWarning"]

# What one kernel brings: source, intermediate forms and binary.
_KERNEL_BYTES = 256 << 10

# What other processes do to a directory while this one uses it, on network file systems (triton#2688, triton#11512).
_PASSING = frozenset({errno.EBUSY, errno.ENOENT, errno.ENOTEMPTY, errno.ESTALE})


class CacheFolder(CompilerCache):
    """Triton's cache directory in this process; ``notes`` says what has to be known of it, and may grow."""

    def __init__(self) -> None:
        super().__init__(
            "Triton's cache directory", "TRITON_CACHE_DIR", lambda: str(knobs.cache.dir), size=_KERNEL_BYTES
        )

    @property
    def folder(self) -> str:
        """The directory that Triton uses now."""
        return str(knobs.cache.dir)

    def use(self, private: str) -> None:
        """Makes Triton use another directory."""
        knobs.cache.dir = private  # and TRITON_CACHE_DIR, for the processes that this one starts

    def settle(self) -> Rejection | None:
        """Makes sure that there is a directory that can be used; returns why there is none."""
        # TRITON_CACHE_MANAGER need not keep a directory
        return None if knobs.cache.manager_class is not None else super().settle()

    def recover(self, error: OSError) -> bool:
        """Whether what raised ``error`` while Triton compiled may be tried once more: nothing was launched then."""
        if knobs.cache.manager_class is not None:
            return False
        folder = self.folder
        inside = isinstance(error.filename, str) and error.filename.startswith(folder)
        if error.errno in _PASSING:
            return inside  # what another process did is done when it is tried again
        if not is_the_folders(error) or not (inside or error.filename is None):
            return False
        with self._lock:
            if folder != self.folder:  # another thread was here
                return True
            return self.move(described(error)) is None

    def adopt(self, folder: Path, private: Path) -> None:
        """Lets Triton find in ``private`` what ``folder`` holds whole; it writes nothing to what it finds."""
        with suppress(OSError):
            for entry in _whole(folder):
                (private / entry.name).symlink_to(entry, target_is_directory=True)


FOLDER = CacheFolder()


def _whole(folder: Path) -> Iterator[Path]:
    """All that is finished: kernels, which have a list of their files, libraries, and Triton's fingerprint.

    It is code: what somebody else but root can have written is left out.
    """
    for entry in folder.iterdir():
        with suppress(OSError):
            names = os.listdir(entry)
            finished = any(name.startswith(("__grp__", "fingerprint-")) or name.endswith(".so") for name in names)
            if finished and not any(trouble_with(path.lstat()) for path in (entry, *map(entry.joinpath, names))):
                yield entry
