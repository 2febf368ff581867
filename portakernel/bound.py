"""Fixing the kernel once, for calls that must cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from torch import Tensor

from portakernel.call import OpCaller, read_by
from portakernel.decision import Decision
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.fast_path import make_bound
from portakernel.guard_key import chosen_expressions, make_key
from portakernel.layout import has_plain_memory, mark_written
from portakernel.naming import strictly
from portakernel.outputs import check_outs, overwritten
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

    def __call__(self, *tensors: Tensor | None, **parameters: Any) -> Any:
        """The op's result."""
        ...


def bind_kernel(caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], kernel: object) -> BoundKernel:
    """The kernel that a call with these arguments would be served by now, fixed.

    Raises:
        ArgumentTypeError, ArgumentValueError: the arguments do not fit the contract.
        NoKernelError: no kernel can serve them.
    """
    arguments = caller.arguments
    numbers = arguments.canonical(parameters)
    arguments.check(tensors, numbers)
    contract, named = arguments.at(numbers), arguments.named(numbers)
    policy = caller.policy(strictly(caller.dispatcher.registry, caller.contract.op, kernel))
    placement = caller.place(arguments.request(tensors, numbers, Phase.INFERENCE), policy)
    # what this kernel reads, and no other's: an attached one's limits are in no other key
    parts = chosen_expressions(caller.contract, named, *read_by([placement.kernel]))
    key = make_key(contract, parts)
    expected = key(*tensors, *numbers)
    forms = tuple(None if tensor is None else (tensor.dtype, tensor.device) for tensor in tensors)
    dims, _ = contract.bind_shapes(arguments.shapes(tensors))
    may_overwrite = all("inplace" in capability.properties for _, capability in placement.kernel.variants)

    def into(given: Sequence[Tensor], values: Sequence[Any], out: Any) -> Any:
        inputs = arguments.given(given)
        results = arguments.results(given, values)
        targets = check_outs(contract.op, out, results, given[0].device, list(inputs.values()))
        if not all(map(has_plain_memory, targets)):
            raise ArgumentTypeError(
                f"{contract.op}: a bound kernel writes memory, and out is a subclass or lazily negated"
            )
        over = overwritten(contract.op, targets, inputs, contract.inplace)
        if over is not None and not may_overwrite:
            raise ArgumentValueError(f"{contract.op}: {placement.kernel.name} cannot write its output over {over}")
        written = placement.run(*given, *values, targets[0] if len(targets) == 1 else targets)
        for target in targets:
            mark_written(target)
        return written

    def refuse(given: Sequence[Any], values: Sequence[Any], out: Any) -> Any:
        found = arguments.canonical(values)
        arguments.check(given, found)
        for name in caller.contract.choosers:
            if (asked := arguments.named(found)[name]) != named[name]:
                text = f"{contract.op}: bound for {name}={named[name]!r}; this call has {name}={asked!r}"
                raise ArgumentValueError(f"{text}; bind again")
        found_dims, _ = contract.bind_shapes(arguments.shapes(given))
        for name in dims:
            if name in contract.fixed_dims and found_dims[name] != dims[name]:
                text = f"{contract.op}: bound for {name} = {dims[name]}; this call has {name} = {found_dims[name]}"
                raise ArgumentValueError(f"{text}; bind again")
        for tensor, form, name in zip(given, forms, arguments.names, strict=True):
            if (tensor is None) != (form is None):
                raise ArgumentValueError(
                    f"{contract.op}: bound {'without' if form is None else 'with'} {name}; bind again"
                )
            if form is not None and (tensor.dtype, tensor.device) != form:
                text = f"{contract.op}: bound for {name} of {form[0]} on {form[1]}; this call has {tensor.dtype} on"
                raise ArgumentTypeError(f"{text} {tensor.device}; bind again")
        if key(*given, *found) != expected:
            raise ArgumentValueError(
                f"{contract.op}: the layout, a limit or a feature of this call is not the example's; bind again, or"
                f" call portakernel.ops.{contract.op}"
            )
        if tuple(values) != found or any(type(a) is not type(b) for a, b in zip(values, found, strict=True)):
            positional = [t for t, a in zip(given, contract.tensors, strict=True) if not a.keyword]
            keyword = {a.name: t for t, a in zip(given, contract.tensors, strict=True) if a.keyword}
            return bound(*positional, **keyword, **arguments.named(found), out=out)
        raise ArgumentTypeError(
            f"{contract.op}: a bound kernel does not go through autograd, modes, transforms, autocast or subclasses,"
            f" which this call needs; call portakernel.ops.{contract.op}, or use torch.no_grad()"
        )

    names = {
        "expected": expected,
        "sizes": tuple(dims[name] for name in contract.fixed_dims if name in dims),
        "run": placement.run,
        "into": into,
        "refuse": refuse,
    }
    bound = cast(BoundKernel, make_bound(contract, parts, names))
    bound.kernel, bound.decision = placement.kernel.name, placement.decision
    return bound
