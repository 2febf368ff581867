"""A kernel's source as a digest: what a measurement of it is a measurement of.

It covers what decides how fast a kernel is, and whether it is right: the modules of its own package that its entries
reach by imports, the data beside them that these modules can use (tables of configurations, CUDA and HIP sources), and
the versions of what its manifest requires. A change elsewhere in the package leaves it as it is. The version of torch
is not part of it: records have that beside, and another one makes them stale, not void. Nor is what a kernel claims.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from portakernel.contract import Contract
from portakernel.contracts import reference_module
from portakernel.host.distributions import find_folder, installed_version
from portakernel.host.regular_file import read_regular
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Package
from portakernel.registry.source_files import source_of
from portakernel.tuning.key import canonical
from portakernel.tuning.source_names import Module, Texts, module_of, texts_of

_MOST_BYTES = 16 << 20
# The first digits are the files', the others the versions'.
_DIGITS, _OF_FILES = 16, 10
# What lies beside modules and is read by nobody who launches a kernel.
_LEFT_OUT = (".py", ".pyc", ".pyi", ".md", ".txt", ".lock")
_MANIFEST = "plugin.yaml"
_TABLES = (".yaml", ".yml")
_OWN = "torch"
# Of a contract what its kernels and its reference compute does not depend on.
_PROSE = frozenset({"summary", "formula", "source", "notes", "grid", "cases", "cost", "draw", "autocast", "in_graphs"})


@functools.lru_cache(maxsize=4096)
def source_digest(kernel: Kernel) -> str:
    """The digest of a kernel, the same for as long as the process lives.

    Raises:
        OSError: its files cannot be read at this moment.
    """
    return digest(kernel)


def digest(kernel: Kernel) -> str:
    """The digest of a kernel as its files are now; raises what ``source_digest`` does."""
    entries = tuple(entry for entry in (kernel.entry, kernel.backward, kernel.build) if entry is not None)
    package = kernel.package or _references(kernel)
    reach = Reach(package, entries)
    if kernel.package is not None and reach.uses("reference_module"):
        # it is made of the op's formula, which is not its package's
        formula = Reach(_package_of(reference_module(kernel.op)), (f"{reference_module(kernel.op)}:forward",))
        parts = [*reach.parts(), *formula.parts()]
    else:
        parts = reach.parts()
    whole = "" if reach.is_whole else f"{package.distribution} {package.version}"
    return _digest([entries, parts, whole])[:_OF_FILES] + _digest(versions(kernel))[: _DIGITS - _OF_FILES]


def of_files(source: str) -> str:
    """The part of a digest that is about files, whatever is installed beside them."""
    return source[:_OF_FILES]


def versions(kernel: Kernel) -> dict[str, str]:
    """The versions that are installed of what the kernel's manifest requires, by module; empty of what is not."""
    wanted = {module for module in kernel.requires if module != _OWN}
    return {m: installed_version(m, kernel.distributions.get(m, "")) or "" for m in sorted(wanted)}


@functools.lru_cache(maxsize=256)
def contract_digest(contract: Contract) -> str:
    """The digest of what an op means: its arguments, results, values and tolerance; not of its prose and its cases."""
    return _digest(_meaning(contract))


class Reach:
    """The files of a package that some of its functions reach.

    A table, YAML with a name for each entry, is reached entry by entry: the ones that a reached module names in a text,
    those that these name (``as: OTHER``), and those that no text of the package names, which anybody may look up. A
    file of another kind is reached by the same rule, by its name in a text or in another file.
    """

    def __init__(self, package: Package, entries: tuple[str, ...]) -> None:
        self._package = package
        self._modules: dict[Path, Module] = {}
        # Whether the entries' modules have source files; compiled ones have none.
        self.is_whole = True
        waiting = [entry.partition(":")[0] for entry in entries]
        tops, seen = frozenset(waiting), set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            file = source_of(package, name)
            if file is None:
                self.is_whole = self.is_whole and name not in tops
                continue
            module = self._modules[file] = module_of(_read(file), name, is_package=file.name == "__init__.py")
            waiting += [found for found in module.imports if f"{found}.".startswith(f"{package.module}.")]

    def uses(self, name: str) -> bool:
        """Whether a reached module imports something of this name."""
        return any(found.rpartition(".")[2] == name for module in self._modules.values() for found in module.imports)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are reached, tables among them, in order."""
        return tuple(sorted({*self._modules, *self._data()}))

    def parts(self) -> list[tuple[str, str]]:
        """Each file's path in the package, and a digest of what is reached of it."""
        root = self._package.folder or Path()
        found = [(file, _hashed(module.content)) for file, module in self._modules.items()]
        found += [(file, _hashed(content)) for file, content in self._data().items()]
        return sorted((file.relative_to(root).as_posix(), content) for file, content in found)

    def _data(self) -> dict[Path, bytes]:
        """What is reached of files that are no Python."""
        beside = {file: _read(file) for file in _data_files(frozenset(file.parent for file in self._modules))}
        found: dict[Path, bytes] = {}
        for file, content in beside.items():
            table = _table(content) if file.suffix in _TABLES else None
            if table is not None:
                found[file] = canonical(_plain(self._entries(table))).encode()
        files = {file: content for file, content in beside.items() if file not in found}
        return found | self._named_files(files)

    def _entries(self, table: Mapping[str, Any]) -> dict[str, Any]:
        elsewhere = _texts_of_package(self._package)
        named = self._texts()
        stood_in = {name for other in table for name in _stand_ins(table[other])}
        waiting = [n for n in table if named.name(n) or not (elsewhere.name(n) or n in stood_in)]
        found: dict[str, Any] = {}
        while waiting:
            name = waiting.pop()
            if name in table and name not in found:
                found[name] = table[name]
                waiting += _stand_ins(table[name])
        return found

    def _named_files(self, files: Mapping[Path, bytes]) -> dict[Path, bytes]:
        """The files that a reached module names, or a file that is reached, or nobody."""
        if not files:
            return {}
        elsewhere = _texts_of_package(self._package)

        def in_files(file: Path, those: Mapping[Path, bytes]) -> bool:
            return any(file.name.encode() in content for other, content in those.items() if other != file)

        found = {
            file: content
            for file, content in files.items()
            if self._texts().name(file.name) or not (elsewhere.name(file.name) or in_files(file, files))
        }
        while more := {f: content for f, content in files.items() if f not in found and in_files(f, found)}:
            found |= more
        return found

    def _texts(self) -> Texts:
        """The texts of all that is reached: what stands in one may fill another's gap."""
        return Texts.of([module.texts for module in self._modules.values()])


