"""How calls of one form differ, as source text over an op's arguments: what its contract and claims read of them.

Generated, because a loop over arguments costs more than the whole dispatch may: the code is what one would write by
hand for each op. Of ``rms_norm`` the parts may be ``_s_weight[-1] <= 16384`` (sized), ``(x.is_contiguous() or
_layout_x(x))`` (strided) and ``weight_offset == 0.0`` (open).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from portakernel.calling.fast.claim_reads import Reads
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.shape_numbers import Verdicts
from portakernel.claims.capability import Limit
from portakernel.contract import Contract, TensorArgument
from portakernel.contract.shape_binding import shown_requirement
from portakernel.contract.sizes import DIMENSION, VALUE, parse_size
from portakernel.deciding.builds import BuildUnit, unit_names
from portakernel.tensors.layout import alignment, flat_rows, stride_last

FACTS: dict[str, Callable[[Tensor], int]] = {
    "contiguous": Tensor.is_contiguous,
    "flat_rows": flat_rows,
    "stride_last": stride_last,
    "alignment": alignment,
}


@dataclass(frozen=True, slots=True)
class Expressions:
    """Source text over an op's arguments; ``shapes`` must be run before any of the others, ``products`` before some.

    ``ranks`` is true when the arguments have as many dimensions as the contract says, and ``fit`` then when their
    sizes go together. Of the key's parts ``sized`` follow from the shapes and the parameters ``sized_by``, ``strided``
    from strides as well, ``open`` from all the rest.
    """

    shapes: tuple[str, ...]
    products: tuple[str, ...]
    ranks: str
    fit: str
    sized: tuple[str, ...]
    sized_by: tuple[str, ...]
    strided: tuple[str, ...]
    open: tuple[str, ...]
    names: dict[str, Any]

    @property
    def steady(self) -> tuple[str, ...]:
        """The key's parts that sizes and strides decide."""
        return (*self.sized, *self.strided)

    @property
    def judged(self) -> str:
        """A line that looks ``sized`` up as one number, which is 0 where the sizes do not fit."""
        given = "".join(f"{name}, " for name in self.sized_by)
        return f"_sized = _judged(({given})) or _judge({given})"

    @property
    def parts(self) -> tuple[str, ...]:
        """The key after ``judged``, but for the dtypes and devices that the call's form stands for."""
        return ("_sized", *self.strided, *self.open)


def expressions(contract: Contract, reads: Reads, built: set[BuildUnit] | None = None) -> Expressions:
    """The parts of a key: each limit's outcome, values that are read as they are, asked features.

    ``contract`` has no choice left open. ``built`` grows as kernels are built for sizes and values.
    """
    writer = _KeyWriter(contract, reads)
    writer.write_limits()
    writer.write_cells()
    writer.write_layouts()
    writer.write_values()
    writer.write_checks()
    writer.write_features()
    if built is not None:
        writer.write_built(built)
    return writer.written()


