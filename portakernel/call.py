"""The hot path: from a public call to a launched kernel through one dictionary look-up.

For each op a function is generated from its contract and from what the installed kernels' claims read, so that a call
computes just the key that selection depends on: dtypes, devices, the outcome of each declared limit, which features are
asked, the policy. Anything that a raw kernel launch would get wrong (autograd, subclasses, modes, vmap, forward-mode
duals, autocast, lazy negation) goes through ``torch.ops.portakernel`` instead.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.capability import CannotRun, Limit, ReasonCode, Rejection
from portakernel.contract import Contract, Parameter
from portakernel.devices import attached_devices, find_device
from portakernel.dispatch import TRACE_MARK, Decision, Dispatcher
from portakernel.errors import ArgumentTypeError, ArgumentValueError, FallbackWarning, ReferenceWarning
from portakernel.fast_path import define, expressions, make_key, make_public
from portakernel.kernel import Kernel
from portakernel.layout import check_out, layout_facts, overwritten
from portakernel.policy import Layer, Policy, make_layer
from portakernel.request import Phase, Request
from portakernel.torch_internals import innermost_transform

MAX_KEYS = 4096
_UNREMARKABLE = frozenset(
    {
        ReasonCode.VENDOR,
        ReasonCode.ARCH,
        ReasonCode.ATTACHED_TARGET,
        ReasonCode.DENIED_BY_POLICY,
        ReasonCode.DISABLED,
        ReasonCode.NOT_INSTALLED,
        ReasonCode.LOWER_PRIORITY,
    }
)


@dataclass(slots=True)
class Placement:
    """A key's kernel: how to run it, the decision behind it, and how often it was called."""

    decision: Decision
    kernel: Kernel
    run: Callable[..., Any]
    calls: itertools.count[int] = field(default_factory=itertools.count)
    cannot: dict[str, Rejection] = field(default_factory=dict[str, Rejection])

    def count(self) -> int:
        """Calls so far. A counter can only be read by its repr without advancing it; its own increment is atomic."""
        return int(repr(self.calls)[len("count(") : -1])


class OpCaller:
    """One op's key table and everything that a call without an entry in it needs."""

    def __init__(self, contract: Contract, dispatcher: Dispatcher, namespace: str = "portakernel") -> None:
        self.contract = contract
        self.dispatcher = dispatcher
        self.namespace = namespace
        kernels = dispatcher.registry.for_op(contract.op)
        self.limits: tuple[Limit, ...] = tuple(sorted(frozenset().union(*(k.limits() for k in kernels)), key=str))
        self.reads = tuple(sorted({name for k in kernels if k.check for name in k.check.reads}))
        self.expressions = expressions(contract, self.limits, self.reads)
        self._key = make_key(contract, self.expressions)
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
        return tuple(_number(self.contract.op, p, v) for p, v in zip(self.contract.parameters, values, strict=True))

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
        plain = phase is Phase.INFERENCE and not inplace
        return self.key(tensors, parameters, policy, *(() if plain else (phase, inplace, saved_by)))

    def explain(self, tensors: Sequence[Tensor], parameters: Sequence[float], phase: Phase) -> Decision:
        """The decision for a call with these arguments, kernels that said ``CannotRun`` to such calls included."""
        policy = self.dispatcher.policy()
        placement = self.table.get(self.run_key(phase, tensors, parameters, policy))
        cannot = placement.cannot if placement is not None else None
        return self.dispatcher.decide(self.request(tensors, parameters, phase), policy, cannot)

    def place(self, request: Request, policy: Policy, cannot: Mapping[str, Rejection] | None = None) -> Placement:
        """A decision turned into something to run.

        Raises:
            NoKernelError: no kernel can serve.
        """
        decision = self.dispatcher.decide(request, policy, cannot)
        self.dispatcher.announce(decision)
        if decision.chosen is None:
            raise self.dispatcher.no_kernel_error(decision)
        self._warn(decision, policy)
        run = self.launcher(decision.chosen, request)
        return Placement(decision, decision.chosen, run, cannot=dict(cannot or {}))

    def launcher(self, kernel: Kernel, request: Request) -> Callable[..., Any]:
        """``kernel`` under the uniform signature of its phase, on the request's device whichever is current."""
        names = [p.name for p in self.contract.parameters if not p.feature or p.name in kernel.features]
        wanted = [i for i, p in enumerate(self.contract.parameters) if p.name in names]
        return _on_device(request, _adapter(self.contract, kernel, self.dispatcher, request.phase, wanted))

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
        key: Any = None,
    ) -> Any:
        """Runs the op's ``phase`` on ``arguments``, deciding first where no call like it was seen.

        A kernel that says ``CannotRun`` is passed over for all later calls of the same key.
        """
        if key is None:
            key = self.run_key(phase, tensors, parameters, policy, inplace=inplace, saved_by=saved_by)
        placement = self.table.get(key)
        while True:
            if placement is None:
                requires = frozenset({"inplace"}) if inplace else frozenset[str]()
                request = self.request(tensors, parameters, phase, saved_by=saved_by, requires=requires)
                placement = self.remember(key, self.place(request, policy))
            try:
                result = placement.run(*arguments)
            except CannotRun as declared:
                cannot = {**placement.cannot, placement.kernel.name: declared.rejection}
                next_one = self.place(placement.decision.request, policy, cannot)
                placement = self.remember(key, next_one, replaced=placement)
                continue
            next(placement.calls)
            return result

    def slow(
        self, tensors: Sequence[Any], parameters: Sequence[Any], out: Any, kernel: str | None, plain: bool, key: Any
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
        return self.run(
            Phase.INFERENCE, tensors, numbers, policy, (*tensors, *numbers, None), key=key if not argument else None
        )

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

    def fallback(self, decision: Decision) -> tuple[str, ...]:
        """The kernels that would have gone before the chosen one, had they been able to serve this call."""
        return tuple(dict.fromkeys(name for name, _ in self._passed_over(decision)))

    def _passed_over(self, decision: Decision) -> list[tuple[str, Rejection]]:
        chosen = decision.chosen
        free = decision.request.target.vendor in self.dispatcher.reference_is_free
        if chosen is None or (chosen.is_reference and free):
            return []
        priority = decision.candidate(chosen.name).priority
        found = []
        for candidate in decision.candidates:
            better = candidate.kernel.first_party and (chosen.is_reference or candidate.priority > priority)
            if better and not {rejection.code for rejection in candidate.rejections} & _UNREMARKABLE:
                found += [(candidate.kernel.name, rejection) for rejection in candidate.rejections]
        return found

    def _warn(self, decision: Decision, policy: Policy) -> None:
        chosen, request = decision.chosen, decision.request
        for name, rejection in self._passed_over(decision):
            if self._first(name, rejection.code) and chosen is not None:
                text = f"{request.op}: {name} cannot serve ({rejection.code}: {rejection.text}); {chosen.name} does"
                warnings.warn(text, FallbackWarning, stacklevel=2)
        free = request.target.vendor in self.dispatcher.reference_is_free
        if chosen is None or not chosen.is_reference or free:
            return
        wishes = policy.wishes(request.op, self.dispatcher.registry)
        if wishes.reference == "warn" and chosen.name not in wishes.use and self._first(chosen.name, request.phase):
            text = f"{request} is served by the reference: correct, but not fast."
            advice = f"`portakernel explain {request.op}` says why; policy(reference='allow') silences this"
            warnings.warn(f"{text} {advice}", ReferenceWarning, stacklevel=2)

    def _first(self, name: str, code: str) -> bool:
        with self._lock:
            new = (name, code) not in self._warned
            self._warned.add((name, code))
        return new


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


def argument_layer(dispatcher: Dispatcher, kernel: str | None) -> Layer | None:
    """The policy layer that the call's ``kernel`` argument makes; a traced graph's policy token makes none."""
    if not kernel or kernel.startswith(TRACE_MARK):
        return None
    return make_layer("argument", use=(kernel,)).check(dispatcher.registry)


def _dtypes(names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, str]:
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in zip(names, tensors, strict=True)}


