"""The kernels that are measured for a request: those that dispatch finds eligible, each as something to launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.launcher import launcher
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.ranking import Candidate
from portakernel.registry.kernel import Kernel
from portakernel.warming.building import build, waiting
from portakernel_kit.bench.operands import Operands

Launch = Callable[[Operands], Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which kernels take part: those of ``kernels`` and ``plugins`` where any are named, the reference or not."""

    kernels: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    reference: bool = True

    def admits(self, kernel: Kernel) -> bool:
        """Whether the kernel takes part; where names are given, the reference too has to be named."""
        if self.kernels or self.plugins:
            return kernel.name in self.kernels or kernel.plugin in self.plugins
        return self.reference or not kernel.is_reference

    def names(self, kernel: Kernel) -> bool:
        """Whether somebody asked for the kernel, as is needed of those of attached devices."""
        return kernel.name in self.kernels or kernel.plugin in self.plugins


@dataclass(slots=True)
class Contender:
    """One kernel that can serve the request; ``launch`` calls it, ``failure`` says why it cannot be."""

    kernel: Kernel
    launch: Launch | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """Who can serve a request, who would be picked, and who cannot and why."""

    chosen: str | None
    contenders: tuple[Contender, ...]
    rejected: Mapping[str, tuple[Rejection, ...]] = field(default_factory=dict[str, tuple[Rejection, ...]])


def build_waiting(dispatcher: Dispatcher, operands: Operands, phase: Phase, admitted: Filter) -> dict[str, str]:
    """Builds, for these sizes, the kernels that lack nothing else; which ones declined, and why."""
    declined: dict[str, str] = {}
    request = operands.request(phase)
    for kernel in filter(admitted.admits, waiting(dispatcher.decide(request))):
        try:
            found = build(dispatcher, operands.contract, kernel, request, operands.tensors, operands.values)
        except Exception as error:  # noqa: BLE001 - the plugin border: a build that raises is shown
            declined[kernel.name] = described_error(error)
        else:
            if found is not None:
                declined[kernel.name] = found.text
    return declined


def forward_field(
    dispatcher: Dispatcher, operands: Operands, admitted: Filter, requires: frozenset[str] = frozenset()
) -> Field:
    """The kernels for forward without a gradient that have the properties that are required."""
    request = operands.request(Phase.INFERENCE)
    decision = dispatcher.decide(replace(request, requires=request.requires | requires))
    eligible = [c.kernel for c in decision.candidates if _serves(c, admitted) and admitted.admits(c.kernel)]
    contenders = tuple(contender(dispatcher, operands, kernel, Phase.INFERENCE) for kernel in eligible)
    return Field(decision.chosen.name if decision.chosen else None, contenders, _rejections(decision, admitted))


def backward_field(dispatcher: Dispatcher, operands: Operands, admitted: Filter) -> Field:
    """The kernels for the gradient: those with a backward, and those whose gradient PyTorch records.

    A backward that reads only what its own forward saves is given that.
    """
    training = dispatcher.decide(operands.request(Phase.TRAINING))
    shared = dispatcher.decide(operands.request(Phase.BACKWARD))
    contenders: list[Contender] = []
    rejected: dict[str, tuple[Rejection, ...]] = {}
    for candidate in (*shared.candidates, *(c for c in training.candidates if c.kernel.saves == "autograd")):
        kernel, decision = candidate.kernel, shared
        if not admitted.admits(kernel) or any(kernel is known.kernel for known in contenders):
            continue
        if kernel.saves == "autograd":
            decision = training
        elif kernel.saves == "own" and _serves(training.candidate(kernel.name), admitted):
            decision = dispatcher.decide(operands.request(Phase.BACKWARD, saved_by=kernel.name))
        if _serves(decision.candidate(kernel.name), admitted):
            rejected.pop(kernel.name, None)
            contenders.append(_gradient_contender(dispatcher, operands, kernel))
        elif _is_for_here(decision.candidate(kernel.name)):
            rejected[kernel.name] = decision.candidate(kernel.name).rejections
    return Field(_backward_choice(dispatcher, operands, training, shared), tuple(contenders), rejected)


def training_results(dispatcher: Dispatcher, operands: Operands, kernel: Kernel) -> Sequence[Tensor]:
    """The outputs and saved tensors of ``kernel``'s forward for training; whatever it raises propagates."""
    request = operands.request(Phase.TRAINING)
    launch = launcher(operands.contract, kernel, request, dispatcher)
    with torch.no_grad():
        found = launch(*operands.call(Phase.TRAINING))
    return found if isinstance(found, (tuple, list)) else (found,)


def prepare_backward(dispatcher: Dispatcher, sets: Sequence[Operands], seed: int) -> None:
    """Draws gradients, and runs the reference's forward for what backward is given.

    Of which arguments there are gradients, the reference says: an op may have none of a table.
    """
    saver = dispatcher.registry.kernels[f"reference.{sets[0].contract.op}"]
    for place, operands in enumerate(sets):
        operands.draw_grads(seed + 1000 + place)
        operands.kept = operands.keep(training_results(dispatcher, operands, saver))
    first = sets[0]
    run = launcher(first.contract, saver, first.request(Phase.BACKWARD), dispatcher)
    with torch.no_grad():
        grads = run(*first.call(Phase.BACKWARD))
    needs = tuple(need and grad is not None for need, grad in zip(first.needs, grads, strict=True))
    for operands in sets:
        operands.needs = needs


