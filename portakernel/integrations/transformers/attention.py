"""The attention function that transformers' models call by name, served by ``attention`` and ``attention_varlen``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from portakernel import ops
from portakernel.integrations.client import record
from portakernel.integrations.transformers.masks import PackedMask, Sequences, additive
from portakernel.integrations.transformers.own_path import own_attention

# Arguments that say nothing about the result, or nothing that the mask and the arguments named below do not say.
IMMATERIAL = frozenset({
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "labels", "logits_to_keep", "max_length_k", "max_length_q",
    "num_items_in_batch", "output_hidden_states", "output_router_logits", "past_key_value", "past_key_values",
    "position_embeddings", "position_ids", "return_dict", "use_cache",
})  # fmt: skip
_KNOWN = IMMATERIAL | {"cache", "output_attentions"}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of ``(B, H, S, D)`` heads as ``(B, S, H, E)``, and no weights (``AttentionInterface``)."""
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    refused = _refused(module, query, key, value, attention_mask, dropout, more)
    if refused:
        record("transformers", "attention", refused)
        return own_attention(
            module,
            query,
            key,
            value,
            attention_mask,
            causal=causal,
            sliding_window=sliding_window,
            dropout=dropout,
            scaling=scaling,
            softcap=softcap,
            is_causal=is_causal,
            s_aux=s_aux,
            **more,
        )
    if s_aux is not None and s_aux.dtype not in (query.dtype, torch.float32):
        s_aux = s_aux.to(query.dtype)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, -1)
    shared: dict[str, Any] = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    packed = _packed(attention_mask, causal, window, more)
    if packed is not None:
        record("transformers", "attention_varlen")
        out = ops.attention_varlen(
            q.flatten(0, 1),
            k.flatten(0, 1),
            v.flatten(0, 1),
            packed.cu_seqlens,
            packed.cu_seqlens,
            causal=packed.causal,
            window=packed.window,
            max_seqlen_q=packed.max_seqlen,
            max_seqlen_k=packed.max_seqlen,
            **shared,
        )
        assert isinstance(out, Tensor)  # no log-sum-exp was asked for
        return out.view(*q.shape[:3], -1), None
    record("transformers", "attention")
    if attention_mask is None:
        shared |= {"causal": causal, "window": window}
    else:  # the mask holds what is causal, and the window
        mask = additive(attention_mask, q.dtype) if attention_mask.dtype == torch.bool else attention_mask
        shared["bias"] = mask.to(q.dtype).expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    out = ops.attention(q, k, v, **shared)
    assert isinstance(out, Tensor)  # as above
    return out, None


def _packed(mask: Any, causal: bool, window: tuple[int, int], more: dict[str, Any]) -> Sequences | None:
    """The packed sequences of a call, as the mask function found them, or as FlashAttention's arguments name them.

    A mask beside these arguments holds the sequences already.
    """
    if isinstance(mask, PackedMask):
        return mask.sequences
    cu_seqlens = more.get("cu_seq_lens_q")
    if mask is not None or cu_seqlens is None:
        return None
    return Sequences(cu_seqlens.to(torch.int32), int(more["max_length_q"]), causal, window)


def _refused(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    dropout: float,
    more: dict[str, Any],
) -> str:
    """Why the op cannot serve a call; empty where it can."""
    if dropout and module.training:
        return "dropout: the op has none; set attention_dropout to 0"
    if more.get("output_attentions"):
        return "output_attentions: the op does not return the weights"
    if more.get("cache") is not None:
        return "paged cache: the op reads keys and values that lie one after the other"
    unknown = [name for name, given in more.items() if given is not None and name not in _KNOWN]
    if unknown:
        return f"the op does not know the argument {', '.join(sorted(unknown))}"
    if query.dtype not in _DTYPES:
        return f"dtype {query.dtype}: the op takes float32, float16 and bfloat16"
    if not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type):
        return "query, key and value differ in dtype"
    return _refused_mask(query, key, mask, more)


def _refused_mask(query: Tensor, key: Tensor, mask: Any, more: dict[str, Any]) -> str:
    """Why the op cannot apply a mask; empty where it can."""
    if more.get("cu_seq_lens_q") is not None and mask is None:
        return _refused_sequences(query, key, more)
    if mask is None or isinstance(mask, PackedMask):
        return ""
    if not isinstance(mask, Tensor):
        return f"a mask of type {type(mask).__name__}: the op takes tensors"
    if mask.dim() != 4:
        return f"a mask of {mask.dim()} dimensions: the op takes (batch, heads, queries, keys)"
    if mask.dtype != torch.bool and not mask.is_floating_point():
        return f"a mask of {mask.dtype}: the op takes booleans (True: attend) and numbers to add"
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if any(found not in (1, size) for found, size in zip(mask.shape, wanted, strict=True)):
        return "a mask of another shape than (batch, heads, queries, keys)"
    return ""


def _refused_sequences(query: Tensor, key: Tensor, more: dict[str, Any]) -> str:
    """Why the op cannot take FlashAttention's arguments for packed sequences; empty where it can."""
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        return "cu_seq_lens of several rows, or beside a cache: the op takes one row without a cache"
    if more.get("max_length_q") is None:
        return "cu_seq_lens_q without max_length_q"
    return ""
