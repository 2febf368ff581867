"""YAML files read as plain data, strictly and within bounds, keeping the line of each key.

PyYAML's safe loader accepts duplicate keys, expands aliases without bound and recurses with the nesting; a manifest
comes from a stranger's package. Here the parser's events are folded into data with a stack of our own.
"""

from __future__ import annotations

import errno
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from portakernel.errors import ManifestError
from portakernel.host.regular_file import read_regular
from portakernel.text.printable import is_unshown, one_line

MAX_BYTES = 1 << 20
MAX_ALIASES = 128
MAX_NODES = 50_000
MAX_DEPTH = 24
MAX_NUMBER = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, six times faster, where PyYAML has it
_RESOLVER: Any = yaml.SafeLoader("")  # for its implicit types alone
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("null", "bool", "int", "float", "str")}

# What YAML 1.1 and 1.2 read alike. 012 is 10 in the one and 12 in the other, 1:30 is 90 and text, no is false and text.
_DECIMAL = r"[-+]?(0|[1-9][0-9]*)"
_PLAIN = {
    "bool": re.compile("true|false|True|False|TRUE|FALSE"),
    "int": re.compile(_DECIMAL),
    "float": re.compile(rf"{_DECIMAL}?\.[0-9]*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    "str": re.compile(r"(?!)"),
}
# What YAML 1.2 reads as a number and 1.1 does not.
_ODD_NUMBER = re.compile(r"[-+]?0(o[0-7]+|[0-9]+)")

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A file's data, and the line (from 1) of each key path in it; None for data that was never in a file."""

    path: str
    data: Any
    lines: Mapping[KeyPath, int] | None

    def line(self, path: KeyPath) -> int:
        """The line of ``path``, or of the nearest enclosing key."""
        lines = self.lines or {}
        while path and path not in lines:
            path = path[:-1]
        return lines.get(path, 1)


@dataclass(slots=True)
class _Frame:
    value: list[Any] | dict[Any, Any]
    path: KeyPath
    anchor: str | None
    key: Any = None
    awaits_value: bool = False
    key_lines: dict[Any, int] = field(default_factory=dict[Any, int])
    nodes: int = 1


@dataclass(slots=True)
class _Builder:
    path: str
    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict[str, tuple[Any, int]])
    stack: list[_Frame] = field(default_factory=list[_Frame])
    nodes: int = 0
    aliases: int = 0
    root: Any = None

    def fail(self, mark: Any, text: str) -> ManifestError:
        return ManifestError(self.path, [f"{self.path}:{mark.line + 1}: {text}"])

    def build(self, events: Iterator[Any]) -> Any:
        documents = 0
        for event in events:
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise self.fail(event.start_mark, "holds several documents; one is accepted")
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self.open(event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    frame = self.stack.pop()
                    self.place(frame.value, event.start_mark, frame.anchor, frame.nodes, collection=True)
                case yaml.ScalarEvent():
                    self.place(self.scalar(event), event.start_mark, event.anchor, 1)
                case yaml.AliasEvent():
                    self.place(*self.alias(event), new=False)
                case _:
                    pass
        return self.root

    def open(self, event: Any) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self.fail(event.start_mark, f"is nested deeper than {MAX_DEPTH} levels")
        if event.tag is not None:
            raise self.fail(
                event.start_mark, f"tag {event.tag!r} is not accepted; write plain mappings, lists and scalars"
            )
        path = self.child_path(event.start_mark)
        self.lines.setdefault(path, event.start_mark.line + 1)
        value: list[Any] | dict[Any, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Frame(value, path, event.anchor))

    def child_path(self, mark: Any) -> KeyPath:
        if not self.stack:
            return ()
        frame = self.stack[-1]
        if isinstance(frame.value, list):
            return (*frame.path, len(frame.value))
        if not frame.awaits_value:
            raise self.fail(mark, "a key must be a plain scalar")
        return (*frame.path, str(frame.key))

    def scalar(self, event: Any) -> Any:
        self.refuse_unshown(event.start_mark, event.value, "\n\t")
        if event.tag is not None:
            raise self.fail(event.start_mark, f"tag {event.tag!r} is not accepted; quote the value if it is text")
        if not event.implicit[0]:
            return event.value
        tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, (True, False))
        if tag == "tag:yaml.org,2002:merge":
            raise self.fail(event.start_mark, "merge keys (<<) are not accepted; a plugin.yaml has `defaults:` instead")
        kind = _PLAIN_TAGS.get(tag, "str")  # a date stays the text that it was
        if kind == "str" and not _ODD_NUMBER.fullmatch(event.value):
            return event.value
        if len(event.value) > MAX_NUMBER:
            shown = event.value[:40] + "…"
            raise self.fail(event.start_mark, f"{shown!r} is not a {kind}: it has {len(event.value)} characters")
        try:
            node = yaml.ScalarNode(tag, event.value)
            value = event.value if kind == "str" else _RESOLVER.yaml_constructors[tag](_RESOLVER, node)
        except ValueError as error:
            raise self.fail(event.start_mark, f"{event.value!r} is not a {kind}: {error}") from error
        if kind in _PLAIN and not _PLAIN[kind].fullmatch(event.value):
            raise self.fail(event.start_mark, _ambiguous(event.value, kind, value))
        return value

    def refuse_unshown(self, mark: Any, text: str, layout: str) -> None:
        if text.isprintable():
            return
        if unshown := next((c for c in text if is_unshown(c) and c not in layout), None):
            raise self.fail(mark, f"holds {unshown!r}, which a terminal obeys or hides and does not show; remove it")

    def alias(self, event: Any) -> tuple[Any, Any, None, int]:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise self.fail(event.start_mark, f"uses more than {MAX_ALIASES} aliases")
        if event.anchor not in self.anchors:
            raise self.fail(event.start_mark, f"alias *{event.anchor} has no anchor before it")
        value, nodes = self.anchors[event.anchor]
        return value, event.start_mark, None, nodes

    def place(
        self, value: Any, mark: Any, anchor: str | None, nodes: int, *, collection: bool = False, new: bool = True
    ) -> None:
        self.nodes += nodes if not new else int(not collection)
        if self.nodes > MAX_NODES:
            raise self.fail(mark, f"expands to more than {MAX_NODES} values")
        if anchor is not None:
            self.anchors[anchor] = (value, nodes)
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        frame.nodes += nodes
        if isinstance(frame.value, list):
            self.lines.setdefault((*frame.path, len(frame.value)), mark.line + 1)
            frame.value.append(value)
        elif frame.awaits_value:
            frame.value[frame.key] = value
            frame.awaits_value = False
        else:
            self.take_key(frame, value, mark)

    def take_key(self, frame: _Frame, key: Any, mark: Any) -> None:
        if isinstance(key, (list, dict)):
            raise self.fail(mark, "a key must be a plain scalar")
        self.refuse_unshown(mark, str(key), "")
        if key in frame.value:
            first = frame.key_lines[key]
            raise self.fail(mark, f"key {key!r} is a duplicate of the one in line {first}")
        frame.key, frame.awaits_value = key, True
        frame.key_lines[key] = mark.line + 1
        self.lines[(*frame.path, str(key))] = mark.line + 1


