"""``Attention``: projections with the weights of ``torch.nn.MultiheadAttention``, and the op ``attention``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from portakernel import ops
from portakernel.errors import ArgumentValueError
from portakernel.runtime import contract_of


class Attention(nn.Module):
    """Multi-head attention, also with grouped heads, causal and in a window, by the op ``attention``.

    The weights are those of ``torch.nn.MultiheadAttention`` by name, shape and first draw, so that a state_dict of
    either loads into the other: ``in_proj_weight`` (E + 2 * G * D, E), the rows of queries, keys and values one after
    the other, ``in_proj_bias``, ``out_proj.weight`` (E, E) and ``out_proj.bias``. E is ``embed_dim``, D the size of a
    head, G ``num_key_value_heads``; where G is less than ``num_heads``, which torch's module cannot have,
    ``in_proj_weight`` has fewer rows.

    Unlike torch's module it returns the result alone, never the weights; masks are ``causal``, ``window`` and an
    additive ``bias``.

    Args:
        embed_dim: the size of the last dimension of queries, keys, values and result.
        num_heads: how many heads of queries; it divides ``embed_dim``.
        dropout: 0.0: the op has none.
        bias: whether the projections have one.
        batch_first: as in torch: False is (S, B, E), True (B, S, E).
        num_key_value_heads: how many heads of keys and values; it divides ``num_heads``; None is as many.
        causal: hide keys behind the query's position; the last query stands at the last key.
        window: how many keys before and after its position a query sees; -1 is all.
        device, dtype: of the weights.

    Raises:
        ArgumentValueError: sizes that do not divide each other, a dropout, or a window below -1.
        ArgumentTypeError: ``causal`` is no bool, or ``window`` is not two whole numbers.
    """

    in_proj_bias: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        num_key_value_heads: int | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        key_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        if min(embed_dim, num_heads, key_heads) < 1 or embed_dim % num_heads or num_heads % key_heads:
            raise ArgumentValueError(
                f"embed_dim={embed_dim}, num_heads={num_heads}, num_key_value_heads={key_heads}: each has to be at"
                " least 1, num_heads has to divide embed_dim, and num_key_value_heads has to divide num_heads"
            )
        if dropout:
            raise ArgumentValueError(
                f"dropout={dropout}: the op attention has none; leave it out, or take torch.nn.MultiheadAttention"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_key_value_heads = key_heads
        self.head_dim = embed_dim // num_heads
        self.batch_first = batch_first
        self.causal: bool = _checked("causal", causal)
        self.window: tuple[int, int] = _checked("window", window)
        rows = embed_dim + 2 * key_heads * self.head_dim
        self.in_proj_weight = nn.Parameter(torch.empty((rows, embed_dim), device=device, dtype=dtype))
        shift = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        self.register_parameter("in_proj_bias", shift)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew, as ``torch.nn.MultiheadAttention`` does."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *, bias: Tensor | None = None
    ) -> Tensor:
        """Attention of ``query`` to ``key`` and ``value``.

        query: (S, B, E), or (B, S, E) with ``batch_first``; key and value: (T, B, E) or (B, T, E); a key that is left
        out is the query, a value the key. bias: what is added to the scores, (B, num_heads, S, T), in query's dtype or
        float32; it may be expanded. The result has query's shape and dtype.

        Raises:
            ArgumentValueError: a value without a key, or shapes that do not fit.
        """
        if key is None and value is not None:
            raise ArgumentValueError("a value was given without a key; give key=, too: it says what is compared")
        key = query if key is None else key
        value = key if value is None else value
        for name, length, x in (("query", "S", query), ("key", "T", key), ("value", "T", value)):
            if x.dim() != 3 or x.shape[-1] != self.embed_dim:
                raise ArgumentValueError(
                    f"{name} is {tuple(x.shape)}; it has to be (B, {length}, E) with batch_first=True,"
                    f" ({length}, B, E) otherwise, and E is embed_dim={self.embed_dim}"
                )
        q, k, v = projected_heads(query, key, value, self.in_proj_weight, self.in_proj_bias, self.head_dim)
        if not self.batch_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        attended = ops.attention(q, k, v, causal=self.causal, window=self.window, bias=bias)
        assert isinstance(attended, Tensor)  # no log-sum-exp was asked for
        joined = attended.flatten(-2)
        out: Tensor = self.out_proj(joined if self.batch_first else joined.transpose(0, 1))
        return out

    def extra_repr(self) -> str:
        """What the constructor was given; only what is not torch's default."""
        told = [f"{self.embed_dim}", f"num_heads={self.num_heads}"]
        if self.num_key_value_heads != self.num_heads:
            told.append(f"num_key_value_heads={self.num_key_value_heads}")
        told += ["batch_first=True"] * self.batch_first + ["causal=True"] * self.causal
        if self.window != (-1, -1):
            told.append(f"window={self.window}")
        return ", ".join(told)


def _checked(name: str, value: object) -> Any:
    """A parameter's value as the op takes it; an error of the constructor where it takes none such."""
    parameters = contract_of("attention").parameters
    return next(each for each in parameters if each.name == name).canonical("Attention", value)


def projected_heads(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, head_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of queries, keys and values, (.., .., heads, head_dim) each; one product for what is the same tensor.

    query, key and value: (.., .., E); weight: (E + 2 * G * D, E), the rows of the three in turn; bias alike.
    """
    embed_dim = weight.shape[1]
    kept = (weight.shape[0] - embed_dim) // 2
    sizes = [embed_dim, kept, kept]
    if key is query and value is query:
        parts = torch.split(nn.functional.linear(query, weight, bias), sizes, -1)
    else:
        biases: tuple[Tensor | None, ...] = (None, None, None) if bias is None else torch.split(bias, sizes)
        given = zip((query, key, value), torch.split(weight, sizes), biases, strict=True)
        parts = tuple(nn.functional.linear(x, rows, shift) for x, rows, shift in given)
    # the number of heads in numbers: of an empty tensor no -1 can be told
    q, k, v = (part.view(*part.shape[:2], size // head_dim, head_dim) for part, size in zip(parts, sizes, strict=True))
    return q, k, v
