"""What commands print: tables and lines, as wide as a terminal and coloured there, plain and 100 wide elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from portakernel.host.json_file import finite
from portakernel.text.printable import printable

Style = Literal["", "good", "bad", "doubt", "faint", "strong"]
_COLOURS = {"good": "green", "bad": "red", "doubt": "yellow", "faint": "dim", "strong": "bold"}
_LONGEST_NAME = 24
# In a pipe or a file, unless COLUMNS says otherwise.
_WIDTH = 100
_GAP = 2
# Where a command's JSON goes; None means standard output.
_ANSWERS: ContextVar[TextIO | None] = ContextVar("portakernel_answers", default=None)


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a meaning that a terminal shows as a colour."""

    text: str
    style: Style = ""


class Page:
    """Standard output as plain text: no colour, wrapped between words, which are never broken."""

    def __init__(self) -> None:
        columns = os.environ.get("COLUMNS", "")
        self.width = int(columns) if columns.isdecimal() and int(columns) > 0 else _WIDTH

    def line(self, text: str | Sequence[str | Cell] = "", style: Style = "", *, indent: int = 0) -> None:
        """One line, or several where ``text`` has several; its parts may have styles of their own."""
        for part in printable("".join(cell.text for cell in _parts(text, style))).split("\n"):
            for line in _wrapped(" " * indent + part, self.width, " " * (indent + _GAP)):
                print(line)

    def verbatim(self, text: str) -> None:
        """Lines as they are, however long: code, which may be copied."""
        for line in text.splitlines():
            print(f"  {printable(line)}")

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
        widths = _column_widths(texts, self.width - indent)
        for row in texts:
            columns = [_wrapped(text, width) for text, width in zip(row, widths, strict=True)]
            for parts in itertools.zip_longest(*columns, fillvalue=""):
                cells = (
                    part.rjust(width) if i in right else part.ljust(width)
                    for i, (part, width) in enumerate(zip(parts, widths, strict=True))
                )
                print((" " * indent + (" " * _GAP).join(cells)).rstrip())


class Terminal(Page):
    """Standard output as a terminal: coloured, wrapped inside columns."""

    def __init__(self) -> None:
        super().__init__()
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


def _wrapped(text: str, width: int, further: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` characters, the further ones indented by ``further``; words stay whole."""
    if len(text) <= width:
        return [text.rstrip()]
    wrap = textwrap.TextWrapper(width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
    return wrap.wrap(text) or [""]


def _column_widths(texts: Sequence[Sequence[str]], width: int) -> list[int]:
    """As wide as their cells where that fits; else the widest give way, and all down to their longest words."""
    columns = list(zip(*texts, strict=True))
    natural = [max(map(len, column)) for column in columns]
    words = [max((len(word) for text in column for word in text.split()), default=0) for column in columns]
    left = width - _GAP * (len(columns) - 1)
    widths = dict[int, int]()
    # the narrow ones first, each taking no more than its share of what is left, nor what others' words need
    order = sorted(range(len(columns)), key=natural.__getitem__)
    for done, i in enumerate(order):
        share = min(left // (len(columns) - done), left - sum(words[other] for other in order[done + 1 :]))
        widths[i] = min(natural[i], max(share, words[i]))
        left -= widths[i]
    return [widths[i] for i in range(len(columns))]


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


def answers() -> TextIO | None:
    """Where a command's answer goes; Python has no standard output where the shell closed it."""
    return _ANSWERS.get() or sys.stdout


def print_json(data: Any) -> None:
    """Prints ``data`` as JSON. A number that JSON does not have (NaN, an infinity) becomes null."""
    print(json.dumps(finite(data), indent=2), file=answers())


def print_json_error(kind: str, message: str) -> None:
    """Prints an error in its JSON form."""
    print_json({"error": {"type": kind, "message": message}})


@contextlib.contextmanager
def answers_alone(*, to_the_end: bool) -> Iterator[None]:
    """Keeps standard output for what ``print_json`` prints; what others print meanwhile goes to standard error.

    That holds for descriptor 1 too, to which C libraries and child processes write. ``to_the_end`` of the process:
    what they print when it exits, or keep in buffers until then, is no answer either.
    """
    with contextlib.ExitStack() as stack:
        stream = _descriptor_apart(stack, to_the_end=to_the_end) or sys.stdout
        token = _ANSWERS.set(stream)
        stack.callback(_ANSWERS.reset, token)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _descriptor_apart(stack: contextlib.ExitStack, *, to_the_end: bool) -> TextIO | None:
    """Sends descriptor 1 to standard error; what reaches the place it had, if that is ``sys.stdout``'s."""
    _flush()
    try:
        ours = os.dup(1)
    except OSError:  # the shell closed it
        return None
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not to_the_end:
        stack.callback(_take_back, ours)
    try:
        encoding, errors, number = sys.stdout.encoding, sys.stdout.errors, sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation):  # there is none, or it is no file
        return None
    if number != 1:
        return None
    return stack.enter_context(open(ours, "w", encoding=encoding, errors=errors, closefd=False))


def _take_back(ours: int) -> None:
    _flush()
    os.dup2(ours, 1)
    os.close(ours)


def _flush() -> None:
    """Empties the buffers of Python's standard output and of the C library's, which are not one."""
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
