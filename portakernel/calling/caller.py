"""The slow path: from a call that no key answered to a placement, which is remembered, and a launched kernel.

The fast path is ``public.py`` with the sources in ``fast/``. Its key holds just what selection depends on: dtypes,
devices, the outcome of each limit that an installed kernel declares, which features are asked, the policy. Anything
that a raw kernel launch would get wrong (autograd, subclasses, modes, vmap, forward-mode duals, autocast, lazy
negation) goes through ``torch.ops.portakernel`` instead.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.argument_policies import ArgumentPolicies
from portakernel.calling.arguments import Arguments, Tensors
from portakernel.calling.arrays.calls import ArrayCalls, some_are_arrays
from portakernel.calling.arrays.copies import ArrayCopies
from portakernel.calling.attempts import Attempts
from portakernel.calling.fallback import Fallbacks
from portakernel.calling.fast.cells import Cells
from portakernel.calling.fast.claim_reads import Reads, reads_of
from portakernel.calling.fast.expressions import Expressions, expressions
from portakernel.calling.fast.forms import Signatures
from portakernel.calling.fast.key_layout import INPLACE, PLAIN, TRAINING, CallKind, key_of
from portakernel.calling.fast.keys import Keys, make_key
from portakernel.calling.fast.public_source import Lookup
from portakernel.calling.fast.torch_op_source import make_hit
from portakernel.calling.key_table import KeyTable, Placement, remember_few
from portakernel.calling.launcher import launcher
from portakernel.calling.observers import of_process
from portakernel.calling.outputs import check_outs, completed, copy_into, existing, overwritten
from portakernel.calling.value_checks import checked, explained, explains
from portakernel.claims.capability import CannotRun, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.contract.near_misses import BY_HEAD, heads_come_first
from portakernel.deciding.builds import BuildUnit
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.explaining import decide_as_called
from portakernel.deciding.kernel_argument import strictly
from portakernel.deciding.policies import Policy
from portakernel.errors import LayoutWarning
from portakernel.host.as_written import as_written
from portakernel.host.call_site import callers_level
from portakernel.host.forks import unsplit
from portakernel.tensors.layout import has_plain_memory, mark_written
from portakernel.tensors.torch_internals import innermost_transform, outside_modes
from portakernel.tuning.choices import Choices
from portakernel.tuning.key import Kind
from portakernel.tuning.silences import Silence


class OpCaller:
    """One op's key table and everything that a call without an entry in it needs."""

    def __init__(self, contract: Contract, dispatcher: Dispatcher, namespace: str = "portakernel") -> None:
        self.contract = contract
        self.dispatcher = dispatcher
        self.namespace = namespace
        self.arguments = Arguments(contract, dispatcher.registry)
        self.table = KeyTable()
        # Whether what kernels are given is looked at first (PORTAKERNEL_CHECKS): then each placement is made so.
        self.checks_values = dispatcher.checks_values and contract.has_rules
        self.policies = ArgumentPolicies(dispatcher, contract.op)
        # How a call whose gradient is recorded is made without torch's dispatcher; the bridge sets it where it can be.
        self.train: Callable[[Placement, Sequence[Any], Sequence[Any]], Any] | None = None
        # How a call goes through functorch's transforms; the bridge sets it, because torch ops alone do not.
        self.transformed: Callable[..., Tensor] | None = None
        # How a call is made on DTensors, where one of the tensors is; the bridge sets it too.
        self.distributed: Callable[[Sequence[Any]], Callable[..., Any] | None] | None = None
        # The function that `portakernel.ops` offers, which a call with arrays goes through once more, with tensors.
        self.offered: Callable[..., Any]
        self._fallbacks = Fallbacks(dispatcher)
        self._warned_of_layout = False
        kernels = dispatcher.kernels_here(contract.op)
        # Whether some kernel is made of torch operators, whose gradient PyTorch records.
        self.some_are_recorded = any(kernel.saves == "autograd" for kernel in kernels)
        # Kernels of attached devices compete only where a policy names them: what they read costs other calls nothing.
        self._attached = [kernel for kernel in kernels if dispatcher.registry.is_attached(kernel)]
        choices = dispatcher.routes.of(contract.op)
        self._cells = Cells(contract, choices)
        reads = reads_of(
            contract,
            (kernel for kernel in kernels if kernel not in self._attached),
            dispatcher.readiness,
            told_apart=_features(choices),
            cells=self._cells,
        )
        # Parameters that plans and measurements tell apart are in a key from the beginning, or not at all.
        self._told_apart = frozenset(reads.values)
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

    def reroute(self) -> frozenset[str]:
        """Has each choice made anew, by what the process follows now; the parameters that keys cannot tell apart."""
        choices = self.dispatcher.routes.of(self.contract.op)
        self._cells.renew(choices)
        self.table.clear()
        return _features(choices) - self._told_apart

    def torch_op(self, suffix: str = "") -> Any:
        """The op, or its part ``_forward`` or ``_backward``, as torch's dispatcher knows it."""
        return getattr(getattr(torch.ops, self.namespace), self.contract.op + suffix)

    def policy(self, argument: str = "") -> Policy:
        """The policy in force, with what a torch op's ``kernel`` argument adds to it."""
        return self.policies.under(self.dispatcher.policy(), argument)

    @functools.cached_property  # most ops are never called as torch ops: their source is written when one is
    def inference_hit(self) -> Callable[..., Any]:
        """``hit`` of the torch op (``fast.torch_op_source.make_hit``)."""
        return self._hit(PLAIN)

    @functools.cached_property
    def training_hit(self) -> Callable[..., Any]:
        """``hit`` of its part ``_forward``."""
        return self._hit(CallKind(Phase.TRAINING, below_autograd=self.some_are_recorded))

    def _hit(self, kind: CallKind) -> Callable[..., Any]:
        # an op that writes its arguments returns None, which would read as a miss; what is counted is no hit
        if self.contract.mutated or of_process() is not None:
            return lambda *_: None
        names = {
            "_table": self.table.entries,
            "_context": self.dispatcher.context_layers.get,
            "_dispatcher": self.dispatcher,
            "_named": self.policies.named,
            "_completed": self.completed,
        }
        return make_hit(self.contract, self.lookup, kind, names)

    def key(
        self,
        kind: CallKind,
        tensors: Tensors,
        parameters: Sequence[Any],
        policy: Policy,
    ) -> tuple[Any, ...]:
        """A call's key; that of a plain forward is the one that the public function computes."""
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

    def explain(
        self, tensors: Tensors, parameters: Sequence[Any], phase: Phase, argument: str = "", *, compiled: bool = False
    ) -> Decision:
        """The decision for a call with these arguments, kernels that said ``CannotRun`` to such calls included."""
        policy = self.policy(argument)
        request = self.arguments.request(tensors, parameters, phase, compiled=compiled)
        if compiled:
            return decide_as_called(self.dispatcher, request, policy)
        placement = self.table.entries.get(self.key(CallKind(phase), tensors, parameters, policy))
        cannot = dict(placement.cannot) if placement is not None else {}
        for (name, value), rejection in list(placement.refused.items()) if placement is not None else ():
            if placement is not None and request.value(name) == value:
                cannot[placement.kernel.name] = rejection
        return decide_as_called(self.dispatcher, request, policy, cannot)

    def place(
        self,
        request: Request,
        policy: Policy,
        cannot: Mapping[str, Rejection] | None = None,
        *,
        dissolved: bool = False,
    ) -> Placement:
        """A decision turned into something to run; ``dissolved``: it is of a call that a graph dissolves elsewhere.

        Raises:
            NoKernelError: no kernel can serve.
        """
        began = time.monotonic()
        with unsplit(f"deciding {request.op}"), outside_modes():
            if request.traced and not dissolved:
                decision = self.dispatcher.decide_traced(request, policy)
            else:
                decision = self.dispatcher.decide(request, policy, cannot)
            self.dispatcher.announce(decision)
            self.dispatcher.tallies.add(decision, time.monotonic() - began)
            silent = self._unmeasured(decision)
        if decision.chosen is None:
            raise decision.error()
        self._warn_of_layout(request)
        fallback = self._fallbacks.warn(decision, policy)
        run = launcher(self.contract, decision.chosen, request, self.dispatcher)
        if self.checks_values:
            run = checked(self.contract, request, run)
        elif explains(self.contract, request):
            run = explained(self.contract, request, run)
        above = None if policy is self.dispatcher.process_policy else policy
        return Placement(
            decision, decision.chosen, run,
            cannot=dict(cannot or {}), fallback=fallback, policy=above, unmeasured=silent,
        )  # fmt: skip

    def demote(self, placement: Placement, detail: str) -> None:
        """Has a placement's kernel serve no call of such a kind any more: it gave a wrong result. All choose anew."""
        self.dispatcher.demote(placement.kernel, placement.decision.request, detail)
        self.table.clear()

    def kind_of(self, placement: Placement) -> str:
        """The kind of a placement's calls, whatever their sizes, as text."""
        request = placement.decision.request.without_symbols()
        return Kind.of(request, self.dispatcher.registry.for_op(request.op)).text

    def _unmeasured(self, decision: Decision) -> Silence:
        wishes = decision.wishes
        return "" if wishes is None else self.dispatcher.routes.unmeasured(decision.request, wishes)

    def _warn_of_layout(self, request: Request) -> None:
        if self.contract.op != "attention" or self._warned_of_layout:
            return
        if heads_come_first(request.without_symbols().dims):  # what a graph leaves open is not asked
            self._warned_of_layout = True
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
        """The placement for a call with these arguments, remembered for it."""
        key = self.key(kind, tensors, parameters, policy)
        known = self.table.entries.get(key)
        return Attempts(self, kind, tensors, parameters, policy, key, known).placed() if known is None else known

    def request(
        self, kind: CallKind, tensors: Tensors, parameters: Sequence[Any], requires: frozenset[str] = frozenset()
    ) -> Request:
        """The request of a call of this kind, to a kernel with the properties that it ``requires``."""
        return self.arguments.request(
            tensors, parameters, kind.phase,
            saved_by=kind.saved_by, below_autograd=kind.below_autograd, unpaired=kind.unpaired, requires=requires,
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
        key = self.key(kind, tensors, parameters, policy)
        placement = self.table.entries.get(key)
        if placement is not None and declined is None:
            try:
                return placement.launch(*arguments)
            except CannotRun as error:
                declined = placement, error
        attempts = Attempts(self, kind, tensors, parameters, policy, key, placement)
        if declined is not None and declined[0] is attempts.placement:
            attempts.decline(declined[0], declined[1].rejection)
        return attempts.run(arguments)

    @as_written
    def slow(
        self,
        tensors: Sequence[Any],
        parameters: Sequence[Any],
        out: Any,
        kernel: object,
        plain: bool,
        trained: bool,
        declined: tuple[Placement, CannotRun] | None,
    ) -> Any:
        """A public call that the key table did not serve: checks it, then decides, or leaves it to torch.

        Its tensors are ``plain``, or would be if no gradient of theirs were recorded (``trained``), or neither.
        """
        values = self.arguments.canonical(parameters)
        if ((not plain and not trained) or out is not None) and some_are_arrays(tensors, out):
            return self.arrays.serve(tensors, values, out, kernel)
        if plain:
            self.arguments.check(tensors, values)
        else:  # the torch op checks the rest, once autocast, vmap and the like have had their turn
            self.arguments.check_kinds(tensors)
        argument = strictly(self.dispatcher.registry, self.contract.op, kernel)
        if out is not None:
            return self.into(tensors, values, out, argument, plain)
        if not (plain or trained) or tensors[0].is_meta:
            return self.public(self._composed(tensors)(*tensors, *values, argument), values)
        above = self.dispatcher.policy()
        policy = self.policies.under(above, argument)
        if isinstance(kernel, str):
            remember_few(self.policies.pinned, (kernel, above), policy)
        if trained:
            return self._trained(tensors, values, policy, argument)
        return self.run(PLAIN, tensors, values, policy, (*tensors, *values, None), declined=declined)

    def otherwise(
        self,
        tensors: Sequence[Any],
        parameters: Sequence[Any],
        out: Any,
        kernel: object,
        unknown: Mapping[str, Any],
        third: object,
    ) -> Any:
        """A public call with arguments that the op has not, of which ``copy`` means something to arrays."""
        return self.arrays.otherwise(tensors, parameters, out, kernel, unknown, third)

    @functools.cached_property  # whoever has tensors alone does not pay for it
    def arrays(self) -> ArrayCalls:
        """The op's calls with arrays of other libraries."""
        return ArrayCalls(self.arguments, self._public)

    def _public(self, *arguments: Any, **named: Any) -> Any:
        """The public function, which may be made after it is asked for."""
        return self.offered(*arguments, **named)

    def array_copies(self) -> list[ArrayCopies]:
        """The copies of arrays that calls of the op have cost so far."""
        return self.arrays.copies.rows() if "arrays" in self.__dict__ else []

    def _trained(self, tensors: Sequence[Any], values: Sequence[Any], policy: Policy, argument: str) -> Any:
        """A call whose gradient is recorded: without torch's dispatcher where it can be."""
        result = None
        if self.train is not None:
            self.arguments.check(tensors, values)
            placement = self.placed(TRAINING, tensors, values, policy)
            with unsplit(f"the first launch of {placement.kernel.name}"):
                result = self.train(placement, tensors, values)
        return self.public(self.torch_op()(*tensors, *values, argument), values) if result is None else result

    def _composed(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        """The op for arguments whose memory no kernel may read as it is."""
        distributed = self.distributed(tensors) if self.distributed is not None else None
        if distributed is not None:
            return distributed
        transformed = innermost_transform() is not None
        op: Callable[..., Any] = self.torch_op()
        return self.transformed if transformed and self.transformed is not None else op

    def public(self, returned: Any, values: Sequence[Any]) -> Any:
        """The public function's result, made of what the torch op returned."""
        return existing(self.contract, self.arguments.named(values), returned)

    def completed(self, returned: Any, values: Sequence[Any], like: Any, *, saved: bool = False) -> Any:
        """The torch op's result, made of what a kernel returned."""
        return completed(self.contract, self.arguments.named(values), returned, like, saved=saved)

    def into(self, tensors: Tensors, values: Sequence[Any], out: Any, argument: str, plain: bool) -> Any:
        """A call that writes into ``out``, which may be an input where the contract allows it."""
        contract, inputs = self.contract, self.arguments.given(tensors)
        first = inputs[self.arguments.names[0]]
        forms = self.arguments.results(tensors, values)
        targets = check_outs(contract.op, out, forms, first.device, list(inputs.values()))
        if not plain or first.is_meta or not all(map(has_plain_memory, targets)):
            returned = self.public(self._composed(tensors)(*tensors, *values, argument), values)
            for each, result in zip(targets, returned if isinstance(returned, tuple) else (returned,), strict=True):
                copy_into(each, result)
            return out
        over = overwritten(contract.op, targets, inputs, contract.inplace)
        given = (*tensors, *values, targets[0] if len(targets) == 1 else targets)
        written = self.run(PLAIN if over is None else INPLACE, tensors, values, self.policy(argument), given)
        for each in targets:
            mark_written(each)
        return written


def _features(choices: Sequence[Choices]) -> frozenset[str]:
    """The parameters that choices tell calls apart by."""
    return frozenset[str]().union(*(one.features for one in choices))


def _parts(contract: Contract, reads: Reads, built: set[BuildUnit] | None = None) -> Expressions | Keys:
    return Keys(contract, reads, built) if contract.choosers else expressions(contract, reads, built)


def _key_function(contract: Contract, parts: Expressions | Keys) -> Callable[..., tuple[Any, ...]]:
    """``key(*tensors, *parameters)`` of arguments that fit the contract."""
    if not isinstance(parts, Keys):
        return make_key(contract, parts)
    names = [parameter.name for parameter in contract.parameters]
    places = [len(contract.tensors) + names.index(name) for name in contract.choosers]
    return lambda *arguments: parts[tuple(arguments[place] for place in places)](*arguments)
