"""vLLM's fusion passes, which look for the nodes of its own layers and so pass by those that an op serves."""

from __future__ import annotations

from typing import Any

_NORMS = frozenset({"RMSNorm", "GemmaRMSNorm"})
_ROTARY = "RotaryEmbedding"
# The flags of ``PassConfig`` (0.32), and the layers that each looks for.
PASSES = {
    "fuse_norm_quant": _NORMS | {"QuantFP8"},
    "fuse_act_quant": frozenset({"SiluAndMul", "QuantFP8"}),
    "fuse_attn_quant": frozenset({"QuantFP8"}),
    "fuse_allreduce_rms": _NORMS,
    "fuse_act_padding": _NORMS,
    "fuse_mla_dual_rms_norm": _NORMS,
    "enable_qk_norm_rope_fusion": _NORMS | {_ROTARY},
    "fuse_qk_norm_rope_kvcache": _NORMS | {_ROTARY},
    "fuse_rope_kvcache": frozenset({_ROTARY}),
    "fuse_rope_kvcache_cat_mla": frozenset({_ROTARY}),
}

_on: set[str] = set()


def note(compilation_config: Any) -> None:
    """Keeps which passes an engine of this process has on; an engine that compiles nothing runs none."""
    from vllm.config import CompilationMode

    if compilation_config.mode == CompilationMode.VLLM_COMPILE:
        _on.update(name for name in PASSES if getattr(compilation_config.pass_config, name, None))


def lost_fusions(layer: str) -> tuple[str, ...]:
    """The passes that are on and no longer match this layer."""
    kind = _ROTARY if layer.endswith(_ROTARY) else layer
    return tuple(name for name, layers in PASSES.items() if name in _on and kind in layers)
