"""The layers' forwards: norm, gated MLP and rotary positions, each with its reasons to leave a call to the model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation, GELUTanh, SiLUActivation
from typing_extensions import override

from portakernel import ops
from portakernel.integrations.call_kinds import Kind
from portakernel.integrations.client import record
from portakernel.integrations.served_layer import ServedLayer
from portakernel.integrations.transformers.families import Norm
from portakernel.nn.products import may_write_into_one, written_into_one

NAME = "transformers"
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


class RmsNorm(ServedLayer):
    """A root mean square norm; ``eps_name`` is where a class keeps its epsilon, ``offset`` what it adds to its weight.

    ``promotes``: a float32 weight makes the class's results float32.
    """

    def __init__(self, layer: str, eps_name: str, offset: float, promotes: bool) -> None:
        super().__init__(NAME, layer, "rms_norm")
        self.eps_name = eps_name
        self.offset = offset
        self.promotes = promotes

    @override
    def refusal(self, module: Any, x: Tensor) -> str:
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}: the op takes float32, float16 and bfloat16"
        if module.weight.dtype not in (x.dtype, torch.float32):
            return "the weight has another 16-bit dtype than its input"
        if self.promotes and module.weight.dtype != x.dtype:
            return "a float32 weight makes the model's result float32, the op's has the input's dtype"
        return ""

    @override
    def ours(self, module: Any, x: Tensor) -> Any:
        return ops.rms_norm(x, module.weight, eps=getattr(module, self.eps_name), weight_offset=self.offset)

    @override
    def own(self, module: Any, x: Tensor) -> Any:
        return type(module).forward(module, x)

    @override
    def exact(self, module: Any, x: Tensor) -> Any:
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + getattr(module, self.eps_name))
        return x * root * (module.weight.double() + self.offset)


LLAMA_NORM = RmsNorm("norm like Llama's", "variance_epsilon", 0.0, promotes=True)
GPT_OSS_NORM = RmsNorm("norm like GPT-OSS'", "variance_epsilon", 0.0, promotes=False)
GEMMA_NORM = RmsNorm("norm like Gemma's", "eps", 1.0, promotes=False)


def _llama_norm(self: Any, hidden_states: Tensor) -> Any:
    return LLAMA_NORM(self, hidden_states)


def _gpt_oss_norm(self: Any, hidden_states: Tensor) -> Any:
    return GPT_OSS_NORM(self, hidden_states)


def _gemma_norm(self: Any, x: Tensor) -> Any:
    return GEMMA_NORM(self, x)


def norm_forward(norm: Norm) -> Forward:
    """``forward`` for a norm class's instances; a plain function, so that these can be pickled and copied."""
    return {"llama": _llama_norm, "gpt_oss": _gpt_oss_norm, "gemma": _gemma_norm}[norm.formula]


class Gate(ServedLayer):
    """The activation of a gated MLP and the product with what it gates, which stand side by side: ``(..., 2N)``."""

    def __init__(self, layer: str, op: str, activation: Activation) -> None:
        super().__init__(NAME, layer, op)
        self.activation = activation

    @override
    def refusal(self, module: Any, pair: Tensor) -> str:
        return ""

    @override
    def ours(self, module: Any, pair: Tensor) -> Any:
        if self.activation == "silu":
            return ops.silu_and_mul(pair)
        return ops.gelu_and_mul(pair, approximate="tanh" if self.activation == "gelu_tanh" else "none")

    @override
    def own(self, module: Any, pair: Tensor) -> Any:
        gate, up = pair.chunk(2, -1)
        return module.act_fn(gate) * up

    @override
    def exact(self, module: Any, pair: Tensor) -> Any:
        gate, up = pair.chunk(2, -1)
        if self.activation == "silu":
            return gate * gate.sigmoid() * up
        return nn.functional.gelu(gate, approximate="tanh" if self.activation == "gelu_tanh" else "none") * up


GATED = {
    "silu": Gate("gate of SiLU", "silu_and_mul", "silu"),
    "gelu": Gate("gate of GELU", "gelu_and_mul", "gelu"),
    "gelu_tanh": Gate("gate of tanh GELU", "gelu_and_mul", "gelu_tanh"),
}


