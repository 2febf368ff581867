"""``ZE_AFFINITY_MASK``: the GPUs, and tiles of GPUs, that Level Zero will enumerate.

Source: intel/compute-runtime, shared/source/execution_environment/execution_environment.cpp (``parseAffinityMask``,
``setDeviceHierarchyMode``) and shared/source/helpers/string_helpers.h; Level Zero specification, "Affinity Mask".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What C++'s std::stoul reads with base 0: spaces and a sign may precede the number, anything may follow it.
_C_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)")
_UINT32 = 0xFFFFFFFF


def visible_tiles(mask: str | None, tiles: Sequence[int], *, flat: bool) -> tuple[tuple[int, int], ...]:
    """The (GPU, tile) pairs that ``mask`` leaves visible, in their own order; ``tiles`` has the number of each GPU.

    A mask is a set: neither the order of its entries nor a repetition matters, and entries beyond the last device are
    ignored; unset, empty and ``default`` hide nothing. With ``flat`` each tile is a device and an entry is a device's
    number, so that ``0.1`` is ignored. Without it an entry is a GPU (``0``) or one tile of it (``0.1``). The runtime
    aborts on an entry that is no number, and nothing is visible then.
    """
    everything = tuple((gpu, tile) for gpu, count in enumerate(tiles) for tile in range(count))
    if mask is None or mask in ("", "default"):
        return everything
    visible: set[tuple[int, int]] = set()
    for entry in mask.removesuffix(",").split(","):
        first, *rest = entry.removesuffix(".").split(".")
        number = _c_integer(first)
        if number is None:
            return ()
        if flat:
            if not rest and number < len(everything):
                visible.add(everything[number])
        elif number < len(tiles) and not rest:
            visible.update((number, tile) for tile in range(tiles[number]))
        elif number < len(tiles):
            tile = _c_integer(rest[0])
            if tile is None or len(rest) > 1:
                return ()
            visible.add((number, tile))
    return tuple(pair for pair in everything if pair in visible)


def _c_integer(text: str) -> int | None:
    """``text`` as ``std::stoul`` with base 0 reads it into 32 bits; None when it throws."""
    found = _C_INTEGER.match(text)
    if not found:
        return None
    digits = found[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    value = int(digits, base)
    return (-value if found[1] == "-" else value) & _UINT32
