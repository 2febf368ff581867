"""The schemas of an op's torch ops, and their flat argument lists taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from portakernel.contract import Contract
from portakernel.contract.parameter import Kind, Parameter

# optional tensors among them may be None
Parts = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]

_TYPES: dict[Kind, str] = {
    "float": "float",
    "int": "SymInt",
    "bool": "bool",
    "text": "str",
    "dtype": "str",
    "format": "str",
    "mask": "str",
    "window": "int[]",
}


class Signature:
    """The places of the contract's tensors and parameters among the torch ops' arguments.

    An optional tensor that is None stays None, so that the tuples here may hold None.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.tensors = len(contract.tensors)
        self.outputs = len(contract.outputs)
        self.saved = len(contract.saved)
        self.grads = [f"grad_{output.name}" for output in contract.outputs if output.differentiable]

    def schemas(self) -> list[str]:
        """The schema of each torch op."""
        contract, op = self.contract, self.contract.op
        # a letter for each argument that is written
        letters = {name: f"({letter}!)" for name, letter in zip(contract.mutated, ascii_lowercase, strict=False)}
        tensors = [f"{_tensor(t.optional, letters.get(t.name, ''))} {t.name}" for t in contract.tensors]
        open_tensors = [
            f"{text}=None" if tensor.optional else text for text, tensor in zip(tensors, contract.tensors, strict=True)
        ]
        defaults = [f"{_type(parameter)} {parameter.name}={_default(parameter)}" for parameter in contract.parameters]
        values = [f"{_type(parameter)} {parameter.name}" for parameter in contract.parameters]
        made = [_schema(op, [*open_tensors, *defaults, "str kernel=''"], self.outputs)]
        if contract.mutated:
            return made
        made.append(
            _schema(
                f"{op}_forward", [*tensors, *values, "str kernel", "str backward_kernel"], self.outputs + self.saved
            )
        )
        if contract.gradient == "kernel":
            optional = {tensor.name: tensor.optional for tensor in contract.tensors}
            optional |= {saved.name: saved.when is not None for saved in contract.saved}
            grads = [f"{_tensor(len(self.grads) > 1)} {grad}" for grad in self.grads]
            kept = [*contract.backward_inputs, *(saved.name for saved in contract.saved)]
            arguments = [*grads, *(f"{_tensor(optional.get(name, False))} {name}" for name in kept), *values]
            arguments += ["bool[] needs", "str kernel", "str saved_by"]
            made.append(_schema(f"{op}_backward", arguments, self.tensors))
        return made

    def public(self, arguments: Sequence[Any]) -> Parts:
        """Tensors, parameters and ``(kernel,)``; torch's dispatcher leaves trailing defaults away."""
        rest = arguments[self.tensors :]
        values = [*rest[: len(self.contract.parameters)]]
        values += [parameter.default for parameter in self.contract.parameters[len(values) :]]
        kernel = rest[len(self.contract.parameters) :] or ("",)
        tensors = [*arguments[: self.tensors], *[None] * (self.tensors - len(arguments[: self.tensors]))]
        return tuple(tensors), self._canonical(values), tuple(kernel)

    def forward(self, arguments: Sequence[Any]) -> Parts:
        """Tensors, parameters and ``(kernel, backward_kernel)``."""
        return tuple(arguments[: self.tensors]), self._canonical(arguments[self.tensors : -2]), tuple(arguments[-2:])

    def backward(self, arguments: Sequence[Any]) -> tuple[Parts, tuple[Any, ...]]:
        """Tensors in forward's form, parameters and ``(needs, kernel, saved_by)``; and what a kernel is given."""
        contract = self.contract
        names = [*self.grads, *contract.backward_inputs, *(saved.name for saved in contract.saved)]
        held = dict(zip(names, arguments, strict=False))
        tensors = tuple(held.get(contract.stands_for.get(name, name)) for name in contract.names)
        values = self._canonical(arguments[len(names) : -3])
        needs, kernel, saved_by = arguments[-3:]
        parts: Any = (tensors, values, (needs, kernel, saved_by))
        return parts, (*arguments[: len(names)], *values, tuple(needs))

    def _canonical(self, values: Sequence[Any]) -> tuple[Any, ...]:
        op = self.contract.op
        return tuple(p.canonical(op, value) for p, value in zip(self.contract.parameters, values, strict=True))


def _tensor(optional: bool, written: str = "") -> str:
    return f"Tensor{written}?" if optional else f"Tensor{written}"


def _type(parameter: Parameter) -> str:
    # what shapes depend on is a number when a graph is traced, and no symbol
    kind = "int" if parameter.kind == "int" and parameter.choices else _TYPES[parameter.kind]
    # torch has no required arguments behind those with defaults: of such, None says that it was not given
    return kind + ("?" if parameter.optional or parameter.is_required else "")


def _default(parameter: Parameter) -> str:
    default = parameter.default
    return str(list(default)) if isinstance(default, tuple) else repr(default)


def _schema(name: str, arguments: Sequence[str], results: int) -> str:
    returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    return f"{name}({', '.join(arguments)}) -> {returned}"
