"""The layers' forwards: norm, gated MLP and rotary positions, each with its reasons to leave a call to the model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation, GELUTanh, SiLUActivation

from portakernel import ops
from portakernel.integrations.client import record
from portakernel.integrations.transformers.families import Norm
from portakernel.tensors.torch_internals import is_hooked

Forward = Callable[..., Any]
Activation = Literal["silu", "gelu", "gelu_tanh"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def activation_of(layer: nn.Module) -> Activation | None:
    """The ops' name of a gated layer's activation; None where they have none."""
    act: Any = layer.act_fn
    if type(act) in (SiLUActivation, nn.SiLU):
        return "silu"
    if type(act) is GELUTanh:
        # the formula in Python, which some checkpoints name, is rounded differently
        return "gelu_tanh" if isinstance(act.act, functools.partial) else None
    return "gelu" if type(act) is GELUActivation and act.act is nn.functional.gelu else None


def gate_of(mlp: nn.Module) -> str:
    """The op that a gated MLP's activation is, or, where there is none, an empty name."""
    activation = activation_of(mlp)
    return "" if activation is None else "silu_and_mul" if activation == "silu" else "gelu_and_mul"


def _rms_norm(self: Any, x: Tensor, eps: float, offset: float, promotes: bool) -> Any:
    """``rms_norm``, or the norm's own class where the op cannot.

    ``promotes``: a float32 weight makes the class's results float32.
    """
    refused = ""
    if x.dtype not in DTYPES:
        refused = f"dtype {x.dtype}: the op takes float32, float16 and bfloat16"
    elif self.weight.dtype not in (x.dtype, torch.float32):
        refused = "the weight has another 16-bit dtype than its input"
    elif promotes and self.weight.dtype != x.dtype:
        refused = "a float32 weight makes the model's result float32, the op's has the input's dtype"
    record("transformers", "rms_norm", refused)
    if refused:
        return type(self).forward(self, x)
    return ops.rms_norm(x, self.weight, eps=eps, weight_offset=offset)


def _llama_norm(self: Any, hidden_states: Tensor) -> Any:
    return _rms_norm(self, hidden_states, self.variance_epsilon, 0.0, promotes=True)


def _gpt_oss_norm(self: Any, hidden_states: Tensor) -> Any:
    return _rms_norm(self, hidden_states, self.variance_epsilon, 0.0, promotes=False)


def _gemma_norm(self: Any, x: Tensor) -> Any:
    return _rms_norm(self, x, self.eps, 1.0, promotes=False)


def norm_forward(norm: Norm) -> Forward:
    """``forward`` for a norm class's instances; a plain function, so that these can be pickled and copied."""
    return {"llama": _llama_norm, "gpt_oss": _gpt_oss_norm, "gemma": _gemma_norm}[norm.formula]


def mlp_forward(self: Any, x: Tensor) -> Tensor:
    """A gated MLP, its activation and product by ``silu_and_mul`` or ``gelu_and_mul``.

    The ops take gate and up side by side: where nothing is differentiated both products are written so.
    """
    op = gate_of(self)
    in_graph = torch.compiler.is_compiling()
    if not in_graph and _may_write_into_one(self.gate_proj, self.up_proj, x):
        record("transformers", op)
        pair = _written_into_one(self.gate_proj.weight, self.up_proj.weight, x)
    else:
        gate, up = self.gate_proj(x), self.up_proj(x)
        refused = ""
        if in_graph:
            refused = "a compiled graph: Inductor fuses the model's own, whose gate and up lie apart"
        elif gate.dtype not in DTYPES or gate.dtype != up.dtype:
            refused = "gate and up are not both float32, float16 or bfloat16"
        record("transformers", op, refused)
        if refused:
            return self.down_proj(self.act_fn(gate) * up)  # type: ignore[no-any-return]
        pair = torch.cat([gate, up], -1)
    if op == "silu_and_mul":
        return self.down_proj(ops.silu_and_mul(pair))  # type: ignore[no-any-return]
    approximate: Literal["tanh", "none"] = "tanh" if type(self.act_fn) is GELUTanh else "none"
    return self.down_proj(ops.gelu_and_mul(pair, approximate=approximate))  # type: ignore[no-any-return]


def _may_write_into_one(gate: nn.Module, up: nn.Module, x: Tensor) -> bool:
    """Whether both layers are nothing but a product with a weight, which nobody differentiates or looks at."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type) or x.dtype not in DTYPES:
        return False
    return type(x) is Tensor and _is_plain_product(gate, x) and _is_plain_product(up, x)


def _is_plain_product(layer: nn.Module, x: Tensor) -> bool:
    if type(layer) is not nn.Linear or is_hooked(layer):
        return False
    weight: Any = layer.weight
    bias: Any = layer.bias
    return bias is None and type(weight) is nn.Parameter and weight.dtype is x.dtype and weight.device == x.device


def _written_into_one(gate: Tensor, up: Tensor, x: Tensor) -> Tensor:
    """``x @ gate.T`` and ``x @ up.T`` side by side; x: (..., K), the weights (N, K)."""
    rows, first = x.reshape(-1, x.shape[-1]), gate.shape[0]
    pair = x.new_empty(rows.shape[0], first + up.shape[0])
    torch.mm(rows, gate.t(), out=pair[:, :first])
    torch.mm(rows, up.t(), out=pair[:, first:])
    return pair.view(*x.shape[:-1], pair.shape[1])


def rotary_forward(self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rotary positions of ``(B, H, S, D)`` heads, or of ``(B, S, H, D)`` where ``unsqueeze_dim`` is 2."""
    refused = ""
    width = q.shape[-1]
    if q.dtype not in DTYPES or k.dtype != q.dtype:
        refused = "query and key are not both float32, float16 or bfloat16"
    elif cos.dtype not in (q.dtype, torch.float32):
        refused = "the angles have another 16-bit dtype than the heads"
    elif cos.dtype != q.dtype:
        refused = "float32 angles make the model's result float32, the op's has the input's dtype"
    elif q.dim() != 4 or cos.dim() != 3 or unsqueeze_dim not in (1, 2) or cos.shape[0] not in (1, q.shape[0]):
        refused = "shapes other than (B, H, S, D) heads and (B, S, D) angles"
    elif k.shape[-1] != width or cos.shape[-1] not in (width, width // 2):
        refused = "angles for another part of the head than all of it"
    record("transformers", "rotary_embedding", refused)
    if refused:
        return type(self).forward(self, q, k, cos, sin, unsqueeze_dim)
    if unsqueeze_dim == 1:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    # The angles of a pair's two halves are equal: a table of full width holds them twice.
    cos, sin = cos[..., : width // 2], sin[..., : width // 2]
    rows, length = cos.shape[:2]
    positions = None
    if rows > 1:
        positions = torch.arange(rows * length, device=q.device).view(rows, length)
    turned = ops.rotary_embedding(q, k, cos.flatten(0, 1), sin.flatten(0, 1), positions)
    return tuple(heads.transpose(1, 2) for heads in turned) if unsqueeze_dim == 1 else turned
