"""Fixing the kernel once, for calls that must cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from torch import Tensor

from portakernel.call import OpCaller, read_by
from portakernel.decision import Decision
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.fast_path import expressions, make_bound, make_key
from portakernel.layout import check_out, has_plain_memory, mark_written, overwritten
from portakernel.naming import strictly
from portakernel.request import Phase


class BoundKernel(Protocol):
    """A kernel fixed for arguments like an example's; later policy does not move it, and ``stats()`` does not count it.

    It takes the op's own arguments. Leading dimensions may change from call to call; dtypes, device, the other
    dimensions, the outcome of every declared limit and the asked features must be the example's.

    Raises (on a call):
        ArgumentTypeError, ArgumentValueError: the arguments differ from the example's, or need one of torch's
            mechanisms (autograd, a mode, a subclass), which a bound kernel does not go through; the message says which.
        CannotRun: the kernel declines these sizes, which no declared limit foretold.
    """

    kernel: str
    decision: Decision

    def __call__(self, *tensors: Tensor, **parameters: Any) -> Tensor:
        """The op's result."""
        ...


def bind_kernel(caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], kernel: object) -> BoundKernel:
    """The kernel that a call with these arguments would be served by now, fixed.

    Raises:
        ArgumentTypeError, ArgumentValueError: the arguments do not fit the contract.
        NoKernelError: no kernel can serve them.
    """
    contract, arguments = caller.contract, caller.arguments
    arguments.check(tensors)
    numbers = arguments.numbers(parameters)
    policy = caller.policy(strictly(caller.dispatcher.registry, contract.op, kernel))
    placement = caller.place(arguments.request(tensors, numbers, Phase.INFERENCE), policy)
    # what this kernel reads, and no other's: an attached one's limits are in no other key
    parts = expressions(contract, *read_by([placement.kernel]))
    key = make_key(contract, parts)
    expected = key(*tensors, *numbers)
    forms = tuple((tensor.dtype, tensor.device) for tensor in tensors)
    dims, _ = contract.bind_shapes(arguments.shapes(tensors))
    may_overwrite = all("inplace" in capability.properties for _, capability in placement.kernel.variants)

    def into(given: Sequence[Tensor], values: Sequence[float], out: Any) -> Tensor:
        target = check_out(contract.op, out, arguments.like(given), given)
        if not has_plain_memory(target):
            raise ArgumentTypeError(
                f"{contract.op}: a bound kernel writes memory, and out is a subclass or lazily negated"
            )
        over = overwritten(contract.op, target, dict(zip(arguments.names, given, strict=True)), contract.inplace)
        if over is not None and not may_overwrite:
            raise ArgumentValueError(f"{contract.op}: {placement.kernel.name} cannot write its output over {over}")
        written: Tensor = placement.run(*given, *values, target)
        mark_written(target)
        return written

    def refuse(given: Sequence[Any], values: Sequence[Any], out: Any) -> Tensor:
        arguments.check(given)
        found = arguments.numbers(values)
        found_dims, _ = contract.bind_shapes(arguments.shapes(given))
        for name in contract.fixed_dims:
            if found_dims[name] != dims[name]:
                text = f"{contract.op}: bound for {name} = {dims[name]}; this call has {name} = {found_dims[name]}"
                raise ArgumentValueError(f"{text}; bind again")
        for tensor, (dtype, device), name in zip(given, forms, arguments.names, strict=True):
            if tensor.dtype != dtype or tensor.device != device:
                text = f"{contract.op}: bound for {name} of {dtype} on {device}; this call has {tensor.dtype} on"
                raise ArgumentTypeError(f"{text} {tensor.device}; bind again")
        if key(*given, *found) != expected:
            raise ArgumentValueError(
                f"{contract.op}: the layout, a limit or a feature of this call is not the example's; bind again, or"
                f" call portakernel.ops.{contract.op}"
            )
        if any(type(value) is not float for value in values):
            return bound(*given, **dict(zip((p.name for p in contract.parameters), found, strict=True)), out=out)
        raise ArgumentTypeError(
            f"{contract.op}: a bound kernel does not go through autograd, modes, transforms, autocast or subclasses,"
            f" which this call needs; call portakernel.ops.{contract.op}, or use torch.no_grad()"
        )

    names = {
        "expected": expected,
        "sizes": tuple(dims[name] for name in contract.fixed_dims),
        "run": placement.run,
        "into": into,
        "refuse": refuse,
    }
    bound = cast(BoundKernel, make_bound(contract, parts, names))
    bound.kernel, bound.decision = placement.kernel.name, placement.decision
    return bound
