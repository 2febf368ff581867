"""Text from strangers made safe to show: what a terminal obeys, hides or reorders becomes a visible escape.

Manifests, metadata, exceptions of plugins, file names, devices' names and variables are strangers' text. It is made
printable where it enters, or refused, and once more where errors, warnings, logs and commands show it.
"""

from __future__ import annotations

import logging
import traceback
import unicodedata

# Control characters, formats (bidirectional controls, zero widths, tags), surrogates, and separators of lines.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LAYOUT = "\n\t"
_BRIEF = 200


def is_unshown(character: str) -> bool:
    """Whether a terminal obeys, hides or reorders at ``character`` and does not show it."""
    return not character.isprintable() and unicodedata.category(character) in _UNSHOWN


def printable(text: str) -> str:
    r"""``text`` of several lines, with what is not shown as an escape: ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(c if c in _LAYOUT or not is_unshown(c) else _escaped(c) for c in text)


def one_line(text: str) -> str:
    r"""``text`` on one line, with what is not shown as an escape: ``\n``, ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if is_unshown(c) else c for c in text)


def brief(text: str) -> str:
    """``text`` on one line and no longer than a ``repr`` shall be."""
    line = one_line(text)
    return line if len(line) <= _BRIEF else f"{line[: _BRIEF - 2]}…{line[-1]}"


def exception_text(error: BaseException) -> str:
    """``ValueError: why`` on one line, whatever class of whomever it is: its own ``__str__`` may fail too."""
    kind = one_line(type(error).__name__)
    try:
        text = one_line(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # noqa: BLE001 - a stranger's __str__
        text = f"its message cannot be read: {one_line(type(failure).__name__)}"
    return f"{kind}: {text}" if text else kind


def logger() -> logging.Logger:
    """The logger ``portakernel``, each of whose records is one printable line, tracebacks beside it printable too."""
    found = logging.getLogger("portakernel")
    if _printable_record not in found.filters:
        found.addFilter(_printable_record)
    return found


def _printable_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = one_line(record.getMessage()), ()
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = printable("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))
    return True


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
