"""``moe_route`` and its gradient as formulas.

With ``s`` the scores of a row, ``w`` the weights over ``factor`` and ``g`` the gradients of weights times ``factor``, a
logit's gradient is, the choice being given,

    softmax                 w * (g - sum(g * w)) of those chosen, -p * sum(g * w) of the others
    softmax renormalized    w * (g - sum(g * w))
    sigmoid                 w * (1 - w) * g
    sigmoid renormalized    w * (1 - s) * (g - sum(g * w))

and 0 for those that are not chosen but in the first. A score is never formed where it could vanish: those of chosen
experts are divided by the largest of them first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]

# Numbers that decide and differ by less of their terms' sizes may be in the other order in float32.
_CLOSE = 2.0**-20
# What the rounding of an exponent, a difference of logits, does to a weight, in parts of the tolerance.
_EXPONENT_SHARE = 1 / 8


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _below(x: Tensor, top: Tensor) -> Tensor:
    """``x - top``, 0 where they are equal, infinities too."""
    return torch.where(x == top, torch.zeros_like(x), x - top)


def _without_nan(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), -math.inf, x)


@dataclass(frozen=True, slots=True)
class _Router:
    """What a call says of how experts are chosen and weighted."""

    k: int
    scoring: Scoring
    renormalize: bool
    groups: int
    groups_kept: int

    @property
    def normalizes(self) -> bool:
        """Whether weights are shares of those of the chosen experts."""
        return self.renormalize or self.scoring == "softmax_of_chosen"

    def deciding(self, logits: Tensor, bias: Tensor | None) -> Tensor:
        """What orders the experts of a row; ``logits`` hold no NaN."""
        if bias is None:
            return logits
        if self.scoring == "softmax":
            top = logits.amax(-1, keepdim=True)
            e = _below(logits, top).exp()
            score = torch.where(top == -math.inf, 0.0, e / e.sum(-1, keepdim=True))
        else:
            score = logits.sigmoid() if self.scoring == "sigmoid" else logits
        return _without_nan(score + bias)

    def of_groups(self, deciding: Tensor, *, biased: bool) -> Tensor:
        """``(*M, groups)``: what orders the groups of a row."""
        members = deciding.reshape(*deciding.shape[:-1], self.groups, deciding.shape[-1] // self.groups)
        best = members.topk(min(2, members.shape[-1]) if biased else 1, dim=-1).values
        return _without_nan(best.sum(-1))

    def experts(self, logits: Tensor, bias: Tensor | None) -> Tensor:
        """``(*M, k)``: those chosen, in order."""
        deciding = self.deciding(logits, bias)
        order = deciding.argsort(dim=-1, descending=True, stable=True)
        if self.groups > 1:
            of_groups = self.of_groups(deciding, biased=bias is not None)
            best = of_groups.argsort(dim=-1, descending=True, stable=True)[..., : self.groups_kept]
            members = order // (logits.shape[-1] // self.groups)
            left_out = (members.unsqueeze(-1) != best.unsqueeze(-2)).all(-1)
            order = order.gather(-1, left_out.int().argsort(dim=-1, stable=True))
        return order[..., : self.k]

    def weights(self, logits: Tensor, experts: Tensor) -> Tensor:
        """``(*M, k)``: those of the chosen experts, without ``factor``; ``logits`` hold no NaN."""
        chosen = logits.gather(-1, experts)
        if self.scoring == "sigmoid" and not self.normalizes:
            return chosen.sigmoid()
        if self.scoring == "sigmoid":
            # sigmoid(x) = exp(min(x, 0)) / (1 + exp(-|x|)); the exponentials over the largest of them
            falling = chosen.clamp(max=0.0)
            top = falling.amax(-1, keepdim=True)
            e = _below(falling, top).exp() / (1.0 + (-chosen.abs()).exp())
            total = e.sum(-1, keepdim=True)
        else:
            top = (chosen if self.normalizes else logits).amax(-1, keepdim=True)
            e = _below(chosen, top).exp()
            total = (e if self.normalizes else _below(logits, top).exp()).sum(-1, keepdim=True)
        return torch.where(top == -math.inf, 0.0, e / total)


def forward(
    logits: Tensor,
    *,
    bias: Tensor | None = None,
    k: int,
    scoring: Scoring = "softmax",
    renormalize: bool = True,
    factor: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``weights: (*M, k)`` in float32, ``experts: (*M, k)`` in int32, of ``logits: (*M, E)`` and ``bias: (E,)``."""
    router = _Router(k, scoring, renormalize, groups, groups_kept)
    known = _without_nan(_wide(logits))
    experts = router.experts(known, None if bias is None else bias.to(known.dtype))
    weights = router.weights(known, experts) * factor
    if out is None:
        return weights.contiguous(), experts.int().contiguous()
    return out[0].copy_(weights), out[1].copy_(experts)


