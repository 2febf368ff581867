"""Fixing the kernel once, for calls that must cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol, cast

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.bound_source import make_bound
from portakernel.calling.fast.claim_reads import reads_of
from portakernel.calling.fast.forms import Forms
from portakernel.calling.fast.keys import chosen_expressions, make_open, make_steady
from portakernel.calling.fast.out_source import has_fast_out, make_into_bound
from portakernel.calling.fast.public_source import make_plain
from portakernel.calling.launcher import can_be_captured, launch_source
from portakernel.calling.outputs import check_outs, overwritten
from portakernel.calling.public import traced
from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision
from portakernel.deciding.kernel_argument import strictly
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.tensors.layout import has_plain_memory, mark_written
from portakernel.tensors.torch_internals import is_recording, outside_modes
from portakernel.text.printable import brief


class BoundKernel(Protocol):
    """A kernel fixed for arguments like an example's; later policy does not move it, and ``stats()`` does not count it.

    It takes the op's own arguments; parameters that a call leaves out are the example's. Leading dimensions may change
    from call to call, sizes that were seen lately cost least; dtypes, device, the other dimensions, the outcome of
    every declared limit and the asked features must be the example's. Inside ``torch.compile`` the graph names the
    kernel. It is no function of torch's API: a ``TorchFunctionMode`` does not see it.

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
    reads = reads_of(caller.contract, [placement.kernel], caller.dispatcher.readiness)
    parts = chosen_expressions(caller.contract, named, reads)
    plain, steady, opened = make_plain(contract), make_steady(contract, parts), make_open(contract, parts)
    expected_steady, expected_open = steady(*tensors, *numbers), opened(*tensors, *numbers)
    signature = caller.signatures.of(tensors)
    like = tuple(None if tensor is None else (tensor.dtype, tensor.device) for tensor in tensors)
    dims, _ = contract.bind_shapes(arguments.shapes(tensors))

    def fits(*given: Any) -> bool:
        alike = plain(*given) and caller.signatures.of(given) is signature
        return alike and steady(*given, *numbers) == expected_steady

    forms = Forms(fits, caller.signatures, exact=True)
    may_overwrite = all("inplace" in capability.properties for _, capability in placement.kernel.variants)

    def otherwise(given: Sequence[Any], values: Sequence[Any], out: Any) -> Any:
        if is_recording():  # `warmup` looks for choices, and here there is none to make
            with outside_modes():
                return otherwise(given, values, out)
        found = arguments.canonical(values)
        form = forms.find(*given)
        recorded = form is not None and form.leaf and torch.is_grad_enabled()
        if form is None or recorded or not plain(*given) or opened(*given, *found) != expected_open:
            refuse(given, found)
        return placement.launch(*given, *found, None) if out is None else into(given, found, out)

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
        written = placement.launch(*given, *values, targets[0] if len(targets) == 1 else targets)
        for target in targets:
            mark_written(target)
        return written

    def refuse(given: Sequence[Any], found: Sequence[Any]) -> NoReturn:
        op = contract.op
        arguments.check(given, found)
        for name in caller.contract.choosers:
            if (asked := arguments.named(found)[name]) != named[name]:
                text = f"{op}: bound for {name}={named[name]!r}; this call has {name}={asked!r}"
                raise ArgumentValueError(f"{text}; bind again")
        found_dims, _ = contract.bind_shapes(arguments.shapes(given))
        for name in dims:
            if name in contract.fixed_dims and found_dims[name] != dims[name]:
                text = f"{op}: bound for {name} = {dims[name]}; this call has {name} = {found_dims[name]}"
                raise ArgumentValueError(f"{text}; bind again")
        for tensor, form, name in zip(given, like, arguments.names, strict=True):
            if (tensor is None) != (form is None):
                raise ArgumentValueError(f"{op}: bound {'without' if form is None else 'with'} {name}; bind again")
            if form is not None and (tensor.dtype, tensor.device) != form:
                text = f"{op}: bound for {name} of {form[0]} on {form[1]}; this call has {tensor.dtype} on"
                raise ArgumentTypeError(f"{text} {tensor.device}; bind again")
        if steady(*given, *found) != expected_steady or opened(*given, *found) != expected_open:
            raise ArgumentValueError(
                f"{op}: the layout, a limit or a feature of this call is not the example's; bind again, or"
                f" call portakernel.ops.{op}"
            )
        raise ArgumentTypeError(
            f"{op}: a bound kernel does not go through autograd, modes, transforms, autocast or subclasses,"
            f" which this call needs; call portakernel.ops.{op}, or use torch.no_grad()"
        )

    # the launcher's own frame is spared, unless it has to look for a capture or at values
    request, given = placement.decision.request, ", ".join([*arguments.names, *arguments.parameters])
    spared = can_be_captured(placement.kernel, request, caller.dispatcher) and not caller.checks_values
    launch, called = launch_source(caller.contract, placement.kernel, request, caller.dispatcher)
    names = {
        **called,
        "run": placement.run,
        "recorded": placement.profiled,
        "forms": forms,
        "into": lambda *_: None,
        "otherwise": otherwise,
        "traced": traced(caller),
        "name": placement.kernel.name,
    }
    pairs = zip(contract.tensors, tensors, strict=True)
    names |= {f"held_{t.name}": example for t, example in pairs if t.leading is None and example is not None}
    if has_fast_out(caller.contract):
        example = {"signature": signature, "steady": expected_steady, "opened": expected_open}
        writing = {**example, "placement": placement, "may_overwrite": may_overwrite}
        names["into"] = make_into_bound(contract, parts, caller.signatures, writing)
    launch = launch if spared else f"run({given}, out)"
    fixed = tuple(replace(p, default=value) for p, value in zip(contract.parameters, numbers, strict=True))
    made = make_bound(replace(contract, parameters=fixed), parts, expected_open, launch, names)
    bound = cast(BoundKernel, made)
    bound.kernel, bound.decision = placement.kernel.name, placement.decision
    # a function's repr shows it, and a class of its own would cost each call another one
    shapes = [
        f"{tensor.name} {tuple(example.shape)} {str(example.dtype).removeprefix('torch.')}"
        for tensor, example in zip(contract.tensors, tensors, strict=True)
        if example is not None
    ]
    bound_for = f"{placement.kernel.name} on {placement.decision.target}: {', '.join(shapes)}"
    made.__qualname__ = brief(f"bound {contract.op} [{bound_for}]")
    return bound
