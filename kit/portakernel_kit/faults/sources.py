"""Which files of a plugin's package a kernel is made of: what its entry imports, and the C++ that modules name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from portakernel.errors import ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Package
from portakernel.registry.source_files import source_of

# Sources that are compiled by others than Python.
NATIVE = frozenset((".cpp", ".cc", ".cxx", ".c", ".cu", ".cuh", ".hip", ".h", ".hpp", ".cl", ".metal", ".mm"))
_INCLUDED = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """The package of one plugin, read and not imported."""

    package: Package
    folder: Path
    _reached: dict[str, frozenset[Path]] = field(default_factory=dict[str, frozenset[Path]])

    @classmethod
    def of(cls, package: Package) -> Sources:
        """The sources of a package.

        Raises:
            ArgumentValueError: it has no folder of its own.
        """
        folder = package.folder
        if folder is None or not (folder / "__init__.py").is_file():
            text = f"{package} is no package with a folder of its own, which faults are put into a copy of"
            raise ArgumentValueError(f"{text}; give its modules a folder with an __init__.py")
        return cls(package, folder)

    def name(self, file: Path) -> str:
        """A file as faults name it."""
        return file.relative_to(self.folder).as_posix()

    def reached(self, kernel: Kernel) -> frozenset[Path]:
        """The files that the kernel's functions reach within the package, by imports in whatever place of a module."""
        entries = [kernel.entry, *filter(None, (kernel.backward, kernel.check.entry if kernel.check else None))]
        modules = {entry.partition(":")[0] for entry in entries}
        return frozenset[Path]().union(*map(self._closure, sorted(modules)))

    def foreign_imports(self, files: frozenset[Path]) -> list[str]:
        """What the modules import from elsewhere, which is the same whatever fault they have."""
        own = self.package.module
        names = {name for file in files if file.suffix == ".py" for name in self._imports(file)}
        return sorted(name for name in names if name != own and not name.startswith(f"{own}."))

    def _closure(self, module: str) -> frozenset[Path]:
        if module not in self._reached:
            found, waiting = dict[Path, None](), self._files(module)
            while waiting:
                file = waiting.pop()
                if file not in found:
                    found[file] = None
                    waiting += [other for name in self._imports(file) for other in self._files(name)]
            self._reached[module] = frozenset(found) | self._native(frozenset(found))
        return self._reached[module]

    def _files(self, module: str) -> list[Path]:
        """The file of a module of the package, and those of the packages that it lies in, which are imported first."""
        own, parts = self.package.module, module.split(".")
        above = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        inside = [name for name in above if name == own or name.startswith(f"{own}.")]
        return [file for name in inside if (file := source_of(self.package, name)) is not None]

    def _imports(self, file: Path) -> Iterator[str]:
        """Every module that a file imports; of ``from a import b`` both ``a`` and ``a.b``, which may be one."""
        tree = _parsed(file)
        inside = [self.package.module, *file.relative_to(self.folder).parent.parts]
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = inside[: len(inside) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)

    @cached_property
    def _all_native(self) -> list[Path]:
        return sorted(file for file in self.folder.rglob("*") if file.suffix in NATIVE)

    def _native(self, modules: frozenset[Path]) -> frozenset[Path]:
        """The C++ files whose name, with or without its ending, one of the modules says, and what they include."""
        words = {word for file in modules if file.suffix == ".py" for word in _texts(file)}
        found = dict.fromkeys(f for f in self._all_native if f.name in words or f.stem in words)
        waiting = list(found)
        while waiting:
            included = _INCLUDED.findall(waiting.pop().read_bytes())
            names = {Path(name.decode(errors="replace")).name for name in included}
            more = [file for file in self._all_native if file.name in names and file not in found]
            found |= dict.fromkeys(more)
            waiting += more
        return frozenset(found)


def _parsed(file: Path) -> ast.Module | None:
    """A module's syntax tree; None where it has none, which the import will say."""
    try:
        return ast.parse(file.read_bytes()) if file.suffix == ".py" else None
    except SyntaxError:
        return None


def _texts(file: Path) -> Iterator[str]:
    """The names of files that a module's strings may be: the last part of each."""
    tree = _parsed(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            yield node.value.rpartition("/")[2]
