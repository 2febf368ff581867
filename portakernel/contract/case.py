"""What the conformance kit draws: cases, how tensors lie in memory, which numbers they hold."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Layout = Literal["contiguous", "sliced", "transposed", "expanded", "stepped", "offset", "split"]
Values = Literal["normal", "large", "tiny", "special", "zeros", "sparse", "mixed"]


DrawKind = Literal[
    "numbers",
    "index",
    "ids",
    "segments",
    "offsets",
    "scale",
    "mask",
    "lengths",
    "pages",
    "slots",
    "experts",
    "lse",
    "block_counts",
    "blocks",
    "words",
    "groups",
]


@dataclass(frozen=True, slots=True)
class Draw:
    """What the elements of a tensor argument are.

    ``numbers``: as the case's ``values`` says. ``index``: integers from 0 to below the size of dimension ``below``; one
    in five is the value of the parameter ``sometimes`` instead, where one is named. ``segments``: ends of consecutive
    pieces of dimension ``below``, from 0 to all of it, some of them empty (``R|M``: of R, or of M in calls without);
    ``offsets``: the pieces' starts. ``scale``: positive numbers around 1. ``mask``: numbers, of which some are minus
    infinity; in some rows all are, or all one very large negative number.

    Of serving: ``lengths``: from 0 to ``below``, which may be a product (``W*P``); some are 0, some all of it.
    ``pages``: a table of ``lengths``' pages of ``page`` tokens, all different where there are enough; entries that no
    sequence needs are -1, ``below`` (there is no such page), or a page that is nobody's. ``slots``: different places
    below ``below``; one in five is -1, for none. ``experts``: different ones below ``below`` in each row, some of which
    no row picks; where some may be ``absent``, one in five is -1, and rows that are longer have some twice.

    ``lse``: the logarithms that parts of attention come with, ordinary ones, some of them alike, some 100 up or down;
    minus infinity where a part saw no key.

    Of block maps: ``blocks``: in each row different blocks of ``below``, which is ``T/block`` for those of dimension
    ``T`` whose size the parameter ``block`` says, as many as ``lengths`` has counts for; behind them is what points
    nowhere. ``block_counts``: how many these are, up to ``room``, which is a dimension. What stands ``beside`` another
    list has none of its blocks, and together they are no more than there are. ``turned`` ones say of each block which
    rows have it in the lists of this name, their arguments' names being followed by ``_count`` and ``_index``.

    Of 4-bit weights: ``words``: any bits, of bytes the low four alone. ``groups``: for each column the group that it is
    in, of those that the argument ``lengths`` has scales for, beside its dimension ``below``. As many are in each as
    the parameter ``group`` says, any number where that is 0. Where the parameter ``page`` names a packed layout,
    columns stand in the order of their groups instead, with their groups below where these are of any size.

    ``ids``: a few different integers, or any up to ``below``.

    ``poison`` names another argument, which says what of this one nobody may look at: that is NaN, so that whoever
    reads it shows. Of ``pages``, what none of its sequences reaches, this one's first dimensions being pages and
    tokens; of an ``lse``, what has minus infinity there, whose dimensions this one has by the same names; of
    ``blocks``, what is in no list.
    """

    kind: DrawKind = "numbers"
    below: str = ""
    sometimes: str = ""
    lengths: str = ""
    page: str = ""
    poison: str = ""
    room: str = ""
    beside: str = ""
    turned: str = ""
    absent: bool = False

    @property
    def bounds(self) -> tuple[str, ...]:
        """Every dimension that ``below`` may be over."""
        return tuple(name for factor in self.below.split("*") for name in factor.split("|"))

    def factors(self, known: Container[str]) -> list[str]:
        """The dimensions whose product ``below`` is in a call that has those ``known``."""
        several = (factor.split("|") for factor in self.below.split("*"))
        return [next((name for name in names if name in known), names[-1]) for names in several]


@dataclass(frozen=True, slots=True)
class Case:
    """One input for conformance. Dtypes are not part of it: each kernel runs each case in every dtype it claims.

    ``leading`` is the shape of the ``*`` dimensions; ``layouts`` says how each argument lies in memory (contiguous
    where not named); ``values`` draws the numbers: ``normal``, ``large`` and ``tiny`` magnitudes, ``special`` with NaN,
    both infinities and signed zeros, ``zeros``, ``mixed`` rows and blocks, each of which may differ. ``present`` names
    the optional tensors that are passed, ``given`` holds the elements of integer tensors that shall not be drawn.
    """

    name: str
    leading: tuple[int, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    values: Values = "normal"
    backward: bool = True
    present: tuple[str, ...] = ()
    given: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
