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
from portakernel.calling.fast.expressions import Expressions
from portakernel.calling.fast.forms import Forms
from portakernel.calling.fast.keys import chosen_expressions, make_open, make_steady
from portakernel.calling.fast.launch_source import CallSource, LaunchSource
from portakernel.calling.fast.out_source import has_fast_out, make_into_bound
from portakernel.calling.fast.public_source import make_plain
from portakernel.calling.key_table import Placement
from portakernel.calling.launcher import can_be_captured, launch_source
from portakernel.calling.observers import tell_blocks, tell_process
from portakernel.calling.outputs import check_outs, overwritten
from portakernel.calling.public import traced
from portakernel.calling.value_checks import explains
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
    values = arguments.canonical(parameters)
    arguments.check(tensors, values)
    policy = caller.policy(strictly(caller.dispatcher.registry, caller.contract.op, kernel))
    placement = caller.place(arguments.request(tensors, values, Phase.INFERENCE), policy)
    # what this kernel reads, and no other's: an attached one's limits are in no other key
    reads = reads_of(caller.contract, [placement.kernel], caller.dispatcher.readiness)
    parts = chosen_expressions(caller.contract, arguments.named(values), reads)
    example = _Example(caller, placement, parts, tensors, values)
    contract, (launch, called) = example.contract, _launch(caller, placement)
    seen = {"_signature": example.signature, "_steady": example.steady, "_opened": example.opened}
    writing = {**seen, "_placement": placement, "_may_overwrite": example.may_overwrite}
    quick_out = has_fast_out(caller.contract)
    names = {
        **called,
        "_forms": example.forms,
        "_into": make_into_bound(contract, parts, caller.signatures, writing) if quick_out else lambda *_: None,
        "_otherwise": example.otherwise,
        "_traced": traced(caller),
        "_name": placement.kernel.name,
    }
    pairs = zip(contract.tensors, tensors, strict=True)
    names |= {f"_held_{t.name}": tensor for t, tensor in pairs if t.leading is None and tensor is not None}
    fixed = tuple(replace(p, default=value) for p, value in zip(contract.parameters, values, strict=True))
    made = make_bound(replace(contract, parameters=fixed), parts, example.opened, launch, names)
    bound = cast(BoundKernel, made)
    bound.kernel, bound.decision = placement.kernel.name, placement.decision
    # its kernel is chosen for the example, which may be larger than any call: who counts has that, too
    tell_process(caller.contract, tensors, values)
    tell_blocks(caller.contract, tensors, values)
    # a function's repr shows it, and a class of its own would cost each call another one
    made.__qualname__ = brief(f"bound {contract.op} [{example}]")
    return bound


def _launch(caller: OpCaller, placement: Placement) -> tuple[LaunchSource, dict[str, Any]]:
    """The kernel's launch, and what that calls.

    The launcher's own frame is spared, unless it has to look for a capture or at values.
    """
    request = placement.decision.request
    launch, names = launch_source(caller.contract, placement.kernel, request, caller.dispatcher)
    looks = caller.checks_values or explains(caller.contract, request)
    if looks or not can_be_captured(placement.kernel, request, caller.dispatcher):
        launch = LaunchSource(CallSource("_run", (*caller.arguments.names, *caller.arguments.parameters, "out")))
    return launch, {**names, "_run": placement.run, "_recorded": placement.profiled}


