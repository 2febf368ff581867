"""The hot path: from a public call to a launched kernel through one dictionary look-up.

For each op a function is generated from its contract and from what the installed kernels' claims read, so that a call
computes just the key that selection depends on: dtypes, devices, the outcome of each declared limit, which features are
asked, the policy. Anything that a raw kernel launch would get wrong (autograd, subclasses, modes, vmap, forward-mode
duals, autocast, lazy negation) goes through ``torch.ops.portakernel`` instead.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.capability import CannotRun, Limit, Rejection
from portakernel.contract import Contract
from portakernel.decision import Decision
from portakernel.devices import attached_devices, find_device
from portakernel.dispatch import TRACE_MARK, Dispatcher
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.fallback import Fallbacks
from portakernel.fast_path import define, expressions, make_key, make_public, make_value
from portakernel.kernel import Kernel
from portakernel.launcher import launcher
from portakernel.layout import check_out, layout_facts, overwritten
from portakernel.policies import Layer, Policy, make_layer
from portakernel.request import Phase, Request
from portakernel.torch_internals import innermost_transform, outside_modes

MAX_KEYS = 4096


@dataclass(slots=True)
class Placement:
    """A key's kernel: how to run it, the decision behind it, and how often it was called.

    ``cannot`` are kernels that declined all calls of this key, ``refused`` sizes that this placement's own kernel
    declined, ``fallback`` the kernels that were expected to go before it.
    """

    decision: Decision
    kernel: Kernel
    run: Callable[..., Any]
    calls: itertools.count[int] = field(default_factory=itertools.count)
    cannot: dict[str, Rejection] = field(default_factory=dict[str, Rejection])
    refused: dict[tuple[str, int], Rejection] = field(default_factory=dict[tuple[str, int], Rejection])
    fallback: tuple[str, ...] = ()

    def count(self) -> int:
        """Calls so far. A counter can only be read by its repr without advancing it; its own increment is atomic."""
        return int(repr(self.calls)[len("count(") : -1])


class OpCaller:
    """One op's key table and everything that a call without an entry in it needs."""

    def __init__(self, contract: Contract, dispatcher: Dispatcher, namespace: str = "portakernel") -> None:
        self.contract = contract
        self.dispatcher = dispatcher
        self.namespace = namespace
        self._fallbacks = Fallbacks(dispatcher)
        kernels = [k for k in dispatcher.registry.for_op(contract.op) if not dispatcher.disabled & {k.name, k.plugin}]
        # Kernels of attached devices compete only where a policy names them: what they read costs other calls nothing.
        self._attached = [kernel for kernel in kernels if dispatcher.registry.is_attached(kernel)]
        limits, reads = _read_by(kernel for kernel in kernels if kernel not in self._attached)
        self.expressions = expressions(contract, limits, reads)
        self._key = make_key(contract, self.expressions)
        self._attached_key = make_key(contract, expressions(contract, *_read_by(self._attached)))
        self.table: dict[Any, Placement] = {}
        self.retired: list[Placement] = []  # replaced or cleared away, kept for their counts
        # How a call goes through functorch's transforms; the bridge sets it, because torch ops alone do not.
        self.transformed: Callable[..., Tensor] | None = None
        self._lock = threading.Lock()
        self._warned: set[tuple[str, str]] = set()

    def torch_op(self, suffix: str = "") -> Any:
        """The op, or its part ``_forward`` or ``_backward``, as torch's dispatcher knows it."""
        return getattr(getattr(torch.ops, self.namespace), self.contract.op + suffix)

    # --- arguments -------------------------------------------------------------------------------------------------

    def parameters(self, values: Sequence[Any]) -> tuple[float, ...]:
        """The keyword arguments as plain numbers.

        Raises:
            ArgumentTypeError: one of them is not a number.
        """
        return tuple(self.contract.number(p.name, v) for p, v in zip(self.contract.parameters, values, strict=True))

    def check_are_tensors(self, arguments: Sequence[Any]) -> None:
        """Nothing, when every argument is a tensor.

        Raises:
            ArgumentTypeError: one is none.
        """
        for tensor, argument in zip(self.contract.tensors, arguments, strict=True):
            if not isinstance(argument, Tensor):
                found = type(argument).__name__
                raise ArgumentTypeError(f"{self.contract.op}: {tensor.name} must be a tensor; this is {found}")

    def check_tensors(self, tensors: Sequence[Any]) -> None:
        """Nothing, when the arguments are tensors on one device that fit the contract together.

        Raises:
            ArgumentTypeError: one is no tensor, or of a dtype that the op does not accept.
            ArgumentValueError: ranks, shapes or devices do not fit together.
        """
        op, names = self.contract.op, [tensor.name for tensor in self.contract.tensors]
        self.check_are_tensors(tensors)
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.device != tensors[0].device:
                raise ArgumentValueError(
                    f"{op}: {name} is on {tensor.device}, but {names[0]} is on {tensors[0].device};"
                    " move them to one device"
                )
            if tensor.layout is not torch.strided:
                raise ArgumentTypeError(f"{op}: {name} is {tensor.layout}; dense (torch.strided) tensors are accepted")
        self.contract.check_dtypes(_dtypes(names, tensors))
        self.contract.bind_shapes({name: tuple(tensor.shape) for name, tensor in zip(names, tensors, strict=True)})

    def request(
        self,
        tensors: Sequence[Tensor],
        parameters: Sequence[float],
        phase: Phase,
        *,
        saved_by: str | None = None,
        requires: frozenset[str] = frozenset(),
    ) -> Request:
        """The request that this call makes."""
        contract = self.contract
        names = [tensor.name for tensor in contract.tensors]
        dims, _ = contract.bind_shapes({name: tuple(tensor.shape) for name, tensor in zip(names, tensors, strict=True)})
        facts: dict[str, int] = {}
        for name, tensor in zip(names, tensors, strict=True):
            facts |= layout_facts(name, tensor)
        device = find_device(self.dispatcher.registry, tensors[0].device)
        return Request(
            op=contract.op,
            target=device.target,
            dtypes=_dtypes(names, tensors),
            dims=dims,
            facts=facts,
            features=_asked_features(contract, parameters),
            requires=requires,
            phase=phase,
            saved=tuple(saved.name for saved in contract.saved),
            saved_by=saved_by,
            attached=attached_devices(self.dispatcher.registry, device),
            device=device,
        )

    # --- placing ---------------------------------------------------------------------------------------------------

    def key(self, tensors: Sequence[Tensor], parameters: Sequence[float], *more: Any) -> tuple[Any, ...]:
        """What the choice depends on beside policy and phase, for calls that do not come by the public function."""
        return (*self._key(*tensors, *parameters), *more)

    def run_key(
        self,
        phase: Phase,
        tensors: Sequence[Tensor],
        parameters: Sequence[float],
        policy: Policy,
        *,
        inplace: bool = False,
        saved_by: str | None = None,
    ) -> tuple[Any, ...]:
        """The key of a call; a plain forward has the one that the public function computes."""
        key = self.key(tensors, parameters, policy)
        if phase is not Phase.INFERENCE or inplace:
            key = (*key, phase, inplace, saved_by)
        if self._attached and self._names_attached(policy):
            key = (*key, self._attached_key(*tensors, *parameters))
        return key

    def _names_attached(self, policy: Policy) -> bool:
        wishes = policy.wishes(self.contract.op, self.dispatcher.registry)
        return any(kernel.name in wishes.use or kernel.name in wishes.prefer for kernel in self._attached)

    def explain(self, tensors: Sequence[Tensor], parameters: Sequence[float], phase: Phase) -> Decision:
        """The decision for a call with these arguments, kernels that said ``CannotRun`` to such calls included."""
        policy = self.dispatcher.policy()
        request = self.request(tensors, parameters, phase)
        placement = self.table.get(self.run_key(phase, tensors, parameters, policy))
        cannot = dict(placement.cannot) if placement is not None else {}
        for (name, value), rejection in (placement.refused if placement is not None else {}).items():
            if placement is not None and request.value(name) == value:
                cannot[placement.kernel.name] = rejection
        return self.dispatcher.decide(request, policy, cannot)

    def place(self, request: Request, policy: Policy, cannot: Mapping[str, Rejection] | None = None) -> Placement:
        """A decision turned into something to run.

        Raises:
            NoKernelError: no kernel can serve.
        """
        with outside_modes():
            decision = self.dispatcher.decide(request, policy, cannot)
            self.dispatcher.announce(decision)
        if decision.chosen is None:
            raise decision.error()
        self._fallbacks.warn(decision, policy)
        run = launcher(self.contract, decision.chosen, request, self.dispatcher)
        fallback = tuple(dict.fromkeys(name for name, _ in self._fallbacks.reasons(decision, policy)))
        return Placement(decision, decision.chosen, run, cannot=dict(cannot or {}), fallback=fallback)

    def remember(self, key: Any, placement: Placement, replaced: Placement | None = None) -> Placement:
        """What the table holds under ``key`` from now on: ``placement``, unless another thread came first.

        The table is bounded, and cleared when full.
        """
        with self._lock:
            known = self.table.get(key)
            if known is not replaced and known is not None:
                return known
            if len(self.table) >= MAX_KEYS:
                self.retired.extend(self.table.values())
                self.table.clear()
            elif known is not None:
                self.retired.append(known)
            self.table[key] = placement
            return placement

    def run(
        self,
        phase: Phase,
        tensors: Sequence[Tensor],
        parameters: Sequence[float],
        policy: Policy,
        arguments: Sequence[Any],
        *,
        inplace: bool = False,
        saved_by: str | None = None,
        declined: tuple[Placement, CannotRun] | None = None,
    ) -> Any:
        """Runs the op's ``phase`` on ``arguments``, deciding first where no call like it was seen.

        A kernel that says ``CannotRun`` (``declined``: it has just done so) is passed over for such calls.
        """
        key = self.run_key(phase, tensors, parameters, policy, inplace=inplace, saved_by=saved_by)
        placement = self.table.get(key)
        while True:
            if placement is None:
                requires = frozenset({"inplace"}) if inplace else frozenset[str]()
                request = self.request(tensors, parameters, phase, saved_by=saved_by, requires=requires)
                placement = self.remember(key, self.place(request, policy))
            if declined is None or declined[0] is not placement:
                try:
                    result = placement.run(*arguments)
                except CannotRun as error:
                    declined = placement, error
                else:
                    next(placement.calls)
                    return result
            request = self.request(tensors, parameters, phase, saved_by=saved_by)
            key, placement = self._passed_over(key, placement, declined[1].rejection, request, policy)

    def _passed_over(
        self, key: Any, placement: Placement, rejection: Rejection, request: Request, policy: Policy
    ) -> tuple[Any, Placement]:
        """The placement for calls that ``placement``'s kernel declined, and its key.

        Where the rejection names a dimension or layout fact, only calls with that value go elsewhere: one row that is
        too long must not take the kernel from all others.
        """
        name = rejection.parameter or ""
        value = request.value(name)
        cannot = {**placement.cannot, placement.kernel.name: rejection}
        replaced: Placement | None = placement
        if value is not None:
            key, replaced = (*key, name, value), None
            if (name, value) not in placement.refused:
                placement.refused[name, value] = rejection
                placement.run = self._declining(placement, name, request.phase, placement.run)
            if (known := self.table.get(key)) is not None:
                return key, known
        return key, self.remember(key, self.place(placement.decision.request, policy, cannot), replaced)

    def _declining(self, placement: Placement, name: str, phase: Phase, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run``, which declines the values of ``name`` in ``placement.refused`` before the kernel is asked again."""
        value_of = make_value(self.contract, name)
        first = len(self.contract.outputs) if phase is Phase.BACKWARD else 0
        last = first + len(self.contract.tensors)

        def declining(*arguments: Any) -> Any:
            rejection = placement.refused.get((name, value_of(*arguments[first:last])))
            if rejection is not None:
                raise CannotRun(rejection)
            return run(*arguments)

        return declining

    def slow(
        self,
        tensors: Sequence[Any],
        parameters: Sequence[Any],
        out: Any,
        kernel: str | None,
        plain: bool,
        declined: tuple[Placement, CannotRun] | None,
    ) -> Any:
        """A public call that the key table did not serve: checks it, then decides, or leaves it to torch."""
        if plain:
            self.check_tensors(tensors)
        else:  # the torch op checks the rest, once autocast, vmap and the like have had their turn
            self.check_are_tensors(tensors)
        numbers = self.parameters(parameters)
        argument = argument_layer(self.dispatcher, kernel)
        if out is not None:
            return self.into(tensors, numbers, out, argument, plain)
        if not plain or tensors[0].is_meta:
            transformed = innermost_transform() is not None
            call = self.transformed if transformed and self.transformed is not None else self.torch_op()
            return call(*tensors, *numbers, kernel or "")
        policy = self.dispatcher.policy(argument)
        given = (*tensors, *numbers, None)
        return self.run(Phase.INFERENCE, tensors, numbers, policy, given, declined=declined)

    def into(
        self, tensors: Sequence[Tensor], numbers: Sequence[float], out: Any, argument: Layer | None, plain: bool
    ) -> Tensor:
        """A call that writes into ``out``, which may be an input where the contract allows it."""
        op, result = self.contract.op, self.contract.outputs[0]
        names = [tensor.name for tensor in self.contract.tensors]
        like = tensors[names.index(result.like)]
        target = check_out(op, out, like.shape, like)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tensors, target)):
            raise ArgumentValueError(f"{op}: out= does not record gradients; leave out= away or use torch.no_grad()")
        if not plain or type(target) not in (Tensor, torch.nn.Parameter) or target.is_neg():
            kernel = argument.use[0] if argument else ""
            return target.copy_(self.torch_op()(*tensors, *numbers, kernel))
        over = overwritten(op, target, dict(zip(names, tensors, strict=True)), self.contract.inplace)
        policy = self.dispatcher.policy(argument)
        written: Tensor = self.run(
            Phase.INFERENCE, tensors, numbers, policy, (*tensors, *numbers, target), inplace=over is not None
        )
        if not target.is_inference():
            torch.autograd.graph.increment_version(target)
        return written

    # --- telling ---------------------------------------------------------------------------------------------------

    def placements(self) -> list[Placement]:
        """Every placement so far, with its call count."""
        return [*self.table.values(), *self.retired]


def public_function(caller: OpCaller) -> Callable[..., Tensor]:
    """The function that ``portakernel.ops`` offers for the caller's op."""
    contract, dispatcher = caller.contract, caller.dispatcher
    given = ", ".join(
        [tensor.name for tensor in contract.tensors] + [parameter.name for parameter in contract.parameters]
    )
    # Under torch.compile the policy's token is read as a guarded attribute: another policy means another graph.
    source = f"""\
def traced({given}, out, kernel):
    result = op({given}, kernel or dispatcher.trace_token)
    return result if out is None else out.copy_(result)
"""
    names = {"op": caller.torch_op().default, "dispatcher": dispatcher}
    return make_public(
        contract,
        caller.expressions,
        {
            "table": caller.table,
            "context": dispatcher.context_layers.get,
            "dispatcher": dispatcher,
            "slow": caller.slow,
            "traced": define(source, "traced", f"{contract.op}.traced", names),
        },
    )


def _read_by(kernels: Iterable[Kernel]) -> tuple[tuple[Limit, ...], tuple[str, ...]]:
    """The limits and raw values that decide whether, or how early, one of the kernels is chosen."""
    listed = list(kernels)
    limits = frozenset[Limit]().union(*(kernel.limits() for kernel in listed))
    reads = {name for kernel in listed if kernel.check for name in kernel.check.reads}
    return tuple(sorted(limits, key=str)), tuple(sorted(reads))


def argument_layer(dispatcher: Dispatcher, kernel: str | None) -> Layer | None:
    """The policy layer that the call's ``kernel`` argument makes; a traced graph's policy token makes none."""
    if not kernel or kernel.startswith(TRACE_MARK):
        return None
    return make_layer("argument", use=(kernel,)).check(dispatcher.registry)


def _dtypes(names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, str]:
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in zip(names, tensors, strict=True)}


def _asked_features(contract: Contract, parameters: Sequence[float]) -> dict[str, object]:
    pairs = zip(contract.parameters, parameters, strict=True)
    return {parameter.name: value for parameter, value in pairs if parameter.feature and value != parameter.default}
