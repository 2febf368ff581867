"""Dimensions that arguments' shapes give: bound one tensor after the other, and held to what the op requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any

from portakernel.contract.parts import TensorArgument
from portakernel.contract.sizes import DIMENSION, VALUE, parse_size
from portakernel.errors import ArgumentValueError
from portakernel.words.symbols import holds


class Binding:
    """The dimensions of a call as far as its tensors tell: ``dims`` by name, and the ``leading`` ones."""

    def __init__(self, op: str) -> None:
        self.dims: dict[str, int] = {}
        self.leading: tuple[int, ...] | None = None
        self._op = op
        # by dimension, the tensor that gave it
        self._origin: dict[str, str] = {}
        # sizes over dimensions that tensors before did not give, and that cannot be solved
        self._open: list[tuple[str, int, str, tuple[int, ...]]] = []

    def add(self, tensor: TensorArgument, shape: tuple[int, ...]) -> None:
        """Takes the dimensions that ``tensor`` gives with this shape.

        Raises:
            ArgumentValueError: it has the wrong rank, or disagrees with a tensor before it.
        """
        fixed, leads = tensor.fixed, tensor.leading
        if len(shape) < len(fixed) if leads is not None else len(shape) != len(fixed):
            text = f"{tensor.name} has shape {tuple(shape)}, but needs {tensor.described}"
            raise ArgumentValueError(f"{self._op}: {text}")
        split = len(shape) - len(fixed)
        if leads is not None:
            leading = tuple(shape[:split])
            if self.leading is not None and not _alike(leading, self.leading):
                raise ArgumentValueError(
                    f"{self._op}: {tensor.name} has shape {tuple(shape)}, but {self._origin[leads]} has leading"
                    f" dimensions {self.leading}; they must be equal (broadcasting is refused)"
                )
            self.leading = leading
            self.dims[leads] = _product(leading)
            self._origin.setdefault(leads, tensor.name)
        for text, size in zip(fixed, shape[split:], strict=True):
            self._bind(text, size, tensor.name, tuple(shape))

    def settle(self) -> None:
        """Holds sizes over dimensions that only a later tensor gave to what that one has.

        Raises:
            ArgumentValueError: one disagrees.
        """
        for text, given, tensor, shape in self._open:
            if parse_size(text).name in self.dims:
                self._bind(text, given, tensor, shape)

    def _bind(self, text: str, given: int, tensor: str, shape: tuple[int, ...]) -> None:
        size, dims = parse_size(text), self.dims
        name = size.name
        if name is None or name in dims:
            wanted = size.of(dims[name] if name is not None else 0)
            if name is not None and not size.exact(dims[name]):
                text = f"{tensor} needs {text}, a whole number, but {self._origin[name]} has {name} = {dims[name]}"
                raise ArgumentValueError(f"{self._op}: {text}")
            if not holds(given == wanted):
                needed = f"{text} = {wanted}" if name is not None and text != name else f"{wanted}"
                because = f", but {self._origin[name]} has {name} = {dims[name]}" if name is not None else ""
                shown = f"so {name} = {given}" if text == name else f"{given} where {needed} is needed"
                raise ArgumentValueError(f"{self._op}: {tensor} has shape {shape}, {shown}{because}")
        elif size.solvable:
            solved = size.solve(given)
            if solved is None:
                text = f"{tensor} has shape {shape}; {given} is not {text} for any {name}"
                raise ArgumentValueError(f"{self._op}: {text}")
            dims[name] = solved
            self._origin.setdefault(name, tensor)
        else:
            self._open.append((text, given, tensor, shape))


def check_requirements(
    op: str, requirements: Sequence[str], dims: Mapping[str, int], values: Mapping[str, Any] | None = None
) -> None:
    """Nothing, when dimensions and parameters' values fit what the op requires; of unknown ones all is left open.

    Raises:
        ArgumentValueError: a condition does not hold.
    """
    for condition in requirements:
        known = unfit(condition, dims, values or {})
        if known:
            sizes = ", ".join(f"{name} = {size}" for name, size in sorted(known.items()))
            raise ArgumentValueError(f"{op}: needs {shown_requirement(condition)}; this is {sizes}")


def unfit(condition: str, dims: Mapping[str, int], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a condition is over, where that is known and the condition does not hold; empty where it does."""
    names, code = _compiled(condition)
    given = {**values, **dims}
    known = {name: given[name] for name in names if given.get(name) is not None}
    if len(known) < len(names) or holds(eval(code, {"__builtins__": {}}, known)):
        return {}
    return known


def shown_requirement(condition: str) -> str:
    """A condition for people."""
    return condition.replace("$", "")


@cache
def _compiled(condition: str) -> tuple[tuple[str, ...], CodeType]:
    """The dimensions and parameters that a condition is over, and its code."""
    names = [*DIMENSION.findall(condition), *VALUE.findall(condition)]
    return tuple(dict.fromkeys(names)), compile(shown_requirement(condition), condition, "eval")


def _product(sizes: tuple[int, ...]) -> int:
    # not math.prod: under tracing the sizes are symbols, and a product that starts at the int 1 keeps them so
    product = 1
    for size in sizes:
        product = product * size
    return product


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(holds(a == b) for a, b in zip(one, other, strict=True))
