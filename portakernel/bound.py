"""Fixing the kernel once, for calls that must cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from portakernel.call import OpCaller, argument_layer
from portakernel.decision import Decision
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.fast_path import make_bound
from portakernel.layout import check_out, overwritten
from portakernel.request import Phase


class BoundKernel(Protocol):
    """A kernel fixed for arguments like an example's; later policy does not move it.

    It takes the op's own arguments. Leading dimensions may change from call to call; dtypes, device, the other
    dimensions, the outcome of every declared limit and the asked features must be the example's.

    Raises (on a call):
        ArgumentTypeError, ArgumentValueError: the arguments differ from the example's, or need one of torch's
            mechanisms (autograd, a mode, a subclass), which a bound kernel does not go through; the message says which.
    """

    kernel: str
    decision: Decision

    def __call__(self, *tensors: Tensor, **parameters: Any) -> Tensor:
        """The op's result."""
        ...


def bind_kernel(caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], kernel: str | None) -> BoundKernel:
    """The kernel that a call with these arguments would be served by now, fixed.

    Raises:
        ArgumentTypeError, ArgumentValueError: the arguments do not fit the contract.
        NoKernelError: no kernel can serve them.
    """
    contract = caller.contract
    caller.check_tensors(tensors)
    numbers = caller.parameters(parameters)
    policy = caller.dispatcher.policy(argument_layer(caller.dispatcher, kernel))
    placement = caller.place(caller.request(tensors, numbers, Phase.INFERENCE), policy)
    expected = caller.key(tensors, numbers)
    dims, _ = contract.bind_shapes(_shapes(caller, tensors))
    fixed = list(dict.fromkeys(name for tensor in contract.tensors for name in tensor.fixed))

    def into(given: Sequence[Tensor], numbers: Sequence[float], out: Any) -> Tensor:
        names = [tensor.name for tensor in contract.tensors]
        like = given[names.index(contract.outputs[0].like)]
        target = check_out(contract.op, out, like.shape, like)
        if target.requires_grad and torch.is_grad_enabled():
            raise ArgumentValueError(f"{contract.op}: out= does not record gradients; use torch.no_grad()")
        over = overwritten(contract.op, target, dict(zip(names, given, strict=True)), contract.inplace)
        if over is not None and not all(
            "inplace" in capability.properties for _, capability in placement.kernel.variants
        ):
            raise ArgumentValueError(f"{contract.op}: {placement.kernel.name} cannot write its output over {over}")
        written: Tensor = placement.run(*given, *numbers, target)
        if not target.is_inference():
            torch.autograd.graph.increment_version(target)
        return written

    def refuse(given: Sequence[Any], values: Sequence[Any], _out: Any) -> Tensor:
        caller.check_tensors(given)
        numbers = caller.parameters(values)
        found_dims, _ = contract.bind_shapes(_shapes(caller, given))
        differing = {name: (found_dims[name], dims[name]) for name in fixed if found_dims[name] != dims[name]}
        for name, (found, bound) in differing.items():
            raise ArgumentValueError(
                f"{contract.op}: bound for {name} = {bound}; this call has {name} = {found}; bind again"
            )
        for tensor, example, argument in zip(given, tensors, contract.tensors, strict=True):
            if tensor.dtype != example.dtype or tensor.device != example.device:
                raise ArgumentTypeError(
                    f"{contract.op}: bound for {argument.name} of {example.dtype} on {example.device}; this call has"
                    f" {tensor.dtype} on {tensor.device}; bind again"
                )
        if caller.key(given, numbers) != expected:
            raise ArgumentValueError(
                f"{contract.op}: the layout, a limit or a feature of this call is not the example's; bind again, or"
                f" call portakernel.ops.{contract.op}"
            )
        raise ArgumentTypeError(
            f"{contract.op}: a bound kernel does not go through autograd, modes, transforms, autocast or subclasses,"
            f" which this call needs; call portakernel.ops.{contract.op}, or use torch.no_grad()"
        )

    names = {
        "expected": expected, "sizes": tuple(dims[name] for name in fixed), "run": placement.run, "into": into,
        "refuse": refuse,
    }  # fmt: skip
    bound = cast(BoundKernel, make_bound(contract, caller.expressions, names))
    bound.kernel, bound.decision = placement.kernel.name, placement.decision
    return bound


def _shapes(caller: OpCaller, tensors: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
    return {
        argument.name: tuple(tensor.shape) for argument, tensor in zip(caller.contract.tensors, tensors, strict=True)
    }
