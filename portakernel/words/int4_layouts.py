"""Where the elements of a 4-bit weight lie: layouts of checkpoints and packed ones of our own, as tables of nibbles.

No torch here: contracts name shapes, references move bits, and kernels are written for what a table says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Place = tuple[int, int]
# Elements of a word, and those of a row that a packed layout keeps together.
WORD, BLOCK = 8, 128
# Packed layouts keep pairs of neighbours in the two halves of a word, so that one mask makes two numbers of 16 bits:
# of 128 elements, the pairs of each fourth share a nibble.
_FOURTH = BLOCK // 4


@dataclass(frozen=True, slots=True)
class Int4Layout:
    """Where element ``(n, k)`` of a weight ``(N, K)`` is: in a run of neighbours along ``along``, which share words.

    Element ``i`` of a run is nibble ``table[i][1]`` (bits ``4 * nibble`` up) of word ``table[i][0]`` of the run. The
    words of all runs are a tensor ``(runs, across, words)``, without the last dimension where a run is one word;
    ``turned``: ``(across, runs)``. Zeros of a group are a word for eight columns of ``N``, of the nibbles ``zeros``,
    scales ``(groups, N)``; ``turned_scales``: both the other way round. In ``packed`` layouts zeros are a byte each,
    and columns may be sorted by their groups.
    """

    name: str
    along: Literal["K", "N"]
    table: tuple[Place, ...]
    turned: bool = False
    turned_scales: bool = False
    zeros: tuple[int, ...] = ()

    @property
    def words(self) -> int:
        """Words of a run."""
        return 1 + max(word for word, _ in self.table)

    @property
    def packed(self) -> bool:
        """Whether it is one of our own."""
        return not self.zeros


def _pairs(word_of: Mapping[int, int]) -> tuple[Place, ...]:
    """The table of a packed layout: pair ``j`` of each fourth of the elements is in word ``word_of[j]``."""
    places = ((k // _FOURTH, k % _FOURTH // 2, k % 2) for k in range(BLOCK))
    return tuple((word_of[pair], fourth + 4 * half) for fourth, pair, half in places)


# What a lane of NVIDIA's mma and wgmma holds of a row of the first operand: elements 2c, 2c + 1, 2c + 8, 2c + 9 of each
# 16. So its four words are pairs c, c + 4, c + 8, c + 12, side by side: 16 bytes.
_MMA = {4 * t + c: 4 * c + t for t in range(4) for c in range(4)}
# A lane of AMD's mfma holds elements 4c to 4c + 3 of each 16: pairs 2c, 2c + 1, 2c + 8, 2c + 9.
_MFMA = {8 * t + 2 * c + e: 4 * c + 2 * t + e for t in range(2) for c in range(4) for e in range(2)}

_IN_ORDER = tuple(range(WORD))
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
_LAYOUTS = (
    Int4Layout("gptq", "K", tuple((0, nibble) for nibble in _IN_ORDER), zeros=_IN_ORDER),
    Int4Layout("awq", "N", tuple((0, nibble) for nibble in _AWQ), turned=True, zeros=_AWQ),
    Int4Layout("ct", "K", tuple((0, nibble) for nibble in _IN_ORDER), turned=True, turned_scales=True, zeros=_IN_ORDER),
    Int4Layout("packed_mma", "K", _pairs(_MMA)),
    Int4Layout("packed_mfma", "K", _pairs(_MFMA)),
)
INT4_LAYOUTS: Mapping[str, Int4Layout] = MappingProxyType({layout.name: layout for layout in _LAYOUTS})
PACKED: tuple[str, ...] = tuple(layout.name for layout in _LAYOUTS if layout.packed)