class _Example:
    """The call that a handle was bound for, and what is done for calls that are not at once known to be like it.

    ``steady`` and ``opened`` are parts of its key; ``forms`` are those of calls that have the steady part in common.
    """

    def __init__(
        self, caller: OpCaller, placement: Placement, parts: Expressions, tensors: Sequence[Any], values: Sequence[Any]
    ) -> None:
        self._arguments, self._signatures, self._choosers = (
            caller.arguments,
            caller.signatures,
            caller.contract.choosers,
        )
        self._placement, self._values = placement, values
        self.contract = contract = caller.arguments.at(values)
        self._plain = make_plain(contract)
        self._steady_of, self._opened_of = make_steady(contract, parts), make_open(contract, parts)
        self.steady, self.opened = self._steady_of(*tensors, *values), self._opened_of(*tensors, *values)
        self.signature = caller.signatures.of(tensors)
        self._shapes = [None if tensor is None else tuple(tensor.shape) for tensor in tensors]
        self._like = [None if tensor is None else (tensor.dtype, tensor.device) for tensor in tensors]
        self._dims, _ = contract.bind_shapes(caller.arguments.shapes(tensors))
        self.may_overwrite = all("inplace" in claim.properties for _, claim in placement.kernel.variants)
        self.forms = Forms(self._fits, caller.signatures, exact=True)

    def __str__(self) -> str:
        described = [
            f"{name} {shape} {str(like[0]).removeprefix('torch.')}"
            for name, shape, like in zip(self._arguments.names, self._shapes, self._like, strict=True)
            if like is not None
        ]
        return f"{self._placement.kernel.name} on {self._placement.decision.target}: {', '.join(described)}"

    def _fits(self, *given: Any) -> bool:
        alike = self._plain(*given) and self._signatures.of(given) is self.signature
        return alike and self._steady_of(*given, *self._values) == self.steady

    def otherwise(self, given: Sequence[Any], values: Sequence[Any], out: Any) -> Any:
        """A call that the handle's quick path did not take: run where it is like the example after all.

        Raises:
            ArgumentTypeError, ArgumentValueError: it is not; says in what.
        """
        canonical = self._arguments.canonical(values)
        if is_recording():  # `warmup` looks for choices, and here there is none to make; `record` counts
            with outside_modes():
                returned = self.otherwise(given, values, out)
            tell_blocks(self.contract, given, canonical)
            return returned
        form = self.forms.find(*given)
        recorded = form is not None and form.leaf and torch.is_grad_enabled()
        if form is None or recorded or not self._plain(*given) or self._opened_of(*given, *canonical) != self.opened:
            self._refuse(given, canonical)
        return self._placement.launch(*given, *canonical, None) if out is None else self._into(given, canonical, out)

    def _into(self, given: Sequence[Tensor], values: Sequence[Any], out: Any) -> Any:
        op, inputs = self.contract.op, self._arguments.given(given)
        results = self._arguments.results(given, values)
        targets = check_outs(op, out, results, given[0].device, list(inputs.values()))
        if not all(map(has_plain_memory, targets)):
            raise ArgumentTypeError(f"{op}: a bound kernel writes memory, and out is a subclass or lazily negated")
        over = overwritten(op, targets, inputs, self.contract.inplace)
        if over is not None and not self.may_overwrite:
            raise ArgumentValueError(f"{op}: {self._placement.kernel.name} cannot write its output over {over}")
        written = self._placement.launch(*given, *values, targets[0] if len(targets) == 1 else targets)
        for target in targets:
            mark_written(target)
        return written

    def _refuse(self, given: Sequence[Any], values: Sequence[Any]) -> NoReturn:
        """Raises for the first difference between a call and the example."""
        op = self.contract.op
        self._arguments.check(given, values)
        bound, asked = self._arguments.named(self._values), self._arguments.named(values)
        for name in self._choosers:
            if asked[name] != bound[name]:
                text = f"{op}: bound for {name}={bound[name]!r}; this call has {name}={asked[name]!r}"
                raise ArgumentValueError(f"{text}; bind again")
        dims, _ = self.contract.bind_shapes(self._arguments.shapes(given))
        for name in self._dims:
            if name in self.contract.fixed_dims and dims[name] != self._dims[name]:
                text = f"{op}: bound for {name} = {self._dims[name]}; this call has {name} = {dims[name]}"
                raise ArgumentValueError(f"{text}; bind again")
        for tensor, like, name in zip(given, self._like, self._arguments.names, strict=True):
            if (tensor is None) != (like is None):
                raise ArgumentValueError(f"{op}: bound {'without' if like is None else 'with'} {name}; bind again")
            if like is not None and (tensor.dtype, tensor.device) != like:
                text = f"{op}: bound for {name} of {like[0]} on {like[1]}; this call has {tensor.dtype} on"
                raise ArgumentTypeError(f"{text} {tensor.device}; bind again")
        if self._steady_of(*given, *values) != self.steady or self._opened_of(*given, *values) != self.opened:
            raise ArgumentValueError(
                f"{op}: the layout, a limit or a feature of this call is not the example's; bind again, or"
                f" call portakernel.ops.{op}"
            )
        raise ArgumentTypeError(
            f"{op}: a bound kernel does not go through autograd, modes, transforms, autocast or subclasses,"
            f" which this call needs; call portakernel.ops.{op}, or use torch.no_grad()"
        )
