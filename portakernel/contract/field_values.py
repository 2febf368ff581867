"""What a contract's fields hold that they cannot: words that nobody knows, tolerances below 0, a cost nobody can ask.

Types say the same to whoever checks them; a contract of somebody else's was perhaps never checked.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from portakernel.contract.contract import Contract, alternatives
from portakernel.contract.parts import Result
from portakernel.errors import nearest
from portakernel.words.dtypes import DTYPES

COST_TAKES = "(dims, itemsizes, values)"


def value_faults(contract: Contract) -> Iterator[str]:
    """What the fields of a contract hold that they cannot."""
    yield from _words("", contract)
    for tensor in contract.tensors:
        yield from _words(f"tensor {tensor.name}, draw: ", tensor.draw)
    for parameter in contract.parameters:
        yield from _words(f"parameter {parameter.name}: ", parameter)
    for case in contract.cases:
        yield from _words(f"case {case.name!r}: ", case)
    yield from _words("tolerance: ", contract.tolerance)
    yield from _cost(contract)
    yield from _tolerances(contract)


def _words(where: str, part: Any) -> Iterator[str]:
    """Words in the fields of ``part`` that are none of those that their type lists; a mapping's by its keys."""
    for field, kind in get_type_hints(type(part)).items():
        value = getattr(part, field)
        listed: tuple[Any, ...] = ()
        given = {field: value}
        if get_origin(kind) is Literal:
            listed = get_args(kind)
        elif get_origin(kind) is Mapping and get_origin(get_args(kind)[1]) is Literal:
            listed = get_args(get_args(kind)[1])
            given = {f"{field}, {key}": word for key, word in dict(value).items()}
        for place, word in given.items():
            if listed and word not in listed:
                accepted = nearest(word, listed) if isinstance(word, str) else f"known: {', '.join(listed)}"
                yield f"{where}{place}: unknown {word!r}; {accepted}"


def _cost(contract: Contract) -> Iterator[str]:
    cost: object = contract.cost
    if not callable(cost):
        yield f"cost is {cost!r}; give a function that takes {COST_TAKES} and returns a Cost"
        return
    try:
        taken = inspect.signature(cost)
    except (TypeError, ValueError):  # of what is not written in Python, nobody knows
        return
    try:
        taken.bind({}, {}, {})
    except TypeError as error:
        yield f"cost cannot be called with its three arguments, {COST_TAKES}: {error}; it takes {taken}"


def _tolerances(contract: Contract) -> Iterator[str]:
    tolerance = contract.tolerance
    kinds: Mapping[str, tuple[Mapping[str, object], tuple[Result, ...]]] = {
        "forward": (tolerance.forward, contract.results),
        "saved": (tolerance.saved, contract.saved),
        "backward": (tolerance.backward, ()),
    }
    for kind, (given, results) in kinds.items():
        for key, ulp in given.items():
            name, _, dtype = key.rpartition(".")
            if dtype not in DTYPES:
                yield f"tolerance, {kind}: unknown dtype {dtype!r}; {nearest(dtype, DTYPES)}"
            if name and kind != "backward" and name not in [result.name for result in results]:
                yield f"tolerance, {kind}: unknown {name!r}; {nearest(name, [result.name for result in results])}"
            if not isinstance(ulp, int | float) or isinstance(ulp, bool) or not 0 <= ulp < math.inf:
                yield f"tolerance, {kind}, {key}: {ulp!r} is no number of units in the last place; give one, at least 0"
        if tolerance.rule == "ulp":
            for name, dtype in _held(contract, results):
                # integers are equal or wrong
                of_numbers = dtype not in DTYPES or DTYPES[dtype].kind == "float"
                if of_numbers and dtype not in given and f"{name}.{dtype}" not in given:
                    text = f"tolerance, {kind}: none for {dtype}, which {name} may be"
                    yield f"{text}; give one under {dtype!r} or '{name}.{dtype}', or the rule 'plain'"


def _held(contract: Contract, results: tuple[Result, ...]) -> Iterator[tuple[str, str]]:
    """The names of results, with each dtype that one may have."""
    for result in results:
        for dtype in [result.like] if result.dtype is None else alternatives(result.dtype):
            if dtype in contract.typed:
                yield from ((result.name, one) for one in contract.possible_dtypes(dtype) if one in DTYPES)
            elif dtype in DTYPES:
                yield result.name, dtype
