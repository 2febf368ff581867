"""Triton's fingerprint of itself, kept on disk.

Every name in Triton's cache of compiled kernels depends on a digest of Triton's own files. One of them, libtriton.so,
has 400 MB and more, and each process reads it before its first kernel, be that compiled or not: 0.3 s from memory,
seconds from a disk (triton#2008). The digest is kept beside the cache, under the names, sizes and times of those files
and the wheel's own list of their digests: what changes an installation changes one of these. It comes with a digest of
its own, and is read where nobody but this user and root can have written it.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import triton
import triton.runtime.cache
from triton import knobs

from portakernel.host.cache_folder import make_folder
from portakernel.host.output_file import write_at_once
from portakernel.host.ownership import trouble_with
from portakernel.host.regular_file import read_regular

_FOLDER = "portakernel"
_MOST_BYTES = 1 << 20


def remember() -> None:
    """From now on Triton takes its fingerprint from disk, where it is known, and else keeps it there."""
    cache: Any = sys.modules["triton.runtime.cache"]
    compute: Any = getattr(cache, "triton_key", None)
    # an lru_cache (3.6 to 3.9), which has not been asked; what is anything else stays
    if not hasattr(compute, "cache_info") or compute.cache_info().currsize:
        return
    stamp = _stamp(Path(triton.__file__).parent)
    if stamp is not None:
        cache.triton_key = _KeptFingerprint(compute, stamp)


class _KeptFingerprint:
    """Triton's fingerprint, in the place of the function that computes it."""

    def __init__(self, compute: Callable[[], str], stamp: str) -> None:
        functools.update_wrapper(self, compute)
        self._compute, self._stamp = compute, stamp
        self._fingerprint = ""

    def __call__(self) -> str:
        if not self._fingerprint:
            path = Path(knobs.cache.dir, _FOLDER, f"fingerprint-{self._stamp}")
            self._fingerprint = _read(path) or _write(path, self._compute())
        return self._fingerprint


def _read(path: Path) -> str:
    """The kept text; empty where there is none, it is not as it was written, or somebody else can have written it."""
    with suppress(OSError, UnicodeDecodeError):
        kept = read_regular(path, limit=_MOST_BYTES, follow=False, trouble=trouble_with).decode("ascii")
        text, _, digest = kept.rstrip("\n").rpartition("\n")
        return text if digest == _digest(path.name, text) else ""
    return ""


def _write(path: Path, text: str) -> str:
    """Keeps ``text``, whole or not at all; a cache that cannot be written keeps nothing."""
    with suppress(OSError):
        make_folder(path.parent)
        if path.is_dir() and not path.is_symlink():  # nobody's who keeps fingerprints
            shutil.rmtree(path)
        write_at_once(path, f"{text}\n{_digest(path.name, text)}\n", mode=0o600)
    return text


def _digest(name: str, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def _stamp(package: Path) -> str | None:
    """What identifies this installation; None where its wheel does not vouch for the library."""
    record = _record(package)
    if record is None:
        return None
    facts = [triton.__version__, hashlib.sha256(record).hexdigest()]
    for path in _fingerprinted(package):
        status = path.stat()
        facts.append(f"{path.relative_to(package)} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _record(package: Path) -> bytes | None:
    """The list of files that the wheel was installed with, where the library and its digest are on it."""
    library = f"{package.name}/_C/libtriton.".encode()
    for path in sorted(package.parent.glob("*triton*.dist-info/RECORD")):
        with suppress(OSError):
            record = path.read_bytes()
            if any(line.startswith(library) and b",sha256=" in line for line in record.splitlines()):
                return record
    return None


def _fingerprinted(package: Path) -> Iterator[Path]:
    """The files of which ``triton_key`` makes its digest (3.6 to 3.9)."""
    yield from sorted(package.glob("_C/libtriton.*"))
    yield package / "runtime" / "cache.py"
    for folder in ("compiler", "backends", "language"):
        yield from sorted((package / folder).rglob("*.py"))
