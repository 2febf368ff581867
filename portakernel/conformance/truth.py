"""What a case's results have to be: the op's reference, evaluated in float64 on exactly the kernel's inputs.

On the CPU whatever the device: not every device has float64, and the device's own arithmetic is what is being checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.conformance.inputs import Inputs
from portakernel.contract import Contract


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU."""
    return tensor.detach().to("cpu").to(torch.float64)


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient, and the sum of the absolute terms behind each of its elements."""

    value: Tensor
    magnitude: Tensor


@dataclass(frozen=True, slots=True)
class Truth:
    """A case's outputs and saved tensors in float64."""

    contract: Contract
    inputs: Inputs
    outputs: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]

    @classmethod
    def of(cls, contract: Contract, inputs: Inputs) -> Truth:
        """The truth about these inputs."""
        forward = importlib.import_module(f"portakernel.references.{contract.op}").forward
        save = {"save": True} if contract.saved else {}
        with torch.no_grad():
            found = forward(*map(exact, inputs.tensors), **inputs.parameters, **save)
        results = found if isinstance(found, tuple) else (found,)
        count = len(contract.outputs)
        return cls(contract, inputs, results[:count], results[count:])

    def rounded_saved(self, device: torch.device) -> tuple[Tensor, ...]:
        """The saved tensors as the contract hands them to a backward kernel, on ``device``."""
        pairs = zip(self.saved, self.contract.saved, strict=True)
        return tuple(value.to(self.inputs.dtype(result)).to(device) for value, result in pairs)

    def gradients(self, grads: Sequence[Tensor]) -> tuple[Gradient, ...]:
        """The gradient for every tensor argument, from those of the outputs."""
        if self.contract.gradient == "identity":
            return tuple(Gradient(exact(grads[0]), exact(grads[0]).abs()) for _ in self.inputs.tensors)
        reference = importlib.import_module(f"portakernel.references.{self.contract.op}")
        given = [exact(tensor) for tensor in (*grads, *self.inputs.tensors)]
        with torch.no_grad():
            values = reference.backward(
                *given, *self.saved, **self.inputs.parameters, needs=(True,) * len(self.inputs.tensors)
            )
            magnitudes = reference.magnitudes(*given, *self.saved, **self.inputs.parameters)
        return tuple(Gradient(value, magnitude) for value, magnitude in zip(values, magnitudes, strict=True))
