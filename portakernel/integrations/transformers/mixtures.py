"""Mixtures of experts: a router's forward and its experts', each with its reasons to leave a call to the model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from portakernel import ops
from portakernel.integrations.transformers.families import Mixture
from portakernel.integrations.transformers.layers import DTYPES, Forward, activation_of
from portakernel.integrations.transformers.ledger import record


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``moe_mlp`` of rows ``(T, H)`` with each one's experts and their weights, ``(T, K)``."""
    refused, activation = "", activation_of(self)
    if activation is None:
        refused = f"the op has not the activation {type(self.act_fn).__name__}"
    elif hidden_states.dtype not in DTYPES:
        refused = f"dtype {hidden_states.dtype}: the op takes float32, float16 and bfloat16"
    elif not hidden_states.dtype == self.gate_up_proj.dtype == self.down_proj.dtype:
        refused = "the experts' matrices have another dtype than their input"
    elif self._is_expert_parallel:
        refused = "experts that are on several devices: what is elsewhere has a number that is none of the op's"
    record("moe_mlp", refused)
    if refused or activation is None:
        return type(self).forward(self, hidden_states, top_k_index, top_k_weights)  # type: ignore[no-any-return]
    y = ops.moe_mlp(hidden_states, self.gate_up_proj, self.down_proj, top_k_weights, top_k_index, activation=activation)
    return y.to(hidden_states.dtype)  # which autocast does not ask for


def _routed(self: Any, hidden_states: Tensor, *, renormalize: bool, rounds: bool) -> Any:
    """``moe_route``: logits of rows, and the weights and experts of each; as the router's own where the op cannot."""
    logits = nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    refused = "" if logits.dtype in DTYPES else f"dtype {logits.dtype}: the op takes float32, float16 and bfloat16"
    record("moe_route", refused)
    if refused:
        return type(self).forward(self, hidden_states)
    weights, experts = ops.moe_route(logits, k=self.top_k, renormalize=renormalize)
    # transformers' own experts, which may be left in place, take indices of 64 bits alone
    return logits, weights.to(logits.dtype) if rounds else weights, experts.long()


def _mixtral_router(self: Any, hidden_states: Tensor) -> Any:
    return _routed(self, hidden_states, renormalize=True, rounds=False)


def _qwen3_router(self: Any, hidden_states: Tensor) -> Any:
    return _routed(self, hidden_states, renormalize=self.norm_topk_prob, rounds=True)


def router_forward(mixture: Mixture) -> Forward:
    """``forward`` for a router class's instances; a plain function, so that these can be pickled and copied."""
    return {"mixtral": _mixtral_router, "qwen3_moe": _qwen3_router}[mixture.formula]
