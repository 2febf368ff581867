"""Where results go: the caller's ``out``, checked before anything is written, and what a call returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.contract import Contract
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.tensors.layout import disjoint, overlaps_itself

Form = tuple[tuple[int, ...], torch.dtype]


def check_outs(
    op: str, out: Any, forms: Mapping[str, Form], device: torch.device, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The tensors of ``out``, one for each result, when the op can write its results there.

    Raises:
        ArgumentTypeError: it is no tensor (with several results, no tuple of them), or one has another dtype.
        ArgumentValueError: one has another shape or device, may overlap itself, or gradients are recorded.
    """
    if not forms:
        raise ArgumentTypeError(f"{op} takes no out: it writes into its arguments")
    if len(forms) == 1:
        outs: tuple[Any, ...] = (out,)
    elif isinstance(out, (tuple, list)) and len(out) == len(forms):
        outs = tuple(out)
    else:
        raise ArgumentTypeError(f"{op}: out must be a tuple of {len(forms)} tensors: {', '.join(forms)}")
    for tensor, (name, (shape, dtype)) in zip(outs, forms.items(), strict=True):
        where = "out" if len(forms) == 1 else f"out's {name}"
        _check_out(op, where, tensor, shape, dtype, device)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*outs, *inputs)):
        raise ArgumentValueError(f"{op}: out= does not record gradients; leave out= away or use torch.no_grad()")
    return outs


def _check_out(op: str, where: str, out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if not isinstance(out, Tensor):
        raise ArgumentTypeError(f"{op}: {where} must be a tensor; this is {type(out).__name__}")
    if out.layout is not torch.strided or out.is_nested:
        found = "nested" if out.is_nested else str(out.layout)
        raise ArgumentTypeError(f"{op}: {where} is {found}; dense (torch.strided) tensors are accepted")
    if out.dtype != dtype:
        raise ArgumentTypeError(f"{op}: {where} has dtype {out.dtype}; the result has {dtype}")
    if tuple(out.shape) != tuple(shape):
        raise ArgumentValueError(f"{op}: {where} has shape {tuple(out.shape)}; the result has {tuple(shape)}")
    if out.device != device:
        raise ArgumentValueError(f"{op}: {where} is on {out.device}; the inputs are on {device}")
    if overlaps_itself(out):
        raise ArgumentValueError(f"{op}: several elements of {where} share memory, as after expand()")


def check_distinct(op: str, outs: Sequence[Tensor]) -> None:
    """Nothing, when no tensor is there twice: all that a trace, whose tensors have no addresses, can tell of memory.

    Raises:
        ArgumentValueError: one is.
    """
    if any(out is other for place, out in enumerate(outs) for other in outs[:place]):
        raise ArgumentValueError(f"{op}: two tensors of out share memory")


def overwritten(op: str, outs: Sequence[Tensor], inputs: Mapping[str, Tensor], inplace: Sequence[str]) -> str | None:
    """An input that is overwritten, or None when no result shares memory with one. All are on one device.

    With one result it may be any of ``inplace``; with several, each may be the one in its place there.

    Raises:
        ArgumentValueError: one overlaps an input that it may not be, or without being it, or another result.
    """
    found = None
    for place, out in enumerate(outs):
        if out.numel() == 0:
            continue
        if any(other.numel() and not disjoint(out, other) for other in outs[:place]):
            raise ArgumentValueError(f"{op}: two tensors of out share memory")
        allowed = inplace if len(outs) == 1 else inplace[place : place + 1]
        found = _overwritten(op, out, inputs, allowed) or found
    return found


def _overwritten(op: str, out: Tensor, inputs: Mapping[str, Tensor], allowed: Sequence[str]) -> str | None:
    found = None
    for name, tensor in inputs.items():
        if tensor.numel() == 0 or disjoint(out, tensor):
            continue
        same = tensor.data_ptr() == out.data_ptr() and tensor.shape == out.shape and tensor.stride() == out.stride()
        if not same or tensor.dtype != out.dtype or name not in allowed:
            may_be = f"it may be {' or '.join(allowed)} itself" if allowed else "it may be none of the inputs"
            raise ArgumentValueError(f"{op}: out shares memory with {name}; {may_be}, or separate memory")
        found = name
    return found


def copy_into(out: Tensor, result: Tensor) -> None:
    """Copies ``result`` into ``out``, of one shape and dtype; some dtypes copy as bytes alone."""
    if result.dtype.itemsize == 1 and result.dtype.is_floating_point:
        out, result = out.view(torch.uint8), result.view(torch.uint8)
    out.copy_(result)


def existing(contract: Contract, values: Mapping[str, Any], found: Any) -> Any:
    """What the public function returns, of what the torch op did: results that do not exist are left out."""
    if not isinstance(found, (tuple, list)):
        return found
    names = [output.name for output in contract.at(values).outputs]
    kept = [tensor for tensor, output in zip(found, contract.outputs, strict=False) if output.name in names]
    return kept[0] if len(kept) == 1 else tuple(kept)


def completed(contract: Contract, values: Mapping[str, Any], found: Any, like: Tensor, *, saved: bool) -> Any:
    """What the torch op returns, of what a kernel did: an empty tensor for each result that does not exist."""
    if not contract.outputs:  # it wrote into its arguments
        return None
    given = iter(found if isinstance(found, (tuple, list)) else (found,))
    made = contract.at(values)
    names = {result.name for result in (*made.outputs, *made.saved)}
    results = (*contract.outputs, *(contract.saved if saved else ()))
    filled = [next(given) if result.name in names else like.new_empty(0) for result in results]
    return filled[0] if len(filled) == 1 else tuple(filled)
