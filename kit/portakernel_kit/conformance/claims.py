"""What a kernel's claims ask of the kit: dtypes to run, sizes at its limits, and requests just outside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from portakernel.claims.capability import Capability, Limit
from portakernel.contract import Contract, TensorArgument, alternatives
from portakernel.contract.case import Case
from portakernel.contract.sizes import parse_size
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.words.dtypes import DTYPES, FLOAT64
from portakernel_kit.conformance.inputs import case_parameters, case_shape, is_present

DTypes = Mapping[str, str]


_MOST_PIECES = 1024
# Up to here a case runs in every combination of dtypes that is claimed for it.
_FULL_PRODUCT = 6


def dtype_combinations(contract: Contract, capability: Capability) -> tuple[DTypes, ...]:
    """Every combination of dtypes that the claim covers, one for each argument; accepted by the op or not."""
    return _combined(capability, [name for name in contract.typed if name in capability.dtypes])


def _combined(capability: Capability, names: Sequence[str]) -> tuple[DTypes, ...]:
    return _combinations(tuple((name, capability.dtypes[name]) for name in names))


@lru_cache(maxsize=1 << 12)
def _combinations(claimed: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[DTypes, ...]:
    """Each different combination of dtypes, where each of these names may have these."""
    names = [name for name, _ in claimed]
    found: dict[tuple[str, ...], None] = {}
    for picked in itertools.product(*(dtypes for _, dtypes in claimed)):
        named = dict(zip(names, picked, strict=True))
        found[tuple(_followed(dtype, named) for dtype in picked)] = None
    return tuple(dict(zip(names, dtypes, strict=True)) for dtypes in found)


def _followed(dtype: str, named: DTypes) -> str:
    """The dtype that an entry means, be it another argument's name, whose entry may be one too."""
    while dtype in named:
        dtype = named[dtype]
    return dtype


def case_dtypes(contract: Contract, capability: Capability, case: Case, *, all_of_them: bool) -> tuple[DTypes, ...]:
    """The combinations of dtypes that a case runs in: those of the arguments that it passes, accepted by the op.

    Where there are many, and not ``all_of_them`` are wanted, as many as it takes for each dtype of each argument.
    """
    passed = [t.name for t in contract.tensors if is_present(t, case)]
    names = [name for name in contract.typed if name in passed or name not in contract.names]
    if any(name not in capability.dtypes for name in names):
        return ()
    # what a case says of a dtype that a parameter holds, it says of itself
    fixed = {name: str(value) for name, value in case.parameters.items() if name in names}
    held = [name for name in names if name not in contract.names]
    made: dict[tuple[str, ...], Contract] = {}  # one contract for all combinations, but for dtypes that parameters hold

    def taken(dtypes: DTypes) -> bool:
        key = tuple(dtypes[name] for name in held)
        if key not in made:
            made[key] = contract.at(case_parameters(contract, case, dtypes))
        return _accepted(contract, made[key], tuple(dtypes.items()))

    combinations = [
        dtypes
        for dtypes in _combined(capability, names)
        if all(dtypes[name] == value for name, value in fixed.items()) and taken(dtypes)
    ]
    if all_of_them or len(combinations) <= _FULL_PRODUCT:
        return tuple(combinations)
    missing = {(name, dtype) for dtypes in combinations for name, dtype in dtypes.items()}
    found: list[DTypes] = []
    while missing:
        best = max(combinations, key=lambda dtypes: len(missing & set(dtypes.items())))
        found.append(best)
        missing -= set(best.items())
    return tuple(found)


def accepted(contract: Contract, case: Case | None, dtypes: DTypes) -> bool:
    """Whether kernels are asked for these dtypes together, with the case's parameters."""
    made = contract.at(case_parameters(contract, case, dtypes) if case is not None else None)
    return _accepted(contract, made, tuple(dtypes.items()))


