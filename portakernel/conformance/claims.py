"""What a kernel's claims ask of the kit: dtypes to run, sizes at its limits, and requests just outside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from portakernel.capability import Capability, Limit
from portakernel.contract import Case, Contract
from portakernel.dtypes import DTYPES
from portakernel.errors import ArgumentTypeError

DTypes = Mapping[str, str]


def dtype_combinations(contract: Contract, capability: Capability) -> tuple[DTypes, ...]:
    """Every combination of dtypes that the claim covers, one for each tensor argument; accepted by the op or not."""
    found: dict[tuple[str, ...], None] = {}
    names = [tensor.name for tensor in contract.tensors]
    for picked in itertools.product(*(capability.dtypes[name] for name in names)):
        named = dict(zip(names, picked, strict=True))
        found[tuple(named.get(dtype, dtype) for dtype in picked)] = None
    return tuple(dict(zip(names, dtypes, strict=True)) for dtypes in found)


def accepted(contract: Contract, dtypes: DTypes) -> bool:
    """Whether the op accepts these dtypes together."""
    try:
        contract.check_dtypes(dtypes)
    except ArgumentTypeError:
        return False
    return True


def cases_at_limits(contract: Contract, variants: Sequence[Capability], max_elements: int) -> tuple[Case, ...]:
    """A case at the smallest and the largest size that each limit admits, as far as tensors stay small enough.

    The op's cases know nothing of one kernel's limits; the last size inside must work as well as the next is refused.
    """
    bounds = {(limit.parameter, value) for c in variants for limit in c.limits for value in (limit.min, limit.max)}
    sizes = sorted((name, value) for name, value in bounds if value is not None and name in contract.dims)
    ordinary = (c for c in contract.cases if not c.layouts and c.values == "normal" and 0 not in c.leading)
    plain = next(ordinary, contract.cases[0])
    found = []
    for parameter, value in sizes:
        leading = (value,) if parameter in _leading(contract) else (1,) * len(plain.leading)
        dims = {**plain.dims, **({parameter: value} if parameter not in _leading(contract) else {})}
        case = replace(plain, name=f"{parameter} = {value}, a limit", leading=leading, dims=dims, parameters={})
        if elements(contract, case) <= max_elements:
            found.append(case)
    return tuple(found)


def elements(contract: Contract, case: Case) -> int:
    """The number of elements of the case's largest tensor."""
    sizes = []
    for tensor in contract.tensors:
        size = 1
        for name in tensor.shape:
            for part in case.leading if name.startswith("*") else (case.dims[name],):
                size *= part
        sizes.append(size)
    return max(sizes)


def _leading(contract: Contract) -> tuple[str, ...]:
    return tuple(tensor.leading for tensor in contract.tensors if tensor.leading is not None)


def just_outside(limit: Limit) -> tuple[int, ...]:
    """The nearest values that ``limit`` does not admit; no dimension is negative."""
    if limit.one_of is not None and all(isinstance(value, bool) for value in limit.one_of):
        return tuple(value for value in (False, True) if value not in limit.one_of)
    inside = [value for value in (limit.min, limit.max, limit.multiple_of, *(limit.one_of or ())) if value is not None]
    if limit.power_of_two:
        inside += [1, 4]
    if limit.multiple_of is not None:
        # the first multiple within the other bounds
        inside.append(-(-(limit.min or 0) // limit.multiple_of) * limit.multiple_of + limit.multiple_of)
    near = {value + step for value in inside for step in (-1, 1)} | ({0} if limit.power_of_two else set[int]())
    return tuple(sorted(value for value in near if value >= 0 and not limit.admits(value)))


def just_inside(limits: Sequence[Limit]) -> int | None:
    """A value that all of these limits on one parameter admit, or None where there is none."""
    tried = [bound for limit in limits for bound in (limit.min, limit.max, limit.multiple_of) if bound is not None]
    tried += [int(value) for limit in limits for value in limit.one_of or ()]
    steps = [limit.multiple_of for limit in limits if limit.multiple_of is not None]
    tried += [bound // step * step for step in steps for bound in tried]
    tried += [2**power for power in range(32)] + [0]
    return next((value for value in tried if all(limit.admits(value) for limit in limits)), None)


def unclaimed_dtypes(contract: Contract, capability: Capability) -> Iterator[tuple[str, DTypes]]:
    """For each argument, each dtype that the claim leaves out beside an otherwise claimed combination."""
    for inside in dtype_combinations(contract, capability)[:1]:
        for name in inside:
            taken = {inside.get(dtype, dtype) for dtype in capability.dtypes[name]}
            for dtype in DTYPES:
                if dtype not in taken:
                    yield name, {**inside, name: dtype}