def mlp_forward(self: Any, x: Tensor) -> Tensor:
    """A gated MLP, its activation and product by ``silu_and_mul`` or ``gelu_and_mul``.

    The ops take gate and up side by side: where nothing is differentiated both products are written so.
    """
    gated = GATED[activation_of(self) or "silu"]
    in_graph = torch.compiler.is_compiling()
    if not in_graph and may_write_into_one(self.gate_proj, self.up_proj, x):
        return self.down_proj(gated(self, written_into_one(self.gate_proj.weight, self.up_proj.weight, x)))  # type: ignore[no-any-return]
    gate, up = self.gate_proj(x), self.up_proj(x)
    refused = ""
    if in_graph:
        refused = "a compiled graph: Inductor fuses the model's own, whose gate and up lie apart"
    elif gate.dtype not in DTYPES or gate.dtype != up.dtype:
        refused = "gate and up are not both float32, float16 or bfloat16"
    if refused:
        record(NAME, gated.op, refused, gated.layer)
        return self.down_proj(self.act_fn(gate) * up)  # type: ignore[no-any-return]
    return self.down_proj(gated(self, torch.cat([gate, up], -1)))  # type: ignore[no-any-return]


class Rotary(ServedLayer):
    """Rotary positions of ``(B, H, S, D)`` heads, or of ``(B, S, H, D)`` where ``unsqueeze_dim`` is 2."""

    @override
    def refusal(self, module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> str:
        width = q.shape[-1]
        if q.dtype not in DTYPES or k.dtype != q.dtype:
            return "query and key are not both float32, float16 or bfloat16"
        if cos.dtype not in (q.dtype, torch.float32):
            return "the angles have another 16-bit dtype than the heads"
        if cos.dtype != q.dtype:
            return "float32 angles make the model's result float32, the op's has the input's dtype"
        if q.dim() != 4 or cos.dim() != 3 or unsqueeze_dim not in (1, 2) or cos.shape[0] not in (1, q.shape[0]):
            return "shapes other than (B, H, S, D) heads and (B, S, D) angles"
        if k.shape[-1] != width or cos.shape[-1] not in (width, width // 2):
            return "angles for another part of the head than all of it"
        return ""

    @override
    def ours(self, module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> Any:
        if unsqueeze_dim == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        cos, sin = _halves(q, cos, sin)
        rows, length = cos.shape[:2]
        positions = None
        if rows > 1:
            positions = torch.arange(rows * length, device=q.device).view(rows, length)
        turned = ops.rotary_embedding(q, k, cos.flatten(0, 1), sin.flatten(0, 1), positions)
        return tuple(heads.transpose(1, 2) for heads in turned) if unsqueeze_dim == 1 else turned

    @override
    def own(self, module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> Any:
        return type(module).forward(module, q, k, cos, sin, unsqueeze_dim)

    @override
    def exact(self, module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> Any:
        cos, sin = (angles.unsqueeze(unsqueeze_dim) for angles in _halves(q, cos, sin))
        pairs = (heads.chunk(2, -1) for heads in (q, k))
        return tuple(torch.cat([x * cos - y * sin, y * cos + x * sin], -1) for x, y in pairs)

    @override
    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        q, k, cos, sin, unsqueeze_dim = super().drawn(module, kind)
        whole = cos.shape[-1] == q.shape[-1]
        angles = (torch.cat([a, a], -1) if whole else a for a in _halves(q, cos, sin))
        return (q, k, *angles, unsqueeze_dim)


def adapter_of(module: nn.Module, forward: Forward) -> ServedLayer | None:
    """What serves a module whose forward this is now; None of routers and experts, which are not tried."""
    if forward is mlp_forward:
        return GATED[activation_of(module) or "silu"]
    return {_llama_norm: LLAMA_NORM, _gpt_oss_norm: GPT_OSS_NORM, _gemma_norm: GEMMA_NORM}.get(forward)


def _halves(q: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    # The angles of a pair's two halves are equal: a table of full width holds them twice.
    half = q.shape[-1] // 2
    return cos[..., :half], sin[..., :half]


ROTARY = Rotary(NAME, "rotary positions", "rotary_embedding")


def rotary_forward(self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rotary positions, as ``Rotary``."""
    return ROTARY(self, q, k, cos, sin, unsqueeze_dim)
