"""A whole package for a plugin, a backend or an op, written from the templates beside this module.

A template is a text of ``string.Template`` whose file is named as the file that it makes, with ``.template`` behind it;
the folder ``module`` stands for the import package. ``templates/shared`` goes into every kind of package.
"""

from __future__ import annotations

import importlib.metadata
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from portakernel.contract.soundness import op_name_faults
from portakernel.contracts import contracts
from portakernel.errors import ArgumentValueError
from portakernel.manifest.api_version import PLUGIN_API
from portakernel.registry.plugin_manager import find_folder
from portakernel.registry.registry import Registry

Kind = Literal["plugin", "backend", "op"]
_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".template"
_MODULE = "module"
# Of a manifest's names those of which a distribution's and a module's name can be made.
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 40
_SUMMARIES: Mapping[Kind, str] = {"plugin": "Kernels of {}", "backend": "Devices of {}", "op": "The op {}"}


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A package that was written: its folder, its names, and its files, relative to the folder."""

    kind: Kind
    name: str
    folder: Path
    files: tuple[Path, ...]

    @property
    def module(self) -> str:
        """The import name; its prefix keeps it apart from the library that the package may be about."""
        return _module(self.name)

    @property
    def distribution(self) -> str:
        """The name to install and publish it under."""
        return self.module.replace("_", "-")


def scaffold(kind: Kind, name: str, parent: Path, registry: Registry) -> Scaffold:
    """Writes the package into ``parent / name``, whole or not at all.

    Raises:
        ArgumentValueError: the name cannot be used or is taken, the folder exists, or cannot be written.
    """
    check_name(name, registry)
    if kind == "op" and (faults := list(op_name_faults(name))):
        raise ArgumentValueError("; ".join(faults))
    written = Scaffold(kind, name, parent / name, tuple(sorted(_files(kind, name))))
    if written.folder.exists() or written.folder.is_symlink():
        raise ArgumentValueError(f"{written.folder} exists; remove it, choose another name, or another --directory")
    texts = {path: _filled(template, written) for path, template in _files(kind, name).items()}
    try:
        # Beside its destination, so that renaming is one step of one file system.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as temporary:
            whole = Path(temporary, name)
            for path, text in texts.items():
                file = whole / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            whole.rename(written.folder)
    except OSError as error:
        text = f"{written.folder} cannot be written: {error.strerror or error}; nothing is left of it"
        raise ArgumentValueError(f"{text}. Name a folder that exists and can be written with --directory") from error
    return written


def check_name(name: str, registry: Registry) -> None:
    """Nothing, when a package can be called ``name`` beside what is installed.

    Raises:
        ArgumentValueError: it is no name, or is taken.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        rule = f"lower-case letters, digits and single underscores between them, a letter first, {_LONGEST} at most"
        offer = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")[:_LONGEST].strip("_")
        hint = f"; {offer!r} would do" if _NAME.fullmatch(offer) else ""
        raise ArgumentValueError(f"{name!r} cannot name a plugin, backend or op: {rule}{hint}")
    for package in registry.manager.packages:
        if package.name == name:
            raise ArgumentValueError(f"the name {name!r} is taken by {package}; choose another")
    if name in contracts():
        raise ArgumentValueError(f"the name {name!r} is taken by an op; choose another")
    if name in registry.plugins():
        raise ArgumentValueError(f"the name {name!r} is taken by portakernel's own references; choose another")
    if name in registry.spaces:
        owner = next(backend.package for backend in registry.backends.values() if backend.vendor == name)
        raise ArgumentValueError(f"the name {name!r} is taken by the vendor of backend {owner}; choose another")
    if (folder := find_folder(_module(name))) is not None:
        raise ArgumentValueError(f"the module {_module(name)!r} is taken by {folder}; choose another name")


def _module(name: str) -> str:
    return f"portakernel_{name}"


def _files(kind: Kind, name: str) -> dict[Path, Path]:
    """Each file of the package, and the template that makes it."""
    found: dict[Path, Path] = {}
    for root in (_TEMPLATES / "shared", _TEMPLATES / kind):
        for template in sorted(root.rglob(f"*{_SUFFIX}")):
            parts = template.relative_to(root).parts
            path = Path(*(_module(name) if part == _MODULE else part for part in parts))
            found[path.with_name(path.name.removesuffix(_SUFFIX))] = template
    return found


def _filled(template: Path, written: Scaffold) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(
        name=written.name,
        module=written.module,
        distribution=written.distribution,
        summary=_SUMMARIES[written.kind].format(written.name),
        version=importlib.metadata.version("portakernel"),
        plugin_api=PLUGIN_API,
    )
