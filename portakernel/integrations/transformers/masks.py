"""The mask function: what of transformers' masks the attention op takes as a feature, and what as a bias.

``None`` stands for a plain mask: the causal one, aligned at the bottom right, with the layer's window; or none at all
where the layer is not causal. Sequences packed into one row become a ``PackedMask``. Everything else is a tensor of
zeros and minus infinities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import causal_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

from portakernel.integrations.transformers.families import MODEL_TYPES

MaskFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Where sequences begin and end that lie one after the other in the rows of a batch, and what is hidden in each."""

    cu_seqlens: Tensor
    max_seqlen: int
    causal: bool
    window: tuple[int, int]


class PackedMask(Tensor):
    """The causal mask of packed sequences, ``(B, 1, S, S)``, of which only the sequences' ends are kept.

    A model passes it from the mask function to the attention function. Whatever else reads it gets the mask itself.
    """

    sequences: Sequences

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, sequences: Sequences) -> PackedMask:
        """The mask of these sequences."""
        made: PackedMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=sequences.cu_seqlens.device)
        made.sequences = sequences
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's is untyped
        """The sequences, not the mask."""
        return f"PackedMask(shape={tuple(self.shape)}, sequences={self.sequences})"

    def dense(self) -> Tensor:
        """The mask as a tensor."""
        rows, _, length, _ = self.shape
        tokens = torch.arange(rows * length, device=self.device)
        sequence = torch.bucketize(tokens, self.sequences.cu_seqlens[1:], right=True).view(rows, length)
        distance = tokens[:length, None] - tokens[None, :length]
        visible = distance >= 0
        if (left := self.sequences.window[0]) >= 0:
            visible = visible & (distance <= left)
        return additive(((sequence[:, :, None] == sequence[:, None, :]) & visible)[:, None], self.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """Where a layer alone is compiled, the mask enters the graph as the sequences' ends."""
        return ["cu_seqlens"], (self.dtype, self.sequences.window)

    @property
    def cu_seqlens(self) -> Tensor:
        """Where each sequence begins, and the end of the last."""
        return self.sequences.cu_seqlens

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], context: Any, size: Any, stride: Any) -> PackedMask:
        """In a graph a row's length stands for that of the longest sequence, which would be compiled in."""
        del stride
        dtype, window = context
        return PackedMask(size, dtype, Sequences(inner["cu_seqlens"], size[-1], True, window))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types it as the function that it is by default
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Any operator gets the mask itself."""
        given, named = tree_map_only(cls, cls.dense, (args, dict(kwargs or {})))
        return func(*given, **named)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of booleans (True: attend) as zeros and minus infinities."""
    return torch.zeros((), dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))


def _no_padding(padding: Tensor | None, first: int, length: int) -> bool:
    """Whether the keys that a layer sees are all there; False where that cannot be known without a graph break."""
    if padding is None:
        return True
    if is_tracing(padding) or padding.shape[-1] < first + length:
        return False
    return bool(padding[:, first : first + length].all())


def _window_is_passed(config: Any) -> bool:
    """Whether the model's layers pass their window to the attention function, as tested models do."""
    chunked = getattr(config, "attention_chunk_size", None) is not None
    return not chunked and getattr(config, "model_type", None) in MODEL_TYPES


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    dtype: torch.dtype = torch.float32,
    use_vmap: bool = False,
    config: Any = None,
    device: torch.device | str = "cpu",
    **more: Any,
) -> Tensor | None:
    """The mask for one kind of layer, in the form that the attention function takes (``AttentionMaskInterface``)."""
    offsets: tuple[Any, Any] = (q_offset, kv_offset)
    numbers = all(isinstance(offset, int) for offset in offsets)  # a static cache has tensors
    if numbers and _no_padding(attention_mask, kv_offset, kv_length):
        windowed = local_size is not None and kv_length >= local_size
        as_feature = not windowed or _window_is_passed(config)
        aligned = q_offset + q_length == kv_offset + kv_length
        if allow_is_causal_skip and aligned and as_feature:
            return None
        # a decoder that its configuration makes bidirectional still calls its layers causal
        if allow_is_bidirectional_skip and not windowed and getattr(config, "is_causal", None) is not False:
            return None

    # Packing is looked for without a cache and a padding mask alone; a tested model combines it with nothing else.
    square = numbers and q_offset == kv_offset == 0 and q_length == kv_length > 1
    unpadded = attention_mask is None and not (use_vmap or allow_is_causal_skip or allow_is_bidirectional_skip)
    if square and unpadded and not is_tracing() and _window_is_passed(config):
        found = _sequences(mask_function, batch_size, q_length, local_size, device)
        return None if found is None else PackedMask((batch_size, 1, q_length, q_length), dtype, found)
    mask = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=use_vmap,
        config=config,
        device=device,
        **more,
    )
    assert mask is not None  # both ways to skip it were excluded
    return additive(mask, dtype)


def _sequences(
    mask_function: MaskFunction, rows: int, length: int, local_size: int | None, device: torch.device | str
) -> Sequences | None:
    """The sequences in a causal mask function's rows: one begins where a token does not see the one before it.

    None where each row is one sequence.
    """
    batch = torch.arange(rows, device=device)[:, None]
    query = torch.arange(1, length, device=device)[None, :]
    follows = mask_function(batch, torch.zeros((), dtype=torch.int64, device=device), query, query - 1)
    begins = torch.ones((rows, length), dtype=torch.bool, device=device)
    begins[:, 1:] = ~follows
    starts = begins.flatten().nonzero().flatten()
    if starts.numel() == rows:
        return None
    cu_seqlens = torch.cat([starts, starts.new_full((1,), rows * length)])
    window = (-1, -1) if local_size is None else (local_size - 1, -1)
    return Sequences(cu_seqlens.to(torch.int32), int(cu_seqlens.diff().max()), True, window)


def explicit(mask: Tensor | None, query: Tensor, key: Tensor, causal: bool, window: int | None) -> Tensor | None:
    """A mask with everything in it, for attention functions that take nothing else; None where nothing is hidden.

    Masked scores are the dtype's smallest number, as transformers has it: its own softmax makes NaN of infinities.
    """
    S, T = query.shape[2], key.shape[2]  # noqa: N806 - the op's letters
    least = torch.finfo(query.dtype).min
    if isinstance(mask, PackedMask):
        mask = mask.dense()
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = additive(mask, query.dtype)
        return mask.clamp(min=least) if mask.is_floating_point() else mask
    if not causal:
        return None
    position = torch.arange(T - S, T, device=query.device)[:, None]
    place = torch.arange(T, device=query.device)[None, :]
    hidden = place > position
    if window is not None:
        hidden = hidden | (place <= position - window)
    return torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(hidden, least)[None, None]
