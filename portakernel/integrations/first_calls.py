"""Whether an op's result is as near to the truth as the client's own, by the op's tolerance.

A layout that is swapped, an epsilon that is another, a mask that is dropped: they all run without an error. Both
results are therefore held against the client's formula in float64, before an op serves a kind of call.

Distances are in units in the last place (ulp) of the result's dtype at the largest magnitude of each row (the last
dimension), whose terms decide how exact any of its elements can be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.contract import Tolerance

# How much larger than the client's own error an op's may be, and the worst element's: chance decides the latter.
LARGER, WORST = 1.05, 2.0
# No layer's chain of roundings is this far off on average, of 16 bits or in float32; a formula that is another one is.
_CHAIN_ULP, _FLOAT32_CHAIN_ULP = 4.0, 64.0
# Where the op's tolerance follows the plain formula: one rounding, or in float32 a few in another order.
_ROUNDING, _FLOAT32_ROUNDINGS = 0.51, 16.0


def outputs_of(result: Any) -> tuple[Tensor, ...]:
    """A layer's tensors, in order."""
    return (result,) if isinstance(result, Tensor) else tuple(part for part in result if isinstance(part, Tensor))


def shortfall(ours: Any, own: Any, exact: Any, tolerance: Tolerance, larger: float = LARGER) -> str:
    """Why the op's result is worse than the client's own; empty where it is as good.

    ``exact`` is the client's formula in float64. Results are tensors, or tuples with tensors. The op's error on average
    may be ``larger`` times the client's own, and is good where it is within the op's tolerance.
    """
    given, wanted, truths = outputs_of(ours), outputs_of(own), outputs_of(exact)
    if len(given) != len(wanted):
        return f"the op returns {len(given)} tensors, the client's own code {len(wanted)}"
    for place, (mine, theirs, truth) in enumerate(zip(given, wanted, truths, strict=True)):
        if reason := _shortfall(mine, theirs, truth.to(torch.float64), tolerance.forward, larger):
            return f"result {place}: {reason}" if len(given) > 1 else reason
    return ""


def _shortfall(ours: Tensor, own: Tensor, exact: Tensor, allowed: Mapping[str, float], larger: float) -> str:
    if ours.shape != own.shape or ours.dtype != own.dtype:
        return f"the op returns {_described(ours)}, the client's own code {_described(own)}"
    if not own.dtype.is_floating_point:
        wrong = int((ours != own).sum())
        return f"{wrong} of {own.numel()} whole numbers differ from the client's own" if wrong else ""
    # rows of the client's own that are not finite say nothing of either
    decisive = (exact.isfinite() & own.isfinite()).all(-1) if own.dim() else exact.isfinite() & own.isfinite()
    ours, own, exact = ours[decisive], own[decisive], exact[decisive]
    if own.numel() == 0:
        return ""
    unit = _ulp_of_rows(exact, own.dtype)
    far, their_far = ((each.to(torch.float64) - exact).div(unit).abs() for each in (ours, own))
    numbers = f"{_rms(far):.3g} ulp off on average and {_worst(far):.3g} at worst, where the client's own code is"
    numbers += f" {_rms(their_far):.3g} and {_worst(their_far):.3g}"
    chain = _FLOAT32_CHAIN_ULP if own.dtype is torch.float32 else _CHAIN_ULP
    if not _rms(their_far) < max(chain, 8.0 * _rms(far)):
        return f"the client's own code computes something else, {_rms(their_far):.3g} ulp from the formula on average"
    tolerance = allowed.get(str(own.dtype).removeprefix("torch."), _rounding(own.dtype))
    if _worst(far) <= tolerance:
        return ""
    as_good = _rms(far) <= larger * _rms(their_far) and _worst(far) <= WORST * _worst(their_far)
    return "" if as_good else numbers


def _rounding(dtype: torch.dtype) -> float:
    return _FLOAT32_ROUNDINGS if dtype is torch.float32 else _ROUNDING


def _ulp_of_rows(exact: Tensor, dtype: torch.dtype) -> Tensor:
    information = torch.finfo(dtype)
    largest = exact.abs().amax(-1, keepdim=True).clamp(min=information.smallest_normal)
    return torch.exp2(largest.log2().floor()) * information.eps


def _rms(distance: Tensor) -> float:
    return math.inf if bool(distance.isnan().any()) else float(distance.square().mean().sqrt())


def _worst(distance: Tensor) -> float:
    return math.inf if bool(distance.isnan().any()) else float(distance.max())


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
