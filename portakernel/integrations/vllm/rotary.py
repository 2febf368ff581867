"""vLLM's rotary embeddings by ``rotary_embedding``: the classes whose table is one row of cosines and sines a position.

vLLM replaces a class by its own name, a subclass by none but its own: each that fits is listed.
"""

from __future__ import annotations

from typing import Any

from portakernel import ops
from portakernel.integrations.call_kinds import Kind
from portakernel.integrations.rotary_formula import exact, refusal_of_heads
from portakernel.integrations.vllm.layer import VllmLayer

# All of them compute ``RotaryEmbedding``'s own forward, of a ``cos_sin_cache`` that they fill by a formula of theirs.
FITTING = (
    "RotaryEmbedding",
    "DynamicNTKAlphaRotaryEmbedding",
    "DynamicNTKScalingRotaryEmbedding",
    "Gemma4RotaryEmbedding",
    "LinearScalingRotaryEmbedding",
    "Llama3RotaryEmbedding",
    "NTKScalingRotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
)
# Each class of vLLM's rotary embeddings that stays vLLM's own, and why.
LEFT = {
    "BailingMRotaryEmbedding": "three positions a token, each for a section of the head",
    "DeepseekScalingRotaryEmbedding": "a forward of its own, with offsets and keys of one head without their dimension",
    "DeepseekV4ScalingRotaryEmbedding": "it turns the last dimensions of a head, the op the first",
    "DualChunkRotaryEmbedding": "five tables, of which each query takes several",
    "Ernie4_5_VLRotaryEmbedding": "three positions a token, each for a section of the head",
    "FourierRotaryEmbedding": "tables with coefficients of each head, which are made when weights are loaded",
    "Llama4VisionRotaryEmbedding": "a complex table over patches, without positions",
    "MRotaryEmbedding": "three positions a token, each for a section of the head",
    "MRotaryEmbeddingInterleaved": "three positions a token, each for a section of the head",
    "Phi3LongRoPEScaledRotaryEmbedding": "it is no CustomOp that can be replaced, and picks one of two tables a call",
    "RotaryEmbeddingBase": "it has no forward",
}


class Rotary(VllmLayer):
    """A rotary class: ``(positions, query, key)``, heads side by side or in a dimension of their own."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer, "rotary_embedding")

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        positions, query, key = arguments
        if reason := refusal_of_heads(positions, query, key):
            return reason
        if module.use_flashinfer:
            return "use_flashinfer: the table stays in float32, of heads in another dtype"
        if module.cos_sin_cache.dim() != 2 or module.cos_sin_cache.shape[-1] != module.rotary_dim:
            return "a cos_sin_cache that is not one row of rotary_dim cosines and sines a position"
        return ""

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``rotary_embedding``; where vLLM's ROCm models rely on it, over the inputs."""
        positions, query, key = arguments
        positions, half = positions.flatten(), module.rotary_dim // 2
        table = module._match_cos_sin_cache_dtype(query)
        q, k = (heads.reshape(positions.shape[0], -1, module.head_size) for heads in (query, key))
        turned_q, turned_k = ops.rotary_embedding(
            q,
            k,
            table[:, :half],
            table[:, half:],
            positions,
            interleaved=not module.is_neox_style,
            out=(q, k) if module.portakernel_in_place else None,
        )
        return turned_q.view(query.shape), turned_k.view(key.shape)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64, of the table that the client's own forward reads."""
        return exact(module, *arguments)

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Inputs of a kind; positions that the table has."""
        positions, query, key = super().drawn(module, kind)
        return positions % module.cos_sin_cache.shape[0], query, key


ROTARIES = tuple(Rotary(name) for name in FITTING)
