"""The aspect of autograd: gradients as a model gets them, through ``portakernel.ops`` with the kernel named."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel.errors import FallbackWarning, LayoutWarning, ReferenceWarning
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.memory import twin
from portakernel_kit.conformance.trial import Trial


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
        grads = backward.draw("contiguous")
        truth = trial.truth.gradients(grads)
        tensors = [
            self._leaf(name, tensor) if tensor is not None and want is not None else tensor
            for name, tensor, want in zip(trial.contract.names, trial.inputs.tensors, truth, strict=True)
        ]
        positional, keywords = trial.inputs.keywords(tensors)
        with trial.venue.enter(), warnings.catch_warnings():
            # a backward that others serve is no fault of this kernel, nor are sizes that look like another layout's
            for category in (FallbackWarning, ReferenceWarning, LayoutWarning):
                warnings.simplefilter("ignore", category)
            found = getattr(ops, trial.contract.op)(*positional, **keywords, kernel=trial.kernel.name)
            outputs = found if isinstance(found, tuple) else (found,)
            problems = trial.compare_results([output.detach() for output in outputs])
            pairs = zip(outputs, trial.contract.outputs, strict=True)
            differentiable = [tensor for tensor, output in pairs if output.differentiable]
            wanted = [tensor for tensor, want in zip(tensors, truth, strict=True) if want is not None]
            gradients = iter(torch.autograd.grad(differentiable, [t for t in wanted if t is not None], grads))
        exactly = {dtype_name(tensor.dtype): 0.0 for tensor in wanted if tensor is not None}
        for name, tensor, want in zip(backward.names, tensors, truth, strict=True):
            if tensor is None or want is None:
                continue
            gradient = next(gradients)
            if trial.contract.gradient == "identity":
                problems += trial.compare(
                    gradient, name, tensor.shape, tensor.dtype, want.value, exactly, want.magnitude
                )
            else:
                problems += backward.hold(gradient, name, tensor, want)
        return problems

    def _leaf(self, name: str, tensor: Tensor) -> Tensor:
        """The argument, as one whose gradient is asked for; a copy that lies alike where backward may write over it."""
        found = twin(tensor) if name in self.trial.permitted else tensor
        return found.detach().requires_grad_()
