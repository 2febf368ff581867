"""Sizes as contracts write them: ``N``, ``2N``, ``N/2``, ``ceil(K/32)``, ``4*ceil(K/128)``, ``B+1``, ``1``.

An expression over one dimension. The first argument that mentions a dimension gives it, solved from its size where
that is possible; every later mention is a condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portakernel.words.symbols import holds

_FORM = re.compile(
    r"(?P<literal>\d+)"
    r"|(?:(?P<times>\d+)\*)?ceil\((?P<rounded>[A-Za-z]\w*)/(?P<group>\d+)\)"
    r"|(?P<factor>\d+)?(?P<name>[A-Za-z]\w*)(?:/(?P<divisor>\d+)|\+(?P<more>\d+))?"
)
# A dimension's name inside a requirement, and that of an int parameter there.
DIMENSION = re.compile(r"\b[A-Z]\w*\b")
VALUE = re.compile(r"\$(\w+)")
# A result's size that parameters' values make: one, one more, or one over another, rounded up.
_OF_VALUES = re.compile(r"\$(?P<name>\w+)(?:\+(?P<more>\d+)|/\$(?P<divisor>\w+))?")


@dataclass(frozen=True, slots=True)
class Size:
    """One expression taken apart: ``name`` is the dimension that it is over, None for a plain number.

    Its value is ``factor * name // divisor + more``, rounded up for ``ceil``.
    """

    text: str
    name: str | None
    factor: int = 1
    divisor: int = 1
    more: int = 0
    rounded: bool = False

    def of(self, size: int) -> int:
        """The value where the dimension is ``size``."""
        if self.name is None:
            return self.more
        return (
            self.factor * -(-size // self.divisor) if self.rounded else self.factor * size // self.divisor + self.more
        )

    def solve(self, value: int) -> int | None:
        """The dimension of which this is ``value``; None where there is none, or more than one."""
        if self.name is None or self.rounded:
            return None
        scaled = (value - self.more) * self.divisor
        return scaled // self.factor if holds(scaled >= 0) and holds(scaled % self.factor == 0) else None

    def exact(self, size: int) -> bool:
        """Whether the dimension ``size`` gives a whole number."""
        return self.rounded or holds(self.factor * size % self.divisor == 0)

    @property
    def solvable(self) -> bool:
        """Whether the value fixes the dimension."""
        return self.name is not None and not self.rounded

    def source(self, name: str) -> str:
        """The value as Python source, where the dimension is the expression ``name``."""
        if self.name is None:
            return str(self.more)
        if self.rounded:
            return f"{self.factor} * -(-{name} // {self.divisor})"
        text = name if self.factor == 1 else f"{self.factor} * {name}"
        text = text if self.divisor == 1 else f"{text} // {self.divisor}"
        return text if self.more == 0 else f"{text} + {self.more}"

    def solved(self, value: str) -> tuple[str, str]:
        """The dimension as Python source, where this is the expression ``value``; and a condition, may be empty."""
        text = value if self.more == 0 else f"({value} - {self.more})"
        condition = "" if self.more == 0 else f"{value} >= {self.more}"
        text = text if self.divisor == 1 else f"({text} * {self.divisor})"
        if self.factor == 1:
            return text, condition
        return f"({text} // {self.factor})", f"{text} % {self.factor} == 0"


def names_in(text: str) -> tuple[str, ...] | None:
    """The int parameters that make a result's size: ``$k``, ``$n+1``, ``$n/$m``; None where ``text`` is none such."""
    found = _OF_VALUES.fullmatch(text)
    return None if found is None else tuple(VALUE.findall(text))


def size_of_values(text: str, values: Mapping[str, Any]) -> int:
    """The size that ``text`` is, for which ``names_in`` has names, with these values: symbols of a trace stay so."""
    found = _OF_VALUES.fullmatch(text)
    assert found is not None
    size: int = values[found["name"]]
    if found["divisor"]:
        divisor: int = values[found["divisor"]]
        return -(-size // divisor)
    return size + int(found["more"]) if found["more"] else size


def parse_size(text: str) -> Size:
    """The expression that ``text`` is.

    Raises:
        ValueError: it has none of the accepted forms.
    """
    return _PARSED[text]


class _Parsed(dict[str, Size]):
    """Every expression seen so far; no ``functools.cache``, of which torch.compile warns wherever it meets one."""

    def __missing__(self, text: str) -> Size:
        return self.setdefault(text, _parse(text))


_PARSED = _Parsed()


def _parse(text: str) -> Size:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no size; write N, 2N, N/2, ceil(N/32), N+1 or a number")
    if found["literal"]:
        return Size(text, None, more=int(found["literal"]))
    if found["rounded"]:
        return Size(text, found["rounded"], int(found["times"] or 1), int(found["group"]), rounded=True)
    factor, divisor, more = (
        int(found[key] or default) for key, default in (("factor", 1), ("divisor", 1), ("more", 0))
    )
    return Size(text, found["name"], factor, divisor, more)
