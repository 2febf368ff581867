"""Tables of pages in the forms that serving libraries have for them, made on the device.

A ``block_table`` ``(B, W)`` has a row for each sequence, whose first ``ceil(seq_lens[n] / page_size)`` entries are its
pages; it is what ``paged_attention`` takes. FlashInfer has the same pages one sequence after the other (CSR): sequence
n has ``indices[indptr[n]:indptr[n + 1]]``, and ``last_page_len[n]`` tokens in the last of them. SGLang has that of
tokens, its ``kv_indices`` and ``kv_indptr``: pages of one token, each a token's place in the whole cache.

Nothing here reads a tensor on the host, so that a step which calls it can be captured and replayed with other lengths:
results have the size that the most pages would need, and are filled up. Integer tensors keep their dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from portakernel.errors import ArgumentTypeError, ArgumentValueError


class Csr(NamedTuple):
    """Pages as FlashInfer takes them; ``page_size`` is what its wrappers' ``plan`` is told beside them."""

    indices: Tensor
    indptr: Tensor
    last_page_len: Tensor


def to_csr(block_table: Tensor, seq_lens: Tensor, page_size: int) -> Csr:
    """The pages of a table one sequence after the other.

    ``block_table``: (B, W), ``seq_lens``: (B,), on one device. Returns ``indices`` (B*W,), of which the first
    ``indptr[B]`` are pages and the rest 0, ``indptr`` (B+1,) int32, and ``last_page_len`` (B,) int32: 1 to
    ``page_size``, and 0 for a sequence without tokens. Entries behind a sequence's last page are not looked at.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, shapes or ``page_size`` are not such. Lengths are not looked at:
            with one above ``W * page_size``, results are of no use.
    """
    _check_table(block_table, seq_lens, page_size)
    sequences, width = block_table.shape
    pages = (seq_lens + (page_size - 1)).div(page_size, rounding_mode="floor")
    indptr = pages.new_zeros(sequences + 1, dtype=torch.int32)
    torch.cumsum(pages, 0, dtype=torch.int32, out=indptr[1:])
    place = torch.arange(sequences * width, device=block_table.device, dtype=torch.int32)
    # The last sequence that begins at or before a place; one without pages begins where the next one does.
    row = torch.searchsorted(indptr[1:], place, right=True).clamp_(max=max(sequences - 1, 0))
    column = (place - indptr[row]).clamp_(0, max(width - 1, 0))
    indices = torch.where(place < indptr[-1], block_table[row, column], 0)
    last = torch.where(seq_lens > 0, (seq_lens - 1) % page_size + 1, 0)
    return Csr(indices, indptr, last.to(torch.int32))


def from_csr(
    indices: Tensor, indptr: Tensor, last_page_len: Tensor, page_size: int, *, width: int
) -> tuple[Tensor, Tensor]:
    """``block_table`` (B, width) and ``seq_lens`` (B,) int32 of pages that lie one sequence after the other.

    ``indices``: as many as there are, or more, ``indptr``: (B+1,), ``last_page_len``: (B,), on one device; ``width``
    has to be as large as the most pages of a sequence, which are read on the device alone. Entries behind a sequence's
    last page are -1. SGLang's ``kv_indices`` and ``kv_indptr`` are pages of one token: ``page_size=1``, and
    ``last_page_len`` of ones.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, shapes, ``page_size`` or ``width`` are not such.
    """
    _check_csr(indices, indptr, last_page_len, page_size, width)
    pages = indptr.diff()
    column = torch.arange(width, device=indices.device, dtype=indptr.dtype)
    live = column < pages.unsqueeze(1)
    if indices.numel():
        place = (indptr[:-1].unsqueeze(1) + column).clamp_(max=indices.numel() - 1)
        table = torch.where(live, indices[place], -1)
    else:
        table = indices.new_full(live.shape, -1)
    lengths = torch.where(pages > 0, (pages - 1) * page_size + last_page_len, 0)
    return table, lengths.to(torch.int32)


def to_tokens(block_table: Tensor, seq_lens: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """SGLang's ``kv_indices`` (B*W*page_size,) and ``kv_indptr`` (B+1,): where each token lies in the whole cache.

    The arguments are those of ``to_csr``. A token in row r of page p lies at ``p * page_size + r``, as in the slots of
    ``write_kv_cache``; the first ``kv_indptr[B]`` are tokens, and the rest 0. Places have the dtype of the table: give
    an int64 one for caches of 2**31 tokens and more.

    Raises:
        ArgumentTypeError, ArgumentValueError: as ``to_csr``.
    """
    _check_table(block_table, seq_lens, page_size)
    rows = torch.arange(page_size, device=block_table.device, dtype=block_table.dtype)
    tokens = block_table.unsqueeze(-1) * page_size + rows
    found = to_csr(tokens.flatten(1), seq_lens, 1)
    return found.indices, found.indptr


def _check_tensors(**tensors: object) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name} is a tensor of int32 or int64; this is {type(tensor).__name__}")


def _check_whole(page_size: object) -> None:
    if not isinstance(page_size, int):
        raise ArgumentTypeError(f"page_size is a whole number; this is {page_size!r}")


def _check_table(block_table: Tensor, seq_lens: Tensor, page_size: int) -> None:
    _check_tensors(block_table=block_table, seq_lens=seq_lens)
    if block_table.dim() != 2 or seq_lens.shape != block_table.shape[:1]:
        found = f"block_table {tuple(block_table.shape)}, seq_lens {tuple(seq_lens.shape)}"
        raise ArgumentValueError(f"a table of pages is (B, W) and its lengths (B,); these are {found}")
    _check_common(page_size, block_table=block_table, seq_lens=seq_lens)


def _check_csr(indices: Tensor, indptr: Tensor, last_page_len: Tensor, page_size: int, width: int) -> None:
    _check_tensors(indices=indices, indptr=indptr, last_page_len=last_page_len)
    if indices.dim() != 1 or last_page_len.dim() != 1 or indptr.shape != (len(last_page_len) + 1,):
        shapes = (tuple(x.shape) for x in (indices, indptr, last_page_len))
        found = ", ".join(f"{name} {x}" for name, x in zip(Csr._fields, shapes, strict=True))
        raise ArgumentValueError(f"indices are (pages,), indptr (B+1,) and last_page_len (B,); these are {found}")
    if width < 0:
        raise ArgumentValueError(f"width is the most pages of a sequence; this is {width}")
    _check_common(page_size, indices=indices, indptr=indptr, last_page_len=last_page_len)


def _check_common(page_size: int, **tensors: Tensor) -> None:
    _check_whole(page_size)
    if page_size < 1:
        raise ArgumentValueError(f"a page has one token or more; page_size is {page_size}")
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.int32, torch.int64):
            raise ArgumentTypeError(f"{name} is int32 or int64; this is {str(tensor.dtype).removeprefix('torch.')}")
