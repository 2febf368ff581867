"""Text from strangers is shown, not obeyed."""

from __future__ import annotations

import logging
import unicodedata

import pytest

from portakernel.text.printable import exception_text, logger, one_line, printable

HOSTILE = {
    "a colour": ("\x1b[31m", r"\x1b[31m"),
    "an operating system command": ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    "a C1 introducer": ("\x9b31m", r"\x9b31m"),
    "a backspace": ("a\x08b", r"a\x08b"),
    "a carriage return": ("good\rbad", r"good\rbad"),
    "a null": ("\x00", r"\x00"),
    "a delete": ("\x7f", r"\x7f"),
    "an override to the left": ("\u202egpj", r"\u202egpj"),
    "an isolate": ("\u2066x\u2069", r"\u2066x\u2069"),
    "marks of direction": ("\u200e\u200f\u061c", r"\u200e\u200f\u061c"),
    "zero widths": ("a\u200b\u200c\u200d\u2060\ufeffb", r"a\u200b\u200c\u200d\u2060\ufeffb"),
    "separators of lines": ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
    "a lone surrogate": ("\udc9b", r"\udc9b"),
    "a soft hyphen": ("pass\xadword", r"pass\xadword"),
    "tags": ("x\U000e0041", r"x\U000e0041"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_terminal_obeys_or_hides_becomes_an_escape(name: str) -> None:
    text, shown = HOSTILE[name]
    assert printable(text) == shown
    assert one_line(text) == shown


def test_every_character_that_is_not_shown_is_escaped() -> None:
    unshown = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for code in range(0x110000):
        character = chr(code)
        escaped = one_line(character) != character
        assert escaped == (unicodedata.category(character) in unshown), hex(code)


def test_text_that_people_write_is_left_as_it_is() -> None:
    text = "RTX 5090 · “fast” – 1 000×: 日本語, עברית, naïve, 🚀"
    assert printable(text) == one_line(text) == text


def test_lines_stay_lines_unless_one_is_meant() -> None:
    assert printable("one\n\ttwo") == "one\n\ttwo"
    assert one_line("one\n\ttwo") == r"one\n\ttwo"


def test_an_exception_is_one_line_whatever_it_does() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert exception_text(ValueError("a\n\x1b[2Jb")) == r"ValueError: a\n\x1b[2Jb"
    assert exception_text(KeyError()) == "KeyError"
    assert exception_text(SilentError()) == "SilentError: its message cannot be read: RuntimeError"
    assert exception_text(type("Bad\x1bName", (Exception,), {})("x")) == r"Bad\x1bName: x"


def test_a_logged_record_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="portakernel"):
        logger().debug("%s said %s", "acme", "a\n\x1b[31mERROR all is lost")
    assert caplog.messages == [r"acme said a\n\x1b[31mERROR all is lost"]
