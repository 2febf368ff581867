"""The hot path: from a public call to a launched kernel through one dictionary look-up.

For each op a function is generated from its contract and from what the installed kernels' claims read, so that a call
computes just the key that selection depends on: dtypes, devices, the outcome of each declared limit, which features are
asked, the policy. Anything that a raw kernel launch would get wrong (autograd, subclasses, modes, vmap, forward-mode
duals, autocast, lazy negation) goes through ``torch.ops.portakernel`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.arguments import Arguments
from portakernel.capability import CannotRun, Limit, Rejection
from portakernel.contract import Contract
from portakernel.decision import Decision
from portakernel.dispatch import Dispatcher
from portakernel.fallback import Fallbacks
from portakernel.fast_path import define, expressions, make_key, make_public, make_value
from portakernel.kernel import Kernel
from portakernel.key_table import KeyTable, Placement
from portakernel.launcher import launcher
from portakernel.layout import check_out, has_plain_memory, mark_written, overwritten
from portakernel.naming import STRICT_MARK, is_automatic, layer_of, strictly
from portakernel.policies import Policy
from portakernel.request import Phase, Request
from portakernel.torch_internals import innermost_transform, outside_modes


class OpCaller:
    """One op's key table and everything that a call without an entry in it needs."""

    def __init__(self, contract: Contract, dispatcher: Dispatcher, namespace: str = "portakernel") -> None:
        self.contract = contract
        self.dispatcher = dispatcher
        self.namespace = namespace
        self.arguments = Arguments(contract, dispatcher.registry)
        self.table = KeyTable()
        # How a call goes through functorch's transforms; the bridge sets it, because torch ops alone do not.
        self.transformed: Callable[..., Tensor] | None = None
        self._fallbacks = Fallbacks(dispatcher)
        kernels = [k for k in dispatcher.registry.for_op(contract.op) if not dispatcher.disabled & {k.name, k.plugin}]
        # Kernels of attached devices compete only where a policy names them: what they read costs other calls nothing.
        self._attached = [kernel for kernel in kernels if dispatcher.registry.is_attached(kernel)]
        limits, reads = read_by(kernel for kernel in kernels if kernel not in self._attached)
        self.expressions = expressions(contract, limits, reads)
        self._key = make_key(contract, self.expressions)
        self._attached_key = make_key(contract, expressions(contract, *read_by(self._attached)))

    def torch_op(self, suffix: str = "") -> Any:
        """The op, or its part ``_forward`` or ``_backward``, as torch's dispatcher knows it."""
        return getattr(getattr(torch.ops, self.namespace), self.contract.op + suffix)

    def policy(self, argument: str = "") -> Policy:
        """The policy in force, with what a torch op's ``kernel`` argument adds to it.

        A compiled graph follows the policy contexts that it is called in: a name that was chosen automatically while
        tracing, by the process's policy, yields to them.
        """
        if is_automatic(argument) and self.dispatcher.context_layers.get():
            argument = ""
        return self.dispatcher.policy(layer_of(self.dispatcher.registry, self.contract.op, argument))

    def key(
        self,
        phase: Phase,
        tensors: Sequence[Tensor],
        parameters: Sequence[float],
        policy: Policy,
        *,
        inplace: bool = False,
        saved_by: str | None = None,
    ) -> tuple[Any, ...]:
        """What the choice depends on; a plain forward has the key that the public function computes."""
        key = (*self._key(*tensors, *parameters), policy)
        if phase is not Phase.INFERENCE or inplace:
            key = (*key, phase, inplace, saved_by)
        if self._attached and self._names_attached(policy):
            key = (*key, self._attached_key(*tensors, *parameters))
        return key

    def _names_attached(self, policy: Policy) -> bool:
        wishes = policy.wishes(self.contract.op, self.dispatcher.registry)
        return any(kernel.name in wishes.use or kernel.name in wishes.prefer for kernel in self._attached)

    def explain(
        self, tensors: Sequence[Tensor], parameters: Sequence[float], phase: Phase, argument: str = ""
    ) -> Decision:
        """The decision for a call with these arguments, kernels that said ``CannotRun`` to such calls included."""
        policy = self.policy(argument)
        request = self.arguments.request(tensors, parameters, phase)
        placement = self.table.entries.get(self.key(phase, tensors, parameters, policy))
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
        fallback = self._fallbacks.warn(decision, policy)
        run = launcher(self.contract, decision.chosen, request, self.dispatcher)
        return Placement(decision, decision.chosen, run, cannot=dict(cannot or {}), fallback=fallback)

    def placed(
        self,
        phase: Phase,
        tensors: Sequence[Tensor],
        parameters: Sequence[float],
        policy: Policy,
        saved_by: str | None = None,
    ) -> Placement:
        """What a call with these arguments would run, remembered for it."""
        key = self.key(phase, tensors, parameters, policy, saved_by=saved_by)
        known = self.table.entries.get(key)
        if known is not None:
            return known
        request = self.arguments.request(tensors, parameters, phase, saved_by=saved_by)
        return self.table.remember(key, self.place(request, policy))

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
        key = self.key(phase, tensors, parameters, policy, inplace=inplace, saved_by=saved_by)
        requires = frozenset({"inplace"}) if inplace else frozenset[str]()
        placement = self.table.entries.get(key)
        while True:
            if placement is None:
                request = self.arguments.request(tensors, parameters, phase, saved_by=saved_by, requires=requires)
                placement = self.table.remember(key, self.place(request, policy))
            if declined is None or declined[0] is not placement:
                try:
                    result = placement.run(*arguments)
                except CannotRun as error:
                    declined = placement, error
                else:
                    next(placement.calls)
                    return result
            request = self.arguments.request(tensors, parameters, phase, saved_by=saved_by, requires=requires)
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
            if all(known != name for known, _ in placement.refused):
                placement.run = self._declining(placement, name, request.phase, placement.run)
            placement.refused[name, value] = rejection
            if (known := self.table.entries.get(key)) is not None:
                return key, known
        return key, self.table.remember(key, self.place(request, policy, cannot), replaced)

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
        kernel: object,
        plain: bool,
        declined: tuple[Placement, CannotRun] | None,
    ) -> Any:
        """A public call that the key table did not serve: checks it, then decides, or leaves it to torch."""
        if plain:
            self.arguments.check(tensors)
        else:  # the torch op checks the rest, once autocast, vmap and the like have had their turn
            self.arguments.check_kinds(tensors)
        numbers = self.arguments.numbers(parameters)
        argument = strictly(self.dispatcher.registry, self.contract.op, kernel)
        if out is not None:
            return self.into(tensors, numbers, out, argument, plain)
        if not plain or tensors[0].is_meta:
            transformed = innermost_transform() is not None
            call = self.transformed if transformed and self.transformed is not None else self.torch_op()
            return call(*tensors, *numbers, argument)
        given = (*tensors, *numbers, None)
        return self.run(Phase.INFERENCE, tensors, numbers, self.policy(argument), given, declined=declined)

    def into(self, tensors: Sequence[Tensor], numbers: Sequence[float], out: Any, argument: str, plain: bool) -> Tensor:
        """A call that writes into ``out``, which may be an input where the contract allows it."""
        like = self.arguments.like(tensors)
        target = check_out(self.contract.op, out, like, tensors)
        if not plain or like.is_meta or not has_plain_memory(target):
            return target.copy_(self.torch_op()(*tensors, *numbers, argument))
        over = overwritten(
            self.contract.op, target, dict(zip(self.arguments.names, tensors, strict=True)), self.contract.inplace
        )
        policy, given = self.policy(argument), (*tensors, *numbers, target)
        written: Tensor = self.run(Phase.INFERENCE, tensors, numbers, policy, given, inplace=over is not None)
        mark_written(target)
        return written


