"""Masks for ``portakernel.ops.block_sparse_attention``: own ones by name, and maps of blocks as its lists.

::

    def near(b, h, q, k):
        return (q - k <= 256) & (k - q <= 256)

    masks.register("near", torch=near, triton=triton.jit(near))

    lists = masks.lists_of("near", batch=B, heads=H, queries=S, keys=T, device=q.device)
    out = ops.block_sparse_attention(q, k, v, **lists, mask="near")

A mask is a function of integers, element by element, so that one body often serves torch and Triton. Beside positions
it may read the call's ``query_ids``, ``key_ids`` and ``prefix``, of which it is given the values. Lists depend on what
is in a map alone: calls take other ones without compiling anything anew, in graphs too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.tensors.block_lists import listed, turned, visible
from portakernel.text.spelling import spelled
from portakernel.words.masks import AUXILIARY, BLOCKS, Mask, Rule, add, found_for, named

__all__ = ["from_block_mask", "lists", "lists_of", "register", "transposed"]


def register(name: str, *, torch: Rule, triton: Any = None, aux: tuple[str, ...] = ()) -> None:
    """From now on ``block_sparse_attention`` takes ``mask=name``.

    Both functions are ``fn(b, h, q, k, *aux) -> bool``: true where query position ``q`` of head ``h`` in batch ``b``
    sees the key at ``k``. Query ``i`` of S stands at ``i + T - S`` among T keys, as in ``attention``. ``aux`` names
    what else they are given, in this order: ``query_ids`` and ``key_ids``, the numbers of the query and of the key, and
    ``prefix``, that of the batch's sequence. ``torch`` is what results are checked against, ``triton``, a
    ``@triton.jit`` function, is inlined into kernels; without it the reference alone serves calls. Of
    numbers below 0, as positions of queries are where these are more than keys, ``//`` and ``%`` round toward zero in
    Triton and down in Python.

    Functions of the same module and name replace those registered before, as when a notebook's cell runs again.

    Raises:
        ArgumentValueError: the name is no Python name, or another mask's; ``aux`` names what there is not.
    """
    _check_names(name, aux)
    add(Mask(name, torch, triton, tuple(aux)))


def lists(block_map: Tensor) -> tuple[Tensor, Tensor]:
    """A bool map of blocks ``(B, H, R, C)`` as counts ``(B, H, R)`` and indices ``(B, H, R, C)``, both int32.

    Computed on the map's device; nothing is read on the host. ``R`` counts blocks of queries, ``C`` those of keys.

    Raises:
        ArgumentValueError: the map is no bool tensor of four dimensions.
    """
    _check_bools(block_map)
    return listed(block_map)


def transposed(count: Tensor, index: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Lists by rows of queries as lists by blocks of keys, of which there are ``blocks``: what backward goes through.

    Make them once where lists stay, and pass them as ``q_partial_count``, ``q_partial_index``, ``q_full_count`` and
    ``q_full_index``; else each backward makes them.
    """
    return turned(count, index, blocks)


