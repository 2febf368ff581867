"""A source file as bytes, of which pieces are replaced: lines, and the bytes of a node of its syntax tree."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SourceText:
    """The content of a file; columns of syntax trees count its bytes."""

    content: bytes

    @cached_property
    def starts(self) -> list[int]:
        """The byte at which each line begins."""
        return [0, *itertools.accumulate(map(len, self.content.splitlines(keepends=True)))]

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """The bytes of a node."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end_column

    def line_of(self, place: int) -> int:
        """The number of the line, from 1, in which a byte lies."""
        return self.content.count(b"\n", 0, place) + 1

    def line(self, number: int) -> str:
        """A line's text, without what surrounds it."""
        start, end = self.starts[number - 1], self.starts[min(number, len(self.starts) - 1)]
        return self.text(start, end).strip()

    def text(self, start: int, end: int) -> str:
        """The text between two bytes."""
        return self.content[start:end].decode("utf-8", errors="replace")

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """The text of a node."""
        return self.text(*self.span(node))
