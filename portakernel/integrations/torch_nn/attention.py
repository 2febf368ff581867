"""``torch.nn.MultiheadAttention``, served by the op ``attention`` where its call can be said to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from portakernel import ops
from portakernel.integrations.call_kinds import Kind, drawn, is_tensor_kind
from portakernel.integrations.torch_nn.layers import TorchLayer, is_autocast_on, name_of, refused_tensor
from portakernel.nn.attention import projected_heads


class AttentionLayer(TorchLayer):
    """``torch.nn.MultiheadAttention``, by ``attention``.

    A call's arguments are query, key, value, the mask or None, whether the call says that the mask is causal, autocast.
    """

    op_name = "attention"

    @classmethod
    def left(cls, module: Any) -> str:
        """Weights that the op has no place for."""
        if module.in_proj_weight is None:
            return "kdim or vdim differ from embed_dim: the three projections have weights of their own"
        if module.bias_k is not None or module.add_zero_attn:
            return "add_bias_kv or add_zero_attn: the op has no further key"
        return super().left(module)

    def forward(self, module: Any, *arguments: Any, **named: Any) -> Any:
        """As ``torch.nn.MultiheadAttention.forward``; a call that the op cannot be asked goes there as it is."""
        try:
            asked = _asked(module, *arguments, **named)
        except TypeError:
            asked = None
        if asked is None:
            return self.by_class(module, "the arguments are not those of torch's forward", *arguments, **named)
        query, key, value, mask, is_causal, refused = asked
        if refused or (refused := self.refusal(module, query, key, value, mask)):
            return self.by_class(module, refused, *arguments, **named)
        return self(module, query, key, value, mask, is_causal, is_autocast_on(query)), None

    def refusal(self, module: Any, *arguments: Any) -> str:
        """Shapes and dtypes that the op does not take."""
        query, key, value, mask, *_ = arguments
        if query.dim() != 3:
            return f"query has {query.dim()} dimensions: batches have 3"
        if any(each.dtype != module.in_proj_weight.dtype for each in (query, key, value)):
            return "query, key, value and the weights differ in dtype"
        if mask is not None and mask.is_floating_point() and mask.dtype not in (query.dtype, torch.float32):
            return f"the mask is {name_of(mask.dtype)}: the op adds query's dtype, or float32"
        return refused_tensor(query)

    def ours(self, module: Any, *arguments: Any) -> Any:
        """One product for queries, keys and values where they come from one tensor, the op, and the last product."""
        query, key, value, mask, is_causal, _ = arguments
        weight, bias = module.in_proj_weight, module.in_proj_bias
        q, k, v = projected_heads(query, key, value, weight, bias, module.head_dim)
        if not module.batch_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        if mask is not None and not is_causal:
            sizes = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
            mask = mask.view(sizes) if mask.dim() == 3 else mask.expand(sizes)
        attended = ops.attention(q, k, v, causal=is_causal, bias=None if is_causal else mask)
        assert isinstance(attended, Tensor)  # no log-sum-exp was asked for
        joined = attended.flatten(-2)
        return module.out_proj(joined if module.batch_first else joined.transpose(0, 1))

    def own(self, module: Any, *arguments: Any) -> Any:
        """By the class's forward, without weights."""
        query, key, value, mask, is_causal, _ = arguments
        result, _ = type(module).forward(
            module, query, key, value, need_weights=False, attn_mask=mask, is_causal=is_causal
        )
        return result

    def exact(self, module: Any, *arguments: Any) -> Any:
        """Torch's function of numbers in float64."""
        *tensors, mask, is_causal, _ = arguments
        query, key, value = (each.transpose(0, 1) for each in tensors) if module.batch_first else tensors
        biases = (None if each is None else each.double() for each in (module.in_proj_bias, module.out_proj.bias))
        in_proj_bias, out_proj_bias = biases
        result, _ = functional.multi_head_attention_forward(
            query, key, value, module.embed_dim, module.num_heads, module.in_proj_weight.double(), in_proj_bias,
            bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0,
            out_proj_weight=module.out_proj.weight.double(), out_proj_bias=out_proj_bias, training=False,
            need_weights=False, attn_mask=mask, is_causal=is_causal,
        )  # fmt: skip
        return result.transpose(0, 1) if module.batch_first else result

    def kind(self, *arguments: Any) -> Kind:
        """Of a mask its dtype and rank: its sizes are those of the sequences."""
        *tensors, mask, is_causal, autocast = arguments
        rank = -1 if mask is None else mask.dim()
        dtype = "" if mask is None else name_of(mask.dtype)
        return (*super().kind(*tensors), rank, dtype, is_causal, autocast)

    def part(self, *arguments: Any) -> tuple[Any, ...]:
        """All of a call with a mask, whose sizes go with those of the others."""
        return arguments if arguments[3] is not None else super().part(*arguments)

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Sequences of equal lengths, and a mask of the kind's form."""
        tensors = [drawn(each, place) for place, each in enumerate(kind) if is_tensor_kind(each)]
        rank, dtype, is_causal, autocast = kind[len(tensors) :]
        batch, length = tensors[0].shape[:2] if module.batch_first else tensors[0].shape[1::-1]
        mask = None
        if rank >= 0:
            sizes = (length, length) if rank == 2 else (batch * module.num_heads, length, length)
            numbers = torch.randn(sizes, generator=torch.Generator().manual_seed(len(tensors)))
            mask = numbers.to(tensors[0].device, getattr(torch, dtype))
        return (*tensors, mask, is_causal, autocast)


def _asked(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool, str]:
    """A call's tensors, mask and causality, and why the op cannot be asked it; empty where it can."""
    del average_attn_weights
    refused = ""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if not all(isinstance(each, Tensor) for each in tensors):
        refused = "query, key, value and attn_mask are not all tensors"
    elif need_weights:
        refused = "need_weights=True: the op does not return the weights; call with need_weights=False"
    elif key_padding_mask is not None:
        refused = "key_padding_mask: give it as a float attn_mask, (batch * heads, queries, keys), -inf where it hides"
    elif module.training and module.dropout:
        refused = "dropout: the op has none"
    elif is_causal and query.shape != key.shape:
        refused = (
            "is_causal with other lengths of queries and keys: the op counts from the last key, torch from the first"
        )
    elif attn_mask is not None and not is_causal and not attn_mask.is_floating_point():
        refused = f"attn_mask is {name_of(attn_mask.dtype)}: the op adds floats; give -inf where it is True"
    # a causal hint says what the mask holds
    return query, key, value, attn_mask, is_causal, refused
