"""The aspect of forward-mode derivatives: a kernel that PyTorch has to differentiate forward is called with duals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.claims.request import Phase
from portakernel.tensors.torch_internals import forward_ad
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.outcome import Outcome, attempt
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.truth import exact

# So many roundings of the dtype may lie between the two products, of the size of their absolute terms: a tangent that
# is lost leaves half of them out, and the gradients that are the truth here are looked at one by one elsewhere.
_ROUNDINGS = 16.0


@dataclass(slots=True)
class Tangents:
    """One trial, called with dual tensors."""

    trial: Trial
    source: torch.Generator

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome, where the kernel claims this case in forward mode; torch makes no dual of an expanded tensor.

        References are told of in docs/modes.md: of what PyTorch cannot differentiate the op says so itself.
        """
        tensors = self.trial.inputs.tensors
        expanded = any(0 in t.stride() and t.numel() > 1 for t in tensors if t is not None)
        if not expanded and not self.trial.kernel.is_reference and self.trial.serves(tensors, Phase.FORWARD_AD):
            yield attempt("forward_ad", self.pushed)

    def pushed(self) -> list[str]:
        """The outputs as ever, and tangents that go with the gradients: both have one product with the other side.

        The arguments move along their gradients, so that no term of their product cancels another.
        """
        trial, backward = self.trial, Backward(self.trial, self.source)
        grads = backward.draw("contiguous")
        truth = trial.truth.gradients(grads)
        pairs = list(zip(trial.inputs.tensors, truth, strict=True))
        along = [
            None if t is None or want is None else _direction(want.value).to(t.device, t.dtype) for t, want in pairs
        ]
        with warnings.catch_warnings(), forward_ad.dual_level():
            # some of torch's own rules for forward mode are written with it
            warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
            duals = tuple(
                tensor if tensor is None or tangent is None else forward_ad.make_dual(tensor, tangent)
                for tensor, tangent in zip(trial.inputs.tensors, along, strict=True)
            )
            found = trial.call(Phase.FORWARD_AD, duals, label="forward mode")[: len(trial.contract.outputs)]
            unpacked = [forward_ad.unpack_dual(result) for result in found]
        problems = trial.compare_results([result.primal for result in unpacked])
        differentiable = zip(unpacked, trial.contract.outputs, strict=True)
        tangents = [(result.tangent, output.name) for result, output in differentiable if output.differentiable]
        # torch leaves a tangent of nothing but zeros out
        got = [
            exact(g) * exact(tangent) for g, (tangent, _) in zip(grads, tangents, strict=True) if tangent is not None
        ]
        terms = [(w.value, exact(t)) for (_, w), t in zip(pairs, along, strict=True) if w is not None and t is not None]
        want = [value * tangent for value, tangent in terms]
        size = sum(float(term.abs().sum()) for term in (*got, *want))
        distance = abs(sum(float(term.sum()) for term in got) - sum(float(term.sum()) for term in want))
        coarsest = max((torch.finfo(g.dtype) for g in grads), key=lambda limits: limits.eps)
        # of numbers below the smallest normal one, roundings have a size of their own
        size = coarsest.eps * size + coarsest.smallest_normal * coarsest.eps * sum(
            float(exact(g).abs().sum()) for g in grads
        )
        allowed = _ROUNDINGS * size
        if not distance <= allowed:
            lost = [name for tangent, name in tangents if tangent is None]
            told = f"{', '.join(lost)} without a tangent: " if lost else ""
            problems.append(
                f"{told}tangents and gradients do not go together: {distance:.3g} off, {allowed:.3g} allowed"
            )
        return problems


def _direction(gradient: Tensor) -> Tensor:
    """The gradient's direction, its largest element 1."""
    largest = float(gradient.abs().max()) if gradient.numel() else 0.0
    return gradient / largest if 0.0 < largest < math.inf else gradient
