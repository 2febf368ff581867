"""The classes that vLLM makes its layers of in place of its own: the same layer, whose forward asks the op first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from vllm import envs
from vllm.config import get_cached_compilation_config
from vllm.platforms import current_platform

from portakernel.integrations.client import client
from portakernel.integrations.vllm import fusions
from portakernel.integrations.vllm.activations import GELU_AND_MUL, SILU_AND_MUL
from portakernel.integrations.vllm.layer import NAME, VllmLayer
from portakernel.integrations.vllm.norms import GEMMA_RMS_NORM, LAYER_NORM, RMS_NORM
from portakernel.integrations.vllm.quantization import QUANT_FP8
from portakernel.integrations.vllm.rotary import ROTARIES, Rotary

# Our classes' instances whose calls may ask the op first: vLLM keeps rotary layers for models to come.
INSTANCES: WeakSet[Any] = WeakSet()

# The layers that an engine of this process switched off.
OFF: set[str] = set()

# Marks our classes: the layer that serves their calls.
SERVED = "portakernel_served"


def _norm(self: Any, x: Any, residual: Any = None) -> Any:
    return self.portakernel_served(self, x, residual)


def _of_one_tensor(self: Any, x: Any) -> Any:
    return self.portakernel_served(self, x)


def _rotary(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
    return self.portakernel_served(self, positions, query, key)


def _quantisation(self: Any, x: Any, scale: Any = None, scale_ub: Any = None, use_triton: bool = False) -> Any:
    return self.portakernel_served(self, x, scale, scale_ub, use_triton)


# The layers, each with the signature of its class's forward.
FORWARDS: dict[VllmLayer, Callable[..., Any]] = {
    RMS_NORM: _norm,
    GEMMA_RMS_NORM: _norm,
    LAYER_NORM: _of_one_tensor,
    SILU_AND_MUL: _of_one_tensor,
    GELU_AND_MUL: _of_one_tensor,
    QUANT_FP8: _quantisation,
    **dict.fromkeys(ROTARIES, _rotary),
}


def vllm_class(served: VllmLayer) -> Any:
    """The class that vLLM itself has for a layer.

    Raises:
        AttributeError: vLLM has none of that name where it was.
    """
    from vllm.model_executor.layers import activation, layernorm, rotary_embedding
    from vllm.model_executor.layers.quantization import input_quant_fp8

    home = {RMS_NORM: layernorm, GEMMA_RMS_NORM: layernorm, LAYER_NORM: layernorm, QUANT_FP8: input_quant_fp8}
    module: Any = rotary_embedding if isinstance(served, Rotary) else home.get(served, activation)
    return getattr(module, served.layer)


def replacement(served: VllmLayer) -> Any:
    """A subclass of vLLM's class, whose instances ask the op first, whatever ``custom_ops`` says of all layers."""
    in_tree = vllm_class(served)

    def enabled(cls: Any) -> bool:
        del cls
        return not switched_off(in_tree)

    def dispatch_forward(self: Any, compile_native: bool) -> Callable[..., Any]:
        """The forward of a new instance; CustomOp calls it as it makes one."""
        chosen: Callable[..., Any] = in_tree.dispatch_forward(self, compile_native)
        client(NAME).born(served.layer, self)
        fusions.note(get_cached_compilation_config())
        if not self.enabled():
            OFF.add(served.layer)
            return chosen
        # By vLLM's own choice it might have been off, as with Inductor: uncompiled, so that trials can run it.
        on = self._enforce_enable or in_tree.enabled()
        self.portakernel_own = chosen if on else self.forward_native
        self.portakernel_batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        # DeepSeek's indexer drops what a rotary layer returns where `enabled()` says True, on ROCm.
        self.portakernel_in_place = current_platform.is_rocm()
        self.portakernel_dtype = current_platform.fp8_dtype()
        INSTANCES.add(self)
        return self.portakernel_forward  # type: ignore[no-any-return]

    namespace = {
        "__doc__": f"vLLM's {served.layer}, by portakernel's {served.op} where it can serve.",
        "__module__": __name__,
        SERVED: served,
        "enabled": classmethod(enabled),
        "dispatch_forward": dispatch_forward,
        "portakernel_forward": FORWARDS[served],
    }
    return type(f"Portakernel{served.layer}", (in_tree,), namespace)


def ask(layers: tuple[VllmLayer, ...]) -> None:
    """Lets the instances of these layers' classes that were made before ask the op first, again."""
    for layer in list(INSTANCES):
        if layer.portakernel_served in layers:
            layer._forward_method = layer.portakernel_forward


def ask_no_more() -> None:
    """Lets all instances of our classes compute by vLLM's own code from now on."""
    for layer in list(INSTANCES):
        layer._forward_method = layer.portakernel_own


def switched_off(in_tree: Any) -> bool:
    """Whether the engine's ``custom_ops`` switch this very layer off, by vLLM's name of it or its class's."""
    named = get_cached_compilation_config().custom_ops
    return f"-{in_tree.name}" in named or f"-{in_tree.__name__}" in named
