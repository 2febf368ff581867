"""Which of a model's modules an op may serve, and why the others of their kinds are left."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType, MethodType
from typing import Any

from torch import nn

from portakernel.integrations.torch_nn.attention import AttentionLayer
from portakernel.integrations.torch_nn.layers import LayerNormLayer, RMSNormLayer, SoftmaxLayer, TorchLayer

# Of exactly these classes: what a subclass computes nobody knows.
SERVED: MappingProxyType[type[nn.Module], type[TorchLayer]] = MappingProxyType(
    {
        nn.RMSNorm: RMSNormLayer,
        nn.LayerNorm: LayerNormLayer,
        nn.Softmax: SoftmaxLayer,
        nn.MultiheadAttention: AttentionLayer,
    }
)
# Activations that ops compute together with a product alone.
_FUSED_ONLY: MappingProxyType[type[nn.Module], str] = MappingProxyType(
    {nn.GELU: "gelu_and_mul", nn.SiLU: "silu_and_mul"}
)
_OWN_MODULES = "portakernel.nn."


@dataclass(frozen=True, slots=True)
class Left:
    """A module that stays as it is: the op of its kind, and why."""

    op: str
    reason: str


def choice_of(module: nn.Module) -> type[TorchLayer] | Left | None:
    """What serves a module, or why it is left; None for what no op knows."""
    kind = type(module)
    if (op := _FUSED_ONLY.get(kind)) is not None:
        return Left(op, f"no op computes {kind.__name__} alone: {op} takes the product behind it")
    base = next((known for known in SERVED if isinstance(module, known)), None)
    if base is None:
        return None
    served = SERVED[base]
    if kind.__module__.startswith(_OWN_MODULES):
        return Left(served.op_name, f"portakernel.nn.{kind.__name__} calls the op itself")
    if kind is not base:
        name = f"{kind.__module__}.{kind.__qualname__}"
        return Left(served.op_name, f"{name} is a subclass of torch.nn.{base.__name__}, and may compute something else")
    if has_forward_of_others(module):
        return Left(served.op_name, "somebody else replaced the instance's forward")
    reason = served.left(module)
    return Left(served.op_name, reason) if reason else served


def has_forward_of_others(module: nn.Module) -> bool:
    """Whether an instance's ``forward`` is neither its class's nor one that ``patch`` set."""
    own: Any = vars(module).get("forward")
    if own is None:
        return False
    # unpickling a patched module leaves its class's forward there, bound
    function = own.__func__ if isinstance(own, MethodType) and own.__self__ is module else None
    return function is not type(module).forward and not is_ours(function)


def is_ours(function: Any) -> bool:
    """Whether ``patch`` made this forward, of this module or of one that it is a copy of."""
    return hasattr(function, "portakernel_layer")