def lists_of(
    mask: str,
    *,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    block: str = "128x128",
    window: tuple[int, int] = (-1, -1),
    device: torch.device | str | None = None,
    **aux: Tensor,
) -> dict[str, Any]:
    """All lists of a mask, and ``block``, by the names that ``block_sparse_attention`` has for them.

    Those by blocks of keys, which backward goes through, are among them. The mask and the window are not: give the op
    the same.

    A row of blocks is looked at at a time: ``batch * heads * rows * keys`` elements; give ``batch=1`` or ``heads=1``
    and expand the lists where all are alike.

    Raises:
        UnknownNameError, ArgumentValueError: there is no such mask, or ``aux`` lacks what it reads.
    """
    named(mask)
    sizes = {"batch": batch, "heads": heads, "queries": queries, "keys": keys}
    _check_map(block, window, sizes, aux)
    found = found_for("lists_of", mask, {name: aux.get(name) for name in AUXILIARY})
    rows, columns = BLOCKS[block]
    blocks = -(-keys // columns)
    partial: list[Tensor] = []
    full: list[Tensor] = []
    k = torch.arange(keys, device=device)
    beyond = torch.arange(blocks * columns, device=device).view(blocks, columns) >= keys
    for first in range(0, queries, rows):
        q = torch.arange(first, min(first + rows, queries), device=device)
        sees = visible(found, q, k, keys - queries, window, batch, heads, aux)
        cut = torch.nn.functional.pad(sees, (0, blocks * columns - keys)).reshape(*sees.shape[:-1], blocks, columns)
        whole = (cut | beyond).all(-1).all(-2)
        full.append(whole)
        partial.append(cut.any(-1).any(-2) & ~whole)
    none = torch.zeros((batch, heads, 0, blocks), dtype=torch.bool, device=device)
    pairs = [listed(torch.stack(parts, 2) if parts else none) for parts in (partial, full)]
    by_keys = (turned(*pair, blocks) for pair in pairs)
    tensors = [tensor for pair in (*pairs, *by_keys) for tensor in pair]
    return {**dict(zip(_FLEX, tensors, strict=True)), "block": block}


def from_block_mask(block_mask: Any, *, batch: int, heads: int) -> dict[str, Any]:
    """A FlexAttention ``BlockMask`` by the names of ``block_sparse_attention``'s arguments, ready as ``**keywords``.

    Its lists are taken as they are, expanded to ``batch`` and ``heads`` where it has one for all; its ``mask_mod`` is
    not: name the mask that says the same (``register``). A ``mask_mod`` numbers queries from 0, a mask by where they
    stand: query ``i`` of S at ``i + T - S``.

    Raises:
        ArgumentValueError: it is no BlockMask; its blocks are of no size that the op knows; it is for other batches or
            heads.
    """
    if not hasattr(block_mask, "BLOCK_SIZE"):
        text = f"from_block_mask: {spelled(block_mask)} is no BlockMask; create_block_mask makes them"
        raise ArgumentValueError(text)
    block = "x".join(map(str, block_mask.BLOCK_SIZE))
    if block not in BLOCKS:
        known = " or ".join(BLOCKS)
        raise ArgumentValueError(f"blocks of {block} are not known; make the BlockMask with BLOCK_SIZE {known}")
    found: dict[str, Any] = {"block": block}
    for name, attribute in _FLEX.items():
        tensor = getattr(block_mask, attribute, None)
        if tensor is not None:
            if tensor.shape[0] not in (1, batch) or tensor.shape[1] not in (1, heads):
                text = f"from_block_mask: {attribute} is for {tensor.shape[0]} batches and {tensor.shape[1]} heads"
                raise ArgumentValueError(f"{text}; one or as many as asked for, {batch} and {heads}, can be expanded")
            found[name] = tensor.expand(batch, heads, *tensor.shape[2:])
    return found


# What a BlockMask calls the op's lists.
_FLEX: Mapping[str, str] = {
    "partial_count": "kv_num_blocks",
    "partial_index": "kv_indices",
    "full_count": "full_kv_num_blocks",
    "full_index": "full_kv_indices",
    "q_partial_count": "q_num_blocks",
    "q_partial_index": "q_indices",
    "q_full_count": "full_q_num_blocks",
    "q_full_index": "full_q_indices",
}


def _check_names(name: Any, aux: Any) -> None:
    if isinstance(aux, str):
        raise ArgumentValueError(f"mask {name!r}: aux is the word {aux!r}; it must be a tuple, ({aux!r},)")


def _check_bools(block_map: Any) -> None:
    is_map = isinstance(block_map, Tensor) and block_map.dtype is torch.bool and block_map.dim() == 4
    if not is_map:
        found = f"{spelled(block_map.dtype)} {tuple(block_map.shape)}" if isinstance(block_map, Tensor) else "no tensor"
        raise ArgumentValueError(f"masks.lists: a map of blocks is a bool tensor (B, H, R, C); this is {found}")


def _check_map(block: Any, window: Any, sizes: Mapping[str, Any], aux: Mapping[str, Any]) -> None:
    if block not in BLOCKS:
        raise ArgumentValueError(f"lists_of: block is {spelled(block)}; it must be {' or '.join(map(repr, BLOCKS))}")
    if not (isinstance(window, tuple) and len(window) == 2):
        raise ArgumentValueError(f"lists_of: window is {spelled(window)}; it must be a pair, (left, right)")
    if not all(isinstance(side, int) and side >= -1 for side in window):
        raise ArgumentValueError(f"lists_of: window is {window}; each side counts positions, or is -1 for all")
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 0:
            raise ArgumentValueError(f"lists_of: {name} is {spelled(size)}; it must be a whole number from 0 up")
    batch, queries, keys = sizes["batch"], sizes["queries"], sizes["keys"]
    shapes = {"query_ids": (batch, queries), "key_ids": (batch, keys), "prefix": (batch,)}
    for name, tensor in aux.items():
        if name not in AUXILIARY:
            raise ArgumentValueError(f"lists_of: {name} is no argument of it; masks read {', '.join(AUXILIARY)}")
        if tuple(tensor.shape) != shapes[name] or tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} of {spelled(tensor.dtype)}"
            raise ArgumentValueError(f"lists_of: {name} is {found}; it must be {shapes[name]} of integers")
