"""Each op's key function, and its parts: code made of ``expressions``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from portakernel.calling.fast.claim_reads import Reads
from portakernel.calling.fast.expressions import (
    FACTS,
    Expressions,
    body_of,
    dimension_sources,
    expressions,
    returned,
    unless_none,
)
from portakernel.contract import Contract
from portakernel.deciding.builds import BuildUnit


def make_key(contract: Contract, parts: Expressions, *, checked: bool = False) -> Callable[..., tuple[Any, ...]]:
    """``key(*tensors, *parameters)``; where ``checked``, None for arguments that do not fit the contract."""
    test = ["if not _sized: return None"] if checked else []
    return body_of(contract, [*parts.shapes, parts.judged, *test, returned(parts.parts)], "key", parts.names)


def make_steady(contract: Contract, parts: Expressions) -> Callable[..., tuple[Any, ...] | None]:
    """``steady(*tensors, *parameters)``: what sizes and strides decide of the key, and the sizes that are not leading.

    None for arguments that do not fit the contract.
    """
    sizes, _, _ = dimension_sources(contract)
    values = [*parts.steady, *(sizes[name] for name in contract.fixed_dims if name in sizes)]
    test = f"if not ({parts.ranks} and {parts.fit}): return None"
    return body_of(contract, [*parts.shapes, test, *parts.products, returned(values)], "steady", parts.names)


def make_open(contract: Contract, parts: Expressions) -> Callable[..., tuple[Any, ...]]:
    """``open(*tensors, *parameters)``: the rest of the key."""
    return body_of(contract, [*parts.shapes, returned(parts.open)], "open", parts.names)


class Keys(dict[Any, Callable[..., tuple[Any, ...]]]):
    """The key function for each value of an op's choosers, made when first asked for."""

    def __init__(self, contract: Contract, reads: Reads, built: set[BuildUnit] | None = None) -> None:
        super().__init__()
        self.contract, self.reads, self.built = contract, reads, built

    def __missing__(self, chosen: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        values = dict(zip(self.contract.choosers, chosen, strict=True))
        parts = chosen_expressions(self.contract, values, self.reads, self.built)
        # of two threads that come first together either's is right
        return self.setdefault(chosen, make_key(self.contract.at(values), parts, checked=True))


def chosen_expressions(
    contract: Contract, values: Mapping[str, Any], reads: Reads, built: set[BuildUnit] | None = None
) -> Expressions:
    """The parts of a key where the parameters have these values; choosers are among them."""
    parts = expressions(contract.at(values), reads, built)
    return replace(parts, open=tuple(dict.fromkeys((*parts.open, *contract.choosers))))


def make_value(contract: Contract, name: str) -> Callable[..., Any]:
    """``value(*tensors, *parameters)``: a dimension, layout fact or parameter of arguments that fit the contract.

    ``contract`` has no choice left open.
    """
    owner, _, fact = name.partition(".")
    shapes = [f"_s_{t.name} = {unless_none(t, f'{t.name}.shape', 'None')}" for t in contract.tensors]
    sizes = {parameter.name: parameter.name for parameter in contract.parameters} | dimension_sources(contract)[0]
    result = f"None if {owner} is None else _fact({owner})" if fact else sizes.get(name, "None")
    names = {"_prod": math.prod, "_fact": FACTS.get(fact)}
    return body_of(contract, [*shapes, f"return {result}"], "value", names)
