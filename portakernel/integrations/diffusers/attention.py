"""The attention backend ``portakernel`` of diffusers: what it serves, what it leaves, what it refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.integrations.client import record
from portakernel.integrations.diffusers.calls import EVERYTHING, NAME, OP, Call, native, ours
from portakernel.integrations.diffusers.masks import placed, refusal
from portakernel.integrations.diffusers.trials import kind_of, serves_in_trace, verdict

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    window_size: tuple[int, int] | None = None,
    _parallel_config: Any = None,
    **more: Any,
) -> Any:
    """Attention of (B, S, H, D) heads as (B, S, H, E), and the log-sum-exp (B, H, S) where ``return_lse`` asks for it.

    What the op cannot do is left to diffusers' native backend and counted, never dropped.

    Raises:
        ArgumentTypeError: an argument that neither the op nor native attention reads.
        ArgumentValueError: what native attention cannot do either.
    """
    unknown = sorted(name for name, given in more.items() if given is not None)
    if unknown:
        raise ArgumentTypeError(
            f"diffusers' attention was given {', '.join(unknown)}, which the backend portakernel does not know and"
            " would have to drop; it knows attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse and"
            " window_size. Leave it out of attention_kwargs, or set the backend that it belongs to with"
            " set_attention_backend"
        )
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        raise ArgumentTypeError(
            f"diffusers' attention was given a mask of type {type(attn_mask).__name__}; the backend portakernel takes"
            ' tensors. A BlockMask belongs to set_attention_backend("flex")'
        )
    window = EVERYTHING if window_size is None else (int(window_size[0]), int(window_size[1]))
    refused = _refused(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, _parallel_config)
    mask = attn_mask if attn_mask is None or attn_mask.dim() > 4 else placed(attn_mask, query, key)
    call = Call(query, key, value, mask, is_causal, scale, window, enable_gqa)
    if not refused and torch.compiler.is_compiling():
        # counts for itself: why it stands back is known while tracing, and no constant of the graph
        if serves_in_trace(*kind_of(call)):
            return ours(call, return_lse=return_lse)
        return _left(call, "a trial found it worse", return_lse=return_lse)
    refused = refused or verdict(call)
    record(NAME, OP, refused)
    if not refused:
        return ours(call, return_lse=return_lse)
    return _left(call, refused, return_lse=return_lse, dropout_p=dropout_p, parallel_config=_parallel_config)


def _left(call: Call, reason: str, *, return_lse: bool, dropout_p: float = 0.0, parallel_config: Any = None) -> Any:
    """The call by diffusers' own code."""
    if return_lse:
        raise ArgumentValueError(
            f"return_lse: portakernel's op does not serve this call ({reason}), and diffusers' native attention"
            " returns no log-sum-exp; ask for the result alone"
        )
    aligned = call.query.shape[1] == call.key.shape[1]
    if call.window != EVERYTHING and (parallel_config is not None or (call.causal and not aligned)):
        raise ArgumentValueError(
            f"window_size={call.window}: portakernel's op does not serve this call ({reason}), and diffusers' native"
            " attention has no windows; leave it out, or set a backend of FlashAttention with set_attention_backend"
        )
    return native(call, dropout_p=dropout_p, parallel_config=parallel_config)


def _refused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: bool,
    grouped: bool,
    parallel_config: Any,
) -> str:
    """Why the op cannot serve a call; empty where it can."""
    if parallel_config is not None:
        return "context parallelism: the op sees one rank's keys"
    if dropout_p:
        return "dropout: the op has none"
    if query.dtype not in _DTYPES:
        return f"dtype {query.dtype}: the op takes float32, float16 and bfloat16"
    if not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type):
        return "query, key and value differ in dtype"
    if not query.dim() == key.dim() == value.dim() == 4:
        return "query, key and value are not all (batch, length, heads, head size)"
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return "query, key and value differ in batch"
    if query.shape[2] != key.shape[2] and not grouped:
        return "fewer key heads without enable_gqa"
    if causal and query.shape[1] != key.shape[1]:
        return "causal with as many queries as keys alone: torch aligns others at the top left, the op at the bottom"
    if causal and mask is not None:
        return "causal beside a mask, which torch refuses"
    return "" if mask is None else refusal(mask, query, key)
