"""The engines that portakernel serves as its clients, and the ops that serve layers of each."""

from __future__ import annotations

from types import MappingProxyType

# Clients with a loader of plugins, which ``PORTAKERNEL_CLIENTS`` switches on.
CLIENTS = MappingProxyType(
    {
        "vllm": (
            "rms_norm",
            "layer_norm",
            "silu_and_mul",
            "gelu_and_mul",
            "quantize_fp8",
            "rotary_embedding",
            "scaled_mm",
            "paged_attention",
        ),
        "sglang": ("rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding"),
    }
)
# Clients that load no plugins: a program switches them on itself.
WITHOUT_ENTRY_POINT = MappingProxyType(
    {
        name: f"{name} loads no plugins: call portakernel.integrations.{name}.enable() in the program"
        for name in ("diffusers", "transformers")
    }
)
