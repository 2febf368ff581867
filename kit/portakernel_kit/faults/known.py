"""Faults known to be equal to the original, each with its reason, in a YAML file that people keep.

An entry is a fault's identity, ``file``, ``text``, ``kind``, ``before``, ``after`` and, from the second one on,
``occurrence``, with ``why``; ``plugin`` where one file holds those of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portakernel.errors import ManifestError
from portakernel.manifest.yaml_file import read_yaml
from portakernel_kit.faults.fault import IDENTITY, Fault

NAME = "faults.yaml"
_TEXTS = (*IDENTITY[:-1], "why")
_KEYS = frozenset((*_TEXTS, "occurrence", "plugin"))


@dataclass(frozen=True, slots=True)
class Known:
    """One entry, and where it stands."""

    place: str
    identity: tuple[str, str, str, str, str, int]
    why: str
    plugin: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        return {"place": self.place, **dict(zip(IDENTITY, self.identity, strict=True)), "why": self.why}


def find_known(folder: Path, package: Path) -> Path | None:
    """``faults.yaml`` in a folder or in one above it, up to its project's; None where there is none.

    For portakernel's own packages, in its repository, it is ``kit/faults/equal.yaml``.
    """
    for above in (folder, *folder.parents):
        if (above / NAME).is_file():
            return above / NAME
        if (above / "pyproject.toml").is_file():
            break
    ours = Path(__file__).parents[2] / "faults" / "equal.yaml"
    in_repository = ours.is_file() and ours.parents[2] in package.parents
    return ours if in_repository else None


def read_known(path: Path, plugin: str) -> tuple[Known, ...]:
    """The entries of one plugin, those included that name none.

    Raises:
        ManifestError: the file cannot be read, or an entry is none; names all of them.
    """
    document = read_yaml(path)
    entries = document.data if document.data is not None else []
    if not isinstance(entries, list):
        raise ManifestError(str(path), [f"{path}: a list of equal faults is wanted; see docs/cli.md"])
    problems, found = list[str](), list[Known]()
    for index, entry in enumerate(entries):
        place = f"{path}:{document.line((index,))}"
        wrong = entry_problems(entry, _TEXTS, _KEYS)
        number = entry.get("occurrence", 0) if isinstance(entry, Mapping) else 0
        if not wrong and (not isinstance(number, int) or isinstance(number, bool)):
            wrong = [f"occurrence is a number, not {number!r}"]
        problems += [f"{place}: {problem}" for problem in wrong]
        if not wrong and entry.get("plugin", plugin) == plugin:
            file, text, kind, before, after, why = (str(entry[key]) for key in _TEXTS)
            found.append(Known(place, (file, text, kind, before, after, number), why, plugin))
    if problems:
        raise ManifestError(str(path), problems)
    return tuple(found)


def entry_problems(entry: object, wanted: Iterable[str], accepted: frozenset[str]) -> list[str]:
    """What is wrong with an entry, which is to have these keys, with texts, and no other than the accepted ones."""
    if not isinstance(entry, Mapping):
        return [f"an entry has keys, such as {', '.join(wanted)}; this is {entry!r}"]
    problems = [f"has no {key}" for key in wanted if key not in entry]
    problems += [
        f"{key} is a text, not {entry[key]!r}; quote it" for key in wanted if not isinstance(entry.get(key, ""), str)
    ]
    unknown = [key for key in entry if key not in accepted]
    return problems + [f"knows no key {key!r}; its keys are {', '.join(sorted(accepted))}" for key in unknown]


def equal_faults(faults: Iterable[Fault], known: Iterable[Known]) -> dict[Fault, Known]:
    """Of the faults those that are known to be equal."""
    entries = {entry.identity: entry for entry in known}
    return {fault: entries[fault.identity] for fault in faults if fault.identity in entries}


def stale(faults: Iterable[Fault], known: Iterable[Known]) -> tuple[Known, ...]:
    """The entries that fit none of the faults: their line has changed, and so has perhaps their reason."""
    identities = {fault.identity for fault in faults}
    return tuple(entry for entry in known if entry.identity not in identities)
