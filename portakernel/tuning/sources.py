"""A kernel's source as a digest: what a measurement of it is a measurement of.

It covers the modules of the kernel's own package that its entry reaches by imports, what lies beside them that is no
Python (tables of configurations, CUDA and HIP sources), and the versions of what its manifest requires. A change
elsewhere in the package leaves it as it is.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from portakernel.host.regular_file import read_regular
from portakernel.registry.plugin_manager import Package
from portakernel.registry.source_files import imported, parsed, source_of

_MOST_BYTES = 16 << 20
_LEFT_OUT = (".pyc", ".pyi", ".so", ".md")


def digest(package: Package, entries: tuple[str, ...], distributions: tuple[str, ...] = ()) -> str:
    """Of the functions ``module:name`` of a package, and of what is installed of distributions: 16 hex digits."""
    files = sorted(set(reached(package, entries)))
    root = package.folder or Path()
    parts = [(str(file.relative_to(root)), hashlib.sha256(read_regular(file, limit=_MOST_BYTES)).hexdigest()) for file in files]
    whole = repr((parts, sorted(installed(distributions).items())))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def installed(distributions: tuple[str, ...]) -> Mapping[str, str]:
    """Versions, empty of what is not installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def reached(package: Package, entries: tuple[str, ...]) -> Iterator[Path]:
    """The files of a package that its functions reach, each perhaps more than once."""
    waiting = [entry.partition(":")[0] for entry in entries]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        file = source_of(package, module)
        if file is None:
            continue
        yield file
        yield from (each for each in file.parent.iterdir() if each.is_file() and not _is_python(each))
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.stmt):
                waiting += _modules(node)


def _modules(node: ast.stmt) -> Iterator[str]:
    """What a statement imports: modules, and names of them, which may be modules too."""
    for module in imported(node):
        yield module
        if isinstance(node, ast.ImportFrom):
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or path.suffix in _LEFT_OUT or path.name == "plugin.yaml"
