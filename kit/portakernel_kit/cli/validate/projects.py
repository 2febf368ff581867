"""A package that is not installed yet: what its ``pyproject.toml`` says of its modules and names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portakernel.host.regular_file import read_regular
from portakernel.manifest.yaml_file import MAX_BYTES
from portakernel.registry.plugin_manager import GROUP, Package
from portakernel_kit.cli.validate.problems import Problem

FILE = "pyproject.toml"
_EXAMPLE = f'add [project.entry-points.{GROUP}] with NAME = "MODULE", NAME being that of the manifests'


@dataclass(frozen=True, slots=True)
class Project:
    """The packages that a project registers, and what is wrong with how it does."""

    packages: tuple[Package, ...] = ()
    problems: tuple[Problem, ...] = field(default_factory=tuple[Problem, ...])


def read_project(folder: Path) -> Project:
    """What ``folder/pyproject.toml`` registers with portakernel."""
    file = folder / FILE
    try:
        text = read_regular(file, limit=MAX_BYTES).decode("utf-8")
        data = tomllib.loads(text)
    except (OSError, ValueError) as error:
        told = re.search(r"line (\d+)", str(error))
        line = int(told[1]) if told else None
        return Project(problems=(Problem(str(file), line, None, f"cannot be read: {error}"),))
    registered = _table(data, "project", "entry-points", GROUP)
    if not registered:
        text = f"registers nothing with portakernel, which so will not find it; {_EXAMPLE}"
        return Project(problems=(Problem(str(file), None, f"project.entry-points.{GROUP}", text),))
    project = _table(data, "project")
    roots = [folder / "src", folder, *(folder / Path(root).parent for root in _packages(data))]
    packages, problems = list[Package](), list[Problem]()
    for name, value in registered.items():
        module = str(value).partition(":")[0].strip()
        place = next((p for root in roots if (p := root.joinpath(*module.split("."))).is_dir()), None)
        if place is None:
            looked = " or ".join(dict.fromkeys(str(root.relative_to(folder)) for root in roots))
            reason = f"there is no package {module!r} in {looked}; correct the module, or move its folder there"
            key = f"project.entry-points.{GROUP}.{name}"
            problems.append(Problem(str(file), _line(text, name), key, reason))
        else:
            distribution, version = str(project.get("name", "unknown")), str(project.get("version", ""))
            packages.append(Package(name, module, distribution, version, place))
    return Project(tuple(packages), tuple(problems))


def _table(data: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _packages(data: Mapping[str, Any]) -> Iterator[str]:
    """The folders that hatchling is told to pack: their parents are where modules are looked for."""
    listed = _table(data, "tool", "hatch", "build", "targets", "wheel").get("packages", ())
    yield from (entry for entry in listed if isinstance(entry, str))


def _line(text: str, key: str) -> int | None:
    """The line of a key in the group's table; tomllib tells none."""
    table = re.search(rf"^\[project\.entry-points\.[\"']?{GROUP}[\"']?\]", text, re.MULTILINE)
    start = table.end() if table else 0
    found = re.compile(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", re.MULTILINE).search(text, start)
    return text.count("\n", 0, found.start()) + 1 + text[found.start() : found.end()].count("\n") if found else None
