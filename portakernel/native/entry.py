"""One entry of the cache: a folder with machine code, its assembly, and what is known of both, each with a digest.

It is read where it, and each file of it, belong to this user or to root and nobody else can write them, and no link is
followed. Nothing in it is trusted beyond its digests, and nothing is unpickled: it is JSON and bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from portakernel.host.ownership import trouble_with
from portakernel.host.regular_file import read_regular
from portakernel.native.code_object import CodeObject, Form, KernelFacts
from portakernel.words.target import Target

_VERSION = 1
_HEAD, _CODE, _ASSEMBLY = "entry.json", "code", "assembly.z"
# A library's file has to have a name that loaders and tools know.
_CODE_NAMES: Mapping[Form, str] = {"library": "code.so"}
# What is larger, or unpacks to more, is not what a compiler wrote.
_MOST_BYTES, _MOST_HEAD_BYTES, _MOST_ASSEMBLY_BYTES = 2 << 30, 64 << 20, 512 << 20
# How a file's name leads to no regular file that may be read: a folder, a link, a pipe, too large, another's.
_UNREADABLE = frozenset({errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.EPERM})


class BrokenEntryError(ValueError):
    """An entry that is not as it was written, or that somebody else can have written."""


@dataclass(frozen=True, slots=True)
class Found:
    """An entry as ``portakernel cache`` shows it; ``broken`` says what is wrong with it, if anything."""

    key: str
    folder: Path
    size_bytes: int
    used: float
    source: str = ""
    names: tuple[str, ...] = ()
    target: str = ""
    compiler: str = ""
    form: str = ""
    broken: str = ""

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON-ready data; stable."""
        return {**asdict(self), "folder": str(self.folder), "names": list(self.names)}


def write(folder: Path, made: CodeObject, source: str) -> None:
    """Writes an entry into ``folder``, which is nobody's yet; others may read it then, as the process's mask says."""
    name = code_name(made.form)
    assembly = zlib.compress(made.assembly.encode(), 6)
    _put(folder / name, made.code)
    _put(folder / _ASSEMBLY, assembly)
    head = {
        "version": _VERSION,
        "key": made.key,
        "form": made.form,
        "target": str(made.target),
        "compiler": made.compiler,
        "source": source,
        "kernels": [asdict(facts) for facts in made.kernels],
        "log": made.log[:4000],
        "seconds": round(made.seconds, 3),
        "files": {name: _digest(made.code), _ASSEMBLY: _digest(assembly)},
    }
    _put(folder / _HEAD, json.dumps({**head, "digest": _digest_of(head)}, indent=1).encode())


def read(folder: Path, key: str) -> CodeObject:
    """The code object of an entry, each byte of it as it was written.

    Raises:
        BrokenEntryError: the entry is incomplete or was altered, somebody else can write it, or it is no entry at all.
        FileNotFoundError: it is not there.
        OSError: it cannot be read.
    """
    head, contents = _checked(folder, key)
    try:
        # decompressobj bounds what is unpacked
        assembly = zlib.decompressobj().decompress(contents[_ASSEMBLY], _MOST_ASSEMBLY_BYTES).decode(errors="replace")
        name = code_name(head["form"])
        kernels = tuple(
            KernelFacts(**{**facts, "parameters": tuple((int(a), int(b)) for a, b in facts["parameters"])})
            for facts in head["kernels"]
        )
        target, code = Target.parse(head["target"]), contents[name]
        return CodeObject(
            key, head["form"], target, head["compiler"], kernels, folder / name, code, head["log"], 0.0, assembly
        )
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise BrokenEntryError(f"{_HEAD} is not of the form that this version writes ({error})") from error


def describe(folder: Path) -> Found:
    """What is in an entry's folder, and whether it is whole; never raises for what is in it."""
    key, size, used = folder.name, 0, 0.0
    try:
        used, size, _ = use_of(folder)
        head, _ = _checked(folder, key)
        # a library's kernels have only the names that compilers make up
        named = head["kernels"] if head["form"] == "code object" else ()
        names = tuple(str(facts["name"]) for facts in named)
        texts = (str(head[name]) for name in ("target", "compiler", "form"))
        return Found(key, folder, size, used, str(head["source"]), names, *texts)
    except (BrokenEntryError, OSError, KeyError, TypeError) as error:
        text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        return Found(key, folder, size, used, broken=text)


def code_name(form: Form) -> str:
    """The file of an entry that holds the machine code."""
    return _CODE_NAMES.get(form, _CODE)


def use_of(folder: Path) -> tuple[float, int, Path]:
    """When an entry was used last, its size in bytes, and the entry itself: in this order the oldest comes first.

    Raises:
        OSError: it is not there any more.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return status.st_mtime, status.st_size, folder
    files = {path.name: path.lstat() for path in folder.iterdir()}
    return files.get(_HEAD, status).st_mtime, sum(one.st_size for one in files.values()), folder


def touch(folder: Path) -> None:
    """Marks the entry as used now."""
    os.utime(folder / _HEAD)


def _checked(folder: Path, key: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise BrokenEntryError(f"it is {'a link' if stat.S_ISLNK(status.st_mode) else 'no folder'}")
    if found := trouble_with(status):
        raise BrokenEntryError(f"it {found}")
    text = _content(folder / _HEAD, _MOST_HEAD_BYTES)
    try:
        head = json.loads(text)
        digest = head.pop("digest")
        files = dict(head["files"])
        names = {code_name(head["form"]), _ASSEMBLY}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BrokenEntryError(f"{_HEAD} is no entry's head") from error
    if digest != _digest_of(head):
        raise BrokenEntryError(f"{_HEAD} was altered: its digest is another")
    if head.get("version") != _VERSION or head.get("key") != key or files.keys() != names:
        raise BrokenEntryError(f"{_HEAD} is of another entry or version")
    contents: dict[str, bytes] = {}
    for name, expected in files.items():
        contents[name] = _content(folder / name, _MOST_BYTES)
        if _digest(contents[name]) != expected:
            raise BrokenEntryError(f"{name} was cut short or altered: its digest is another")
    return head, contents


def _content(path: Path, limit: int) -> bytes:
    try:
        return read_regular(path, limit=limit, follow=False, trouble=trouble_with)
    except FileNotFoundError as error:
        path.parent.lstat()  # raises where the entry is gone
        raise BrokenEntryError(f"{path.name} is missing") from error
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise BrokenEntryError(f"{path.name} {error.strerror}") from error


def _put(path: Path, content: bytes) -> None:
    """Writes a new file that nobody else may write, whatever the process's mask."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
        file.write(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of(head: dict[str, Any]) -> str:
    return _digest(json.dumps(head, sort_keys=True).encode())
