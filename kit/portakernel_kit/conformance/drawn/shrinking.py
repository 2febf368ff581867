"""A request that fails, made as small as one that fails alike: delta debugging over what a case holds.

After Zeller and Hildebrandt 2002 (Simplifying and Isolating Failure-Inducing Input, IEEE Transactions on Software
Engineering 28.2), with steps that know what is simpler: fewer and smaller dimensions, defaults, contiguous tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from portakernel.contract import Contract
from portakernel.contract.case import Case


def shrunk(contract: Contract, case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """The simplest case found within ``seconds`` that ``fails``, as ``case`` does."""
    deadline = time.monotonic() + seconds
    simpler = True
    while simpler:
        simpler = False
        for tried in _simpler(contract, case):
            if time.monotonic() > deadline:
                return case
            if fails(tried):
                case, simpler = tried, True
                break
    return case


def _simpler(contract: Contract, case: Case) -> Iterator[Case]:
    """Cases with one thing less, what removes most first."""
    if case.values != "normal":
        yield replace(case, values="normal")
    for name in case.present:
        yield replace(case, present=tuple(other for other in case.present if other != name))
    for parameter in contract.parameters:
        # an activation may be undefined at what the case holds, and what bounds pieces is bound to them
        fixed = parameter.bounds or parameter.is_required or (parameter.kind == "text" and case.values != "normal")
        if case.parameters.get(parameter.name, parameter.default) != parameter.default and not fixed:
            yield replace(case, parameters={**case.parameters, parameter.name: parameter.default})
    if case.layouts:
        yield replace(case, layouts={})
    for name in case.layouts:
        yield replace(case, layouts={other: layout for other, layout in case.layouts.items() if other != name})
    if len(case.leading) > 1:
        yield replace(case, leading=(case.leading[0],))
    for place, size in enumerate(case.leading):
        for less in _less(size):
            yield replace(case, leading=(*case.leading[:place], less, *case.leading[place + 1 :]))
    if not case.given:  # which says where the pieces of a dimension end
        for name, size in case.dims.items():
            for less in _less(size):
                yield replace(case, dims=_with(case.dims, name, size, less))


def _less(size: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for n in (1, size // 8, size // 2, size - 1) if 0 < n < size))


def _with(dims: Mapping[str, int], name: str, size: int, less: int) -> dict[str, int]:
    """The dimensions with a smaller one; those that are equal to it stay so, as products and heads do."""
    return {other: less if other == name or (known == size and size > 64) else known for other, known in dims.items()}
