"""What a package imports of portakernel beside the plugin API: read from its sources, nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import portakernel
from portakernel import authoring
from portakernel.registry.source_files import parsed
from portakernel_kit.cli.validate.problems import Problem

DOOR = authoring.__name__
_OURS = {"portakernel", "portakernel_kit", "portakernel_plugins", "portakernel_backends"}
_CALLERS = {"portakernel", "portakernel.ops", "portakernel.masks", "portakernel.errors"}
# What packages written for version 1 import.
_VERSION_1 = {
    f"portakernel.{name}"
    for name in ("capability", "compilation", "hookspecs", "offline.compiled", "readiness", "request", "target")
}


def past_the_door(folder: Path, plugin_api: object, own: str = "") -> Iterator[Problem]:
    """A problem for each line of the modules in ``folder`` that imports what may change without notice.

    ``own`` is the dotted name of the package itself, whose modules are its own to import; other plugins and backends
    are as closed as the core.
    """
    open_to = _CALLERS | (_VERSION_1 if plugin_api == 1 else set())
    for path in sorted(folder.rglob("*.py")):
        tree = parsed(path)
        for node in _statements(tree.body if tree is not None else ()):  # whoever imports it says what is wrong
            for module, name in _imports(node):
                if module not in open_to and not f"{module}.".startswith((f"{DOOR}.", f"{own or DOOR}.")):
                    yield Problem(str(path), node.lineno, None, _advice(module, name))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """All statements of a body, and of the bodies in it; not the expressions, which are nine tenths of a tree."""
    for node in body:
        if isinstance(node, ast.stmt):
            yield node
        for inner in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _statements(getattr(node, inner, ()))


def _imports(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The modules of portakernel that a statement imports, each with the name that it takes from there."""
    pairs = list[tuple[str, str]]()
    if isinstance(node, ast.Import):
        pairs = [(alias.name, "") for alias in node.names]
    elif not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
        return
    elif node.module in ("portakernel_plugins", "portakernel_backends"):
        pairs = [(f"{node.module}.{alias.name}", alias.name) for alias in node.names]
    elif node.module == "portakernel":
        public = {*portakernel.__all__, "__version__"}
        pairs = [("portakernel" if a.name in public else f"portakernel.{a.name}", a.name) for a in node.names]
    else:
        pairs = [(node.module, alias.name) for alias in node.names]
    yield from (pair for pair in pairs if pair[0].partition(".")[0] in _OURS)


def _advice(module: str, name: str) -> str:
    text = f"imports {module}, which changes without notice"
    place = _offered().get(name)
    if place is not None:
        return f"{text}; import {name} from {place}"
    return f"{text}; what plugins may import stands in {DOOR}, and docs/writing-a-kernel.md lists it"


@cache
def _offered() -> Mapping[str, str]:
    """Each name of the door, with the module that has it, read as source: some of them load torch."""
    found = dict[str, str]()
    for path in sorted(Path(authoring.__file__).parent.glob("*.py"), reverse=True):
        module = DOOR if path.stem == "__init__" else f"{DOOR}.{path.stem}"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found |= dict.fromkeys(ast.literal_eval(node.value), module)
    return found
