"""PyTorch's attention over sequences of different lengths: ends, empty sequences, one query each."""

# ruff: noqa: N803 - dimensions have the contract's letters

from __future__ import annotations

import math

import pytest
import torch

import portakernel
from portakernel.references import attention_varlen as reference
from portakernel_plugins.torch.attention import varlen_efficient as attention_varlen_efficient
from portakernel_plugins.torch.attention import varlen_flash as attention_varlen_flash
from portakernel_plugins.torch.attention import varlen_flash_cpu as attention_varlen_flash_cpu

LENGTHS = [((3, 5, 1), (3, 5, 1)), ((0, 4, 6), (3, 0, 2)), ((1, 1, 1), (4, 1, 9)), ((1, 0, 1), (4, 2, 9))]


def draw(queries, keys, H=4, G=2, D=16, E=16):
    source = torch.Generator().manual_seed(sum(queries) * 100 + sum(keys))
    q, k, v = (torch.randn(s, generator=source) for s in ((sum(queries), H, D), (sum(keys), G, D), (sum(keys), G, E)))
    ends = [torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32) for lengths in (queries, keys)]
    return [q, k, v, *ends]


def flash_window(longest, window_size_left=-1, window_size_right=-1):
    """FlashAttention-2's: what reaches as far as the keys is open, and an open end as far away as there are keys."""
    left, right = (-1 if size >= longest else size for size in (window_size_left, window_size_right))
    return (longest if left < 0 <= right else left, longest if right < 0 <= left else right)


def flash_forward(q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, debug, *, scale, **more):
    """FlashAttention-2: bounds hold, one query is taken for exactly one, lse is inf where no key is seen."""
    assert scale > 0
    assert max_q >= int(cu_q.diff().max())
    assert max_k >= int(cu_k.diff().max())
    assert max_q > 1 or q.shape[0] == len(cu_q) - 1
    window = flash_window(max_k, **more)
    asked = {"causal": causal, "scale": scale, "window": window}
    y, lse = reference.forward(q, k, v, cu_q, cu_k, **asked, return_lse=True)
    return y, lse.masked_fill(lse == -math.inf, math.inf), None, None, None


def flash_backward(grad, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout, causal, state, unused, *, scale, **more):
    assert scale > 0
    assert not bool((lse == -math.inf).any())
    window = flash_window(max_k, **more)
    asked = {"causal": causal, "scale": scale, "window": window}
    return reference.backward(grad, q, k, v, cu_q, cu_k, None, None, out, lse, **asked)[:3]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("longest", "scale"), [(True, None), (False, None), (True, 0.0), (True, -0.3), (False, -1e-40)]
)
@pytest.mark.parametrize("window", [(2, -1), (1, 2**20), (-1, 2), (-1, 4)])
def test_flash_gives_the_references_numbers(queries, keys, causal, longest, scale, window, monkeypatch):
    monkeypatch.setattr(attention_varlen_flash, "_forward", flash_forward)
    monkeypatch.setattr(attention_varlen_flash, "_backward", flash_backward)
    tensors = draw(queries, keys, D=32)
    bounds = {"max_seqlen_q": max(queries) if longest else None, "max_seqlen_k": max(keys) if longest else None}
    asked = {"causal": causal, "scale": scale, "window": window, **bounds}
    y, lse, saved = attention_varlen_flash.attention(*tensors, **asked, return_lse=True, save=True)
    want, want_lse = reference.forward(*tensors, **asked, return_lse=True)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(lse, want_lse)
    assert torch.equal(lse, saved)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    found = attention_varlen_flash.backward(grad, *tensors, y, saved, **asked, return_lse=True, needs=(True,) * 5)
    wanted = reference.backward(grad, *tensors, None, None, want, want_lse, **asked)
    for gradient, right in zip(found, wanted[:5], strict=True):
        torch.testing.assert_close(gradient, right)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [0.2, 0.0, -0.2])
def test_efficient_gives_zeros_for_queries_without_keys(queries, keys, causal, scale, monkeypatch):
    def forward(q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, kind, wants_lse, *, scale):
        assert scale > 0
        y, lse = reference.forward(q[0], k[0], v[0], cu_q, cu_k, causal=kind == 2, scale=scale, return_lse=True)
        return y.masked_fill((lse == -math.inf).t().unsqueeze(-1), math.nan)[None], *[None] * 5

    monkeypatch.setattr(attention_varlen_efficient, "_forward", forward)
    tensors = draw(queries, keys)
    asked = {"causal": causal, "scale": scale, "max_seqlen_q": None, "max_seqlen_k": None}
    torch.testing.assert_close(
        attention_varlen_efficient.attention(*tensors, **asked), reference.forward(*tensors, **asked)
    )


def test_sequences_that_cover_fewer_tokens_leave_zeros():
    q, k, v, cu_q, cu_k = draw((3, 4), (2, 5))
    more = [torch.cat([tensor, torch.randn(2, *tensor.shape[1:])]) for tensor in (q, k, v)]
    asked = {"causal": True, "scale": None, "window": (-1, -1), "max_seqlen_q": None, "max_seqlen_k": None}
    y = attention_varlen_flash_cpu.attention(*more, cu_q, cu_k, alibi_slopes=None, **asked)
    torch.testing.assert_close(y[:-2], reference.forward(q, k, v, cu_q, cu_k, **asked))


@pytest.mark.parametrize(
    ("target", "dtype", "causal", "kernel"),
    [
        ("nvidia:sm_90", "bfloat16", True, "torch.attention_varlen_flash"),
        ("nvidia:sm_90", "float32", True, None),
        ("nvidia:sm_75", "float16", True, None),
        ("amd:gfx942", "bfloat16", False, "torch.attention_varlen_flash_amd"),
        ("amd:gfx942", "bfloat16", True, None),
        ("cpu:x86_64", "bfloat16", True, "torch.attention_varlen_flash_cpu"),
        ("intel:pvc", "bfloat16", True, None),
    ],
)
def test_which_operator_serves_where(target, dtype, causal, kernel):
    candidates = portakernel.explain("attention_varlen", target=target, dtype=dtype, causal=causal).candidates
    eligible = [c.kernel.name for c in candidates if c.status != "rejected" and c.kernel.plugin == "torch"]
    assert eligible[:1] == ([] if kernel is None else [kernel])
