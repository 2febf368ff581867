"""A package's functions by its source files: whether they are there, and what they take. None is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from portakernel.contract import Contract
from portakernel.contract.signature_text import signature
from portakernel.errors import nearest
from portakernel.host.regular_file import read_regular
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import Package

SourceFunction = ast.FunctionDef | ast.AsyncFunctionDef
_Import = ast.Import | ast.ImportFrom
_MOST_BYTES = 16 << 20


def source_of(package: Package, module: str) -> Path | None:
    """The file of a module of the package; None where it has none, or is not the package's."""
    place = _place(package, module)
    if place is None:
        return None
    sources = [place.with_suffix(".py")] if module != package.module else []
    return next((file for file in (*sources, place / "__init__.py") if file.is_file()), None)


def missing(package: Package, entry: str) -> str:
    """Why ``entry`` leads nowhere; empty where it does not, or where the files do not say."""
    module, _, function = entry.partition(":")
    place = _place(package, module)
    if place is None:
        return ""
    source = source_of(package, module)
    if source is None:
        compiled = place.is_dir() or any(place.parent.glob(f"{place.name}.*"))  # a namespace, or an extension module
        return "" if compiled else f"there is no module {module!r}"
    tree = parsed(source)
    if tree is None:
        return ""  # its own problem
    names = _names(tree)
    if function in names or {"*", "__getattr__"} & names:
        return ""
    functions = [node.name for node in tree.body if isinstance(node, SourceFunction)]
    return f"{module} has no function {function!r}; {nearest(function, functions)}"


def misfit(package: Package, kernel: Kernel, op: Contract) -> str:
    """Why the kernel's function cannot be called as the op's kernels are; empty where it can, or is not a plain def."""
    needed = [t.name for t in op.tensors if not t.keyword and (not t.feature or t.name in kernel.features)]
    values = [p.name for p in op.parameters if not p.feature or p.name in kernel.features]
    values += [t.name for t in op.tensors if t.keyword and (not t.feature or t.name in kernel.features)]
    text = disagreement(package, kernel.entry, needed, [*values, *(["out"] if op.outputs else [])])
    return f"{text}; a kernel takes what its op does: {signature(op)}" if text else ""


def disagreement(package: Package, entry: str, positional: Sequence[str], keywords: Sequence[str]) -> str:
    """What ``entry``'s function does not take of what it is given, or needs beside; empty where it takes just that.

    Empty too where it is no plain def, or cannot be read.
    """
    module, _, name = entry.partition(":")
    source = source_of(package, module)
    tree = parsed(source) if source is not None else None
    functions = [node for node in tree.body if isinstance(node, SourceFunction) and node.name == name] if tree else []
    if not functions or functions[-1].decorator_list:
        return ""
    given = functions[-1].args
    texts = (
        ("does not take", _untaken(given, positional, keywords)),
        ("needs", _not_given(given, positional, keywords)),
    )
    told = " and ".join(f"{what} {', '.join(names)}" for what, names in texts if names)
    beside = ", which nothing gives it" if told and texts[1][1] else ""
    return f"{entry.replace(':', '.')} {told}{beside}" if told else ""


def _untaken(given: ast.arguments, positional: Sequence[str], keywords: Sequence[str]) -> list[str]:
    places = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names = {argument.arg for argument in (*given.args, *given.kwonlyargs)}
    lacking = [] if given.vararg or len(places) >= len(positional) else list(positional[len(places) :])
    return lacking + ([] if given.kwarg else [value for value in keywords if value not in names])


def _not_given(given: ast.arguments, positional: Sequence[str], keywords: Sequence[str]) -> list[str]:
    """The arguments without a default that are passed neither by position nor by name."""
    places = [*given.posonlyargs, *given.args]
    needed = places[len(positional) : len(places) - len(given.defaults)]
    needed += [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return [one.arg for one in needed if one.arg not in keywords or one in given.posonlyargs]


def _place(package: Package, module: str) -> Path | None:
    if package.folder is None or not f"{module}.".startswith(f"{package.module}."):
        return None
    return package.folder.joinpath(*module.removeprefix(package.module).strip(".").split("."))


def parsed(source: Path) -> ast.Module | None:
    """A source file as a tree; None where it cannot be read, or is no Python."""
    try:
        return tree_of(source)
    except (OSError, SyntaxError, ValueError):
        return None


def tree_of(source: Path) -> ast.Module:
    """A source file as a tree, the same for the same text: it is asked for each function, and for what it imports.

    Raises:
        OSError: it cannot be read.
        SyntaxError: it is no Python.
        ValueError: it is no text.
    """
    return _tree(read_regular(source, limit=_MOST_BYTES))


_tree: Callable[[bytes], ast.Module] = lru_cache(maxsize=256)(ast.parse)


@lru_cache(maxsize=256)
def _names(tree: ast.Module) -> frozenset[str]:
    return frozenset(_defined(tree.body))


def _defined(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that statements at a module's top bind, whichever way a condition goes."""
    for node in body:
        if isinstance(node, SourceFunction | ast.ClassDef):
            yield node.name
        elif isinstance(node, _Import):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        else:
            stored = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            yield from (name.id for name in stored)
            for one in (n for n in ast.walk(node) if isinstance(n, SourceFunction | ast.ClassDef | _Import)):
                yield from _defined([one])


def imported(node: ast.stmt) -> Iterator[str]:
    """The modules that a statement imports by their whole names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        yield node.module


def leads_nowhere(package: Package, module: str) -> bool:
    """Whether a module's name is the package's, and no file has it."""
    place = _place(package, module)
    if place is None or source_of(package, module) is not None:
        return False
    return not place.is_dir() and not any(place.parent.glob(f"{place.name}.*"))
