"""The tensors of a case: drawn afresh from a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel.contract import Contract, TensorArgument
from portakernel.contract import Result as TensorResult
from portakernel.contract.case import Case, Layout, Values
from portakernel.contract.sizes import parse_size
from portakernel.tensors.block_draws import BLOCK_LISTS, draw_block_lists, read_blocks
from portakernel.tensors.block_lists import blocks_of
from portakernel.tensors.group_draws import OF_GROUPS, draw_groups
from portakernel.tensors.serving_draws import SERVING, alive, depth, draw_lse, draw_serving, poisoned, reached
from portakernel.words.dtypes import parse_dtype
from portakernel_kit.conformance.memory import place_tensor
from portakernel_kit.conformance.mixed_numbers import largest_exponent, mixed

# What hides a score without being minus infinity; log2(e) times that is still a number.
_HIDING = -(2.0**100)
_FEW_ROWS = 200
_FEW_IDS = 3
# One column in so many is zero among sparse numbers.
_SPARSE = 8
# Of scales beside special numbers so many are NaN.
_NAN_SCALES = 0.1
_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_SPECIALS = (math.nan, math.inf, -math.inf, 0.0, -0.0)


def generator(seed: int, *parts: object) -> torch.Generator:
    """A source of random numbers that depends on nothing but the seed and what is drawn."""
    digest = hashlib.sha256("\0".join([str(seed), *map(str, parts)]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors and keyword arguments, in the contract's order; ``contract`` has no choice left open."""

    contract: Contract
    tensors: tuple[Tensor | None, ...]
    parameters: Mapping[str, Any]
    dims: Mapping[str, int]
    leading: tuple[int, ...]

    @property
    def given(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        pairs = zip(self.contract.names, self.tensors, strict=True)
        return {name: tensor for name, tensor in pairs if tensor is not None}

    @property
    def results(self) -> tuple[TensorResult, ...]:
        """What the call leaves: its outputs, or those arguments that it writes and that are there."""
        if not self.contract.mutated:
            return self.contract.outputs
        return tuple(result for result in self.contract.results if result.name in self.given)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.given[self.contract.names[0]].device

    @property
    def values(self) -> tuple[Any, ...]:
        """The parameters' values in order."""
        return tuple(self.parameters.values())

    def form(self, result: TensorResult) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype that an output or saved tensor has."""
        dtypes = {name: dtype_name(tensor.dtype) for name, tensor in self.given.items()}
        shape, dtype = self.contract.form(result, self.dims, self.leading, dtypes, self.parameters)
        return shape, getattr(torch, dtype)

    def shape(self, result: TensorResult) -> tuple[int, ...]:
        """The shape that an output or saved tensor has."""
        return self.form(result)[0]

    def dtype(self, result: TensorResult) -> torch.dtype:
        """The dtype that an output or saved tensor has."""
        return self.form(result)[1]

    @property
    def rows_lie_apart(self) -> bool:
        """Whether there are several rows, each with results of its own."""
        name = next((t.leading for t in self.contract.tensors if t.leading), "")
        results = self.contract.outputs
        apart = all(isinstance(o.shape, tuple) and o.shape[:1] == (f"*{name}",) for o in results)
        # an argument without leading dimensions that is absent (positions) gives rows a meaning by their place
        placed = any(t is None and a.leading for t, a in zip(self.tensors, self.contract.tensors, strict=True))
        return bool(results) and apart and not placed and self.dims.get(name, 0) > 1

    def keywords(self, tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], dict[str, Any]]:
        """``tensors`` and the parameters as a function of the op's own signature takes them."""
        pairs = list(zip(self.contract.tensors, tensors, strict=True))
        positional = [tensor for argument, tensor in pairs if not argument.keyword]
        return positional, {a.name: tensor for a, tensor in pairs if a.keyword} | dict(self.parameters)


def case_shape(argument: TensorArgument, case: Case) -> tuple[int, ...]:
    """The shape that a case's argument has; ``argument`` is of a contract without open choices."""
    shape: list[int] = []
    for text in argument.sizes:
        size = parse_size(text.lstrip("*"))
        # a dimension that no case names is the product of the leading ones
        known = case.dims.get(size.name or "", math.prod(case.leading))
        shape += case.leading if text.startswith("*") else [size.of(known)]
    return tuple(shape)


def case_parameters(contract: Contract, case: Case, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """The parameters' values in a case, dtypes that parameters hold being ``dtypes``' affair."""
    typed = {name: dtype for name, dtype in dtypes.items() if name not in contract.names}
    return contract.values({**typed, **case.parameters})


def is_present(argument: TensorArgument, case: Case) -> bool:
    """Whether the case passes the argument."""
    return not argument.optional or argument.name in case.present or argument.name in case.given


def present_dims(contract: Contract, case: Case) -> set[str]:
    """The dimensions that the case's tensors have; ``contract`` has no choice left open."""
    present = (argument for argument in contract.tensors if is_present(argument, case))
    return {parse_size(text.lstrip("*")).name or "" for argument in present for text in argument.sizes}


def draw_inputs(
    contract: Contract,
    case: Case,
    dtypes: Mapping[str, str],
    device: torch.device | str,
    source: torch.Generator | None,
    *,
    flushed: bool = False,
) -> Inputs:
    """The case's inputs in these dtypes; full of zeros where there is no ``source``.

    ``flushed``: what is subnormal in float16 or bfloat16 is drawn as zero, as units of the device take it.
    """
    parameters = case_parameters(contract, case, dtypes)
    made = contract.at(parameters)
    found, elements = dict[str, Tensor](), dict[str, Tensor]()
    for place, argument in sorted(enumerate(made.tensors), key=lambda numbered: depth(numbered[1].draw)):
        if not is_present(argument, case):
            continue
        shape = case_shape(argument, case)
        layout = case.layouts.get(argument.name, "contiguous")
        dtype = dtypes[argument.name]
        stored = _stored_shape(shape, layout)
        if source is None:
            drawn = torch.zeros(stored, dtype=torch.uint8)
        else:
            drawn = _drawn(made, argument, case, parameters, stored, dtype, source, place, elements)
            if flushed and dtype in _HALVES and drawn.dtype.is_floating_point:
                half = _HALVES[dtype]
                drawn = torch.where(drawn.to(half).abs() < torch.finfo(half).tiny, 0.0 * drawn, drawn)
        elements[argument.name] = drawn
        found[argument.name] = place_tensor(drawn, shape, layout, dtype, device)
    tensors = [found.get(name) for name in made.names]
    shapes = {n: tuple(t.shape) for n, t in zip(made.names, tensors, strict=True) if t is not None}
    dims, leading = made.bind_shapes(shapes)
    return Inputs(made, tuple(tensors), parameters, dims, leading or ())


def _drawn(
    contract: Contract,
    argument: TensorArgument,
    case: Case,
    parameters: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: str,
    source: torch.Generator,
    place: int,
    earlier: Mapping[str, Tensor],
) -> Tensor:
    """The elements of one argument, on the CPU: float64, integers, or the dtype's own bytes.

    ``earlier`` are those that were drawn before it, and that some depend on.
    """
    if argument.name in case.given:
        return torch.tensor(case.given[argument.name], dtype=torch.int64).reshape(shape)
    draw = argument.draw
    if draw.kind in BLOCK_LISTS:
        blocks, _ = blocks_of(draw.below, case.dims, parameters)
        return draw_block_lists(draw, shape, blocks, case.dims, earlier, source)
    if draw.kind in OF_GROUPS:
        return draw_groups(draw, shape, dtype, case.dims, parameters, earlier, source)
    if draw.kind == "ids":
        return torch.randint(case.dims[draw.below] + 1 if draw.below else _FEW_IDS, shape, generator=source)
    sizes = {**case.dims, **{f"${name}": value for name, value in parameters.items()}}
    known = {**sizes} if "|" not in draw.below else present_dims(contract, case)
    bound = math.prod(sizes.get(name, math.prod(case.leading)) for name in draw.factors(known))
    if draw.kind in SERVING:
        return draw_serving(draw, shape, bound, case.dims, earlier, source)
    if draw.kind == "index":
        drawn = torch.randint(max(bound, 1), shape, generator=source)
        if draw.sometimes:
            chance = torch.rand(shape, generator=source)
            drawn = torch.where(chance < 0.2, torch.tensor(parameters[draw.sometimes]), drawn)
        return drawn
    if draw.kind in ("segments", "offsets"):
        # one in four pieces is empty
        cuts, _ = torch.randint(bound + 1, shape, generator=source).sort()
        repeated = torch.rand(shape, generator=source) < 0.25
        for i in range(1, len(cuts)):
            cuts[i] = cuts[i - 1] if repeated[i] else cuts[i]
        cuts[:1] = 0
        if draw.kind == "segments" and len(cuts) > 1:
            cuts[-1] = bound
        return cuts
    if dtype == "float4_e2m1fn_x2":
        return torch.randint(256, shape, generator=source, dtype=torch.uint8)  # every pair of numbers
    if draw.kind == "lse":
        return draw_lse(shape, source)
    if draw.kind == "scale":
        drawn = _scales(shape, dtype, source, special=case.values == "special")
        paged = len(shape) > 1  # where one scale is many rows', no row is nobody's
        return _poisoned(contract, case, argument, drawn, shape, earlier) if paged else drawn
    # A tensor that all rows share (a weight) stays ordinary beside tiny or zero rows: zeros in it would hide theirs.
    # So it does beside many rows with special values: in one of them a sum is zero but for rounding, times infinity.
    many = math.prod(case.leading) > _FEW_ROWS
    plain_beside = ("tiny", "zeros", "mixed", *(("special",) if many else ()))
    shared = argument.leading is None and case.values in plain_beside and len(shape) < 2
    kinds = frozenset[Values](shown.values for shown in contract.cases)
    drawn = draw_values(shape, "normal" if shared else case.values, dtype, source, place, kinds=kinds)
    drawn = _poisoned(contract, case, argument, drawn, shape, earlier)
    if draw.kind == "mask":
        hidden = torch.rand(shape, generator=source) < 0.3
        hidden |= torch.rand((*shape[:-1], 1), generator=source) < 0.2
        drawn = drawn.masked_fill(hidden, -math.inf)
        least = torch.rand((*shape[:-1], 1), generator=source) < 0.1
        drawn = drawn.masked_fill(least, max(torch.finfo(getattr(torch, dtype)).min, _HIDING))
    return drawn


def _poisoned(
    contract: Contract,
    case: Case,
    argument: TensorArgument,
    drawn: Tensor,
    shape: Sequence[int],
    earlier: Mapping[str, Tensor],
) -> Tensor:
    """``drawn``, NaN where nobody may look: what no sequence reaches by a table of pages, what belongs to a dead lse.

    Where one page is stored for all, as in an expanded tensor, what is reached in any of them is reached.
    """
    told = earlier.get(argument.draw.poison)
    if told is None:
        return drawn
    by = contract.tensor(argument.draw.poison)
    if by.draw.kind == "lse":
        return poisoned(drawn, alive(told, by.sizes, argument.sizes, shape))
    if by.draw.kind == "blocks":
        seen = _listed_rows(contract, case, shape, earlier)
        return poisoned(drawn, seen.any(0, keepdim=True) if shape[0] == 1 else seen)
    seen = reached(told, earlier[by.draw.lengths], case.dims[by.draw.below], case.dims[by.draw.page])
    return poisoned(drawn, seen.any(0, keepdim=True) if shape[0] == 1 else seen)


def _listed_rows(contract: Contract, case: Case, shape: Sequence[int], earlier: Mapping[str, Tensor]) -> Tensor:
    """Which rows ``(B, T, G)`` of an argument of this shape are in some block that a head of the key head lists."""
    made = [a for a in contract.tensors if a.draw.kind == "blocks" and {a.draw.lengths, a.name} <= earlier.keys()]
    blocks, columns = blocks_of(made[0].draw.below, case.dims, contract.values(case.parameters))
    read = read_blocks([(earlier[a.draw.lengths], earlier[a.name]) for a in made], blocks)
    batches, heads, _ = read.shape
    of_key_heads = read.reshape(batches, shape[2], heads // shape[2], blocks).any(2)
    return of_key_heads.repeat_interleave(columns, -1)[..., : shape[1]].transpose(1, 2)


def _scales(shape: Sequence[int], dtype: str, source: torch.Generator, *, special: bool) -> Tensor:
    """Scales around 1, in float64 or as bytes of e8m0; beside special numbers some are NaN."""
    if dtype == "float8_e8m0fnu":
        drawn, nan = torch.randint(120, 135, tuple(shape), generator=source, dtype=torch.uint8), 255.0
    else:
        drawn, nan = torch.exp2(4 * torch.rand(tuple(shape), dtype=torch.float64, generator=source) - 2), math.nan
    return drawn.masked_fill(torch.rand(tuple(shape), generator=source) < _NAN_SCALES, nan) if special else drawn


def draw_values(
    shape: Sequence[int],
    values: Values,
    dtype: str,
    source: torch.Generator,
    place: int = 0,
    *,
    kinds: Set[Values] = frozenset(),
) -> Tensor:
    """Numbers of the given kind, in float64 on the CPU; ``place`` counts the arguments before this one.

    Extreme numbers are mixed with others where they are among ``kinds``.
    """
    normal = torch.randn(tuple(shape), dtype=torch.float64, generator=source)
    limits = torch.finfo(getattr(torch, dtype))
    kind = parse_dtype(dtype)
    match values:
        case "normal":
            return normal
        case "large":
            top = largest_exponent(dtype)
            return _spread(normal, top - 8, top, source).clamp(-limits.max, limits.max)
        case "tiny":
            smallest = kind.min_exponent - kind.mantissa_bits
            return _spread(normal, smallest, kind.min_exponent + 4, source)
        case "zeros":
            return torch.zeros_like(normal).copysign(normal)
        case "special":
            return _with_specials(normal, source, place)
        case "sparse":
            return normal.masked_fill(_zero_columns(shape), 0.0)
        case "mixed":
            return mixed(normal, kinds, dtype, source)


def _zero_columns(shape: Sequence[int]) -> Tensor:
    """Every eighth column, the same in all tensors of as many: where a weight is zero, its bias is too."""
    columns = torch.arange(shape[-1] if shape else 1)
    zero = (columns % _SPARSE == len(columns) // 2 % _SPARSE) & (len(columns) > 1)
    return zero.reshape(tuple(shape[-1:]))


def _spread(signs: Tensor, low: int, high: int, source: torch.Generator) -> Tensor:
    """Magnitudes from ``2**low`` to ``2**high``, evenly over the exponents."""
    exponents = low + (high - low) * torch.rand(signs.shape, dtype=torch.float64, generator=source)
    return torch.exp2(exponents).copysign(signs)


def _with_specials(values: Tensor, source: torch.Generator, place: int) -> Tensor:
    """Rows without a special value, with one kind each, and with every pair that two arguments can make.

    A row-wise op gives NaN for a whole row that holds one NaN: so each kind has rows of its own.
    """
    if values.dim() == 0 or values.numel() == 0:
        return values
    columns = values.shape[-1]
    rows = values.reshape(-1, columns)
    if values.dim() == 1:
        at = torch.randperm(columns, generator=source)[: len(_SPECIALS)]
        rows[0, at] = torch.tensor(_SPECIALS, dtype=torch.float64)[: len(at)]
        return rows.reshape(values.shape)
    kinds: tuple[tuple[float, ...], ...] = (_SPECIALS, (), (math.nan,), (math.inf,), (-math.inf,), (0.0, -0.0))
    for i, row in enumerate(rows):
        picked = kinds[i % len(kinds)]
        if picked is _SPECIALS:
            # a digit of the column's number for each argument, one more than there are special values
            count = len(_SPECIALS) + 1
            digits = torch.arange(columns) // count**place % count
            for digit, special in enumerate(_SPECIALS):
                row[digits == digit] = special
        elif picked:
            at = torch.randperm(columns, generator=source)[: max(len(picked), columns // 10)]
            row[at] = torch.tensor([picked[k % len(picked)] for k in range(len(at))], dtype=torch.float64)
    return rows.reshape(values.shape)


def _stored_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    return (1, *shape[1:]) if layout == "expanded" and shape and shape[0] else tuple(shape)
