"""What is installed: distributions, their entry points and versions, and where modules lie; nothing is imported.

``importlib.metadata`` reads every distribution's files for such questions, and one file that is damaged makes it fail
for all; a folder that cannot be listed for want of descriptors it takes for empty, and keeps that. Here each is read on
its own: what is damaged speaks for itself alone, and what cannot be read at this moment is an error, and not kept.
"""

from __future__ import annotations

import errno
import functools
import importlib.machinery
import importlib.metadata
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.host.passing import is_exhausted, is_passing
from portakernel.host.regular_file import read_regular
from portakernel.text.printable import logger

# A METADATA file holds the whole README, a RECORD a line for each file: torch's has 1.5 MiB.
_MAX_BYTES = 64 << 20
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
UNKNOWN = "unknown"
_log = logger()


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution: the name that it is looked up by, and its ``.dist-info`` or ``.egg-info``.

    ``other`` is the standard library's, where it lies in an archive or comes from a finder of its own.
    """

    key: str
    folder: Path
    other: importlib.metadata.Distribution | None = None

    def read(self, file: str) -> str:
        """A file of its metadata, empty where there is none; what is no UTF-8 in it is replaced.

        Raises:
            OSError: it cannot be read, or is no regular file.
        """
        if self.other is not None:
            try:
                return self.other.read_text(file) or ""
            except Exception as error:
                if is_passing(error):
                    raise
                raise OSError(errno.EINVAL, f"{type(error).__name__}: {error}", f"{self.key}: {file}") from error
        try:
            return read_regular(self.folder / file, limit=_MAX_BYTES).decode("utf-8", "replace")
        except OSError as error:
            if error.errno in _ABSENT:
                return ""
            raise

    def named(self) -> tuple[str, str]:
        """Its name and version: as its metadata has them, else as its folder is called."""
        fields: dict[str, str] = {}
        for line in self._metadata().splitlines():
            if not line.strip():
                break
            field, _, value = line.partition(":")
            fields.setdefault(field.lower(), value.strip())
        name, _, rest = self.folder.stem.partition("-")
        version = re.sub(r"-py\d.*", "", rest)
        return fields.get("name") or name or UNKNOWN, fields.get("version") or version or UNKNOWN

    def _metadata(self) -> str:
        try:
            return self.read("METADATA") or self.read("PKG-INFO")
        except OSError as error:
            if is_exhausted(error):
                raise
            _log.debug("%s: %s", self.folder, error)
            return ""

    def modules(self) -> set[str]:
        """The import names that it provides, as it declares them or as its files have them."""
        if declared := set(self.read("top_level.txt").split()):
            return declared
        files = (line.partition(",")[0].strip('"').partition("/") for line in self.read("RECORD").splitlines())
        tops = {top + slash for top, slash, _ in files}
        return {found[1] for top in tops if (found := re.fullmatch(r"([^/.]+)(/|\.py|\..*\.so|\.so)", top))}


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A line of a distribution's ``entry_points.txt``: ``name = value``."""

    name: str
    value: str
    distribution: Distribution


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A distribution whose entry points cannot be read, and why."""

    path: Path
    reason: str


def entry_points(group: str) -> tuple[list[EntryPoint], list[Unreadable]]:
    """The entry points of a group, of all distributions, and those distributions whose cannot be read.

    Raises:
        OSError: the process or the host has run out of descriptors or memory.
    """
    found: list[EntryPoint] = []
    unreadable: list[Unreadable] = []
    for distribution in distributions().values():
        try:
            text = distribution.read("entry_points.txt")
        except OSError as error:
            if is_exhausted(error):
                raise
            unreadable.append(Unreadable(distribution.folder, error.strerror or str(error)))
        else:
            if group in text:
                found += (EntryPoint(name, value, distribution) for name, value in _section(text, group))
    return found, unreadable


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in (line.strip() for line in text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            inside = line[1:-1].strip() == group
        elif inside and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.partition("[")[0].strip()


def version(name: str) -> str | None:
    """The version of the distribution called ``name``; None where there is none."""
    distribution = distributions().get(normalised(name))
    return None if distribution is None else distribution.named()[1]


@functools.cache
def providers() -> Mapping[str, list[str]]:
    """The names of the distributions that provide each module. To find that out reads all their lists of files."""
    names: dict[str, list[str]] = defaultdict(list)
    for distribution in distributions().values():
        try:
            modules = distribution.modules()
        except OSError as error:
            if is_exhausted(error):
                raise
            _log.debug("%s: %s", distribution.folder, error)
            continue
        for module in modules:
            names[module].append(distribution.named()[0])
    return names


def distributions() -> Mapping[str, Distribution]:
    """Every distribution by its normalised name; of two with one name the first on ``sys.path``, which is imported.

    Raises:
        OSError: the process or the host has run out of descriptors or memory.
    """
    return _distributions(tuple((entry, _changed(entry or os.curdir)) for entry in sys.path))


@functools.lru_cache(maxsize=1)
def _distributions(path: tuple[tuple[str, int], ...]) -> Mapping[str, Distribution]:
    found: dict[str, Distribution] = {}
    for entry, _ in path:
        for distribution in _inside(entry or os.curdir):
            found.setdefault(distribution.key, distribution)
    for finder in sys.meta_path:
        # the file system's, of the standard library and of its backports
        ours = {getattr(finder, "__name__", ""), type(finder).__name__} & {"PathFinder", "MetadataPathFinder"}
        if not ours and hasattr(finder, "find_distributions"):
            for distribution in _others(finder, importlib.metadata.DistributionFinder.Context()):
                found.setdefault(distribution.key, distribution)
    return found


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _inside(entry: str) -> Iterator[Distribution]:
    try:
        names = sorted(os.listdir(entry))
    except OSError as error:
        if is_exhausted(error):
            raise
        if error.errno == errno.ENOTDIR:  # an archive
            context = importlib.metadata.DistributionFinder.Context(path=[entry])
            yield from _others(importlib.metadata.MetadataPathFinder, context)
        elif error.errno != errno.ENOENT:
            _log.debug("%s cannot be listed: %s", entry, error)
        return
    for name in names:
        if name.endswith((".dist-info", ".egg-info")):
            yield Distribution(normalised(name.rpartition(".")[0].partition("-")[0]), Path(entry, name))


def _others(finder: object, context: importlib.metadata.DistributionFinder.Context) -> Iterator[Distribution]:
    """The distributions of a finder that is not the file system's."""
    try:
        for other in finder.find_distributions(context):  # type: ignore[attr-defined]
            name = other.metadata["Name"]
            yield Distribution(normalised(name), Path(f"{name}-{other.version}.dist-info"), other)
    except Exception as error:
        if is_passing(error):
            raise
        _log.debug("%r: %s", finder, error)


