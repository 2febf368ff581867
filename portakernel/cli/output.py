"""What commands print: tables and lines, laid out and coloured on a terminal, plain and unwrapped elsewhere."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TextIO

Style = Literal["", "good", "bad", "doubt", "faint", "strong"]
_COLOURS = {"good": "green", "bad": "red", "doubt": "yellow", "faint": "dim", "strong": "bold"}
_LONGEST_NAME = 24
# Where a command's JSON goes; None means standard output.
_ANSWERS: ContextVar[TextIO | None] = ContextVar("portakernel_answers", default=None)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def printable(text: str) -> str:
    """``text`` with control characters shown, not sent: manifests and file names are strangers' text."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a meaning that a terminal shows as a colour."""

    text: str
    style: Style = ""


class Page:
    """Standard output as plain text: one line a row, never wrapped, no colour."""

    def line(self, text: str | Sequence[str | Cell] = "", style: Style = "", *, indent: int = 0) -> None:
        """One line, or several where ``text`` has several; its parts may have styles of their own."""
        for part in printable("".join(cell.text for cell in _parts(text, style))).split("\n"):
            print((" " * indent + part).rstrip())

    def heading(self, text: str) -> None:
        """A line that opens a section."""
        self.line()
        self.line(text, "strong")

    def table(
        self,
        rows: Sequence[Sequence[str | Cell]],
        headers: Sequence[str] = (),
        *,
        indent: int = 0,
        right: Sequence[int] = (),
    ) -> None:
        """Rows of cells, aligned; the columns in ``right`` to the right."""
        texts = _texts(rows, headers)
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            cells = (t.rjust(w) if i in right else t.ljust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True)))
            print(" " * indent + "  ".join(cells).rstrip())


class Terminal(Page):
    """Standard output as a terminal: coloured, wrapped inside columns."""

    def __init__(self) -> None:
        from rich.console import Console

        # nothing is guessed from the text: what looks like markup, an emoji or a number is a stranger's
        self.console = Console(markup=False, emoji=False, highlight=False)

    def line(self, text: str | Sequence[str | Cell] = "", style: Style = "", *, indent: int = 0) -> None:
        """One line, or several where ``text`` has several; its parts may have styles of their own."""
        from rich.padding import Padding
        from rich.text import Text

        parts = ((printable(cell.text), _COLOURS.get(cell.style, "")) for cell in _parts(text, style))
        content = Text.assemble(*parts)
        self.console.print(Padding(content, (0, 0, 0, indent), expand=False) if indent else content)

    def table(
        self,
        rows: Sequence[Sequence[str | Cell]],
        headers: Sequence[str] = (),
        *,
        indent: int = 0,
        right: Sequence[int] = (),
    ) -> None:
        """Rows of cells, aligned; the columns in ``right`` to the right."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*_texts(rows, headers), strict=True)]
        # names stay whole, and long texts wrap, unless the names alone nearly fill the terminal
        names = [width <= _LONGEST_NAME for width in widths]
        whole = sum(w + 2 for w, short in zip(widths, names, strict=True) if short) < 0.8 * self.console.width
        grid = Table(box=None, show_header=bool(headers), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, name in enumerate(names):
            justify: Literal["left", "right"] = "right" if i in right else "left"
            grid.add_column(headers[i] if headers else "", overflow="fold", no_wrap=name and whole, justify=justify)
        for row in cells:
            grid.add_row(*(Text(printable(cell.text), style=_COLOURS.get(cell.style, "")) for cell in row))
        self.console.print(Padding(grid, (0, 0, 0, indent), expand=False))


def _parts(text: str | Sequence[str | Cell], style: Style) -> list[Cell]:
    """A line's parts, each with its style: its own, or that of the line."""
    several = [text] if isinstance(text, str) else text
    return [part if isinstance(part, Cell) else Cell(part, style) for part in several]


def _texts(rows: Sequence[Sequence[str | Cell]], headers: Sequence[str]) -> list[list[str]]:
    """What the cells show, headers first, each on one line."""
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in rows]
    return [
        [printable(text).replace("\n", " ") for text in row] for row in ([list(headers)] if headers else []) + texts
    ]


def page() -> Page:
    """Where a command prints what people read."""
    return Terminal() if is_terminal(sys.stdout) else Page()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people look at ``stream`` as it is written; Python has no stream where the shell closed it."""
    return stream is not None and stream.isatty()


def print_json(data: Any) -> None:
    """Prints ``data`` as JSON. A number that JSON does not have (NaN, an infinity) becomes null."""
    print(json.dumps(_finite(data), indent=2), file=_ANSWERS.get())


@contextlib.contextmanager
def answers_alone() -> Iterator[None]:
    """Keeps standard output for what ``print_json`` prints; what plugins print meanwhile goes to standard error."""
    token = _ANSWERS.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(token)


def json_error(kind: str, message: str) -> str:
    """The JSON form of an error."""
    return json.dumps({"error": {"type": kind, "message": message}}, indent=2)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data
