"""The tables of 4-bit layouts: each nibble once, and packed ones as the chips' matrix instructions read an operand."""

from __future__ import annotations

import pytest

from portakernel.words.int4_layouts import BLOCK, INT4_LAYOUTS, PACKED, WORD


@pytest.mark.parametrize("name", tuple(INT4_LAYOUTS))
def test_every_nibble_of_every_word_is_one_element(name):
    layout = INT4_LAYOUTS[name]
    assert sorted(layout.table) == [(word, nibble) for word in range(layout.words) for nibble in range(WORD)]
    assert sorted(layout.zeros) == ([] if layout.packed else list(range(WORD)))


@pytest.mark.parametrize("name", PACKED)
def test_neighbours_are_in_the_two_halves_of_a_word(name):
    table = INT4_LAYOUTS[name].table
    for k in range(0, BLOCK, 2):
        (word, low), (same, high) = table[k : k + 2]
        assert (word, low + 4) == (same, high)


def columns_of_lane(name: str, lane: int) -> set[int]:
    """Which elements of a block four words side by side hold, 16 bytes."""
    return {k for k, (word, _) in enumerate(INT4_LAYOUTS[name].table) if word // 4 == lane}


@pytest.mark.parametrize("lane", range(4))
def test_sixteen_bytes_are_what_a_lane_of_mma_holds_of_a_row(lane):
    # PTX ISA, mma.m16n8k16 and wgmma, matrix A: columns 2c, 2c + 1, 2c + 8 and 2c + 9 of each 16
    held = {16 * step + 2 * lane + more for step in range(BLOCK // 16) for more in (0, 1, 8, 9)}
    assert columns_of_lane("packed_mma", lane) == held


@pytest.mark.parametrize("lane", range(4))
def test_sixteen_bytes_are_what_a_lane_of_mfma_holds_of_a_row(lane):
    # CDNA 3 ISA, v_mfma_f32_16x16x16_f16, matrix A: columns 4c to 4c + 3 of each 16
    held = {16 * step + 4 * lane + more for step in range(BLOCK // 16) for more in range(4)}
    assert columns_of_lane("packed_mfma", lane) == held
