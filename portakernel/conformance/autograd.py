"""The aspect of autograd: gradients as a model gets them, through ``portakernel.ops`` with the kernel named."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from portakernel.conformance.gradients import Backward
from portakernel.conformance.trial import Trial
from portakernel.errors import FallbackWarning, ReferenceWarning


@dataclass(slots=True)
class Autograd:
    """One trial, called with tensors that require gradients."""

    trial: Trial
    source: torch.Generator

    def gradients(self) -> list[str]:
        """Every tensor's gradient; backward is the kernel's own or, where it has none, whichever would be chosen."""
        from portakernel import ops

        trial = self.trial
        backward = Backward(trial, self.source)
        tensors = [tensor.detach().requires_grad_() for tensor in trial.inputs.tensors]
        grads = backward.draw("contiguous")
        with trial.venue.enter(), warnings.catch_warnings():
            # a backward that others serve is no fault of this kernel
            warnings.simplefilter("ignore", FallbackWarning)
            warnings.simplefilter("ignore", ReferenceWarning)
            found = getattr(ops, trial.contract.op)(*tensors, **trial.inputs.parameters, kernel=trial.kernel.name)
            outputs = found if isinstance(found, tuple) else (found,)
            problems = trial.compare_results(
                [output.detach() for output in outputs],
                trial.contract.outputs,
                trial.truth.outputs,
                trial.contract.tolerance.forward,
            )
            gradients = torch.autograd.grad(outputs, tensors, grads)
        tolerance = trial.contract.tolerance.backward
        if trial.contract.gradient == "identity":
            tolerance = {str(tensor.dtype).removeprefix("torch."): 0.0 for tensor in tensors}
        named = zip(backward.names, gradients, tensors, trial.truth.gradients(grads), strict=True)
        for name, gradient, tensor, want in named:
            problems += trial.compare(gradient, name, tensor.shape, tensor.dtype, want.value, tolerance, want.magnitude)
        return problems
