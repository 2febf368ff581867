"""Maps of blocks as lists, and lists turned round: which blocks of keys each block of queries sees, and the reverse.

A list is a count and indices, of which the first ``count`` are meant: ``(..., R)`` and ``(..., R, C)``, int32, as
FlexAttention's ``BlockMask`` has them. Everything is computed where the tensors are, and nothing is read on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.words.masks import BLOCKS, Mask


def blocks_of(below: str, dims: Mapping[str, int], values: Mapping[str, Any]) -> tuple[int, int]:
    """How many blocks ``T/block`` is, and how many elements of ``T`` are one."""
    dimension, parameter = below.split("/")
    columns = BLOCKS[values[parameter]][1]
    return -(-dims[dimension] // columns), columns


def paired(op: str, name: str, count: Tensor | None, index: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """A list's two arguments, ``name_count`` and ``name_index``; None where there is no such list.

    Raises:
        ArgumentValueError: one is given without the other.
    """
    if count is None and index is None:
        return None
    if count is None or index is None:
        given, missing = ("index", "count") if count is None else ("count", "index")
        raise ArgumentValueError(f"{op}: {name}_{given} is given without {name}_{missing}; give both, or neither")
    return count, index


def listed(block_map: Tensor) -> tuple[Tensor, Tensor]:
    """The counts ``(..., R)`` and indices ``(..., R, C)`` of a bool map ``(..., R, C)``, in ascending order.

    Behind a list's end are the blocks that it does not hold.
    """
    found = torch.argsort(block_map.to(torch.uint8), dim=-1, descending=True, stable=True)
    return block_map.sum(-1, dtype=torch.int32), found.to(torch.int32)


def mapped(count: Tensor, index: Tensor, blocks: int) -> Tensor:
    """The bool map ``(..., R, blocks)`` of lists; what is behind their ends may be anything."""
    places = torch.arange(index.shape[-1], device=index.device)
    # whatever stands behind the end goes to one more column, which is cut off
    targets = torch.where(places < count.unsqueeze(-1), index.long(), blocks)
    found = torch.zeros((*index.shape[:-1], blocks + 1), dtype=torch.bool, device=index.device)
    return found.scatter(-1, targets, True)[..., :blocks]


def turned(count: Tensor, index: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Lists ``(B, H, R)`` and ``(B, H, R, C)`` as their transposes: for each of ``blocks`` which rows list it.

    What is stored once for all batches or heads is turned once, and comes back expanded as well.
    """
    whole = count.shape[:-1]
    count, index = _stored_once(count, index)
    turned_count, turned_index = listed(mapped(count, index, blocks).transpose(-1, -2))
    return (
        turned_count.expand(*whole, *turned_count.shape[2:]),
        turned_index.expand(*whole, *turned_index.shape[2:]),
    )


def _stored_once(count: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Both with a size of 1 in each of the first two dimensions along which neither moves."""
    for dim in (0, 1):
        if count.shape[dim] > 1 and count.stride(dim) == index.stride(dim) == 0:
            count, index = count.narrow(dim, 0, 1), index.narrow(dim, 0, 1)
    return count, index


def visible(
    mask: Mask,
    q: Tensor,
    k: Tensor,
    ahead: int,
    window: tuple[int, int],
    batch: int,
    heads: int,
    aux: Mapping[str, Tensor | None],
) -> Tensor:
    """Which keys ``k`` (t,) the queries ``q`` (s,) see: ``(batch, heads, s, t)``; both are numbered from 0.

    Query ``i`` stands at ``i + ahead``; the window holds together with the mask.
    """
    b, h = torch.arange(batch, device=q.device), torch.arange(heads, device=q.device)
    position, key = (q + ahead).view(1, 1, -1, 1), k.view(1, 1, 1, -1)
    read: dict[str, Any] = {
        "query_ids": lambda ids: ids[:, q][:, None, :, None],
        "key_ids": lambda ids: ids[:, k][:, None, None, :],
        "prefix": lambda ids: ids.view(batch, 1, 1, 1),
    }
    values = [read[name](aux[name]) for name in mask.aux]
    try:
        sees = mask.torch(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), position, key, *values)
    except Exception as error:
        text = f"mask {mask.name!r}: its torch function raised {type(error).__name__}: {error}"
        raise ArgumentValueError(f"{text}; it is given integer tensors, and works element by element") from error
    if not isinstance(sees, Tensor) or sees.dtype is not torch.bool:
        found = f"a tensor of {sees.dtype}" if isinstance(sees, Tensor) else f"{sees!r}"
        text = f"mask {mask.name!r}: its torch function gave {found}; it must give a bool tensor, element by element"
        raise ArgumentValueError(text)
    left, right = window
    if left >= 0:
        sees = sees & (position - key <= left)
    if right >= 0:
        sees = sees & (key - position <= right)
    whole = (batch, heads, len(q), len(k))
    if any(size not in (1, wanted) for size, wanted in zip(sees.shape[::-1], whole[::-1], strict=False)):
        text = f"mask {mask.name!r}: its torch function gave a tensor of shape {tuple(sees.shape)}"
        raise ArgumentValueError(f"{text}; it must broadcast to {whole}: batches, heads, queries, keys")
    return sees.expand(whole)