@lru_cache(maxsize=1 << 16)  # an op's cases, and its kernels, ask for the same ones
def _accepted(contract: Contract, made: Contract, dtypes: tuple[tuple[str, str], ...]) -> bool:
    named = dict(dtypes)
    if named.get(contract.in_float64) == FLOAT64:
        return False  # calls may have it, and the reference serves them
    try:
        made.check_dtypes(named)
    except ArgumentTypeError:
        return False
    return True


def cases_at_limits(contract: Contract, variants: Sequence[Capability], max_elements: int) -> tuple[Case, ...]:
    """A case at the smallest and the largest size that each limit admits, as far as tensors stay small enough.

    The op's cases know nothing of one kernel's limits; the last size inside must work as well as the next is refused.
    """
    bounds = {(limit.parameter, value) for c in variants for limit in c.limits for value in (limit.min, limit.max)}
    sizes = sorted((name, value) for name, value in bounds if value is not None and name in contract.dims)
    ordinary = (c for c in contract.cases if not (c.layouts or c.given) and c.values == "normal" and 0 not in c.leading)
    plain = next(ordinary, contract.cases[0])
    # in default values where there are any, and with one row, so that most of a large size is the size
    required = {parameter.name for parameter in contract.parameters if parameter.is_required}
    given = {name: value for name, value in plain.parameters.items() if name in required}
    plain = replace(plain, leading=(1,) * len(plain.leading), parameters=given)
    found = (resized(contract, plain, n, v, f"{n} = {v}, a limit", max_elements) for n, v in sizes)
    return tuple(case for case in found if case is not None)


def resized(contract: Contract, case: Case, dimension: str, size: int, name: str, max_elements: int) -> Case | None:
    """``case`` with another size of one dimension; None where its tensors cannot be, or are not worth drawing."""
    # of one or two elements every piece is trivial: gradients that are nothing but the rounding of what cancels
    whole = {name for tensor in _cut(contract) for name in tensor.draw.bounds}
    if (dimension in piece_counts(contract) and size > _MOST_PIECES) or dimension in whole:
        return None
    leads = any(tensor.leading == dimension for tensor in contract.at(contract.values(case.parameters)).tensors)
    leading = (size,) if leads else case.leading
    made = replace(case, name=name, leading=leading, dims=case.dims if leads else {**case.dims, dimension: size})
    return made if elements(contract, made) <= max_elements and possible(contract, made) else None


def piece_counts(contract: Contract) -> set[str | None]:
    """The dimensions that count pieces of a tensor, which are drawn, and looped over by references, one by one."""
    shapes = (shape for tensor in _cut(contract) for shape in alternatives(tensor.shape))
    return {parse_size(size).name for shape in shapes for size in shape}


def in_tiles(contract: Contract, dims: Mapping[str, int], tile: int) -> dict[str, int]:
    """``dims`` as kernels' programs take them: none is smaller than a ``tile``, and no piece of what is cut is."""
    found = {name: max(size, tile) for name, size in dims.items()}
    for tensor in _cut(contract):
        names = {parse_size(size).name for shape in alternatives(tensor.shape) for size in shape}
        pieces = max(size for name, size in dims.items() if name in names)
        found |= {name: max(found[name], tile * pieces) for name in tensor.draw.bounds if name in found}
    return found


def _cut(contract: Contract) -> list[TensorArgument]:
    return [tensor for tensor in contract.tensors if tensor.draw.kind in ("segments", "offsets")]


def possible(contract: Contract, case: Case) -> bool:
    """Whether the op's requirements and shapes admit the case's dimensions."""
    made = contract.at(contract.values(case.parameters))
    try:
        shapes = {t.name: case_shape(t, case) for t in made.tensors if is_present(t, case)}
        made.bind_shapes(shapes, contract.values(case.parameters))
    except ArgumentValueError:
        return False
    return True


def elements(contract: Contract, case: Case) -> int:
    """The number of elements of the case's largest tensor."""
    made = contract.at(contract.values(case.parameters))
    return max(math.prod(case_shape(tensor, case)) for tensor in made.tensors if is_present(tensor, case))


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
