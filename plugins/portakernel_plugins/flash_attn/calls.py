"""FlashAttention-4's forward and backward, called below its autograd functions, and what both are asked for."""
# pyright: reportMissingImports=false
# FlashAttention-4 is an optional requirement.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
from torch import Tensor

from portakernel.authoring.tensors import announce_once, delivered
from portakernel_plugins.flash_attn.scale import above_zero, query_gradient

Window: TypeAlias = tuple[int, int]
Results: TypeAlias = Tensor | tuple[Tensor, ...]

_WIDE = 16  # bytes that are stored at once
# Lengths at which one block of queries or of keys, of any kernel, becomes two: one block has code of its own.
_BLOCKS = (48, 64, 80, 96, 128, 192, 256)
_SEARCHED = 256  # of more sequences than these, blocks are looked up in a table


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where sequences end, and how long they are at most: for attention without padding."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int | None
    max_seqlen_k: int | None

    def arguments(self) -> dict[str, Any]:
        """These, as FlashAttention names them; it reads ends without gaps."""
        ends = {"cu_seqlens_q": self.cu_seqlens_q.contiguous(), "cu_seqlens_k": self.cu_seqlens_k.contiguous()}
        return {**ends, "max_seqlen_q": self.max_seqlen_q, "max_seqlen_k": self.max_seqlen_k}

    def keys(self, k: Tensor) -> int:
        """How many keys there are."""
        return k.shape[-3]

    def form(self) -> tuple[bool, ...]:
        """What code is chosen by beside lengths."""
        many = self.cu_seqlens_q.numel() - 1 > _SEARCHED
        return self.max_seqlen_q is None, self.max_seqlen_k is None, many


@dataclass(frozen=True, slots=True)
class Pages:
    """Where sequences of queries end, and in which pages so many keys of each lie."""

    query_start_loc: Tensor
    block_table: Tensor
    seq_lens: Tensor
    max_seqlen_q: int | None
    max_seqlen_k: int | None

    def arguments(self) -> dict[str, Any]:
        """These, as FlashAttention names them; it reads ends and lengths without gaps."""
        lengths = {"cu_seqlens_q": self.query_start_loc.contiguous(), "seqused_k": self.seq_lens.contiguous()}
        bounds = {"max_seqlen_q": self.max_seqlen_q, "max_seqlen_k": self.max_seqlen_k}
        return {**lengths, "page_table": self.block_table, **bounds}

    def keys(self, k: Tensor) -> int:
        """How many keys a sequence may have in pages of as many as ``k`` (NP, P, G, D) has."""
        return self.block_table.shape[1] * k.shape[1]

    def form(self) -> tuple[bool, ...]:
        """What code is chosen by beside lengths."""
        return True, self.max_seqlen_q is None, self.max_seqlen_k is None, len(self.seq_lens) > _SEARCHED


def masks(S: int, T: int, causal: bool, window: Window) -> dict[str, Any]:
    """The mask over ``S`` queries and ``T`` keys, as FlashAttention names its parts.

    A side of the window that hides nothing is None: -1 would be a window that ends before the query.
    """
    left, right = window
    return {
        "causal": causal,
        "window_size_left": left if 0 <= left < T else None,
        "window_size_right": right if 0 <= right < S and not causal else None,
    }


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
    sinks: Tensor | None,
    return_lse: bool,
    out: Results | None,
    save: bool,
    sequences: Sequences | Pages | None = None,
) -> Results:
    """The results, and lse once more where it is saved; q: (..., S, H, D), k: (..., T, G, D), v: (..., T, G, E)."""
    mask = masks(q.shape[-3], k.shape[-3] if sequences is None else sequences.keys(k), causal, window)
    _announce("FlashAttention-4's forward", q, k, v, mask, softcap, sinks, sequences, return_lse or save)
    to_y, to_lse = out if isinstance(out, tuple) else (out, None)
    q, scale = above_zero(q, scale)
    y, lse, *_ = _flash_attn_fwd(
        q,
        k,
        v,
        softmax_scale=scale,
        softcap=softcap,
        learnable_sink=sinks,
        return_lse=return_lse or save,
        out=_written(to_y),
        lse=_written(to_lse),
        **mask,
        **({} if sequences is None else sequences.arguments()),
    )
    if save:
        return (y, lse, lse.clone()) if return_lse else (y, lse)
    return (delivered(y, to_y), delivered(lse, to_lse)) if return_lse else delivered(y, to_y)


def gradients(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
    sinks: Tensor | None,
    needs: tuple[bool, ...],
    sequences: Sequences | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``q``, ``k``, ``v`` and ``sinks``, as ``needs`` asks; those of q are added up by atomics."""
    mask = masks(q.shape[-3], k.shape[-3], causal, window)
    _announce("FlashAttention-4's backward", q, k, v, mask, softcap, sinks, sequences, _shared(grad_out))
    given = scale
    q, scale = above_zero(q, scale)
    found = _flash_attn_bwd(
        q,
        k,
        v,
        out,
        grad_out,
        logsumexp,
        softmax_scale=scale,
        softcap=softcap,
        learnable_sink=sinks,
        # without these they would have the strides of q, k and v
        dq=q.new_empty(q.shape),
        dk=k.new_empty(k.shape),
        dv=v.new_empty(v.shape),
        **mask,
        **({} if sequences is None else sequences.arguments()),
    )
    of_q, of_k, of_v, of_sinks = (*found, None) if sinks is None else found
    return (
        query_gradient(of_q, given) if needs[0] else None,
        of_k if needs[1] else None,
        of_v if needs[2] else None,
        of_sinks if needs[3] else None,
    )


def _written(out: Tensor | None) -> Tensor | None:
    """``out``, where the kernels can store to it."""
    return out if out is not None and out.is_contiguous() and out.data_ptr() % _WIDE == 0 else None


def _announce(
    what: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: dict[str, Any],
    softcap: float,
    sinks: Tensor | None,
    sequences: Sequences | Pages | None,
    *more: object,
) -> None:
    """Announces what these arguments compile, told apart at least as finely as FlashAttention does."""
    queries, keys, group = q.shape[-3], k.shape[-3], q.shape[-2] // k.shape[-2]
    ragged: tuple[bool, ...] = ()
    if sequences is not None:
        bounds, keys = (sequences.max_seqlen_q, sequences.max_seqlen_k), sequences.keys(k)
        queries, keys = (n if bound is None else bound for n, bound in zip((queries, keys), bounds, strict=True))
        ragged = sequences.form()
    announce_once(
        what,
        q.dtype,
        (q.shape[-1], v.shape[-1], group),
        (mask["causal"], mask["window_size_left"] is None, mask["window_size_right"] is None),
        softcap,
        None if sinks is None else sinks.dtype,
        ragged,
        tuple(sum(length > edge for edge in _BLOCKS) for length in (queries, queries * group, keys)),
        (_shared(q), _shared(k), _shared(v), *more),
        q.device,
    )


def _shared(x: Tensor) -> tuple[bool, ...]:
    """Along which dimensions of ``x`` elements are one and the same: strides of 0 are compiled in."""
    return tuple(stride == 0 for stride in x.stride())
