"""An op's keyword arguments that are no tensors: their kinds, and any value brought to one canonical form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.words.masks import BUILT_IN, MASKS

# mask     a mask by name: a built-in one, or any that was registered (portakernel.masks)
# window   how many positions before and after a query it sees, as a pair; -1: all of them
# dtype    a dtype by name; torch.dtype is accepted in calls
# format   a scale format by name (portakernel.words.dtypes.SCALE_FORMATS)
Kind = Literal["float", "int", "bool", "text", "dtype", "format", "mask", "window"]
UNLIMITED = -1
LARGEST = (1 << 63) - 1  # kernels and torch's schemas take integers of 64 bits


@dataclass(frozen=True, slots=True)
class Parameter:
    """A keyword argument: a *value*, which every kernel honours, or a *feature*, which a kernel must list to be asked.

    A feature's default is neutral: passing it changes nothing. ``choices`` are the accepted words of a ``text``,
    ``dtype`` or ``format``, or the accepted numbers of an ``int``. ``optional`` ones may be None; one that is not, with
    None as its default, has to be given. A ``format`` is that of the tensor called ``of``, under whose name requests
    and manifests have it. A ``permission`` names the argument that backward may write over where the value is True, and
    need not; graphs, which could not know of it, are traced without. Of a ``float``, results are defined from ``least``
    to ``most``, however near to either, and the conformance kit draws from there; an ``int`` is no less than ``least``
    either, and ``usual`` are values of it that the kit draws. An ``int`` that ``bounds`` a tensor is at least as long
    as the longest piece that this tensor's ends leave.
    """

    name: str
    default: Any
    feature: bool = False
    kind: Kind = "float"
    choices: tuple[Any, ...] = ()
    optional: bool = False
    of: str = ""
    summary: str = ""
    permission: str = ""
    least: float = -math.inf
    most: float = math.inf
    bounds: str = ""
    usual: tuple[int, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether every call has to give it."""
        return self.default is None and not self.optional

    def canonical(self, op: str, value: object) -> Any:
        """``value`` in the one form that kernels, keys and torch's schemas have.

        Raises:
            ArgumentTypeError: it is of another kind.
            ArgumentValueError, UnknownNameError: it is not among the accepted values.
        """
        if value is None and self.optional:
            return None
        if value is None and "none" in self.possible():
            return "none"
        if value is None and self.is_required:
            raise ArgumentTypeError(f"{op}: {self.name} is not given; it must be {self.accepted()}: {self.summary}")
        return _CANONICAL[self.kind](self, op, value)

    def parse(self, op: str, text: str) -> Any:
        """The value written as ``text``, as on a command line: a number, ``true``, ``none``, a word, ``left,right``.

        Raises:
            ArgumentTypeError, ArgumentValueError, UnknownNameError: as for ``canonical``.
        """
        words: dict[str, object] = {"true": True, "false": False}
        if text.lower() == "none" and (self.optional or "none" not in self.possible()):
            return self.canonical(op, None)
        if self.kind == "window":
            parts = [_number(part.strip()) for part in text.strip("()[]").split(",")]
            return self.canonical(op, tuple(parts))
        if self.kind in ("float", "int", "bool"):
            return self.canonical(op, words.get(text.lower(), _number(text)))
        return self.canonical(op, text)

    def possible(self) -> tuple[Any, ...]:
        """Every value that it may have, where these can be listed; else none. Of masks, the built-in ones."""
        if self.kind == "mask":
            return tuple(mask.name for mask in BUILT_IN)
        return (False, True) if self.kind == "bool" else self.choices

    def accepted(self) -> str:
        """What it may be, for people."""
        kinds = {
            "float": self._numbers(),
            "int": _either(self.choices) or self._integers(),
            "bool": "True or False",
            "mask": f"{_either(self.possible())}, or a name that portakernel.masks.register was given",
            "window": "(left, right), each -1 or None for all",
        }
        shown = kinds.get(self.kind) or _either(self.choices)
        return f"{shown} or None" if self.optional else shown

    def _integers(self) -> str:
        return f"an integer from {self.least:g} up" if math.isfinite(self.least) else "an integer"

    def _numbers(self) -> str:
        """The numbers that a ``float`` may be, for people."""
        if math.isfinite(self.most):
            return f"a number from {self.least:g} to {self.most:g}"
        return f"a number from {self.least:g} up" if math.isfinite(self.least) else "a number"