def normalised(name: str) -> str:
    """A distribution's name as the one that stands for all its spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_folder(module: str) -> Path | None:
    """The folder of a package, looked up without importing it or its parents (``importlib.util.find_spec`` would).

    Raises:
        OSError: the folders cannot be listed at this moment.
    """
    path: list[str] | None = None
    origin: str | None = None
    parts = module.split(".")
    for depth, part in enumerate(parts):
        try:
            spec = _find_spec(".".join(parts[: depth + 1]), path)
        except KeyError:  # a namespace package inside another looks its parent up among the imported modules
            inner = [Path(folder, part) for folder in path or ()]
            path, origin = [str(folder) for folder in inner if folder.is_dir()], None
            continue
        if spec is None:
            return None
        path, origin = list(spec.submodule_search_locations or ()), spec.origin
    if path:
        return Path(path[0])
    return Path(origin).parent if origin else None


@functools.lru_cache(maxsize=256)
def installed_version(module: str, distribution: str = "") -> str | None:
    """The version of the distribution that provides the import name ``module``; None when it cannot be imported.

    ``distribution`` is its name where it is known to be another: to find that out reads the files of all that is
    installed.

    Raises:
        OSError: what is installed cannot be read at this moment.
    """
    if find_folder(module) is None:
        return None
    for name in (distribution or module, module):
        if (known := version(name)) is not None:
            return known
    names = providers().get(module, [])
    return (version(names[0]) if names else None) or "0"


def _find_spec(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        except (KeyError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a finder of somebody else's
            _log.debug("%r cannot look for %s: %s", finder, name, error)
            continue
        if spec is not None:
            return spec
    return None
