"""How the tensors of a call in words lie in memory: facts, which keys and claims speak of, and strides; no torch.

A call may say facts (``x.contiguous``: false), exact strides, or both. Facts follow from strides; where only facts are
said, strides that keep them are found, so that there is something to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from portakernel.claims.request import PLAIN_FACTS
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError

_ALIGNMENTS = (1, 2, 4, 8, 16)
Sizes = Sequence[int]


@dataclass(frozen=True, slots=True)
class CallLayout:
    """What is not plain about a call's tensors.

    ``facts`` are those that are off ``PLAIN_FACTS``, by ``x.contiguous``; ``strides`` are in elements, by tensor, of
    those that are not contiguous.
    """

    facts: Mapping[str, int]
    strides: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(
        cls, op: str, shapes: Mapping[str, Sizes], layout: Mapping[str, int], strides: Mapping[str, Sizes]
    ) -> CallLayout:
        """The layout that a call's words mean.

        Raises:
            UnknownNameError: there is no such fact.
            ArgumentTypeError, ArgumentValueError: a value, or strides, that no tensor of such a shape can have; facts
                that strides contradict; a layout of a tensor whose shape is not given.
        """
        _check(op, shapes, layout, strides)
        said = _said(op, layout)
        facts, found = dict[str, int](), dict[str, tuple[int, ...]]()
        for name in dict.fromkeys([*said, *strides]):
            wanted = said.get(name, {})
            facts |= {f"{name}.alignment": value for fact, value in wanted.items() if fact == "alignment"}
            of_strides = {fact: value for fact, value in wanted.items() if fact != "alignment"}
            if not of_strides and name not in strides:
                continue
            if name not in shapes:
                raise ArgumentValueError(f"{op}: the layout of {name} is given; give its shape, too")
            lies = _strides(op, name, shapes[name], of_strides, strides.get(name))
            is_off = {fact: value for fact, value in facts_of(shapes[name], lies).items() if value != PLAIN_FACTS[fact]}
            facts |= {f"{name}.{fact}": value for fact, value in is_off.items()}
            if is_off:
                found[name] = lies
        plain = {name: value for name, value in facts.items() if value != PLAIN_FACTS[name.partition(".")[2]]}
        return cls(plain, found)

    def __str__(self) -> str:
        """In words for people: ``x strides 8192×1, y alignment 2``; empty where all is plain."""
        words = [f"{name} strides {'×'.join(map(str, lies))}" for name, lies in self.strides.items()]
        words += [f"{n.replace('.', ' ')} {value}" for n, value in self.facts.items() if n.endswith(".alignment")]
        return ", ".join(words)


# That of contiguous tensors at whole addresses.
PLAIN = CallLayout({}, {})


def facts_of(shape: Sizes, strides: Sizes) -> dict[str, int]:
    """The layout facts that strides decide, of a tensor of this shape: all but its alignment."""
    pairs = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    empty, expected, contiguous = 0 in shape, 1, True
    for size, stride in reversed(pairs):
        contiguous, expected = contiguous and stride == expected, expected * size
    rows = pairs[:-1] if shape and shape[-1] != 1 else pairs
    return {
        "contiguous": empty or contiguous,
        "flat_rows": empty
        or len(shape) <= 2
        or all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(rows)),
        "stride_last": 1 if empty or not shape or shape[-1] <= 1 else strides[-1],
    }


def normal_strides(shape: Sizes, strides: Sizes) -> tuple[int, ...]:
    """The strides, and for dimensions of one element, whose stride means nothing, that of a contiguous one there."""
    found = list[int]()
    for size, stride, after in zip(reversed(shape), reversed(strides), [1, *reversed(shape)], strict=False):
        found.insert(0, stride if size != 1 else found[0] * after if found else 1)
    return tuple(found)


def _check(op: str, shapes: object, layout: object, strides: object) -> None:
    """Nothing, when each of them has something by name; raises what ``CallLayout.of`` does."""
    for what, given, such in (
        ("shape", shapes, "{'x': (4, 8)}"),
        ("layout", layout, "{'x.contiguous': False}"),
        ("strides", strides, "{'x': (16, 1)}"),
    ):
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ArgumentTypeError(f"{op}: {what} is given by name, such as {such}; this is {given!r}")
        for name, value in given.items() if what == "strides" else ():
            if not isinstance(value, (list, tuple)):
                text = f"strides of {name} are whole numbers of elements, such as (16, 1)"
                raise ArgumentTypeError(f"{op}: {text}; this is {value!r}")


def _said(op: str, layout: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The facts by tensor."""
    found: dict[str, dict[str, int]] = {}
    for text, value in layout.items():
        name, _, fact = text.partition(".")
        if fact not in PLAIN_FACTS:
            known = [f"{name or 'x'}.{one}" for one in PLAIN_FACTS]
            raise UnknownNameError("layout fact", text, known, where=op)
        if isinstance(PLAIN_FACTS[fact], bool):
            if not isinstance(value, bool):
                raise ArgumentTypeError(f"{op}: {text} is true or false; this is {value!r}")
        elif type(value) is not int or (value not in _ALIGNMENTS if fact == "alignment" else value < 0):
            accepted = "1, 2, 4, 8 or 16 bytes" if fact == "alignment" else "a whole number of elements, 0 or more"
            raise ArgumentTypeError(f"{op}: {text} is {accepted}; this is {value!r}")
        found.setdefault(name, {})[fact] = value
    return found


def _strides(op: str, name: str, shape: Sizes, wanted: Mapping[str, int], given: Sizes | None) -> tuple[int, ...]:
    """The strides that are given, or such as make the facts that are wanted."""
    if given is not None and (len(given) != len(shape) or any(type(one) is not int or one < 0 for one in given)):
        text = f"strides of {name}, whose shape is {list(shape)}, are {len(shape)} whole numbers of elements, 0 or more"
        raise ArgumentValueError(f"{op}: {text}; these are {list(given)}")
    lies = tuple(given) if given is not None else _made(shape, wanted)
    found = facts_of(shape, lies)
    if wrong := [fact for fact, value in wanted.items() if found[fact] != value]:
        said = ", ".join(f"{name}.{fact}: {_told(wanted[fact])}" for fact in wrong)
        what = f"with strides {list(lies)}" if given is not None else "of this shape"
        those = ", ".join(f"{name}.{fact}: {_told(found[fact])}" for fact in wrong)
        raise ArgumentValueError(f"{op}: {said} is no layout of {name} {what}; {tuple(shape)} has {those}")
    return normal_strides(shape, lies)


def _made(shape: Sizes, wanted: Mapping[str, int]) -> tuple[int, ...]:
    """Strides as they most often come: every other column, rows of a matrix twice as wide, parts of twice as many."""
    rows_apart = not wanted.get("contiguous", True) or not wanted.get("flat_rows", True)
    last = wanted.get("stride_last", 2 if rows_apart and len([size for size in shape if size != 1]) < 2 else 1)
    found, reach = list[int](), last
    for place, size in enumerate(reversed(shape)):
        found.insert(0, reach)
        reach *= size
        if place == 0 and last <= 1 and rows_apart and wanted.get("flat_rows", True):
            reach *= 2
        if place == 1 and not wanted.get("flat_rows", True):
            reach *= 2
    return tuple(found)


def _told(value: int) -> str:
    return str(value).lower()