def _number(op: str, parameter: Parameter, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{op}: {parameter.name} must be a number; this is {type(value).__name__} {value!r}")
    return float(value)


def _asked_features(contract: Contract, parameters: Sequence[float]) -> dict[str, object]:
    pairs = zip(contract.parameters, parameters, strict=True)
    return {parameter.name: value for parameter, value in pairs if parameter.feature and value != parameter.default}


def _adapter(
    contract: Contract, kernel: Kernel, dispatcher: Dispatcher, phase: Phase, wanted: Sequence[int]
) -> Callable[..., Any]:
    """``kernel`` under a uniform positional signature, as generated code: one call, no loops."""
    tensors = [tensor.name for tensor in contract.tensors]
    parameters = [parameter.name for parameter in contract.parameters]
    passed = [f"{parameters[i]}={parameters[i]}" for i in wanted]
    saves = ["save=True"] if contract.saved else []
    match phase:
        case Phase.INFERENCE:
            signature, call = [*tensors, *parameters, "out"], [*tensors, *passed, "out=out"]
        case Phase.TRAINING:
            signature, call = [*tensors, *parameters], [*tensors, *passed, *saves]
        case Phase.FORWARD_AD:
            signature, call = [*tensors, *parameters], [*tensors, *passed]
        case Phase.BACKWARD:
            given = [*(f"grad_{out.name}" for out in contract.outputs), *tensors, *(s.name for s in contract.saved)]
            signature, call = [*given, *parameters, "needs"], [*given, *passed, "needs=needs"]
    entry = kernel.backward if phase is Phase.BACKWARD else kernel.entry
    source = f"def launch({', '.join(signature)}):\n    return kernel({', '.join(call)})\n"
    launch: Callable[..., Any] = define(
        source, "launch", f"{kernel.name} {phase}", {"kernel": dispatcher.entry(entry or kernel.entry)}
    )
    return launch


def _on_device(request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with the request's device current, where there are several: a raw launch goes to the current one."""
    device = torch.device(request.device.torch_device) if request.device and request.device.torch_device else None
    if device is None or device.type != "cuda" or torch.cuda.device_count() < 2:
        return run
    index = device.index

    def run_there(*arguments: Any) -> Any:
        with torch.cuda.device(index):
            return run(*arguments)

    return run_there
