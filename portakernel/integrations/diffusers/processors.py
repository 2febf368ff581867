"""The attention processor of UNets and autoencoders, which calls torch's attention and never asks for a backend."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from diffusers.models.attention import AttentionModuleMixin
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import Attention, AttnProcessor2_0, MochiAttention
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from portakernel.integrations.diffusers.backend import NAME, active

# What diffusers' set_attention_backend looks through.
MODULES: Any = (Attention, MochiAttention, AttentionModuleMixin)


def attention_modules(model: nn.Module) -> list[Any]:
    """The modules of a model with a processor."""
    return [each for each in model.modules() if isinstance(each, MODULES) and each.processor is not None]


def takes_backends(processor: Any) -> bool:
    """Whether diffusers' set_attention_backend reaches a processor; others it passes over in silence."""
    return hasattr(processor, "_attention_backend")


class _Dispatched(TorchFunctionMode):
    """Within it torch's attention goes through diffusers' dispatch, to a backend."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.backend = backend

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return _through_dispatch(*args, **(kwargs or {}), backend=self.backend)


def _through_dispatch(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
    """Attention as torch's, of (B, H, S, D) heads, by a backend of diffusers, whose heads are (B, S, H, D)."""
    heads = (each.transpose(1, 2) for each in (query, key, value))
    result: Tensor = dispatch_attention_fn(*heads, *rest, **named)
    return result.transpose(1, 2)


class BackendAttnProcessor(AttnProcessor2_0):  # type: ignore[misc, unused-ignore]  # Any where diffusers is absent
    """``AttnProcessor2_0`` for which set_attention_backend("portakernel") holds; for other backends it is as before."""

    _attention_backend: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """As diffusers' own."""
        given = (attn, hidden_states, encoder_hidden_states, attention_mask, temb, *args)
        backend = active() if self._attention_backend is None else self._attention_backend
        if backend != NAME:
            result: Tensor = super().__call__(*given, **kwargs)
            return result
        with _Dispatched(backend):
            dispatched: Tensor = super().__call__(*given, **kwargs)
            return dispatched


def replace(module: Any) -> bool:
    """Gives a module that has diffusers' plain processor ours; whether it had that one."""
    if type(module.processor) is not AttnProcessor2_0:
        return False
    module.processor = BackendAttnProcessor()
    return True


def restore(module: Any) -> None:
    """Gives a module its plain processor back, unless somebody put another in place of ours."""
    if type(module.processor) is BackendAttnProcessor:
        module.processor = AttnProcessor2_0()
