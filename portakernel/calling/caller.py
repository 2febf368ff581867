"""The slow path: from a call that no key answered to a placement, which is remembered, and a launched kernel.

For each op a function is generated from its contract and from what the installed kernels' claims read, so that a call
computes just the key that selection depends on: dtypes, devices, the outcome of each declared limit, which features are
asked, the policy. Anything that a raw kernel launch would get wrong (autograd, subclasses, modes, vmap, forward-mode
duals, autocast, lazy negation) goes through ``torch.ops.portakernel`` instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments, Tensors
from portakernel.calling.fallback import Fallbacks
from portakernel.calling.fast.claim_reads import Reads, reads_of
from portakernel.calling.fast.expressions import Expressions, expressions
from portakernel.calling.fast.forms import Signatures
from portakernel.calling.fast.key_layout import INPLACE, PLAIN, CallKind, key_of
from portakernel.calling.fast.keys import Keys, make_key, make_value
from portakernel.calling.fast.public_source import Lookup
from portakernel.calling.fast.torch_op_source import make_hit
from portakernel.calling.key_table import KeyTable, Placement, remember_few
from portakernel.calling.launcher import launcher, signature
from portakernel.calling.outputs import check_outs, completed, copy_into, existing, overwritten
from portakernel.calling.value_checks import checked, has_rules
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.contract.near_misses import BY_HEAD, heads_come_first
from portakernel.deciding.builds import Unit
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.explaining import decide_as_called
from portakernel.deciding.kernel_argument import TOKEN_MARK, is_automatic, layer_of, strictly
from portakernel.deciding.policies import Policy, intern_policy
from portakernel.errors import LayoutWarning, StaleGraphWarning
from portakernel.host.call_site import callers_level
from portakernel.host.forks import unsplit
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.layout import has_plain_memory, mark_written
from portakernel.tensors.torch_internals import innermost_transform, outside_modes

# What a choice made during a stream capture requires, and what marks its key.
_CAPTURED = frozenset({"graph_capture"})
# ... of one that writes over an argument, and of any other. Made here, because torch 2.11's compiled autograd, which
# may trace a backward's run, knows no ``frozenset[str]``.
_INPLACE, _NOTHING = frozenset({"inplace"}), frozenset[str]()


class OpCaller:
    """One op's key table and everything that a call without an entry in it needs."""

    def __init__(self, contract: Contract, dispatcher: Dispatcher, namespace: str = "portakernel") -> None:
        self.contract = contract
        self.dispatcher = dispatcher
        self.namespace = namespace
        self.arguments = Arguments(contract, dispatcher.registry)
        self.table = KeyTable()
        # Whether what kernels are given is looked at first (PORTAKERNEL_CHECKS): then each placement is made so.
        self.checks_values = dispatcher.checks_values and has_rules(contract)
        # The policy for a strict `kernel=`, or for a torch op's `kernel`, under another policy; both keys are few.
        self.pinned: dict[tuple[str, Policy], Policy] = {}
        self.named: dict[tuple[str, Policy], Policy] = {}
        # How a call whose gradient is recorded is made without torch's dispatcher; the bridge sets it where it can be.
        self.train: Callable[..., Any] = lambda *_: None
        # How a call goes through functorch's transforms; the bridge sets it, because torch ops alone do not.
        self.transformed: Callable[..., Tensor] | None = None
        # How a call is made on DTensors, where one of the tensors is; the bridge sets it too.
        self.distributed: Callable[[Sequence[Any]], Callable[..., Any] | None] | None = None
        self._fallbacks = Fallbacks(dispatcher)
        self._told_layout = False
        kernels = dispatcher.kernels_here(contract.op)
        # Whether some kernel is made of torch operators, whose gradient PyTorch records.
        self.some_are_recorded = any(kernel.saves == "autograd" for kernel in kernels)
        # Kernels of attached devices compete only where a policy names them: what they read costs other calls nothing.
        self._attached = [kernel for kernel in kernels if dispatcher.registry.is_attached(kernel)]
        reads = reads_of(contract, (k for k in kernels if k not in self._attached), dispatcher.readiness)
        # What has to be built is built for given sizes: whether it was for these is part of the key.
        sized = any(kernel.build and not kernel.built for kernel in kernels)
        built = dispatcher.builds.units(contract.op) if sized else None
        self.expressions = _parts(contract, reads, built)
        self.signatures = Signatures()
        self.lookup = Lookup.of(contract, self.expressions, self.signatures)
        self._key = _key_function(contract, self.expressions)
        of_attached = reads_of(contract, self._attached, dispatcher.readiness)
        self._attached_key = _key_function(contract, _parts(contract, of_attached))
        # By policy; a dictionary, because compiled autograd reads one and warns of `functools.lru_cache`.
        self._naming: dict[Policy, bool] = {}

    def torch_op(self, suffix: str = "") -> Any:
        """The op, or its part ``_forward`` or ``_backward``, as torch's dispatcher knows it."""
        return getattr(getattr(torch.ops, self.namespace), self.contract.op + suffix)

    def policy(self, argument: str = "") -> Policy:
        """The policy in force, with what a torch op's ``kernel`` argument adds to it.

        A compiled graph follows the policy contexts that it is called in: a name that was chosen automatically while
        tracing, by the process's policy, yields to them.
        """
        return self._with_argument(self.dispatcher.policy(), argument)

    def _with_argument(self, above: Policy, argument: str) -> Policy:
        """``above``, read once by the caller: another thread may set another policy meanwhile."""
        if not argument or argument == self.dispatcher.trace_token:
            return above
        known = self.named.get((argument, above))
        if known is None and argument.startswith(TOKEN_MARK):
            known = above
            self._tell_stale(argument)
            remember_few(self.named, (argument, above), known)
        elif known is None:
            yields = is_automatic(argument) and self.dispatcher.context_layers.get()
            layer = None if yields else layer_of(self.dispatcher.registry, self.contract.op, argument)
            if layer is None and not yields:
                self._tell_gone(argument)
            known = above if layer is None else intern_policy((layer, *above.layers))
            remember_few(self.named, (argument, above), known)
        return known

    def _tell_stale(self, token: str) -> None:
        if not self.dispatcher.trace_token:  # a graph that another process traced, and nothing was traced here
            self.dispatcher.refresh_trace_token()
        if token != self.dispatcher.trace_token:
            op = self.contract.op
            text = (
                f"{op}: this graph was traced under another policy or with other kernels than there are here and now;"
                f" the policy in force chooses. Trace it again, or name a kernel in it: ops.{op}(..., kernel=...)"
            )
            warnings.warn(text, StaleGraphWarning, stacklevel=callers_level())

    def _tell_gone(self, kernel: str) -> None:
        text = f"{self.contract.op}: this graph runs {kernel}, which is not installed here; the policy in force chooses"
        warnings.warn(text, StaleGraphWarning, stacklevel=callers_level())

    def hit(self, phase: Phase) -> Callable[..., Any]:
        """``hit`` for a torch op of ``phase`` (``fast.torch_op_source.make_hit``)."""
        # what writes returns nothing, which is what a miss returns
        if self.contract.mutated or (phase is Phase.TRAINING and self.some_are_recorded):
            return lambda *_: None
        names = {
            "table": self.table.entries,
            "context": self.dispatcher.context_layers.get,
            "dispatcher": self.dispatcher,
            "named": self.named,
            "completed": self.completed,
        }
        return make_hit(self.contract, self.lookup, phase, names)

    def key(
        self,
        kind: CallKind,
        tensors: Tensors,
        parameters: Sequence[Any],
        policy: Policy,
    ) -> tuple[Any, ...]:
        """What the choice depends on; a plain forward has the key that the public function computes."""
        key = key_of(self.signatures.of(tensors), self._key(*tensors, *parameters), policy, kind)
        if self._attached and self._names_attached(policy):
            key = (*key, self._attached_key(*tensors, *parameters))
        return key

    def _names_attached(self, policy: Policy) -> bool:
        known = self._naming.get(policy)
        if known is None:
            named = policy.named(self.contract.op, self.dispatcher.registry)
            known = any(kernel.name in named for kernel in self._attached)
            remember_few(self._naming, policy, known)
        return known

    def explain(self, tensors: Tensors, parameters: Sequence[Any], phase: Phase, argument: str = "") -> Decision:
        """The decision for a call with these arguments, kernels that said ``CannotRun`` to such calls included."""
        policy = self.policy(argument)
        request = self.arguments.request(tensors, parameters, phase)
        placement = self.table.entries.get(self.key(CallKind(phase), tensors, parameters, policy))
        cannot = dict(placement.cannot) if placement is not None else {}
        for (name, value), rejection in list(placement.refused.items()) if placement is not None else ():
            if placement is not None and request.value(name) == value:
                cannot[placement.kernel.name] = rejection
        return decide_as_called(self.dispatcher, request, policy, cannot)

    def place(self, request: Request, policy: Policy, cannot: Mapping[str, Rejection] | None = None) -> Placement:
        """A decision turned into something to run.

        Raises:
            NoKernelError: no kernel can serve.
        """
        with unsplit(f"deciding {request.op}"), outside_modes():
            decision = self.dispatcher.decide(request, policy, cannot)
            self.dispatcher.announce(decision)
        if decision.chosen is None:
            raise decision.error()
        self._warn_of_layout(request)
        fallback = self._fallbacks.warn(decision, policy)
        run = launcher(self.contract, decision.chosen, request, self.dispatcher)
        if self.checks_values:
            run = checked(self.contract, request, run)
        return Placement(decision, decision.chosen, run, cannot=dict(cannot or {}), fallback=fallback)

    def _warn_of_layout(self, request: Request) -> None:
        if self.contract.op == "attention" and not self._told_layout and heads_come_first(request.dims):
            self._told_layout = True
            sizes = ", ".join(f"{name}={request.dims[name]}" for name in "STHG")
            text = f"attention takes (B, S, H, D), and read as that these tensors have {sizes}, which looks like"
            text += f" (B, H, S, D). If it is, {BY_HEAD}"
            warnings.warn(text, LayoutWarning, stacklevel=callers_level())

    def placed(
        self,
        kind: CallKind,
        tensors: Tensors,
        parameters: Sequence[Any],
        policy: Policy,
    ) -> Placement:
        """What a call with these arguments would run, remembered for it."""
        key, requires = self.key(kind, tensors, parameters, policy), _NOTHING
        known = self.table.entries.get(key)
        if known is None and is_capturing():
            key, requires = (*key, _CAPTURED), _CAPTURED
            known = self.table.entries.get(key)
        if known is not None:
            return known
        return self.table.remember(key, self.place(self.request(kind, tensors, parameters, requires), policy))

    def request(
        self, kind: CallKind, tensors: Tensors, parameters: Sequence[Any], requires: frozenset[str] = _NOTHING
    ) -> Request:
        """What a call of this kind asks, its kernel having the properties that it ``requires``."""
        return self.arguments.request(
            tensors, parameters, kind.phase,
            saved_by=kind.saved_by, below_autograd=kind.below_autograd, requires=requires,
        )  # fmt: skip

    def run(
        self,
        kind: CallKind,
        tensors: Tensors,
        parameters: Sequence[Any],
        policy: Policy,
        arguments: Sequence[Any],
        *,
        declined: tuple[Placement, CannotRun] | None = None,
    ) -> Any:
        """Runs the op on ``arguments``, deciding first where no call like it was seen.

        A kernel that says ``CannotRun`` (``declined``: it has just done so) is passed over for such calls.
        """
        key, requires = self.key(kind, tensors, parameters, policy), _INPLACE if kind.inplace else _NOTHING
        placement = self.table.entries.get(key)
        if placement is None and is_capturing():
            key, requires = (*key, _CAPTURED), requires | _CAPTURED
            placement = self.table.entries.get(key)
        first = placement is None
        while True:
            if placement is None:
                with unsplit(f"a first call of {self.contract.op}"):
                    request = self.request(kind, tensors, parameters, requires)
                    placement = self.table.remember(key, self.place(request, policy))
            if declined is None or declined[0] is not placement:
                try:
                    return self._launched(placement, arguments) if first else placement.launch(*arguments)
                except CannotRun as error:
                    declined = placement, error
            if declined[1].rejection.code is ReasonCode.NOT_CAPTURABLE and not requires >= _CAPTURED:
                # another serves while the stream is captured, and this one again thereafter
                key, requires = (*key, _CAPTURED), requires | _CAPTURED
                placement = self.table.entries.get(key)
                continue
            request = self.request(kind, tensors, parameters, requires)
            key, placement = self.passed_over(key, placement, declined[1].rejection, request, policy)

    def _launched(self, placement: Placement, arguments: Sequence[Any]) -> Any:
        """A first launch, which imports, compiles, and has torch set up what it does once: a fork waits for it."""
        with unsplit(f"the first launch of {placement.kernel.name}"):
            return placement.launch(*arguments)

    def passed_over(
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
            if all(known != name for known, _ in placement.refused):
                placement.run = self._declining(placement, name, request, placement.run)
            placement.refused[name, value] = rejection
            if (known := self.table.entries.get(key)) is not None:
                return key, known
        return key, self.table.remember(key, self.place(request, policy, cannot), replaced)

    def _declining(
        self, placement: Placement, name: str, request: Request, run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """``run``, which declines the values of ``name`` in ``placement.refused`` before the kernel is asked again."""
        value_of: Callable[..., Any] = make_value(self.contract.at(request.values), name)
        names = signature(self.contract, request.phase)
        # backward is not given every argument; another tensor of its form stands for it
        held = [self.contract.stands_for.get(n, n) if n not in names else n for n in self.contract.names]
        held += self.arguments.parameters
        places = [names.index(n) if n in names else None for n in held]

        def declining(*arguments: Any) -> Any:
            rejection = placement.refused.get(
                (name, value_of(*(None if place is None else arguments[place] for place in places)))
            )
            if rejection is not None:
                raise CannotRun(rejection)
            return run(*arguments)

        return declining

    def slow(
        self,
        tensors: Sequence[Any],
        parameters: Sequence[Any],
        out: Any,
        kernel: object,
        plain: bool,
        declined: tuple[Placement, CannotRun] | None,
    ) -> Any:
        """A public call that the key table did not serve: checks it, then decides, or leaves it to torch."""
        values = self.arguments.canonical(parameters)
        if plain:
            self.arguments.check(tensors, values)
        else:  # the torch op checks the rest, once autocast, vmap and the like have had their turn
            self.arguments.check_kinds(tensors)
        argument = strictly(self.dispatcher.registry, self.contract.op, kernel)
        if out is not None:
            return self.into(tensors, values, out, argument, plain)
        if not plain or tensors[0].is_meta:
            return self.public(self._composed(tensors)(*tensors, *values, argument), values)
        above = self.dispatcher.policy()
        policy = self._with_argument(above, argument)
        if isinstance(kernel, str):
            remember_few(self.pinned, (kernel, above), policy)
        return self.run(PLAIN, tensors, values, policy, (*tensors, *values, None), declined=declined)

    def _composed(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        """The op for arguments whose memory no kernel may read as it is."""
        distributed = self.distributed(tensors) if self.distributed is not None else None
        if distributed is not None:
            return distributed
        transformed = innermost_transform() is not None
        op: Callable[..., Any] = self.torch_op()
        return self.transformed if transformed and self.transformed is not None else op

    def public(self, found: Any, values: Sequence[Any]) -> Any:
        """What the public function returns, of what the torch op did."""
        return existing(self.contract, self.arguments.named(values), found)

    def completed(self, found: Any, values: Sequence[Any], like: Any, *, saved: bool = False) -> Any:
        """What the torch op returns, of what a kernel did."""
        return completed(self.contract, self.arguments.named(values), found, like, saved=saved)

    def into(self, tensors: Tensors, values: Sequence[Any], out: Any, argument: str, plain: bool) -> Any:
        """A call that writes into ``out``, which may be an input where the contract allows it."""
        contract, inputs = self.contract, self.arguments.given(tensors)
        first = inputs[self.arguments.names[0]]
        forms = self.arguments.results(tensors, values)
        targets = check_outs(contract.op, out, forms, first.device, list(inputs.values()))
        if not plain or first.is_meta or not all(map(has_plain_memory, targets)):
            found = self.public(self._composed(tensors)(*tensors, *values, argument), values)
            for each, result in zip(targets, found if isinstance(found, tuple) else (found,), strict=True):
                copy_into(each, result)
            return out
        over = overwritten(contract.op, targets, inputs, contract.inplace)
        given = (*tensors, *values, targets[0] if len(targets) == 1 else targets)
        written = self.run(PLAIN if over is None else INPLACE, tensors, values, self.policy(argument), given)
        for each in targets:
            mark_written(each)
        return written


def _parts(contract: Contract, reads: Reads, built: set[Unit] | None = None) -> Expressions | Keys:
    return Keys(contract, reads, built) if contract.choosers else expressions(contract, reads, built)


def _key_function(contract: Contract, parts: Expressions | Keys) -> Callable[..., tuple[Any, ...]]:
    """``key(*tensors, *parameters)`` of arguments that fit the contract."""
    if not isinstance(parts, Keys):
        return make_key(contract, parts)
    names = [parameter.name for parameter in contract.parameters]
    places = [len(contract.tensors) + names.index(name) for name in contract.choosers]
    return lambda *arguments: parts[tuple(arguments[place] for place in places)](*arguments)