def described_error(error: BaseException) -> str:
    """What a kernel that raised is shown with: the kind and the first line."""
    if isinstance(error, CannotRun):
        return f"declined the call: {error.rejection.text}"
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _backward_choice(dispatcher: Dispatcher, operands: Operands, training: Decision, shared: Decision) -> str | None:
    """Whose gradient a call has: the backward is chosen to read what the chosen forward saves."""
    first = training.chosen
    if first is None or first.saves == "autograd":
        return first.name if first else None
    if first.saves == "own":
        shared = dispatcher.decide(operands.request(Phase.BACKWARD, saved_by=first.name))
    return shared.chosen.name if shared.chosen else None


def _serves(candidate: Candidate, admitted: Filter) -> bool:
    """Whether the kernel could be used; one of an attached device or that its manifest switches off, where named."""
    codes = [rejection.code for rejection in candidate.rejections]
    attached = set(codes) == {ReasonCode.ATTACHED_TARGET}
    off = codes == [ReasonCode.DISABLED] and candidate.kernel.disabled is not None
    return candidate.status in ("chosen", "eligible") or ((attached or off) and admitted.names(candidate.kernel))


def _is_for_here(candidate: Candidate) -> bool:
    """Whether the kernel is for this hardware: for any other that is its one reason, and says nothing."""
    return not {ReasonCode.VENDOR, ReasonCode.ARCH} & {rejection.code for rejection in candidate.rejections}


def _rejections(decision: Decision, admitted: Filter) -> dict[str, tuple[Rejection, ...]]:
    """Why others cannot serve."""
    return {
        candidate.kernel.name: candidate.rejections
        for candidate in decision.candidates
        if not _serves(candidate, admitted) and admitted.admits(candidate.kernel) and _is_for_here(candidate)
    }


def contender(dispatcher: Dispatcher, operands: Operands, kernel: Kernel, phase: Phase) -> Contender:
    """``kernel`` as something to call in ``phase``, whatever policies say of it."""
    request = operands.request(phase)
    try:
        run = launcher(operands.contract, kernel, replace(request, requires=frozenset()), dispatcher)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: an import that fails is shown
        return Contender(kernel, None, described_error(error))
    return Contender(kernel, lambda given: run(*given.call(phase)))


def _gradient_contender(dispatcher: Dispatcher, operands: Operands, kernel: Kernel) -> Contender:
    try:
        if kernel.saves == "autograd":
            return Contender(kernel, _Recorded(dispatcher, operands, kernel))
        run = launcher(operands.contract, kernel, operands.request(Phase.BACKWARD), dispatcher)
        if kernel.saves == "own":
            return Contender(kernel, _Own(dispatcher, kernel, run))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: an import that fails is shown
        return Contender(kernel, None, described_error(error))
    return Contender(kernel, lambda given: run(*given.call(Phase.BACKWARD)))


class _Own:
    """A backward that reads what its own forward saved: forward runs once for each set of operands, untimed."""

    def __init__(self, dispatcher: Dispatcher, kernel: Kernel, run: Callable[..., Any]) -> None:
        self._dispatcher, self._kernel, self._run = dispatcher, kernel, run
        self._kept: dict[int, dict[str, Tensor | None]] = {}

    def __call__(self, given: Operands) -> Any:
        kept = self._kept.get(id(given))
        if kept is None:
            kept = given.keep(training_results(self._dispatcher, given, self._kernel))
            self._kept[id(given)] = kept
        return self._run(*given.call(Phase.BACKWARD, kept))


class _Recorded:
    """The gradient that PyTorch records of a kernel made of its operators: autograd's own work is part of it."""

    def __init__(self, dispatcher: Dispatcher, operands: Operands, kernel: Kernel) -> None:
        self._forward = launcher(operands.contract, kernel, operands.request(Phase.TRAINING), dispatcher)
        self._graphs: dict[int, tuple[Any, list[Tensor | None]]] = {}

    def __call__(self, given: Operands) -> Any:
        known = self._graphs.get(id(given))
        if known is None:
            known = self._graphs[id(given)] = self._record(given)
        outputs, leaves = known
        wanted = [leaf for leaf in leaves if leaf is not None]
        grads = [given.grads[name] for name, _ in outputs]
        found = iter(torch.autograd.grad([o for _, o in outputs], wanted, grads, retain_graph=True, allow_unused=True))
        return tuple(None if leaf is None else next(found) for leaf in leaves)

    def _record(self, given: Operands) -> tuple[Any, list[Tensor | None]]:
        pairs = list(zip(given.tensors, given.needs, strict=True))
        tensors = [t.detach().requires_grad_() if t is not None and need else t for t, need in pairs]
        with torch.enable_grad():
            found = self._forward(*tensors, *given.values)
        results = found if isinstance(found, (tuple, list)) else (found,)
        made = given.arguments.at(given.values)
        named = [(f"grad_{o.name}", t) for o, t in zip(made.outputs, results, strict=False) if o.differentiable]
        leaves = [t if need else None for t, (_, need) in zip(tensors, pairs, strict=True)]
        return named, leaves
