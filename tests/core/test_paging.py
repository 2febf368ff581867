"""Tables of pages in other libraries' forms: against a plain loop, through and back, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from portakernel import paging
from portakernel.errors import ArgumentTypeError, ArgumentValueError

PAGE = 4
# Nobody at all, a whole page, one token more, nobody, everything, nobody; dead entries point nowhere.
LENGTHS = (0, 4, 5, 0, 12, 0)
TABLE = ((-1, 99, -1), (7, -1, 99), (3, 0, -1), (99, 99, 99), (5, 7, 2), (-1, -1, -1))


def tables(dtype=torch.int32):
    return torch.tensor(TABLE, dtype=dtype), torch.tensor(LENGTHS, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_pages_lie_one_sequence_after_the_other_and_the_rest_is_page_0(dtype):
    found = paging.to_csr(*tables(dtype), PAGE)
    assert found.indices.tolist() == [7, 3, 0, 5, 7, 2, *[0] * 12]
    assert found.indptr.tolist() == [0, 0, 1, 3, 3, 6, 6]
    assert found.last_page_len.tolist() == [0, 4, 1, 0, 4, 0]
    assert [x.dtype for x in found] == [dtype, torch.int32, torch.int32]


def test_the_way_back_gives_the_table_with_nothing_behind_its_pages():
    table, lengths = tables()
    back, back_lengths = paging.from_csr(*paging.to_csr(table, lengths, PAGE), PAGE, width=4)
    assert back.tolist() == [[-1] * 4, [7, -1, -1, -1], [3, 0, -1, -1], [-1] * 4, [5, 7, 2, -1], [-1] * 4]
    assert torch.equal(back_lengths, lengths)
    assert (back.dtype, back_lengths.dtype) == (torch.int32, torch.int32)


def test_tokens_have_the_slots_that_a_cache_is_written_at_and_are_pages_of_one_token():
    table, lengths = tables()
    indices, indptr = paging.to_tokens(table, lengths, PAGE)
    want = [TABLE[n][t // PAGE] * PAGE + t % PAGE for n, length in enumerate(LENGTHS) for t in range(length)]
    assert indptr.tolist() == [0, 0, 4, 9, 9, 21, 21]
    assert indices.tolist() == want + [0] * (table.numel() * PAGE - len(want))
    ones = torch.ones(len(LENGTHS), dtype=torch.int32)
    by_token, again = paging.from_csr(indices, indptr, ones, 1, width=12)
    assert torch.equal(again, lengths)
    assert by_token[4].tolist() == want[9:]


def test_strides_empties_and_tables_without_columns():
    table, lengths = tables()
    spread = torch.stack([table, table + 1], -1).transpose(0, 1)[..., 0].t()
    doubled = torch.stack([lengths, lengths], -1)[:, 0]
    pairs = zip(paging.to_csr(spread, doubled, PAGE), paging.to_csr(table, lengths, PAGE), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for shape in ((0, 3), (2, 0), (0, 0)):
        nothing = torch.zeros(shape, dtype=torch.int32), torch.zeros(shape[0], dtype=torch.int32)
        found = paging.to_csr(*nothing, PAGE)
        assert [x.tolist() for x in found] == [[], [0] * (shape[0] + 1), [0] * shape[0]]
        back = paging.from_csr(*found, PAGE, width=shape[1])
        assert [tuple(x.shape) for x in back] == [shape, shape[:1]]


def test_tensors_of_no_device_are_enough_so_that_nothing_is_read_on_the_host():
    """Tensors that have no elements to read: whoever reads one on the host raises."""
    table, lengths = (x.to("meta") for x in tables())
    found = paging.to_csr(table, lengths, PAGE)
    assert [tuple(x.shape) for x in found] == [(18,), (7,), (6,)]
    assert [tuple(x.shape) for x in paging.from_csr(*found, PAGE, width=3)] == [(6, 3), (6,)]
    assert [tuple(x.shape) for x in paging.to_tokens(table, lengths, PAGE)] == [(72,), (7,)]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda t, n: paging.to_csr(t, n, 0), ArgumentValueError, "a page has one token or more; page_size is 0"),
        (
            lambda t, n: paging.to_csr(t[0], n, 4),
            ArgumentValueError,
            "a table of pages is (B, W) and its lengths (B,); these are block_table (3,), seq_lens (6,)",
        ),
        (
            lambda t, n: paging.to_tokens(t.float(), n, 4),
            ArgumentTypeError,
            "block_table is int32 or int64; this is float32",
        ),
        (
            lambda t, n: paging.from_csr(t[0], n, n, 4, width=3),
            ArgumentValueError,
            (
                "indices are (pages,), indptr (B+1,) and last_page_len (B,); these are indices (3,), indptr (6,),"
                " last_page_len (6,)"
            ),
        ),
        (
            lambda t, n: paging.from_csr(t[0], n, n[1:], 4, width=-1),
            ArgumentValueError,
            "width is the most pages of a sequence; this is -1",
        ),
    ],
)
def test_what_is_no_table_is_refused_with_what_it_is(call, kind, text):
    with pytest.raises(kind) as caught:
        call(*tables())
    assert str(caught.value) == text


def test_the_package_is_imported_without_torch_and_knows_paging():
    code = "import sys, portakernel; print('torch' in sys.modules, portakernel.paging.to_csr.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False to_csr\n"
