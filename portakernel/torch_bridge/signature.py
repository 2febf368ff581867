"""The schemas of an op's torch ops, and their flat argument lists taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from portakernel.contract import Contract

Parts = tuple[tuple[Tensor, ...], tuple[float, ...], tuple[Any, ...]]


class Signature:
    """How the contract's tensors and parameters stand in the torch ops' arguments."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.tensors = len(contract.tensors)
        self.outputs = len(contract.outputs)
        self.saved = len(contract.saved)

    def schemas(self) -> list[str]:
        """The schema of each torch op."""
        contract, op = self.contract, self.contract.op
        tensors = [f"Tensor {tensor.name}" for tensor in contract.tensors]
        defaults = [f"float {parameter.name}={parameter.default!r}" for parameter in contract.parameters]
        numbers = [f"float {parameter.name}" for parameter in contract.parameters]
        saved = [f"Tensor {result.name}" for result in contract.saved]
        grads = [f"Tensor grad_{output.name}" for output in contract.outputs]
        made = [
            _schema(op, [*tensors, *defaults, "str kernel=''"], self.outputs),
            _schema(
                f"{op}_forward", [*tensors, *numbers, "str kernel", "str backward_kernel"], self.outputs + self.saved
            ),
        ]
        if contract.gradient == "kernel":
            arguments = [*grads, *tensors, *saved, *numbers, "bool[] needs", "str kernel", "str saved_by"]
            made.append(_schema(f"{op}_backward", arguments, self.tensors))
        return made

    def public(self, arguments: Sequence[Any]) -> Parts:
        """Tensors, numbers and ``(kernel,)``; torch's dispatcher leaves trailing defaults away."""
        rest = arguments[self.tensors :]
        numbers = [*rest[: len(self.contract.parameters)]]
        numbers += [parameter.default for parameter in self.contract.parameters[len(numbers) :]]
        kernel = rest[len(self.contract.parameters) :] or ("",)
        return tuple(arguments[: self.tensors]), tuple(numbers), tuple(kernel)

    def forward(self, arguments: Sequence[Any]) -> Parts:
        """Tensors, numbers and ``(kernel, backward_kernel)``."""
        return tuple(arguments[: self.tensors]), tuple(arguments[self.tensors : -2]), tuple(arguments[-2:])

    def backward(self, arguments: Sequence[Any]) -> Parts:
        """The forward's tensors, numbers and ``(needs, kernel, saved_by)``."""
        tensors = arguments[self.outputs : self.outputs + self.tensors]
        numbers = arguments[self.outputs + self.tensors + self.saved : -3]
        return tuple(tensors), tuple(numbers), tuple(arguments[-3:])


def _schema(name: str, arguments: Sequence[str], results: int) -> str:
    returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    return f"{name}({', '.join(arguments)}) -> {returned}"