class _KeyWriter:
    """Writes an op's ``Expressions`` piece by piece."""

    def __init__(self, contract: Contract, reads: Reads) -> None:
        self.contract, self.reads = contract, reads
        self.names: dict[str, Any] = {"_prod": math.prod}
        self.parameters = {parameter.name: parameter.name for parameter in contract.parameters}
        self.sizes, self.ranks, self.fit = dimension_sources(contract)
        self.plain_sizes, self.products = dict(self.sizes), list[str]()
        self.sized, self.strided, self.open = list[str](), list[str](), list[str]()
        self.sized_by = [f"_s_{tensor.name}" for tensor in contract.tensors]
        # with sizes, what the op requires of parameters decides whether a call fits
        self.sized_by += dict.fromkeys(name for text in contract.requirements for name in VALUE.findall(text))
        asked = {limit.parameter for limit in reads.limits} | {name for read, _ in reads.checks for name in read}
        asked |= set(reads.cells.dims if reads.cells is not None else ())
        for rows in dict.fromkeys(tensor.leading for tensor in contract.tensors if tensor.leading in asked):
            # a product, made once for all that asks for it
            self.products.append(f"_s__{rows} = {self.sizes[rows]}")
            self.sizes[rows] = f"_s__{rows}"

    def write_limits(self) -> None:
        """The outcome of each limit on a size."""
        limits = [limit for limit in self.reads.limits if limit.parameter in self.sizes]
        self.sized += [_bound(limit, self.sizes[limit.parameter]) for limit in limits]

    def write_cells(self) -> None:
        """The number for what was planned or measured for the sizes."""
        if (cells := self.reads.cells) is not None:
            self.names["_cells"] = cells
            self.sized.append(
                _call("_cells.number", cells.dims, {name: self.sizes.get(name, "-1") for name in cells.dims})
            )

    def write_layouts(self) -> None:
        """The outcomes of limits on each tensor's layout."""
        for tensor in self.contract.tensors:
            limits = [limit for limit in self.reads.limits if limit.parameter.startswith(f"{tensor.name}.")]
            of_strides, of_address = _layout_parts(tensor, limits, self.names)
            self.strided += of_strides
            self.open += of_address

    def write_values(self) -> None:
        """Values that claims read, as they are."""
        self.open += [name if name in self.parameters else "None" for name in self.reads.values]

    def write_checks(self) -> None:
        """The answer of each plugin's check, in the part of the key that has what it reads."""
        facts = dict[str, str]()
        for tensor in self.contract.tensors:
            for fact, function in FACTS.items():
                self.names[f"_{tensor.name}_{fact}"] = function
                facts[f"{tensor.name}.{fact}"] = unless_none(tensor, f"_{tensor.name}_{fact}({tensor.name})", "None")
        for i, (read, check) in enumerate(self.reads.checks):
            self.names[f"_check_{i}"] = check
            if facts.keys().isdisjoint(read):
                self.sized.append(_call(f"_check_{i}", read, self.parameters | self.sizes))
                self.sized_by += [name for name in read if name in self.parameters and name not in self.sized_by]
            else:
                addressed = any(name.endswith(".alignment") for name in read)
                part = self.open if addressed or not self.parameters.keys().isdisjoint(read) else self.strided
                part.append(_call(f"_check_{i}", read, self.parameters | self.plain_sizes | facts))

    def write_features(self) -> None:
        """Dtypes and formats that are asked for by name, and which features a call asks for."""
        for parameter in self.contract.parameters:
            if parameter.kind in ("dtype", "format"):
                self.open.append(parameter.name)
            elif parameter.feature:
                self.open.append(f"{parameter.name} == {parameter.default!r}")

    def write_built(self, built: set[BuildUnit]) -> None:
        """The unit that would have to be built, where it is: what is built for one is not built for another."""
        self.names["_built"] = built
        unit = [*(self.plain_sizes[name] for name in unit_names(self.contract)), *self.parameters]
        self.open.append(
            f"((_unit if (_unit := ({''.join(f'{part}, ' for part in unit)})) in _built else None) if _built else None)"
        )

    def written(self) -> Expressions:
        """All of it, and the look-up of what shapes decide."""
        written = Expressions(
            shapes=tuple(f"_s_{t.name} = {unless_none(t, f'{t.name}.shape', 'None')}" for t in self.contract.tensors),
            products=tuple(self.products),
            ranks=self.ranks,
            fit=self.fit,
            sized=tuple(self.sized),
            sized_by=tuple(self.sized_by),
            strided=tuple(self.strided),
            open=tuple(self.open),
            names=self.names,
        )
        verdicts = Verdicts(_make_judge(self.contract, written))
        if self.reads.cells is not None:
            self.reads.cells.when_renewed(verdicts.known.clear)
        self.names |= {"_judged": verdicts.known.get, "_judge": verdicts.judge}
        return written


def _call(function: str, names: Sequence[str], sources: Mapping[str, str]) -> str:
    return f"{function}({', '.join(sources.get(name, 'None') for name in names)})"


def unless_none(tensor: TensorArgument, expression: str, otherwise: str) -> str:
    """``expression``, or for an optional tensor that is None ``otherwise``."""
    return f"({otherwise} if {tensor.name} is None else {expression})" if tensor.optional else expression


def dimension_sources(contract: Contract) -> tuple[dict[str, str], str, str]:
    """An expression for each dimension, one that is true when the ranks are right, and one when then the sizes are."""
    sizes: dict[str, str] = {}
    ranks: list[str] = []
    equal: list[str] = []
    later: list[tuple[TensorArgument, str, str]] = []
    leading = ""
    for tensor in contract.tensors:
        shape, fixed = f"_s_{tensor.name}", tensor.fixed
        rank, conditions = "", list[str]()
        if tensor.leading is not None:
            part = f"{shape}[:-{len(fixed)}]" if fixed else shape
            rank = f"len({shape}) >= {len(fixed)}" if fixed else ""
            conditions += [f"{part} == {leading}"] if leading else []
            if not tensor.optional:
                leading = leading or part
                sizes.setdefault(tensor.leading, f"_prod({part})")
        else:
            rank = f"len({shape}) == {len(fixed)}"
        for place, text in enumerate(fixed):
            size, actual = parse_size(text), f"{shape}[{place - len(fixed)}]"
            if size.name is None or size.name in sizes:
                known = sizes.get(size.name or "", "")
                conditions.append(f"{actual} == {size.source(known)}")
                conditions += [f"{known} % {size.divisor} == 0"] if size.divisor > 1 and not size.rounded else []
            elif size.solvable and not tensor.optional:
                sizes[size.name], condition = size.solved(actual)
                conditions += [condition] if condition else []
            elif not size.solvable:
                later.append((tensor, text, actual))
        if tensor.optional:
            terms = [term for term in (rank, *conditions) if term]
            equal += [f"({shape} is None or ({' and '.join(terms)}))"] if terms else []
        else:
            ranks += [rank] if rank else []
            equal += conditions
    for tensor, text, actual in later:
        size = parse_size(text)
        if size.name in sizes:
            term = f"{actual} == {size.source(sizes[size.name])}"
            equal.append(f"(_s_{tensor.name} is None or {term})" if tensor.optional else term)
    # parameters have their own names in this code
    conditions = [shown_requirement(text) for text in contract.requirements]
    equal += [DIMENSION.sub(lambda match: sizes[match[0]], f"({text})") for text in conditions]
    return sizes, " and ".join(ranks) or "True", " and ".join(equal) or "True"