def backward(
    grad_weights: Tensor,
    logits: Tensor,
    experts: Tensor,
    *,
    k: int,
    scoring: Scoring = "softmax",
    renormalize: bool = True,
    factor: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    needs: tuple[bool, bool] = (True, False),
) -> tuple[Tensor | None, None]:
    """The gradient for ``logits`` from that of ``weights``; none for ``bias``."""
    if not needs[0]:
        return None, None
    router = _Router(k, scoring, renormalize, groups, groups_kept)
    known, chosen = _without_nan(_wide(logits)), experts.long()
    w, g = router.weights(known, chosen), _wide(grad_weights) * factor
    dot = (g * w).sum(-1, keepdim=True)
    of_chosen = w * (g - dot if scoring != "sigmoid" or router.normalizes else g)
    if scoring == "sigmoid":
        of_chosen = of_chosen * (-known.gather(-1, chosen)).sigmoid()
    found = torch.zeros_like(known)
    if not router.normalizes and scoring == "softmax":
        every = torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape)
        found = -dot * router.weights(known, every)
    return found.scatter(-1, chosen, of_chosen).to(logits.dtype), None


def magnitudes(
    grad_weights: Tensor,
    logits: Tensor,
    experts: Tensor,
    *,
    k: int,
    scoring: Scoring = "softmax",
    renormalize: bool = True,
    factor: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
) -> tuple[Tensor, None]:
    """The sums of absolute terms behind the gradient for ``logits``, and what rounding exponents does to them."""
    router = _Router(k, scoring, renormalize, groups, groups_kept)
    known, chosen = _without_nan(logits.double()), experts.long()
    w, g = router.weights(known, chosen), (grad_weights.double() * factor).abs()
    dot = (g * w * _moved(router, known, chosen)).sum(-1, keepdim=True)
    of_chosen = w * _moved(router, known, chosen) * (g + dot)
    found = torch.zeros_like(known)
    if not router.normalizes and scoring == "softmax":
        every = torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape)
        found = dot * router.weights(known, every) * _moved(router, known, every)
    return found.scatter(-1, chosen, of_chosen), None


def _moved(router: _Router, logits: Tensor, experts: Tensor) -> Tensor:
    """How far rounding may move a weight: by the last place of its exponent, a difference of two logits."""
    chosen = logits.gather(-1, experts)
    if router.scoring == "sigmoid" and not router.normalizes:
        size = chosen.abs()
    else:
        top = (chosen if router.normalizes else logits).amax(-1, keepdim=True)
        size = _below(chosen, top).abs()
    # of a weight that has vanished nothing is left to move
    return 1.0 + _EXPONENT_SHARE * size.clamp(max=1e4)


def output_magnitudes(
    logits: Tensor,
    *,
    bias: Tensor | None = None,
    k: int,
    scoring: Scoring = "softmax",
    renormalize: bool = True,
    factor: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
) -> tuple[Tensor, None]:
    """What the rounding errors of ``weights`` are in proportion to."""
    router = _Router(k, scoring, renormalize, groups, groups_kept)
    known = _without_nan(logits.double())
    experts = router.experts(known, None if bias is None else bias.double())
    return abs(factor) * router.weights(known, experts) * _moved(router, known, experts), None


def unspecified(logits: Tensor, *, bias: Tensor | None = None, **given: Any) -> dict[str, Tensor]:
    """The rows in which rounding may decide between score + bias of two experts, or of two groups."""
    router = _Router(*(given[name] for name in ("k", "scoring", "renormalize", "groups", "groups_kept")))
    shape = (*logits.shape[:-1], router.k)
    if bias is None:
        free = torch.zeros(shape, dtype=torch.bool, device=logits.device)
        return {"weights": free, "experts": free}
    known, wide = _without_nan(logits.double()), bias.double()
    deciding = router.deciding(known, wide)
    size = wide.abs() + (known.abs() if router.scoring == "softmax_of_chosen" else torch.ones_like(known))
    order = deciding.argsort(dim=-1, descending=True, stable=True)
    inputs = (known.gather(-1, order), wide.expand_as(known).gather(-1, order))
    close = _close(deciding.gather(-1, order), size.gather(-1, order))
    # the same numbers give the same score, whoever computes it
    alike = (inputs[0][..., 1:] == inputs[0][..., :-1]) & (inputs[1][..., 1:] == inputs[1][..., :-1])
    doubtful = (close & ~alike).any(-1)
    if router.groups > 1:
        of_groups = router.of_groups(deciding, biased=True)
        sizes = size.reshape(*size.shape[:-1], router.groups, size.shape[-1] // router.groups).amax(-1) * 2
        order = of_groups.argsort(dim=-1, descending=True, stable=True)
        doubtful = doubtful | _close(of_groups.gather(-1, order), sizes.gather(-1, order)).any(-1)
    free = doubtful.unsqueeze(-1).expand(shape)
    return {"weights": free, "experts": free}


def _close(ordered: Tensor, size: Tensor) -> Tensor:
    """Whether neighbours of ``ordered`` numbers, the terms of which have this size, may be in the other order."""
    gap = _below(ordered[..., :-1], ordered[..., 1:])
    return (gap <= _CLOSE * size[..., :-1].maximum(size[..., 1:])) & ordered[..., 1:].isfinite()
