"""``linear_act`` in CuTe DSL: bias and activation in registers, before the only rounding."""

# pyright: reportPrivateUsage=false
# The current stream's handle has a public name, which takes 3 µs more (torch 2.11).

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from cuda.bindings.driver import CUstream
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection, Request, contract, warmup_call, warmup_call_on
from portakernel.authoring.host import make_lock
from portakernel.authoring.native import target_of
from portakernel_plugins.cutlass_dsl import offline
from portakernel_plugins.cutlass_dsl.compiled import Variant, compiled, operands_at, sizes_of

# TMA moves as many bytes at a time.
_ALIGNMENT = 16

# What was compiled, by device: CuTe DSL loads a kernel where it is first called.
_KERNELS: dict[tuple[torch.device, Variant], Any] = {}
_LOCK = make_lock()


def linear_act(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str, out: Tensor | None = None
) -> Tensor:
    """``activation(x @ weight.T + bias)``; x: (..., K), weight: (N, K), bias: (N,)."""
    N, K = weight.shape
    fits = out is not None and out.is_contiguous() and out.data_ptr() % _ALIGNMENT == 0
    y = out if fits and out is not None else torch.empty((*x.shape[:-1], N), dtype=x.dtype, device=x.device)
    rows, weights = _rows(x.reshape(-1, K)), _rows(weight)
    M = rows.shape[0]
    if M:
        arch = offline.arch() if x.is_meta else target_of(x).arch
        variant = Variant(arch, str(x.dtype).removeprefix("torch."), activation, bias is not None)
        if x.is_meta:
            offline.add(variant)
            return y
        kernel = _KERNELS.get((x.device, variant))
        if kernel is None:
            given = ("x", "weight") if bias is None else ("x", "weight", "bias")
            call = warmup_call_on(contract("linear_act"), given, {"activation": activation})
            raise CannotRun(_needs_build(variant, call))
        # without a bias no such address is read
        added = y if bias is None else _vector(bias)
        addresses = (tensor.data_ptr() for tensor in (rows, weights, added, y))
        sizes = sizes_of(M, N, K, _stride(rows), _stride(weights), N)
        kernel(operands_at(variant.dtype, *addresses), sizes, CUstream(_stream(x.device.index or 0)))
    return y if out is None or out is y else out.copy_(y)


def build(request: Request, tensors: Sequence[Tensor | None], values: Sequence[Any]) -> None:
    """Compiles what calls like this one need, for all sizes; seconds.

    Raises:
        CannotRun: CuTe DSL cannot compile it.
    """
    del tensors, values
    key = _device(request), _variant(request)
    with _LOCK:
        if key not in _KERNELS:
            _KERNELS[key] = _compiled(key[1])


def built(request: Request) -> Rejection | None:
    """Why calls like this one cannot be served yet: this process has not compiled what they need."""
    variant = _variant(request)
    return None if (_device(request), variant) in _KERNELS else _needs_build(variant, warmup_call(request))


def _variant(request: Request) -> Variant:
    """What a request needs; a question may leave some of it open."""
    activation = str(request.values.get("activation", "none"))
    return Variant(request.target.arch, request.dtypes.get("x", "bfloat16"), activation, "bias" in request.dtypes)


def _device(request: Request) -> torch.device:
    named = request.device.torch_device if request.device is not None else None
    return torch.device(named or "cuda")


def _compiled(variant: Variant) -> Any:
    try:
        return compiled(variant)
    except Exception as error:
        text = f"CuTe DSL cannot compile {variant}: {type(error).__name__}: {error}"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text)) from error


def _needs_build(variant: Variant, call: str) -> Rejection:
    return Rejection(ReasonCode.NEEDS_BUILD, f"{variant} is not compiled; {call} compiles it")


def _rows(matrix: Tensor) -> Tensor:
    """``matrix`` in rows that TMA can load: itself, or a copy."""
    within = matrix.stride(1) == 1 or matrix.shape[1] == 1
    apart = matrix.shape[0] <= 1 or (
        matrix.stride(0) >= matrix.shape[1] and matrix.stride(0) * matrix.element_size() % _ALIGNMENT == 0
    )
    fits = within and apart and matrix.data_ptr() % _ALIGNMENT == 0
    return matrix if fits else matrix.clone(memory_format=torch.contiguous_format)


def _stride(matrix: Tensor) -> int:
    """From row to row; of a single one as if more followed: a descriptor wants a stride that is valid in any case."""
    return matrix.stride(0) if matrix.shape[0] > 1 else matrix.shape[1]


def _vector(x: Tensor) -> Tensor:
    fits = x.is_contiguous() and x.data_ptr() % _ALIGNMENT == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _public_stream(index: int) -> int:
    handle: int = torch.cuda.current_stream(index).cuda_stream
    return handle


# A build of torch for CPUs has no such function, and no device to launch on.
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
