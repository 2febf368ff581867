"""The decoder's operators twice: through ``portakernel.ops``, and as torch alone has them."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# The ops of portakernel that the decoder calls.
NAMES = (
    "embedding_bag",
    "rms_norm",
    "add_rms_norm",
    "linear_act",
    "rotary_embedding",
    "attention",
    "silu_and_mul",
    "cross_entropy",
    "softmax",
)


class Ops(Protocol):
    """What the decoder is made of."""

    def embedding(self, weight: Tensor, symbols: Tensor) -> Tensor:
        """The rows of ``weight`` that ``symbols`` number."""
        ...

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x @ weight.T``."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x`` over the root of its mean square, weighed."""
        ...

    def add_rms_norm(self, x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of ``x + stream``, and the sum."""
        ...

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys ``(B, S, heads, D)``, turned by the angle of their position."""
        ...

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention, the last query aligned with the last key."""
        ...

    def silu_and_mul(self, x: Tensor) -> Tensor:
        """``silu`` of the first half of the last dimension, times the second."""
        ...

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss at each position."""
        ...

    def softmax(self, x: Tensor) -> Tensor:
        """Probabilities over the last dimension."""
        ...


class ThroughPortakernel:
    """``portakernel.ops``; the op called ``fault`` gets one element of its (first) result wrong by 1 %."""

    def __init__(self, fault: str | None = None) -> None:
        from portakernel import ops

        self._ops, self._fault = ops, fault

    def _one_wrong(self, op: str, result: Tensor) -> Tensor:
        if op != self._fault or not result.numel():
            return result
        factors = torch.ones_like(result)
        factors.view(-1)[result.detach().abs().argmax()] = 1.01
        return result * factors

    def embedding(self, weight: Tensor, symbols: Tensor) -> Tensor:
        """A bag of one symbol each."""
        indices = symbols.reshape(-1)
        offsets = torch.arange(indices.numel(), device=indices.device)
        rows = self._ops.embedding_bag(weight, indices, offsets)
        return self._one_wrong("embedding_bag", rows).reshape(*symbols.shape, -1)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """A linear layer without bias or activation."""
        return self._one_wrong("linear_act", self._ops.linear_act(x, weight))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As the op of that name."""
        return self._one_wrong("rms_norm", self._ops.rms_norm(x, weight, eps=eps))

    def add_rms_norm(self, x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As the op of that name."""
        y, summed = self._ops.add_rms_norm(x, stream, weight, eps=eps)
        return self._one_wrong("add_rms_norm", y), summed

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """As the op of that name; a token's position is its place in the sequence."""
        q, k = self._ops.rotary_embedding(q, k, cos, sin)
        return self._one_wrong("rotary_embedding", q), k

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As the op of that name."""
        return self._one_wrong("attention", _tensor(self._ops.attention(q, k, v, causal=True)))

    def silu_and_mul(self, x: Tensor) -> Tensor:
        """As the op of that name."""
        return self._one_wrong("silu_and_mul", self._ops.silu_and_mul(x))

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """As the op of that name."""
        return self._one_wrong("cross_entropy", _tensor(self._ops.cross_entropy(logits, target)))

    def softmax(self, x: Tensor) -> Tensor:
        """As the op of that name."""
        return self._one_wrong("softmax", self._ops.softmax(x))


class PlainTorch:
    """The same as torch alone has it."""

    def embedding(self, weight: Tensor, symbols: Tensor) -> Tensor:
        """Rows by number."""
        return F.embedding(symbols, weight)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """A linear layer without bias."""
        return F.linear(x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(self, x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """A sum, then the norm."""
        summed = x + stream
        return F.rms_norm(summed, (summed.shape[-1],), weight, eps), summed

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Each pair of halves turned by its angle."""
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

        def turned(x: Tensor) -> Tensor:
            low, high = x.chunk(2, -1)
            return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

        return turned(q), turned(k)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal: torch's own is aligned at the first key, which for as many queries as keys, or for one, is enough."""
        queries, keys = q.shape[1], k.shape[1]
        mask = None
        if 1 < queries < keys:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=1 < queries == keys, enable_gqa=True
        )
        return attended.transpose(1, 2)

    def silu_and_mul(self, x: Tensor) -> Tensor:
        """A gated product."""
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """At each position."""
        return F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none")

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last dimension."""
        return F.softmax(x, -1)


def _tensor(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The one result of an op that may have several."""
    return found if isinstance(found, Tensor) else found[0]
