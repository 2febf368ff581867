"""Code objects kept on disk: found by what they were made of, shared by processes, bounded in size.

A folder of ``PORTAKERNEL_CACHE_DIR`` (``$XDG_CACHE_HOME/portakernel`` or ``~/.cache/portakernel``) holds an entry for
each thing that was built. Its name is a digest of all that went into it (source, headers, options, names,
architecture), a dash, and a digest of the compiler. An entry is written under another name and renamed when it is
whole; one that is found altered is discarded, and so is one that somebody else can write. Where the folder cannot be
written, a private one takes its place for this process, and what the other holds is still read; of a folder that
somebody else can write or exchange nothing is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from portakernel.config import Config
from portakernel.host.cache_folder import CacheWarning, default_folder, described, distrust, make_folder, trouble
from portakernel.host.call_site import callers_level
from portakernel.host.locks import make_lock
from portakernel.host.private_folder import in_use, make_private, remove_abandoned
from portakernel.native import entry
from portakernel.native.code_object import CodeObject
from portakernel.native.entry import BrokenEntryError, Found

REMEDY = "set PORTAKERNEL_CACHE_DIR to a folder on a local disk that can be written"
DISTRUST_REMEDY = "set PORTAKERNEL_CACHE_DIR to a folder that nobody else can write, or take this one away"
# What is being written, or was when its process ended, and what is being taken away.
_UNFINISHED, _DISCARDED = ".writing-", ".discarded-"
# Nobody builds one thing for so long.
_LOCKS, _UNUSED_LOCK_S = "locks", 24 * 3600.0
# How an entry's place is taken already: by a folder, a file, or a link.
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
# How often what is in an entry's place is looked at, while other processes put things there.
_MOST_TRIES = 3
# An entry's name: the digest of what it was made of, and that of the compiler.
KEY = re.compile(r"[0-9a-f]{40}-[0-9a-f]{12}")


class Cache:
    """Code objects in ``folder``, of at most ``limit_bytes`` together; ``notes`` says what has to be known of it."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.notes: list[str] = []
        self._private: Path | None = None
        self._lock = make_lock()

    def find(self, key: str) -> CodeObject | None:
        """The code object of this key, whole; an entry that is not is discarded."""
        return next(filter(None, (self._read(root, key) for root in self._roots())), None)

    def alike(self, digest: str) -> CodeObject | None:
        """The code object that some compiler made of what has this digest: the one used last."""
        folders = [path for root in self._roots() for path in _entries_in(root) if path.name.startswith(f"{digest}-")]
        for one in sorted(map(entry.describe, folders), key=lambda found: -found.used):
            if (found := self.find(one.key)) is not None:
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
            with contextlib.suppress(OSError, NotImplementedError, Timeout):
                for root in self._roots()[:1]:
                    make_folder(root / _LOCKS)
                    held.enter_context(FileLock(root / _LOCKS / f"{key}.lock").acquire(timeout=seconds))
            yield

    def entries(self) -> list[Found]:
        """Every entry of the folders that are used, the one used last first."""
        found = [entry.describe(path) for root in self._trusted() for path in _entries_in(root)]
        return sorted(found, key=lambda one: (-one.used, one.key))

    def discard(self, folder: Path) -> bool:
        """Takes an entry away, or what lies in its place, all of it at once; whether that could be done."""
        rubbish = folder.with_name(f"{_DISCARDED}{uuid.uuid4().hex}")
        try:
            folder.rename(rubbish)
        except OSError:
            return False
        _remove(rubbish)
        return True

    def tidy(self) -> None:
        """Removes what writers left behind that have ended."""
        for root in self._trusted():
            _tidy(root)

    def distrusted(self) -> str:
        """Why what the folder holds is not run; empty where it is."""
        found = distrust(self.folder)
        return found and f"the cache of compiled kernels {self.folder} {found}"

    def trouble(self) -> str:
        """Why the folder cannot be used, tried now; empty where it can."""
        found = trouble(self.folder)
        return found and f"the cache of compiled kernels {self.folder} {found}"

    @property
    def remedy(self) -> str:
        """What to do about the folder's trouble."""
        return DISTRUST_REMEDY if distrust(self.folder) else REMEDY

    def _trusted(self) -> tuple[Path, ...]:
        """The folders from which code is run: the private one, where there is one, and the other, where it may be."""
        private = () if self._private is None else (self._private,)
        return tuple(root for root in (*private, self.folder) if not distrust(root))

    def _roots(self) -> tuple[Path, ...]:
        """The same, of which there is one at least, unless no folder can be made at all."""
        with self._lock:
            if not (found := self._trusted()):
                self._move(self.distrusted(), DISTRUST_REMEDY)
                found = self._trusted()
            return found

    def _writable(self) -> Iterator[Path]:
        tried = self._roots()[:1]
        yield from tried
        yield from [root for root in self._roots()[:1] if root not in tried]  # a private one, by now

    def _read(self, root: Path, key: str) -> CodeObject | None:
        folder = root / key
        try:
            found = entry.read(folder, key)
        except BrokenEntryError as error:
            fate = "is discarded, to be built anew" if self.discard(folder) else "is not used"
            self._note(f"{folder} {fate}: {error}")
            return None
        except OSError:  # not there, or going
            return None
        with contextlib.suppress(OSError):  # a cache that is only read has no order of use
            entry.touch(folder)
        return found

    def _write(self, root: Path, made: CodeObject, source: str) -> Path:
        make_folder(root)
        if found := distrust(root):  # somebody else made it first
            raise OSError(errno.EPERM, f"it {found}", str(root))
        unfinished, folder = root / f"{_UNFINISHED}{uuid.uuid4().hex}", root / made.key
        unfinished.mkdir(mode=0o755)
        try:
            with in_use(unfinished):
                entry.write(unfinished, made, source)
            self._put(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self._evict(root, folder)
        return folder / entry.code_name(made.form)

    def _put(self, unfinished: Path, folder: Path) -> None:
        """Gives a whole entry its name, unless an equal one has it that another process built."""
        for tried in range(_MOST_TRIES):
            try:
                unfinished.rename(folder)
            except OSError as error:
                if error.errno not in _TAKEN or tried == _MOST_TRIES - 1:
                    raise
            else:
                return
            if self._read(folder.parent, folder.name) is not None:
                return
            self.discard(folder)

    def _give_up(self, root: Path, error: OSError) -> None:
        """Puts a private folder in the place of one that could not be written."""
        text = f"the cache of compiled kernels {root} {described(error)}"
        if self._private is not None:
            self._note(f"{text}: kernels are compiled anew in each process; {REMEDY}")
        else:
            self._move(text, REMEDY)

    def _move(self, text: str, remedy: str) -> None:
        try:
            self._private = make_private("cache")
        except OSError as error:
            temporary = f"and the temporary folder {tempfile.gettempdir()} {described(error)}"
            self._note(f"{text}, {temporary}: kernels are compiled anew in each process; {remedy}")
            return
        self._note(f"{text}: {self._private} serves in its place, and goes when this process ends; {remedy}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            warnings.warn(text, CacheWarning, stacklevel=callers_level())

    def _evict(self, root: Path, newest: Path) -> None:
        """Discards what was used longest ago until the limit holds, and what writers left behind that have ended."""
        _tidy(root)
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


def _tidy(root: Path) -> None:
    remove_abandoned(root, _UNFINISHED)
    with contextlib.suppress(OSError):
        for path in root.glob(f"{_DISCARDED}*"):
            _remove(path)
        for path in (root / _LOCKS).glob("*.lock"):
            if path.lstat().st_mtime < time.time() - _UNUSED_LOCK_S:
                path.unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def cache() -> Cache:
    """This process's cache, as the environment says now."""
    config = Config.from_environment()
    folder = config.cache_dir or default_folder()
    # in a home directory that there is not it stays as it is written, for `distrust`
    return _cache(folder if folder.startswith("~/") else os.path.abspath(folder), config.cache_mib)


@lru_cache(maxsize=16)
def _cache(folder: str, mib: int) -> Cache:
    return Cache(Path(folder), mib << 20)