def _either(words: tuple[Any, ...]) -> str:
    return " or ".join(repr(word) for word in words)


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text.lower() == "none" else text


def _float(parameter: Parameter, op: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong_type(parameter, op, value)
    try:
        number = float(value)
    except OverflowError as error:
        raise ArgumentValueError(f"{op}: {parameter.name} is beyond what a float holds") from error
    if not (parameter.least <= number <= parameter.most and math.isfinite(number)):
        accepted = parameter.accepted().replace("a number", "a finite number", 1)
        raise ArgumentValueError(f"{op}: {parameter.name} must be {accepted}; this is {value!r}")
    return number


def _int(parameter: Parameter, op: str, value: object) -> Any:
    # a symbol of a traced graph is neither, and stays what it is
    if type(value).__name__ == "SymInt":
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong_type(parameter, op, value)
    found = int(value)
    if parameter.choices and found not in parameter.choices:
        raise ArgumentValueError(f"{op}: {parameter.name} must be {parameter.accepted()}; this is {value!r}")
    if not -LARGEST - 1 <= found <= LARGEST:
        lowest = f"{parameter.least:g}" if math.isfinite(parameter.least) else "-2**63"
        least = UNLIMITED if parameter.kind == "window" else 0 if parameter.bounds else lowest
        # by its size, because Python writes no number of more than some thousand digits
        size = f"2**{abs(found).bit_length() - 1} or"
        text = f"this is {f'{size} more' if found > 0 else f'-{size} less'}; accepted: {least} to 2**63 - 1"
        raise ArgumentValueError(f"{op}: {parameter.name} is beyond what 64 bits hold; {text}")
    if parameter.bounds and found < 0:
        raise ArgumentValueError(f"{op}: {parameter.name} counts positions, from 0; this is {value!r}")
    if found < parameter.least:
        raise ArgumentValueError(f"{op}: {parameter.name} must be {parameter.accepted()}; this is {value!r}")
    return found


def _bool(parameter: Parameter, op: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(parameter, op, value)
    return value


def _word(parameter: Parameter, op: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong_type(parameter, op, value)
    if value not in parameter.choices:
        raise UnknownNameError(f"value of {parameter.name}", value, parameter.choices, where=op)
    return value


def _mask(parameter: Parameter, op: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong_type(parameter, op, value)
    if value not in MASKS:
        hint = "Own masks: portakernel.masks.register"
        raise UnknownNameError(f"value of {parameter.name}", value, MASKS, where=op, hint=hint)
    return value


def _dtype(parameter: Parameter, op: str, value: object) -> str:
    # torch.dtype shows itself as torch.<name>; this module knows no torch
    if type(value).__name__ == "dtype":
        value = str(value)
    return _word(parameter, op, value.removeprefix("torch.") if isinstance(value, str) else value)


def _window(parameter: Parameter, op: str, value: object) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise _wrong_type(parameter, op, value)
    sides = [UNLIMITED if side is None else _int(parameter, op, side) for side in value]
    if any(side < UNLIMITED for side in sides):
        raise ArgumentValueError(f"{op}: {parameter.name} counts positions, -1 or None for all; this is {value!r}")
    return sides[0], sides[1]


def _wrong_type(parameter: Parameter, op: str, value: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{op}: {parameter.name} must be {parameter.accepted()}; this is {type(value).__name__} {value!r}"
    )


_CANONICAL: Mapping[Kind, Callable[[Parameter, str, object], Any]] = {
    "float": _float,
    "int": _int,
    "bool": _bool,
    "text": _word,
    "dtype": _dtype,
    "format": _word,
    "mask": _mask,
    "window": _window,
}
