"""A model's own attention, for the calls that the op cannot serve."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.integrations.eager_paged import eager_paged_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from portakernel.integrations.transformers.masks import explicit

Found = tuple[Tensor, Tensor | None]


def own_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    *,
    causal: bool,
    sliding_window: int | None,
    **given: Any,
) -> Found:
    """What the layer would have returned without portakernel: of its eager function, or of transformers' sdpa.

    sdpa knows neither sinks, softcap nor weights: calls with one of them take the eager function of the layer's module.
    """
    needs_eager = given.get("s_aux") is not None or given.get("softcap") is not None
    if given.get("cache") is not None:  # continuous batching, which makes masks of its own
        paged: Any = eager_paged_attention_forward if needs_eager else sdpa_attention_forward
        found: Found = paged(module, query, key, value, mask, sliding_window=sliding_window, **given)
        return found
    if mask is None or isinstance(mask, Tensor):
        mask = explicit(mask, query, key, causal, sliding_window)
    eager: Callable[..., Found] | None = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is not None and (needs_eager or given.get("output_attentions")):
        return eager(module, query, key, value, mask, sliding_window=sliding_window, **given)
    given["is_causal"] = False  # the mask says it
    return sdpa_attention_forward(module, query, key, value, mask, sliding_window=sliding_window, **given)
