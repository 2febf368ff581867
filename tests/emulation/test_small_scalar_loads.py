"""Scalar loads of bytes and of 16 bits, which gfx1201 has: from an address, and within a buffer's range."""

import numpy as np
import pytest
from single_instruction import needs_clang, run_single

from portakernel.emulation import Kind

pytest.importorskip("tinygrad")
pytestmark = needs_clang

ARCH = "gfx1201"
BYTES = np.array([0x12, 0xFE, 0x80, 0x7F, 0x34, 0x92, 0x01, 0xFF], dtype=np.uint8)
# Behind the address in s[4:5]: how many bytes, and the rest of a descriptor.
RECORDS, FORMAT = 6, 0


def loaded(text: str) -> tuple[int, frozenset[Kind]]:
    before = [f"s_mov_b32 s6, {RECORDS}", f"s_mov_b32 s7, {FORMAT}"]
    ran = run_single(ARCH, [*before, text, "s_wait_kmcnt 0x0"], tensors={4: BYTES.copy()}, sgprs={10: 2})
    return ran.sgpr(8), ran.finding_kinds


@pytest.mark.parametrize("from_", ["s_load_{} s8, s[4:5], {}", "s_buffer_load_{} s8, s[4:7], {}"])
@pytest.mark.parametrize(
    ("kind", "place", "expected"),
    [
        ("u8", "0x1", 0xFE),
        ("i8", "0x1", 0xFFFFFFFE),
        ("u16", "0x4", 0x9234),
        ("i16", "0x4", 0xFFFF9234),
        ("u8", "s10", 0x80),
        ("u16", "s10 offset:0x2", 0x9234),
    ],
)
def test_a_byte_or_two_are_extended(from_, kind, place, expected):
    assert loaded(from_.format(kind, place)) == (expected, frozenset())


@pytest.mark.parametrize("text", ["s_buffer_load_u8 s8, s[4:7], 0x6", "s_buffer_load_u16 s8, s[4:7], 0x6"])
def test_beyond_the_descriptors_range_a_buffer_gives_zero(text):
    assert loaded(text) == (0, frozenset())


def test_an_access_past_the_end_of_memory_is_found():
    assert loaded("s_load_u8 s8, s[4:5], 0x8") == (0, frozenset({Kind.OUTSIDE}))
