"""Faults written by hand, in YAML files: what somebody may get wrong in more than one place of a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from portakernel.errors import ManifestError, nearest
from portakernel.manifest.yaml_file import read_yaml
from portakernel.registry.kernel import Kernel
from portakernel_kit.faults.fault import Fault, Place
from portakernel_kit.faults.known import entry_problems
from portakernel_kit.faults.source_text import SourceText
from portakernel_kit.faults.sources import Sources

# What an entry has to say.
WANTED = ("kernel", "file", "before", "after", "kind", "why")
_KEYS = frozenset((*WANTED, "shows"))


def read_written(
    path: Path, sources: Sources, kernels: Sequence[Kernel], others: Set[str] = frozenset()
) -> list[Fault]:
    """The faults of a file, or of every ``.yaml`` file of a folder, in kernels of the plugin.

    Those in ``others``' kernels, which are not asked for, are left out.

    Raises:
        ManifestError: a file cannot be read, or an entry fits nothing; names all of them.
    """
    files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    found, problems = list[Fault](), list[str]()
    names = {kernel.name for kernel in kernels}
    for file in files:
        try:
            document = read_yaml(file)
        except ManifestError as error:
            problems += error.problems
            continue
        if not isinstance(document.data, list):
            problems.append(f"{file}: a list of faults is wanted; see docs/cli.md")
            continue
        for index, entry in enumerate(document.data):
            place = f"{file}:{document.line((index,))}"
            wrong = entry_problems(entry, WANTED, _KEYS)
            if not wrong and entry["kernel"] not in names and entry["kernel"] in others:
                continue
            fault, more = _fault(entry, sources, names) if not wrong else (None, [])
            problems += [f"{place}: {problem}" for problem in (*wrong, *more)]
            found += [fault] if fault is not None else []
    if not files:
        problems.append(f"{path}: has no .yaml file")
    if problems:
        raise ManifestError(str(path), problems)
    return found


def _fault(entry: Mapping[str, Any], sources: Sources, names: set[str]) -> tuple[Fault | None, list[str]]:
    """The fault that an entry describes, or what is wrong with it."""
    kernel, before = entry["kernel"], entry["before"]
    problems = []
    if kernel not in names:
        problems.append(f"knows no kernel {kernel!r} of {sources.package.name}; {nearest(kernel, names)}")
    file = _relative(entry["file"], sources)
    path = sources.folder / file
    inside = path.resolve().is_relative_to(sources.folder.resolve())
    if not inside or not path.is_file():
        return None, [*problems, f"there is no file {entry['file']!r} in {sources.folder}"]
    content = path.read_bytes()
    count = content.count(before.encode()) if before else 0
    if count != 1:
        said = "never" if not count else f"{count} times"
        problems.append(f"{file} has the text of before {said}, and has to have it once: {before!r}")
    if before == entry["after"]:
        problems.append("after is the text of before")
    if problems:
        return None, problems
    source, start = SourceText(content), content.index(before.encode())
    end = start + len(before.encode())
    first, last = source.line_of(start), source.line_of(max(start, end - 1))
    shows = str(entry.get("shows", ""))
    place = Place(first, start, end, first, last)
    untold = path.suffix != ".py"
    text = source.line(first)
    fault = Fault(
        file, text, entry["kind"], before, entry["after"], 0, place, (kernel,), untold, entry["why"].strip(), shows
    )
    return fault, []


def _relative(file: str, sources: Sources) -> str:
    """A file as faults name it; it may be written from the folder above the package's outermost one on."""
    package = sources.package.module.replace(".", "/")
    return file.rpartition(f"{package}/")[2] if f"{package}/" in file else file.removeprefix("./")