def leading_source(contract: Contract) -> str:
    """An expression for the shape of the leading dimensions; there is a tensor that has some."""
    tensor = next(t for t in contract.tensors if t.leading is not None and not t.optional)
    return f"_s_{tensor.name}[:-{len(tensor.fixed)}]" if tensor.fixed else f"_s_{tensor.name}"


def _bound(limit: Limit, value: str) -> str:
    terms = []
    if limit.min is not None:
        terms.append(f"{value} >= {limit.min}")
    if limit.max is not None:
        terms.append(f"{value} <= {limit.max}")
    if limit.multiple_of is not None:
        terms.append(f"{value} % {limit.multiple_of} == 0")
    if limit.one_of is not None:
        terms.append(f"{value} in {limit.one_of!r}")
    if limit.power_of_two:
        terms.append(f"({value} > 0 and {value} & ({value} - 1) == 0)")
    return f"({' and '.join(terms)})"


def _layout_parts(
    tensor: TensorArgument, limits: Sequence[Limit], names: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """The parts for limits on strides, and those for limits on the address.

    A contiguous tensor needs no more for the first: that fixes its other facts.
    """
    strided = [limit for limit in limits if not limit.parameter.endswith(".alignment")]
    aligned = [limit for limit in limits if limit.parameter.endswith(".alignment")]
    of_strides, of_address = list[str](), list[str]()
    if strided:
        names[f"_layout_{tensor.name}"] = _outcomes(f"_layout_{tensor.name}", strided)
        outcome = f"({tensor.name}.is_contiguous() or _layout_{tensor.name}({tensor.name}))"
        of_strides.append(unless_none(tensor, outcome, "None"))
    if aligned:
        names[f"_aligned_{tensor.name}"] = _outcomes(f"_aligned_{tensor.name}", aligned)
        of_address.append(unless_none(tensor, f"_aligned_{tensor.name}({tensor.name})", "None"))
    return of_strides, of_address


def _outcomes(name: str, limits: Sequence[Limit]) -> Callable[[Tensor], tuple[bool, ...]]:
    """The function ``name(tensor)``: whether each limit on its layout admits it."""
    fact_of = {limit: limit.parameter.partition(".")[2] for limit in limits}
    lines = [f"{fact} = find_{fact}(tensor)" for fact in dict.fromkeys(fact_of.values())]
    bounds = [_bound(limit, fact) for limit, fact in fact_of.items()]
    source = f"def {name}(tensor):\n" + "".join(f"    {line}\n" for line in (*lines, returned(bounds)))
    made: Callable[..., Any] = define(source, name, name, {f"find_{fact}": find for fact, find in FACTS.items()})
    return made


def body_of(contract: Contract, body: Sequence[str], name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function ``name(*tensors, *parameters)`` with these lines."""
    given = [*contract.names, *(parameter.name for parameter in contract.parameters)]
    return _function(contract, given, body, name, names)


def _function(
    contract: Contract, given: Sequence[str], body: Sequence[str], name: str, names: dict[str, Any]
) -> Callable[..., Any]:
    source = f"def {name}({', '.join(given)}):\n" + "".join(f"    {line}\n" for line in body)
    made: Callable[..., Any] = define(source, name, f"{contract.op}.{name}", names)
    return made


def returned(parts: Sequence[str]) -> str:
    """A line that returns the parts as a tuple."""
    return f"return ({''.join(f'{part}, ' for part in parts)})"


def _make_judge(contract: Contract, parts: Expressions) -> Callable[..., tuple[Any, ...] | None]:
    """``decide(*sized_by)``: what shapes decide of the key; None for shapes that do not fit the contract."""
    body = [f"if not ({parts.ranks} and {parts.fit}): return None", *parts.products, returned(parts.sized)]
    return _function(contract, parts.sized_by, body, "decide", parts.names)
