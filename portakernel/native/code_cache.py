"""Code objects kept on disk: found by what they were made of, shared by processes, bounded in size.

A folder of ``PORTAKERNEL_CACHE_DIR`` (``$XDG_CACHE_HOME/portakernel`` or ``~/.cache/portakernel``) holds an entry for
each thing that was built. Its name is a digest of all that went into it (source, headers, options, names,
architecture), a dash, and a digest of the compiler. An entry is written under another name and renamed when it is
whole; one that is found altered is discarded. Where the folder cannot be written, a private one takes its place for
this process, and what the other holds is still read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from portakernel.config import Config
from portakernel.locks import make_lock
from portakernel.native import entry
from portakernel.native.code_object import CodeObject
from portakernel.native.entry import BrokenEntryError, Found
from portakernel.native.private_folder import make_private

_REASONS = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is beyond its quota",
    errno.EROFS: "is read-only",
    errno.EACCES: "cannot be written",
    errno.EPERM: "cannot be written",
    errno.EEXIST: "is no directory",
    errno.ENOTDIR: "is no directory",
}
REMEDY = "set PORTAKERNEL_CACHE_DIR to a folder on a local disk that can be written"
# What is being written, or was when its process ended; nobody takes so long.
_UNFINISHED, _ABANDONED_S = ".writing-", 24 * 3600.0
_LOCKS = "locks"
# An entry's name: the digest of what it was made of, and that of the compiler.
KEY = re.compile(r"[0-9a-f]{40}-[0-9a-f]{12}")


class CacheWarning(UserWarning):
    """The cache of compiled kernels cannot be used as it is; what serves instead."""


class Cache:
    """Code objects in ``folder``, of at most ``limit_bytes`` together; ``notes`` says what has to be known of it."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.notes: list[str] = []
        self._private: Path | None = None
        self._lock = make_lock()

    def find(self, key: str) -> CodeObject | None:
        """The code object of this key, whole; an entry that is not is discarded."""
        for root in self._roots():
            folder = root / key
            if not _trusted(folder):
                continue
            try:
                found = entry.read(folder, key)
            except BrokenEntryError as error:
                self._note(f"{folder} is discarded, to be built anew: {error}")
                self.discard(folder)
                continue
            except OSError:  # not there, or going
                continue
            with contextlib.suppress(OSError):  # a cache that is only read has no order of use
                entry.touch(folder)
            return found
        return None

    def alike(self, digest: str) -> CodeObject | None:
        """The code object that some compiler made of what has this digest: the one used last."""
        folders = [path for root in self._roots() for path in root.glob(f"{digest}-*")]
        for described in sorted(map(entry.describe, folders), key=lambda found: -found.used):
            if (found := self.find(described.key)) is not None:
                return found
        return None

    def store(self, made: CodeObject, source: str) -> CodeObject:
        """``made``, kept: with the path at which it lies from now on, None where it cannot be kept at all."""
        with self._lock:
            for root in self._writable():
                try:
                    return replace(made, path=self._write(root, made, source))
                except OSError as error:
                    self._give_up(root, error)
        return made

    @contextlib.contextmanager
    def locked(self, key: str, seconds: float) -> Iterator[None]:
        """Within it no other process builds ``key``; where locks do not work, or one is held for too long, some might.

        Nothing depends on it but time: entries come into being whole.
        """
        with contextlib.ExitStack() as held:
            folder = self._roots()[0] / _LOCKS
            with contextlib.suppress(OSError, NotImplementedError, Timeout):
                folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(FileLock(folder / f"{key}.lock").acquire(timeout=seconds))
            yield

    def entries(self) -> list[Found]:
        """Every entry, the one used last first."""
        found = [entry.describe(path) for root in self._roots() for path in _entries_in(root)]
        return sorted(found, key=lambda one: (-one.used, one.key))

    def discard(self, folder: Path) -> bool:
        """Takes an entry away, all of it at once; whether that could be done."""
        try:
            rubbish = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
            folder.rename(rubbish / "gone")
        except OSError:
            return False
        shutil.rmtree(rubbish, ignore_errors=True)
        return True

    def trouble(self) -> str:
        """Why the folder cannot be written, tried now; empty where it can."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=self.folder):
                return ""
        except OSError as error:
            return self._described(self.folder, error)

    def _described(self, root: Path, error: OSError) -> str:
        reason = f"{_REASONS.get(error.errno or 0, 'cannot be used')} ({error.strerror or type(error).__name__})"
        return f"the cache of compiled kernels {root} {reason}"

    def _roots(self) -> tuple[Path, ...]:
        return (self.folder,) if self._private is None else (self._private, self.folder)

    def _writable(self) -> Iterator[Path]:
        yield self._roots()[0]
        if self._private is not None:  # which it became only now, unless it failed itself
            yield self._private

    def _write(self, root: Path, made: CodeObject, source: str) -> Path:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=root))
        folder = root / made.key
        try:
            entry.write(unfinished, made, source)
            try:
                unfinished.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # another process was first; what it built is the same
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self._evict(root, folder)
        return folder / entry.code_name(made.form)

    def _give_up(self, root: Path, error: OSError) -> None:
        """Puts a private folder in the place of one that could not be written."""
        text, remedy = self._described(root, error), REMEDY
        if self._private is not None:
            self._note(f"{text}: kernels are compiled anew in each process; {remedy}")
            return
        try:
            self._private = make_private()
        except OSError:
            self._note(f"{text}, and so is the temporary one: kernels are compiled anew in each process; {remedy}")
            return
        self._note(f"{text}: {self._private} serves in its place, and goes when this process ends; {remedy}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            warnings.warn(text, CacheWarning, stacklevel=4)

    def _evict(self, root: Path, newest: Path) -> None:
        """Discards what was used longest ago until the limit holds, and what writers left behind that have ended."""
        with contextlib.suppress(OSError):
            for path in (*root.glob(f"{_UNFINISHED}*"), *(root / _LOCKS).glob("*.lock")):
                if path.stat().st_mtime < time.time() - _ABANDONED_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        used: list[tuple[float, int, Path]] = []
        for path in _entries_in(root):
            with contextlib.suppress(OSError):  # another process discards it just now
                used.append(entry.use_of(path))
        total = sum(size for _, size, _ in used)
        for _, size, path in sorted(used):
            if total <= self.limit_bytes:
                return
            if path != newest and self.discard(path):
                total -= size


def _entries_in(root: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []
    return [root / name for name in names if KEY.fullmatch(name)]


def _trusted(folder: Path) -> bool:
    """Whether an entry is this user's, or root's, who fills an image's cache: it is code, which will be run."""
    try:
        return folder.stat().st_uid in {os.getuid(), 0}
    except OSError:
        return False


def cache() -> Cache:
    """This process's cache, as the environment says now."""
    config = Config.from_environment()
    return _cache(config.cache_dir or _default_folder(), config.cache_mib)


@lru_cache(maxsize=16)
def _cache(folder: str, mib: int) -> Cache:
    return Cache(Path(folder), mib << 20)


def _default_folder() -> str:
    root = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(root if os.path.isabs(root) else os.path.expanduser("~/.cache"), "portakernel")
