"""What the numbers in a tensor argument have to be, where an op is defined for some alone; as data, without torch.

Kernels need not look: on accelerators the answer would have to be waited for. ``PORTAKERNEL_CHECKS=1`` looks before
each call (``portakernel.calling.value_checks``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Indices:
    """Each number is from 0 to below the size of the dimension ``below``, or that of the parameter ``otherwise``."""

    below: str
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """The numbers begin with 0, never fall, and are at most the size of the dimension ``most``.

    ``R|M``: of R, or of M in calls that have no R.
    """

    most: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """Each number counts a sequence's tokens: from 0 to the size ``most``.

    A size of these rules is a dimension, the value of an ``int`` parameter (``$k``), or a product of them (``W*P``).
    """

    most: str


@dataclass(frozen=True, slots=True)
class Pages:
    """A page table, a row for each sequence: entries that its length reaches are at least 0 and below ``below``.

    ``below`` names a size, ``page`` the size that says how many tokens a page holds, ``lengths`` the argument with the
    sequences' lengths (which has a rule ``Lengths``). Entries that no length reaches may hold anything.
    """

    below: str
    lengths: str
    page: str


@dataclass(frozen=True, slots=True)
class Slots:
    """Where tokens are written: -1 for one that is not, else from 0 to below the size ``below``, and no place twice."""

    below: str


@dataclass(frozen=True, slots=True)
class Experts:
    """Which expert takes a token: from 0 to below the size ``below``; or -1, for none, where some may be ``absent``."""

    below: str
    absent: bool = False


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """How many blocks a list holds: from 0 to ``room``, a dimension or ``S/block``, the blocks of one."""

    room: str


@dataclass(frozen=True, slots=True)
class Blocks:
    """Lists of blocks, of which the first are meant that the argument ``counts`` says, each once and below ``below``.

    ``T/block`` is the number of blocks of the dimension ``T`` whose size the parameter ``block`` says. None is on the
    same row's list of ``apart``, the counts and indices of another one, if it is there.
    """

    counts: str
    below: str
    apart: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Groups:
    """Each number is a group that the argument ``scales`` has scales for, beside its dimension ``across``.

    Where the parameter ``layout`` names a packed layout of 4-bit weights, it is a column instead, below which its group
    may stand in a second row.
    """

    scales: str
    across: str
    layout: str


ServingRule = Lengths | Pages | Slots | Experts
ValueRule = Indices | Ends | BlockCounts | Blocks | Groups | ServingRule
