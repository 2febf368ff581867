"""What of a contract depends on parameters' values, and the contract that calls with certain values have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from portakernel.contract.parts import Choice, Result

if TYPE_CHECKING:
    from portakernel.contract.contract import Contract

T = TypeVar("T")


def choosers(contract: Contract) -> tuple[str, ...]:
    """The parameters that shapes, dtypes or the number of results depend on."""
    results = (*contract.outputs, *contract.saved)
    parts: list[object] = [part for tensor in contract.tensors for part in (tensor.shape, tensor.dtypes)]
    # a result's sizes that are parameters' values leave its number of dimensions open to none, and may be any number
    parts += [part for result in results for part in (result.shape, result.dtype) if isinstance(part, Choice)]
    names: list[str] = []
    while parts:
        part = parts.pop(0)
        if isinstance(part, Choice):
            names.append(part.by)
            parts += part.of.values()
        elif isinstance(part, tuple):
            names += [size[1:] for size in part if isinstance(size, str) and size.startswith("$")]
    return tuple(dict.fromkeys([*names, *(result.when[0] for result in results if result.when is not None)]))


def chosen(contract: Contract, values: tuple[Any, ...]) -> Contract:
    """The contract for calls with these values of its choosers: every choice made, absent results left out."""
    known = contract.values(dict(zip(contract.choosers, values, strict=True)))

    def results(given: tuple[Result, ...]) -> tuple[Result, ...]:
        return tuple(
            replace(result, shape=picked(result.shape, known), dtype=dtype_of(result, known), when=None)
            for result in given
            if _exists(result, known)
        )

    return replace(
        contract,
        tensors=tuple(
            replace(tensor, shape=made(tensor.shape, known), dtypes=made(tensor.dtypes, known))
            for tensor in contract.tensors
        ),
        outputs=results(contract.outputs),
        saved=results(contract.saved),
    )


def existence(when: tuple[str, Any]) -> str:
    """Whether a result with this ``when`` exists, as source over the parameters that names no builtin."""
    name, wanted = when
    if isinstance(wanted, range):
        return f"{wanted.start} <= {name} < {wanted.stop}"
    return f"{name} in {wanted!r}" if isinstance(wanted, tuple) else f"{name} == {wanted!r}"


def _exists(result: Result, values: Mapping[str, Any]) -> bool:
    if result.when is None:
        return True
    name, wanted = result.when
    return values[name] in wanted if isinstance(wanted, (tuple, range)) else bool(values[name] == wanted)


def dtype_of(result: Result, values: Mapping[str, Any]) -> str | None:
    """The dtype that a result has with these values; None where it is that of the argument it is like."""
    return None if result.dtype is None else picked(result.dtype, values) or None


def picked(part: T | Choice[T], values: Mapping[str, Any]) -> T:
    """``part``, its choices made."""
    found: Any = part
    while isinstance(found, Choice):
        found = found.of[values[found.by]]
    whole: T = found
    return whole


def made(part: T | Choice[T], values: Mapping[str, Any]) -> T:
    """``part`` of a tensor argument, its choices made, and the sizes in it that are parameters' values put in."""
    found: Any = picked(part, values)
    if isinstance(found, tuple):
        found = tuple(str(int(values[text[1:]])) if text.startswith("$") else text for text in found)
    whole: T = found
    return whole
