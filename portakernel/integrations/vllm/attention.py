"""vLLM's attention on CPUs by ``write_kv_cache`` and ``paged_attention``: a backend in the place of ``CPU_ATTN``.

On a CPU vLLM's platform asks for that backend whatever a user selects, and takes a class that is registered over it. On
other platforms backends answer for CUDA graphs, cascades and speculative steps, too: what the ops were not tried with
there stays vLLM's, and is told.

Both write the same cache in layouts of their own. A layer is therefore served or left as a whole: before its first key
is written, by what its configuration needs and by a trial.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as vllm_ops
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from portakernel import ops
from portakernel.errors import PortakernelError
from portakernel.integrations.call_kinds import Kind
from portakernel.integrations.client import client, number_of, record
from portakernel.integrations.served_layer import DTYPES
from portakernel.integrations.vllm.layer import NAME, VllmLayer

LAYER, WORD = "Attention", "paged_attention"
# Of a trial's two sequences: how many keys each has, and of how many of them the queries come in this call.
_KEYS, _QUERIES = (37, 5), (3, 5)


class PagedAttention(VllmLayer):
    """A layer's attention over its pages; what is tried is ``(query, key, value)`` of two sequences."""

    def __init__(self) -> None:
        super().__init__(LAYER, WORD)

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the ops lack for a layer, of its configuration; empty where nothing."""
        del arguments
        if module.attn_type != AttentionType.DECODER:
            return f"attention of type {module.attn_type}: the cache is no decoder's"
        if module.is_fp8_kv_cache:
            return "a float8 cache: vLLM's scales are numbers here, the op's tensors"
        return ""

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By the ops, in a cache of the trial's own."""
        query, key, value = arguments
        trial = _Trial(module, key)
        _write(key, value, trial.cache, trial.slots)
        return _attend(module, query, trial.cache, trial.metadata, torch.empty_like(query))

    def own(self, module: Any, *arguments: Any) -> Any:
        """By vLLM's kernel, in a cache of the trial's own."""
        query, key, value = arguments
        trial = _Trial(module, key)
        own: Any = cpu_attn.CPUAttentionBackendImpl
        own.do_kv_cache_update(module, trial.layer, key, value, trial.cache, trial.slots)
        out = torch.empty_like(query)
        own.forward(module, trial.layer, query, key, value, trial.cache, trial.metadata, out)
        return out

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        query, key, value = arguments
        results, queries, keys = [], 0, 0
        for count, asked in zip(_KEYS, _QUERIES, strict=True):
            q, k, v = query[queries : queries + asked], key[keys : keys + count], value[keys : keys + count]
            k, v = (each.repeat_interleave(module.num_heads // module.num_kv_heads, 1) for each in (k, v))
            scores = torch.einsum("shd,thd->hst", q, k) * module.scale
            if module.logits_soft_cap:
                scores = module.logits_soft_cap * (scores / module.logits_soft_cap).tanh()
            # how far behind its query a key lies; negative for one that is to come
            behind = torch.arange(count - asked, count)[:, None] - torch.arange(count)
            if module.alibi_slopes is not None:
                scores = scores - module.alibi_slopes.double()[:, None, None] * behind
            seen = (behind >= 0) if module.sliding_window < 0 else (behind >= 0) & (behind < module.sliding_window)
            scores = scores.masked_fill(~seen, -math.inf)
            if module.sinks is not None:
                sinks = module.sinks.double()[:, None, None].expand(-1, asked, 1)
                scores = torch.cat((scores, sinks), -1)
            weights = scores.softmax(-1)[..., :count]
            results.append(torch.einsum("hst,thd->shd", weights, v))
            queries, keys = queries + asked, keys + count
        return torch.cat(results)

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Queries, keys and values of a dtype."""
        dtype: torch.dtype = getattr(torch, kind[0].removeprefix("torch."))
        generator = torch.Generator().manual_seed(sum(_KEYS))
        heads = (
            (sum(_QUERIES), module.num_heads),
            (sum(_KEYS), module.num_kv_heads),
            (sum(_KEYS), module.num_kv_heads),
        )
        return tuple(torch.randn(*each, module.head_size, generator=generator).to(dtype) for each in heads)


PAGED_ATTENTION = PagedAttention()


class _Trial:
    """A cache of a few pages, in which two sequences lie out of order, and what vLLM tells a layer of a call."""

    def __init__(self, module: Any, key: Tensor) -> None:
        page = module.portakernel_page
        pages = [-(-count // page) for count in _KEYS]
        order = list(range(sum(pages)))[::-1]
        table = torch.zeros(len(_KEYS), max(pages), dtype=torch.int32)
        table[0, : pages[0]] = torch.tensor(order[: pages[0]])
        table[1, : pages[1]] = torch.tensor(order[pages[0] :])
        places = [torch.arange(count) for count in _KEYS]
        self.slots = torch.cat([table[n, at // page].long() * page + at % page for n, at in enumerate(places)])
        self.cache = torch.zeros(sum(pages), module.num_kv_heads, page, 2 * module.head_size, dtype=key.dtype)
        self.layer = SimpleNamespace(isa=module.portakernel_isa, _k_scale_float=1.0, _v_scale_float=1.0)
        lengths, starts = torch.tensor(_KEYS, dtype=torch.int32), torch.tensor((0, *_QUERIES), dtype=torch.int32)
        starts = starts.cumsum(0, dtype=torch.int32)
        self.metadata = cpu_attn.CPUAttentionMetadata(
            num_actual_tokens=sum(_QUERIES),
            max_query_len=max(_QUERIES),
            query_start_loc=starts,
            max_seq_len=max(_KEYS),
            seq_lens=lengths,
            block_table=table,
            slot_mapping=self.slots,
            scheduler_metadata=vllm_ops.cpu_attn_get_scheduler_metadata(
                num_reqs=len(_KEYS),
                num_heads=module.num_heads,
                num_kv_heads=module.num_kv_heads,
                head_dim=module.head_size,
                seq_lens=lengths,
                dtype=key.dtype,
                query_start_loc=starts,
                causal=True,
                sliding_window_size=module.sliding_window,
                isa=module.portakernel_isa,
                enable_kv_split=False,
                kv_cache_dtype=module.kv_cache_dtype,
            ),
        )


class PortakernelCPUAttentionImpl(cpu_attn.CPUAttentionBackendImpl):  # type: ignore[misc]  # vLLM is untyped here
    """One layer's attention; by the ops where ``portakernel_refused`` is empty."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.portakernel_batch_invariant = False  # no backend of CPUs is
        self.portakernel_refused: str | None = None
        client(NAME).born(LAYER, self)

    def parameters(self, recurse: bool = True) -> tuple[Tensor, ...]:
        """None: the weights are the layer's."""
        del recurse
        return ()

    def buffers(self, recurse: bool = True) -> tuple[Tensor, ...]:
        """None, as above."""
        del recurse
        return ()

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Keys and values of new tokens into the layer's pages."""
        if self._refused(layer, key, kv_cache):
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        record(NAME, "write_kv_cache", "", LAYER)
        _write(key, value, kv_cache, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Any:
        """Attention of the step's queries over their pages."""
        if attn_metadata is not None:
            refused = self._refused(layer, query, kv_cache)
            record(NAME, WORD, refused, LAYER)
            if not refused:
                if output_scale is not None or attn_metadata.dynamic_causal is not None:
                    raise NotImplementedError(
                        "portakernel's attention has written this layer's cache, and has neither a quantised result nor"
                        " a mask of its own for each sequence: leave paged_attention out of PORTAKERNEL_CLIENTS"
                    )
                tokens = attn_metadata.num_actual_tokens
                _attend(self, query[:tokens], kv_cache, attn_metadata, output[:tokens])
                return output
        return super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
        )

    def _refused(self, layer: Any, tensor: Tensor, kv_cache: Tensor) -> str:
        """Why the layer is vLLM's own; said once, before anything is in its cache."""
        if self.portakernel_refused is None:
            self.portakernel_isa, self.portakernel_page = getattr(layer, "isa", ""), kv_cache.shape[2]
            self.portakernel_refused = PAGED_ATTENTION.refusal(self)
            if not self.portakernel_refused and tensor.dtype not in DTYPES:
                self.portakernel_refused = f"dtype {tensor.dtype}: the ops take float32, float16 and bfloat16"
            if not self.portakernel_refused:
                self.portakernel_refused = PAGED_ATTENTION.verdict(number_of(self), (str(tensor.dtype),))
        return self.portakernel_refused


class PortakernelCPUAttentionBackend(cpu_attn.CPUAttentionBackend):  # type: ignore[misc]  # vLLM is untyped here
    """vLLM's backend of CPUs, whose layers ask the ops first."""

    @staticmethod
    def get_impl_cls() -> Any:
        """The class of a layer's attention."""
        return PortakernelCPUAttentionImpl


def _pages(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache (pages, G, P, 2D) as (pages, P, G, D): a head's keys in a page, then its values."""
    pages, heads, size, _ = kv_cache.shape
    keys, values = kv_cache.view(pages, heads, 2 * size, -1).chunk(2, 2)
    return keys.transpose(1, 2), values.transpose(1, 2)


def _write(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    tokens = slots.shape[0]
    ops.write_kv_cache(key[:tokens], value[:tokens], *_pages(kv_cache), slots)


def _attend(module: Any, query: Tensor, kv_cache: Tensor, metadata: Any, out: Tensor) -> Tensor:
    window = module.sliding_window
    ops.paged_attention(
        query,
        *_pages(kv_cache),
        metadata.block_table,
        metadata.seq_lens,
        metadata.query_start_loc,
        causal=bool(metadata.causal),
        scale=module.scale,
        window=(window - 1, -1) if window >= 0 else (-1, -1),
        softcap=float(module.logits_soft_cap),
        max_seqlen_q=metadata.max_query_len,
        max_seqlen_k=metadata.max_seq_len,
        alibi_slopes=module.alibi_slopes,
        sinks=module.sinks,
        out=out.view(query.shape),
    )
    return out


class AttentionBackendError(PortakernelError, RuntimeError):
    """Another plugin's attention backend stands where ours would."""


def elsewhere() -> str:
    """Why attention is left to vLLM on this platform; empty on CPUs."""
    if current_platform.is_cpu():
        return ""
    name = current_platform.device_name
    return f"vLLM's backends of {name} answer for captured graphs and cascades, too; the ops were tried on CPUs"


def register() -> None:
    """Puts our backend over vLLM's of CPUs; nothing elsewhere.

    Raises:
        AttentionBackendError: as its name says.
    """
    if elsewhere():
        return
    theirs = AttentionBackendEnum.CPU_ATTN
    ours = f"{PortakernelCPUAttentionBackend.__module__}.{PortakernelCPUAttentionBackend.__qualname__}"
    if theirs.is_overridden() and theirs.get_path() != ours:
        raise AttentionBackendError(
            f"vLLM's backend CPU_ATTN is replaced by {theirs.get_path()} of another plugin. Leave paged_attention out"
            " of the ops, or that plugin out of VLLM_PLUGINS"
        )
    register_backend(theirs, ours)


def unregister() -> None:
    """Takes it back. Layers that have it keep it: what is in their caches only they can read."""
    theirs = AttentionBackendEnum.CPU_ATTN
    if theirs.is_overridden() and theirs.get_path().startswith(__name__):
        theirs.clear_override()
