"""What a module's source names: the modules that it imports, and the texts in it, those with gaps (f-strings) too."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

# Texts of one line. In a comment an apostrophe may hide one: then it is taken for unnamed, which voids more, not less.
_QUOTED = re.compile(r"""(?<!\w)([a-zA-Z]{0,2})(?:"([^"\n\\]*)"|'([^'\n\\]*)')(\s*\+)?""")
_FIRST, _FEWEST_LETTERS = "first", 2
_GAP = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts as they stand in sources: whole ones, and patterns of those with gaps.

    A gap that begins one (``f"{op}.forward"``) is filled with a whole one; others may hold anything.
    """

    whole: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    @classmethod
    def of(cls, several: Iterable[Texts]) -> Texts:
        """All of several."""
        known = tuple(several)
        return cls(frozenset().union(*(t.whole for t in known)), frozenset().union(*(t.patterns for t in known)))

    def name(self, text: str) -> bool:
        """Whether ``text`` is among them, or one with gaps can become it."""
        if text in self.whole:
            return True
        for pattern in self.patterns:
            found = re.fullmatch(pattern, text)
            if found is not None and found.groupdict().get(_FIRST) in (None, *self.whole):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Module:
    """A module: its source, what it imports by whole names, the texts in it."""

    content: bytes
    imports: frozenset[str]
    texts: Texts


@functools.lru_cache(maxsize=1024)
def module_of(content: bytes, name: str, *, is_package: bool) -> Module:
    """The module called ``name`` by its source; one that is no Python imports nothing."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return Module(content, frozenset(), Texts())
    imports, whole, patterns = set[str](), set[str](), set[str]()
    inside = set[int]()
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imports.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                base = _absolute(package, node)
                imports.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
            case ast.JoinedStr():
                inside.update(id(part) for part in node.values)
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                patterns.add(_pattern(parts))
            case ast.BinOp(left=ast.Constant(value=str() as text), op=ast.Add()):
                patterns.add(_pattern([text, None]))
            case ast.Constant(value=str() as text) if id(node) not in inside:
                whole.add(text)
            case _:
                pass
    # a module may be imported by its name as a text, as entries of manifests are
    imports.update(text.partition(":")[0] for text in whole if re.fullmatch(r"\w+(\.\w+)+(:\w+)?", text))
    return Module(content, frozenset(imports), Texts(frozenset(whole), frozenset(patterns - {""})))


def texts_of(contents: Iterable[bytes]) -> Texts:
    """The texts of several sources, found without parsing them: these are a package's, of which few are reached."""
    return Texts.of([_texts(content) for content in contents])


@functools.lru_cache(maxsize=1024)
def _texts(content: bytes) -> Texts:
    whole, patterns = set[str](), set[str]()
    for prefix, double, single, more in _QUOTED.findall(content.decode("utf-8", "replace")):
        text = double or single
        if "f" in prefix.lower() and "{" in text:
            first, *others = _GAP.split(text)
            patterns.add(_pattern([first, *(part for other in others for part in (None, other))]))
        else:
            whole.add(text)
            patterns.update([_pattern([text, None])] if more else [])
    return Texts(frozenset(whole), frozenset(patterns - {""}))


def _pattern(parts: Iterable[object]) -> str:
    """The pattern of a text with gaps, each None; empty for one that is nearly all gap: it names nothing."""
    pieces = [None if part is None else str(part) for part in parts if part != ""]
    if sum(len(re.sub(r"\W", "", piece)) for piece in pieces if piece) < _FEWEST_LETTERS:
        return ""
    found = ["[^\n]*?" if piece is None else re.escape(piece) for piece in pieces]
    return "".join([f"(?P<{_FIRST}>{found[0]})" if pieces[0] is None else found[0], *found[1:]])


def _absolute(package: str, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base
