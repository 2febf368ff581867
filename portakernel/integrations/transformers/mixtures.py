"""Mixtures of experts: a router's forward and its experts', each with its reasons to leave a call to the model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from portakernel import ops
from portakernel.integrations.client import record
from portakernel.integrations.transformers.families import Mixture
from portakernel.integrations.transformers.layers import DTYPES, Forward, activation_of

# gpt-oss' gate, as the op has it.
_ALPHA, _LIMIT = 1.702, 7.0


def _other_activation(experts: Any) -> str:
    known = activation_of(experts) is not None
    return "" if known else f"the op has not the activation {type(experts.act_fn).__name__}"


def _other_gate(experts: Any) -> str:
    if (experts.alpha, experts.limit) == (_ALPHA, _LIMIT):
        return ""
    return f"the op's clamped gate has alpha {_ALPHA} and limit {_LIMIT}; this has {experts.alpha} and {experts.limit}"


def experts_refusal(experts: nn.Module, mixture: Mixture) -> str:
    """Why the op can serve no call of a layer's experts; empty where it can."""
    return _other_gate(experts) if mixture.formula == "gpt_oss" else _other_activation(experts)


def _refused(self: Any, hidden_states: Tensor, refused: str) -> bool:
    """Whether a call is left to the model, which is counted: for this reason, or another."""
    if refused:
        pass
    elif hidden_states.dtype not in DTYPES:
        refused = f"dtype {hidden_states.dtype}: the op takes float32, float16 and bfloat16"
    elif not hidden_states.dtype == self.gate_up_proj.dtype == self.down_proj.dtype:
        refused = "the experts' matrices have another dtype than their input"
    elif self._is_expert_parallel:
        refused = "experts that are on several devices: what is elsewhere has a number that is none of the op's"
    record("transformers", "moe_mlp", refused)
    return bool(refused)


def _plain_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``moe_mlp`` of rows ``(T, H)`` with each one's experts and their weights, ``(T, K)``."""
    activation = activation_of(self)
    if _refused(self, hidden_states, _other_activation(self)) or activation is None:
        return type(self).forward(self, hidden_states, top_k_index, top_k_weights)  # type: ignore[no-any-return]
    y = ops.moe_mlp(hidden_states, self.gate_up_proj, self.down_proj, top_k_weights, top_k_index, activation=activation)
    return y.to(hidden_states.dtype)  # which autocast does not ask for


def _gpt_oss_experts(self: Any, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
    """The same of matrices ``(E, H, 2I)`` and ``(E, I, H)``, with gate and up in turn, clamped, and biases."""
    if _refused(self, hidden_states, _other_gate(self)):
        return type(self).forward(self, hidden_states, router_indices, routing_weights)  # type: ignore[no-any-return]
    y = ops.moe_mlp(
        hidden_states,
        self.gate_up_proj.transpose(1, 2),
        self.down_proj.transpose(1, 2),
        routing_weights,
        router_indices,
        bias_in=self.gate_up_proj_bias,
        bias_out=self.down_proj_bias,
        activation="swiglu_oai",
        halves="interleaved",
    )
    return y.to(hidden_states.dtype)


def experts_forward(mixture: Mixture) -> Forward:
    """``forward`` for an experts class's instances; a plain function, as below."""
    return _gpt_oss_experts if mixture.formula == "gpt_oss" else _plain_experts


def _routed(self: Any, hidden_states: Tensor, *, rounds: bool, bias: Tensor | None = None, **how: Any) -> Any:
    """``moe_route``: logits of rows, and the weights and experts of each; as the router's own where the op cannot."""
    logits = nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight, bias)
    refused = "" if logits.dtype in DTYPES else f"dtype {logits.dtype}: the op takes float32, float16 and bfloat16"
    record("transformers", "moe_route", refused)
    if refused:
        return type(self).forward(self, hidden_states)
    weights, experts = ops.moe_route(logits, k=self.top_k, **how)
    # transformers' own experts, which may be left in place, take indices of 64 bits alone
    return logits, weights.to(logits.dtype) if rounds else weights, experts.long()


def _mixtral_router(self: Any, hidden_states: Tensor) -> Any:
    return _routed(self, hidden_states, renormalize=True, rounds=False)


def _qwen3_router(self: Any, hidden_states: Tensor) -> Any:
    return _routed(self, hidden_states, renormalize=self.norm_topk_prob, rounds=True)


def _gpt_oss_router(self: Any, hidden_states: Tensor) -> Any:
    return _routed(self, hidden_states, scoring="softmax_of_chosen", rounds=True, bias=self.bias)


def router_forward(mixture: Mixture) -> Forward:
    """``forward`` for a router class's instances; a plain function, so that these can be pickled and copied."""
    forwards = {"mixtral": _mixtral_router, "qwen3_moe": _qwen3_router, "gpt_oss": _gpt_oss_router}
    return forwards[mixture.formula]