def public_function(caller: OpCaller) -> Callable[..., Tensor]:
    """The function that ``portakernel.ops`` offers for the caller's op."""
    contract, dispatcher = caller.contract, caller.dispatcher
    tensors = [tensor.name for tensor in contract.tensors]
    given = ", ".join([*tensors, *(parameter.name for parameter in contract.parameters)])
    # Under torch.compile the policy's token is read as a guarded attribute: another policy means another graph.
    source = f"""\
def traced({given}, out, kernel):
    if out is not None:
        check_out({contract.op!r}, out, {contract.outputs[0].like}, ({", ".join(tensors)},))
    result = op({given}, dispatcher.trace_token if kernel is None else {STRICT_MARK!r} + kernel)
    return result if out is None else out.copy_(result)
"""
    dispatcher.refresh_trace_token()
    names = {"op": caller.torch_op().default, "dispatcher": dispatcher, "check_out": check_out}
    return make_public(
        contract,
        caller.expressions,
        {
            "table": caller.table.entries,
            "context": dispatcher.context_layers.get,
            "dispatcher": dispatcher,
            "slow": caller.slow,
            "traced": define(source, "traced", f"{contract.op}.traced", names),
        },
    )


def read_by(kernels: Iterable[Kernel]) -> tuple[tuple[Limit, ...], tuple[str, ...]]:
    """The limits and raw values that decide whether, or how early, one of the kernels is chosen."""
    listed = list(kernels)
    limits = frozenset[Limit]().union(*(kernel.limits() for kernel in listed))
    reads = {name for kernel in listed if kernel.check for name in kernel.check.reads}
    return tuple(sorted(limits, key=str)), tuple(sorted(reads))