def _ambiguous(text: str, kind: str, value: Any) -> str:
    """That YAML's versions read ``text`` in different ways, and what to write."""
    if kind == "bool":
        return f"{text!r} is {str(value).lower()} in YAML 1.1 and text in 1.2; write {str(value).lower()}, or quote it"
    if kind == "str":
        return f"{text!r} is text in YAML 1.1 and a number in 1.2; write a decimal number, or quote it"
    return f"{text!r} is no decimal number, and {value} in YAML 1.1; write {value}, or quote it"


def read_yaml(path: Path, *, shown_as: str | None = None) -> Document:
    """The file's one document as dicts, lists and scalars.

    Raises:
        ManifestError: it cannot be read, exceeds a bound, or uses what is not accepted; names file and line.
    """
    name = one_line(shown_as or str(path))
    try:
        content = read_regular(path, limit=MAX_BYTES)
    except OSError as error:
        is_kind = error.errno in (errno.EINVAL, errno.EISDIR, errno.EFBIG)
        text = error.strerror if is_kind else f"cannot be read: {error.strerror or error}"
        raise ManifestError(name, [f"{name}: {text}"]) from error
    return _document(name, content)


@functools.lru_cache(maxsize=64)  # a command reads a manifest several times; nobody changes what it holds
def _document(name: str, content: bytes) -> Document:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ManifestError(name, [f"{name}:{line}: is not UTF-8: {error.reason}"]) from error
    builder = _Builder(name)
    try:
        data = builder.build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise ManifestError(name, [f"{name}:{line}: is not valid YAML: {problem}"]) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ManifestError(name, [f"{name}:{line}: is not valid YAML: {error.reason}"]) from error
    except yaml.YAMLError as error:
        raise ManifestError(name, [f"{name}: is not valid YAML: {error}"]) from error
    return Document(name, data, builder.lines)


def keys_in(path: Path) -> dict[Any, Any] | None:
    """What the file's one document holds by its keys; None where it cannot be read, or has none."""
    try:
        data = read_yaml(path).data
    except ManifestError:
        return None
    return data if isinstance(data, dict) else None
