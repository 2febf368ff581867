"""The tensors of a case: drawn afresh from a seed, laid out in memory as the case says.

Each tensor lies in a storage that is larger than it, filled with NaN around and between its elements: what is read
there by mistake spoils the result, and what is written there is seen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.contract import Case, Contract, Layout, Values
from portakernel.contract import Result as TensorResult
from portakernel.dtypes import parse_dtype

# Elements before and after each tensor; a multiple of any alignment that a kernel may ask for.
_GUARD = 64
# Elements between the rows of a sliced tensor, half of them before the first.
_GAP = 16
# A sum of 2**16 squares of numbers up to 2**55 is finite in float32, where ops accumulate.
_LARGEST_EXPONENT = 55

_RANK_NEEDED: Mapping[Layout, int] = {"sliced": 1, "transposed": 2, "expanded": 1, "stepped": 1, "split": 3}
_SPECIALS = (math.nan, math.inf, -math.inf, 0.0, -0.0)


def generator(seed: int, *parts: object) -> torch.Generator:
    """A source of random numbers that depends on nothing but the seed and what is drawn."""
    digest = hashlib.sha256("\0".join([str(seed), *map(str, parts)]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors and keyword arguments, in the contract's order."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    parameters: Mapping[str, float]
    dims: Mapping[str, int]
    leading: tuple[int, ...]

    def shape(self, result: TensorResult) -> tuple[int, ...]:
        """The shape that an output or saved tensor has."""
        sizes = [self.leading if name.startswith("*") else (self.dims[name],) for name in result.shape]
        return tuple(size for group in sizes for size in group)

    def dtype(self, result: TensorResult) -> torch.dtype:
        """The dtype that an output or saved tensor has."""
        found: torch.dtype = getattr(torch, result.dtype) if result.dtype else self.tensor(result.like).dtype
        return found

    def tensor(self, name: str) -> Tensor:
        """The argument called ``name``."""
        return self.tensors[self.names.index(name)]


def draw_inputs(
    contract: Contract, case: Case, dtypes: Mapping[str, str], device: torch.device | str, source: torch.Generator
) -> Inputs:
    """The case's inputs in these dtypes."""
    tensors = []
    for place, argument in enumerate(contract.tensors):
        sizes = [case.leading if name.startswith("*") else (case.dims[name],) for name in argument.shape]
        shape = tuple(size for group in sizes for size in group)
        # What every row shares (a weight) stays ordinary where the rows are next to nothing: zeros would hide it.
        shared = argument.leading is None and case.values in ("tiny", "zeros")
        values: Values = "normal" if shared else case.values
        layout = case.layouts.get(argument.name, "contiguous")
        drawn = draw_values(_stored_shape(shape, layout), values, dtypes[argument.name], source, place)
        tensors.append(place_tensor(drawn, shape, layout, dtypes[argument.name], device))
    names = tuple(argument.name for argument in contract.tensors)
    dims, leading = contract.bind_shapes({n: tuple(t.shape) for n, t in zip(names, tensors, strict=True)})
    parameters = {p.name: case.parameters.get(p.name, p.default) for p in contract.parameters}
    return Inputs(names, tuple(tensors), parameters, dims, leading or ())


def draw_values(shape: Sequence[int], values: Values, dtype: str, source: torch.Generator, place: int = 0) -> Tensor:
    """Numbers of the given kind, in float64 on the CPU; ``place`` counts the arguments before this one."""
    normal = torch.randn(tuple(shape), dtype=torch.float64, generator=source)
    limits = torch.finfo(getattr(torch, dtype))
    kind = parse_dtype(dtype)
    match values:
        case "normal":
            return normal
        case "large":
            top = min(math.frexp(limits.max)[1], _LARGEST_EXPONENT)
            return _spread(normal, top - 8, top, source).clamp(-limits.max, limits.max)
        case "tiny":
            smallest = kind.min_exponent - kind.mantissa_bits
            return _spread(normal, smallest, kind.min_exponent + 4, source)
        case "zeros":
            return torch.zeros_like(normal).copysign(normal)
        case "special":
            return _with_specials(normal, source, place)


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


def place_tensor(
    values: Tensor, shape: Sequence[int], layout: Layout, dtype: str, device: torch.device | str
) -> Tensor:
    """``values`` in ``dtype`` on ``device``, lying in memory as ``layout`` says, with NaN all around.

    Raises:
        ValueError: a tensor of this rank cannot lie like that.
    """
    shape = tuple(shape)
    if len(shape) < _RANK_NEEDED.get(layout, 0):
        needed = _RANK_NEEDED[layout]
        raise ValueError(f"layout {layout!r} needs a tensor of at least {needed} dimensions; this has shape {shape}")
    strides, offset = _strides(shape, layout)
    span = sum((max(size, 1) - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    torch_dtype: torch.dtype = getattr(torch, dtype)
    storage = torch.full((_GUARD + offset + span + _GAP + _GUARD,), math.nan, dtype=torch_dtype, device=device)
    tensor = storage.as_strided(shape, strides, _GUARD + offset)
    if tensor.numel():
        # written through the elements that differ: an expanded tensor's share memory
        stored = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
        storage.as_strided(stored, strides, _GUARD + offset).copy_(values.to(torch_dtype))
    return tensor


def _strides(shape: tuple[int, ...], layout: Layout) -> tuple[tuple[int, ...], int]:
    """Strides and the first element's place."""
    match layout:
        case "contiguous":
            return _row_major(shape), 0
        case "offset":
            return _row_major(shape), 1
        case "sliced":
            return _row_major((*shape[:-1], shape[-1] + _GAP)), _GAP // 2
        case "stepped":
            strides = _row_major((*shape[:-1], 2 * shape[-1]))
            return (*strides[:-1], 2), 0
        case "split":
            return _row_major((*shape[:-2], shape[-2] + 1, shape[-1])), 0
        case "transposed":
            strides = _row_major((*shape[:-2], shape[-1], shape[-2]))
            return (*strides[:-2], strides[-1], strides[-2]), 0
        case "expanded":
            return (0, *_row_major(shape[1:])), 0


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def footprint(tensor: Tensor) -> Tensor:
    """A copy of the bytes of the tensor's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()


def twin(tensor: Tensor) -> Tensor:
    """A tensor that lies in a copy of the storage as ``tensor`` lies in the storage."""
    storage = footprint(tensor).view(tensor.dtype)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def changed_around(tensor: Tensor, before: Tensor) -> bool:
    """Whether the storage holds anything new beside the elements of ``tensor`` itself."""
    expected = before.clone()
    if tensor.numel():
        typed = expected.view(tensor.dtype)
        typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)
    return not torch.equal(expected, footprint(tensor))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit by bit: NaN equals itself, and zeros of different sign differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    first = a.untyped_storage().data_ptr()
    return first != 0 and first == b.untyped_storage().data_ptr()
