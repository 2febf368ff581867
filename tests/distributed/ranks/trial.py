"""One call on DTensors beside the same call on the whole tensors, on every rank."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DeviceMesh, DTensor, Placement, Replicate, Shard, distribute_tensor

import portakernel.ops
from portakernel.contracts import contract
from portakernel.errors import FallbackWarning, RedistributionWarning, ReferenceWarning
from portakernel_kit.conformance.inputs import Inputs, draw_inputs, generator
from portakernel_kit.conformance.truth import unspecified

# Arguments that have no gradient, as their contracts' notes say.
_CONSTANTS = {
    ("int4_mm", "bias"),
    ("int4_mm", "scales"),
    ("moe_route", "bias"),
    ("rotary_embedding", "cos"),
    ("rotary_embedding", "sin"),
}


def is_bytes(tensor: Tensor) -> bool:
    """Whether collectives and comparisons may not know the dtype: float8 and float4."""
    return tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point


def spread(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """A tensor that every rank holds, as a DTensor; each holds an equal share of what is partial."""
    partial = [placement.is_partial() for placement in placements]
    if any(partial):
        whole = [Replicate() if one else placement for one, placement in zip(partial, placements, strict=True)]
        ranks = math.prod(mesh.size(dim) for dim, one in enumerate(partial) if one)
        return _like(spread(tensor / ranks, mesh, whole), placements=placements)
    if not is_bytes(tensor):
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    held = distribute_tensor(tensor.view(torch.uint8), mesh, placements, src_data_rank=None)
    return _like(held, held.to_local().view(tensor.dtype))


def gathered(tensor: DTensor) -> Tensor:
    """The whole tensor, on every rank."""
    if not is_bytes(tensor):
        return tensor.full_tensor()
    return _like(tensor, tensor.to_local().view(torch.uint8)).full_tensor()


def _like(tensor: DTensor, local: Tensor | None = None, placements: Sequence[Placement] | None = None) -> DTensor:
    return DTensor.from_local(
        tensor.to_local() if local is None else local,
        tensor.device_mesh,
        tensor.placements if placements is None else placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


@dataclass
class Outcome:
    """What came of a call: how results and gradients are placed, what was warned of, and what is wrong with it."""

    results: list[str]
    gradients: dict[str, str]
    warned: list[str]
    problems: list[str]


def compare(
    op: str, inputs: Inputs, mesh: DeviceMesh, placements: Sequence[Sequence[Placement]], *, backward: bool
) -> Outcome:
    """The call with its arguments so placed, forward and backward, against the whole tensors."""
    described, function = contract(op), getattr(portakernel.ops, op)
    backward = backward and described.gradient != "none"

    def leaf(name: str, tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not backward or not tensor.is_floating_point() or (op, name) in _CONSTANTS:
            return tensor
        return tensor.detach().requires_grad_()

    named = list(zip(inputs.contract.names, inputs.tensors, placements, strict=True))
    whole = [leaf(name, tensor) for name, tensor, _ in named]
    parts: list[Any] = [None if t is None else leaf(name, spread(t, mesh, where)) for name, t, where in named]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _call(function, inputs, parts)
    expected = _call(function, inputs, whole)
    problems, free = [], unspecified(inputs)
    for name, result, right in zip([o.name for o in inputs.contract.outputs], found, expected, strict=True):
        problems += _differences(name, result, right, free.get(name))
    if backward:
        _backward([gathered(result) for result in found], expected)
    gradients = {}
    for name, part, right in zip(inputs.contract.names, parts, whole, strict=True):
        if part is None or right is None or (part.grad is None and right.grad is None):
            continue
        if part.grad is None or right.grad is None:
            problems.append(f"one of {name}'s gradients is missing")
            continue
        gradients[name] = str(tuple(part.grad.placements))
        problems += _differences(f"grad of {name}", part.grad, right.grad)
    warned = [str(one.message) for one in caught if one.category is RedistributionWarning]
    # a part may be empty where the whole is not, so that another kernel serves it; on GPUs it may be the reference
    others = [
        str(one.message)
        for one in caught
        if one.category not in (RedistributionWarning, FallbackWarning, ReferenceWarning)
    ]
    results = [_placed(result) for result in found]
    return Outcome(results, gradients, warned, problems + others)


def unlike_rows_of_no_expert(mesh: DeviceMesh) -> dict[str, list[str]]:
    """What is wrong with results of ``grouped_mm`` that differ in a row of an expert's, or in one of none."""
    described = contract("grouped_mm")
    case = next(case for case in described.cases if case.name == "rows of no expert")
    dtypes = {"a": "float32", "b": "float32", "offsets": "int32", "bias": "float32"}
    inputs = draw_inputs(described, case, dtypes, "cpu", generator(0))
    (free,) = unspecified(inputs).values()
    right = torch.zeros(free.shape, device=mesh.device_type)
    found = {}
    for name, row in (("an expert's", 0), ("none's", -1)):
        other = right.clone()
        other[row] = torch.nan
        found[name] = _differences("y", spread(other, mesh, [Replicate()]), right, free)
    return found


def _call(function: Any, inputs: Inputs, tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
    positional, keywords = inputs.keywords(tensors)
    found = function(*positional, **keywords)
    return found if isinstance(found, tuple) else (found,)


def _backward(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    pairs = [(f, e) for f, e in zip(found, expected, strict=True) if e.requires_grad]
    generator = torch.Generator().manual_seed(7)
    grads = [torch.randn(e.shape, generator=generator).to(e) for _, e in pairs]
    torch.autograd.backward([f for f, _ in pairs], grads)
    torch.autograd.backward([e for _, e in pairs], grads)


def _placed(result: DTensor) -> str:
    return ", ".join(repr(placement) for placement in result.placements)


def _differences(name: str, found: DTensor, right: Tensor, free: Tensor | None = None) -> list[str]:
    """What is wrong with ``found`` where it is not ``free`` to be anything."""
    if found.shape != right.shape:
        return [f"{name} has shape {tuple(found.shape)}, not {tuple(right.shape)}"]
    local = found.to_local().shape
    held = [placement if isinstance(placement, Shard) else Replicate() for placement in found.placements]
    share = distribute_tensor(
        torch.empty(right.shape, device=right.device), found.device_mesh, held, src_data_rank=None
    )
    if local != share.to_local().shape:
        return [f"{name}: this rank holds {tuple(local)}, not {tuple(share.to_local().shape)}"]
    got = gathered(found)
    right = right.view(torch.uint8) if is_bytes(right) else right
    if free is not None:
        got, right = (t.masked_fill(free.reshape(t.shape).to(t.device), 0) for t in (got, right))
    if is_bytes(found):
        return [] if torch.equal(got, right) else [f"{name}: bytes differ"]
    finite = right[right.isfinite()]
    magnitude = finite.abs().max().item() if finite.numel() else 0.0
    # float32 sums in another order; GPU kernels may multiply in fewer bits, by another tiling for another size
    rtol, atol = (1e-5, 4e-6) if right.device.type == "cpu" else (1e-3, 1e-3)
    if right.dtype.itemsize == 2 and right.device.type != "cpu":
        # such a sum may be rounded to the neighbour; where another kernel serves the part, so may be what is summed
        rtol = torch.finfo(right.dtype).eps
        atol = max(atol, rtol / 2)
    near = torch.allclose(got, right, rtol=rtol, atol=atol * magnitude, equal_nan=True)
    return [] if near else [f"{name}: off by {(got - right).abs().max().item():g} where {magnitude:g} is largest"]