def _references(kernel: Kernel) -> Package:
    return _package_of(kernel.entry.partition(":")[0])


def _package_of(module: str) -> Package:
    """The folder of a module of portakernel's references, or of another distribution's, as a package."""
    parent = module.rpartition(".")[0]
    return Package(parent, parent, "", "", find_folder(parent))


def _data_files(folders: frozenset[Path]) -> Iterator[Path]:
    """The files beside modules, and in folders beside them that hold no module."""
    for folder in sorted(folders):
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path not in folders and not any(path.glob("*.py")):
                yield from (each for each in sorted(path.rglob("*")) if _is_data(each))
            elif _is_data(path):
                yield path


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "__pycache__")) for part in path.parts[-2:])
    return path.is_file() and path.suffix not in _LEFT_OUT and path.name != _MANIFEST and not hidden


def _texts_of_package(package: Package) -> Texts:
    """The texts of all modules of a package."""
    files = sorted(package.folder.rglob("*.py")) if package.folder is not None else []
    return _texts_of_files(tuple((file, (status := file.stat()).st_mtime_ns, status.st_size) for file in files))


@functools.lru_cache(maxsize=64)
def _texts_of_files(files: tuple[tuple[Path, int, int], ...]) -> Texts:
    """The texts of modules, read again once one of them has another time or size."""
    return texts_of(_read(file) for file, _, _ in files)


@functools.lru_cache(maxsize=64)
def _table(content: bytes) -> Mapping[str, Any] | None:
    """A table's entries by name; None where it is none."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found = yaml.load(content, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    return found if isinstance(found, dict) and all(isinstance(name, str) for name in found) else None


def _stand_ins(entry: object) -> Iterator[str]:
    """The entries in whose place, or beside which, this one stands."""
    for one in entry if isinstance(entry, list) else [entry]:
        if isinstance(one, dict) and isinstance(one.get("as"), str):
            yield one["as"]


def _meaning(part: object) -> Any:
    """A part of a contract as JSON-ready data, without prose, and without what it leaves at its default.

    A field that contracts learn to have changes the meaning of those that use it.
    """
    if is_dataclass(part) and not isinstance(part, type):
        said = {field.name: getattr(part, field.name) for field in fields(part) if field.name not in _PROSE}
        named = {name: value for name, value in said.items() if value != _defaults(type(part)).get(name, MISSING)}
        return {"": type(part).__name__, **{name: _meaning(value) for name, value in named.items()}}
    if isinstance(part, Mapping):
        return {str(key): _meaning(value) for key, value in part.items()}
    if isinstance(part, (tuple, list)):
        return [_meaning(value) for value in part]
    return _plain(part)


@functools.lru_cache(maxsize=64)
def _defaults(part: type) -> dict[str, Any]:
    """The values of a dataclass' fields where nothing is said."""
    own = {field.name: field.default for field in fields(part) if field.default is not MISSING}
    made = {f.name: f.default_factory() for f in fields(part) if f.default_factory is not MISSING}
    return own | made


def _plain(value: Any) -> Any:
    """Data as JSON can have it: numbers without a form there as words, keys as texts."""
    match value:
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bool() | int() | str() | None:
            return value
        case float() if value - value == 0.0:
            return value
        case _:
            return repr(value)


def _read(file: Path) -> bytes:
    return read_regular(file, limit=_MOST_BYTES)


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(data: Any) -> str:
    return hashlib.sha256(canonical(_plain(data)).encode()).hexdigest()[:_DIGITS]
