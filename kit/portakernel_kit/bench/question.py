"""The requests that are measured: an op's rows, or sizes in words, in each dtype; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from portakernel.claims.call_layout import PLAIN, CallLayout
from portakernel.claims.request import Request
from portakernel.contract import Contract, Cost, GridRow
from portakernel.contract.production import Production
from portakernel.contracts import contract
from portakernel.deciding.asking import ask, unfit
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.words.dtypes import DTYPES, parse_dtype
from portakernel.words.target import Target
from portakernel_kit.bench.traffic import FaultyOp, forward_cost

# What a CPU does in about a tenth of a second; larger rows are for accelerators.
_CPU_BYTES, _CPU_FLOPS = 1 << 27, 10_000_000_000
# Inputs, results, what they are compared with, and workspaces.
_MEMORY_FACTOR = 6
# What an op is asked for in, by --dtype; elements of others are what something is quantised to, or indices.
_FLOATS = frozenset({"float32", "float16", "bfloat16"})
# One for all arguments, or by argument.
DType = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """One request to measure: a row in one dtype, and how its tensors lie in memory."""

    op: str
    row: GridRow
    dtypes: Mapping[str, str]
    request: Request
    memory: CallLayout = PLAIN

    @property
    def cost(self) -> Cost:
        """What forward has to move and compute; raises what ``forward_cost`` does."""
        return forward_cost(contract(self.op), self.request)

    def too_large(self, *, on_cpu: bool, free_bytes: int | None) -> str:
        """Why it is left out where nobody asked for it; empty where it is not, or the contract's cost is at fault."""
        try:
            return too_large(self.cost, on_cpu=on_cpu, free_bytes=free_bytes)
        except FaultyOp:  # measuring it says so
            return ""


def questions(op: str, rows: Sequence[GridRow], dtypes: Sequence[DType], target: Target) -> list[Question]:
    """Every row in every dtype.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: a row or dtype does not fit the op.
    """
    found = []
    for row in rows:
        for dtype in dtypes:
            named, values = _typed(contract(op), row, dtype)
            request = ask(contract(op), target, dtypes=named, shapes=row.shapes, values=values)
            held = [parameter.name for parameter in contract(op).parameters if parameter.kind == "dtype"]
            shown = {name: request.dtypes[name] for name in (*named, *held)}
            found.append(Question(op, replace(row, values=values), shown, request))
    return found


def rows_of(op: str, *, core_only: bool) -> tuple[GridRow, ...]:
    """The rows of ``op`` that are measured where no shape is given.

    Raises:
        ArgumentValueError: nobody has chosen any.
    """
    known = contract(op).grid
    if known is None:
        name = contract(op).names[0]
        raise ArgumentValueError(
            f"{op}: no sizes are chosen for it; give a shape, such as --shape {name}=4096x4096, or give its"
            " contract a grid"
        )
    core = tuple(row for row in known.rows if row.core)
    return (core or known.rows[:1]) if core_only else known.rows


def drawn_rows(op: str, seed: int) -> Iterator[GridRow]:
    """Rows of what models use, without an end.

    Raises:
        ArgumentValueError: the contract says nothing of it.
    """
    known = contract(op).grid
    if known is None or known.drawn is None:
        raise ArgumentValueError(
            f"{op}: its contract does not say what models ask of it; give its grid `drawn`, or name other ops"
        )
    return (known.drawn(Production(Random(f"{seed} {op} {number}"))) for number in count())


def has_backward_kernels(op: Contract) -> bool:
    """Whether the gradient of ``op`` is something that kernels compute, and that can be timed."""
    return op.gradient == "kernel"


def launch_row(op: str) -> GridRow:
    """The small row on which a launch is timed; raises what ``rows_of`` does."""
    known = contract(op).grid
    return known.launch if known is not None else rows_of(op, core_only=True)[0]


def too_large(cost: Cost, *, on_cpu: bool, free_bytes: int | None) -> str:
    """Why a row that nobody asked for is left out; empty where it is not."""
    if on_cpu and (cost.bytes > _CPU_BYTES or cost.flops > _CPU_FLOPS):
        work = f"moves {cost.bytes / 1e6:.0f} MB and computes {cost.flops / 1e9:.3g} GFLOP"
        return f"{work}, which is a size for accelerators; --shape measures what it names"
    if free_bytes is not None and _MEMORY_FACTOR * cost.bytes > free_bytes:
        return (
            f"needs about {_MEMORY_FACTOR * cost.bytes / 1e9:.1f} GB of device memory; {free_bytes / 1e9:.1f} are free"
        )
    return ""


def _typed(contract: Contract, row: GridRow, dtype: DType) -> tuple[dict[str, str], dict[str, Any]]:
    """A dtype for each argument that is passed, and the row's values with the dtype that a parameter may hold.

    Arguments that cannot have the dtype (indices, quantised elements) have the first one that they may have; where all
    are of that kind, but for those that the row itself gives one, whatever float dtype is asked for.
    """
    values = dict(row.values)
    made = contract.at({name: contract.value(name, value) for name, value in values.items()})
    asked = row.dtypes if isinstance(dtype, str) else {**row.dtypes, **dtype}
    named = {name: parse_dtype(text).name for name, text in asked.items()}
    if unknown := next((name for name in named if name not in contract.typed), None):
        raise UnknownNameError("tensor argument", unknown, contract.typed, where=contract.op)
    for_all = parse_dtype(dtype).name if isinstance(dtype, str) else None
    found: dict[str, str] = {}
    fitted = for_all is None
    for tensor in made.tensors:
        if tensor.optional and tensor.name not in row.shapes and tensor.name not in named:
            continue
        accepted = made.accepted_dtypes(tensor.name, found)
        if tensor.name in named:
            found[tensor.name] = named[tensor.name]
        elif for_all in accepted:
            found[tensor.name], fitted = str(for_all), True
        elif accepted and accepted[0] in DTYPES:
            found[tensor.name] = accepted[0]
    first = next(tensor.name for tensor in made.tensors if not tensor.optional)
    meant = "float32" in made.possible_dtypes(first)  # else there are quantised elements, and it is of the result
    for parameter in contract.parameters:
        if parameter.kind != "dtype" or parameter.name in values:
            continue
        if parameter.name in named:
            values[parameter.name] = named[parameter.name]
        elif not fitted and for_all in parameter.choices:
            if meant:
                raise ArgumentTypeError(unfit(contract, contract, str(for_all), row.shapes))
            values[parameter.name], fitted = for_all, True
    if not fitted and for_all in _FLOATS:
        needed = (tensor.name for tensor in made.tensors if not tensor.optional and tensor.name not in named)
        fitted = not any(_FLOATS & set(made.possible_dtypes(name)) for name in needed)
    if not fitted:
        known = sorted({dtype for name in made.typed for dtype in made.possible_dtypes(name)})
        raise ArgumentTypeError(f"{contract.op}: nothing of it can be {for_all}; known: {', '.join(known)}")
    return found, values
