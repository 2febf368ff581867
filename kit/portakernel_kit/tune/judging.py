"""Whether kernels are right on what they are timed on: held against the float64 reference by the op's own rule.

Two draws are looked at, and the last result again once it was timed. Of large calls whose rows or heads lie apart some
are (``parts``). The reference computes on the accelerator, if that has float64 and room, and on the CPU what is little
enough. Where neither can be, kernels are unjudged.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.claims.request import Phase
from portakernel.contract import Cost
from portakernel.contract import Result as TensorResult
from portakernel.tuning.record import Verdict
from portakernel.words.target import Device
from portakernel_kit.bench.contenders import Contender
from portakernel_kit.bench.operands import Operands
from portakernel_kit.conformance.allowances import grown, growth
from portakernel_kit.conformance.comparison import Match, Mismatch
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.inputs import Inputs, generator
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.truth import exact
from portakernel_kit.conformance.venue import Venue
from portakernel_kit.tune.measuring import Judgement
from portakernel_kit.tune.parts import Part, at_rows, some

# What the reference does on the CPU in seconds, in float64: the work, and the elements of arguments and results.
MOST_FLOPS, MOST_ELEMENTS = 4_000_000_000, 1 << 24
# The same on an accelerator with float64, where it takes memory too, a multiple of the elements, for gradients a larger
# one. Attention has many steps for each of its products: so many take it some seconds.
_MOST_FLOPS_THERE, _BYTES_EACH, _BYTES_EACH_OF_GRADIENTS = 2_000_000_000_000, 64, 512
_WITH_FLOAT64 = ("nvidia", "amd")
# A part is looked at where all results have more elements than this, or take more work.
_FEW_ELEMENTS, _FEW_FLOPS = 1 << 20, 1 << 32
# Rows of results that are compared, where there are more.
_COMPARED = 1 << 21
# Bytes of NaN, or of numbers far from any result: what lies in memory that a kernel has not written.
_POISON = 0x7F


@dataclass(slots=True)
class _Draw:
    """A call's arguments with the truth about them, or about a ``part`` of the results."""

    operands: Operands
    whole: Inputs
    trial: Trial
    part: Part | None
    before: Mapping[str, Tensor]


class Numerics:
    """Judges the contenders of one call on the first two of its sets of operands.

    Those of a ``step`` return outputs, and gradients behind them, and not what forward saved. With ``prefers_host`` the
    accelerator computes a reference only where the host cannot in seconds.
    """

    def __init__(
        self,
        caller: OpCaller,
        device: Device,
        phase: Phase,
        cost: Cost,
        sets: Sequence[Operands],
        contenders: Mapping[str, Contender],
        last: Callable[[str], Any],
        *,
        step: bool = False,
        prefers_host: bool = False,
    ) -> None:
        self._caller, self._phase, self._cost = caller, phase, cost
        self._venue = Venue(device.torch_device or "cpu", (device.target,), device)
        self._contenders, self._last = contenders, last
        self._step, self._prefers_host = step, prefers_host
        self._unjudged = ""
        self._draws: list[_Draw] = []
        for operands in sets[:2]:
            try:
                found = self._draw(operands)
            except (OpFault, torch.OutOfMemoryError) as fault:
                self._unjudged = f"the reference says nothing: {str(fault).partition(chr(10))[0]}"
                break
            if found is None:
                self._unjudged = f"{cost.flops / 1e9:.3g} GFLOP are too many for the reference in float64"
                break
            self._draws.append(found)

    def before(self, name: str) -> Judgement:
        """Of fresh calls on both draws; raises what the kernel raises."""
        launch = self._contenders[name].launch
        assert launch is not None
        error = 0.0
        for draw in self._draws:
            self._restore(draw)
            self._poison(draw.operands)
            with torch.no_grad():
                returned = launch(draw.operands)
            found = self._held(name, draw, returned)
            self._restore(draw)
            if found.verdict is not Verdict.RIGHT:
                return found
            error = max(error, found.error or 0.0)
        if self._unjudged:
            return Judgement(Verdict.UNJUDGED, self._unjudged)
        return Judgement(Verdict.RIGHT, error=error)

    def after(self, name: str) -> Judgement:
        """Of the last launch on the first draw."""
        if not self._draws:
            return Judgement(Verdict.UNJUDGED, self._unjudged)
        self._restore(self._draws[0])
        found = self._held(name, self._draws[0], self._last(name))
        self._restore(self._draws[0])
        return found

    # --- the truth --------------------------------------------------------------------------------------------------

    def _draw(self, operands: Operands) -> _Draw | None:
        """The truth about a draw, or about a part of it; None where that would take too long."""
        whole = inputs_of(operands)
        shapes = [whole.shape(result) for result in whole.results]
        elements = sum(t.numel() for t in whole.given.values()) + sum(math.prod(shape) for shape in shapes)
        part = None
        if not self._has_gradients and (elements > _FEW_ELEMENTS or self._cost.flops > _FEW_FLOPS):
            part = some(whole)
        if part is not None:
            shared = sum(
                t.numel()
                for t, a in zip(whole.tensors, whole.contract.tensors, strict=True)
                if t is not None and not part.takes_from(a.sizes)
            )
            elements = shared + round(part.share * (elements - shared))
        flops, on = (1.0 if part is None else part.share) * self._cost.flops, "cpu"
        too_much = elements > MOST_ELEMENTS * (8 if part is not None else 1) or flops > MOST_FLOPS
        if (too_much or not self._prefers_host) and self._has_room(elements) and flops <= _MOST_FLOPS_THERE:
            on = self._venue.torch_device
        elif too_much:
            return None
        judged = whole if part is None else part.inputs(whole)
        trial = Trial(self._caller, self._kernel(), self._venue, judged, frozenset(), is_drawn=True, on=on)
        if self._phase is Phase.BACKWARD:
            contract = self._caller.contract
            names = [*contract.backward_inputs, *(saved.name for saved in contract.saved)]
            operands.kept = dict(zip(names, trial.truth.kept(whole.device), strict=True))
        before = {name: tensor.clone() for name, tensor in operands.written.items()}
        return _Draw(operands, whole, trial, part, before)

    def _has_room(self, elements: int) -> bool:
        """Whether the reference can compute with so many elements in float64 on the device itself."""
        device = torch.device(self._venue.torch_device)
        if device.type != "cuda" or self._venue.targets[0].vendor not in _WITH_FLOAT64:
            return False
        each = _BYTES_EACH_OF_GRADIENTS if self._has_gradients else _BYTES_EACH
        return elements * each <= torch.cuda.mem_get_info(device)[0]

    @property
    def _has_gradients(self) -> bool:
        return self._step or self._phase is Phase.BACKWARD

    def _kernel(self) -> Any:
        return next(iter(self._contenders.values())).kernel

    # --- comparing --------------------------------------------------------------------------------------------------

    def _held(self, name: str, draw: _Draw, returned: Any) -> Judgement:
        trial = draw.trial.of(self._contenders[name].kernel, self._venue)
        found = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
        if draw.operands.written:  # the results are what stands in the arguments now
            found = tuple(draw.operands.written.values())
        if self._phase is Phase.BACKWARD:
            return self._gradients(trial, draw, found)
        specs = [*trial.inputs.results]
        if self._step:
            found, gradients = found[: len(specs)], found[len(specs) :]
            judgement = self._gradients(trial, draw, gradients)
            if judgement.verdict is not Verdict.RIGHT:
                return judgement
        elif self._phase is Phase.TRAINING:
            specs += trial.contract.saved
        if len(found) != len(specs):
            return Judgement(Verdict.WRONG, f"returned {len(found)} results, not {len(specs)}")
        error = 0.0
        for tensor, spec in zip(found, specs, strict=True):
            form = draw.whole.form(spec)
            if problem := trial.form(tensor, spec.name, *form):
                return Judgement(Verdict.WRONG, problem)
            judgement = self._result(trial, draw, tensor, spec)
            if judgement.verdict is not Verdict.RIGHT:
                return judgement
            error = max(error, judgement.error or 0.0)
        return Judgement(Verdict.RIGHT, error=error)

    def _result(self, trial: Trial, draw: _Draw, tensor: Tensor, spec: TensorResult) -> Judgement:
        truth, tolerance, name = trial.truth, trial.contract.tolerance, spec.name
        saved = spec in trial.contract.saved
        want = (truth.saved if saved else truth.outputs)[name]
        if draw.part is not None:
            assert isinstance(spec.shape, tuple)  # the contract is that of these values
            tensor = draw.part.of(tensor, spec.shape, len(draw.whole.leading))
        allowed = grown(tolerance.saved if saved else tolerance.forward, growth(trial.longest_row))
        magnitude, plain, slack = truth.magnitudes.get(name), truth.plain.get(name), truth.slack.get(name)
        free = truth.free.get(name)
        if free is not None:  # of which the contract says nothing
            want = torch.where(free.reshape(want.shape), exact(tensor), want)
        if not saved and tolerance.flushed == "all":
            terms, size = (trial.longest_row, None) if tolerance.rule == "plain" else (1, want.abs())
            slack = trial.with_flushed(slack, terms, size if magnitude is None else magnitude)
        picked = _picked(want)
        want, magnitude, plain, slack = (_taken(t, want.shape, picked) for t in (want, magnitude, plain, slack))
        tensor = _taken(tensor, tensor.shape, picked)
        assert want is not None
        # its form was held as a whole; packed results have fewer elements than numbers
        shape = tuple(tensor.shape)
        outcome = trial.compared(tensor, name, shape, tensor.dtype, want, allowed, magnitude, plain, slack=slack)
        return _judgement(name, outcome)

    def _gradients(self, trial: Trial, draw: _Draw, found: Sequence[Any]) -> Judgement:
        operands = draw.operands
        names = [output.name for output in trial.contract.outputs if output.differentiable]
        truth = trial.truth.gradients([operands.grads[f"grad_{name}"] for name in names])
        backward = Backward(trial, generator(0))
        if len(found) != len(operands.needs):
            return Judgement(Verdict.WRONG, f"returned {len(found)} gradients for {len(operands.needs)} arguments")
        for name, gradient, needed, want, tensor in zip(
            backward.names, found, operands.needs, truth, trial.inputs.tensors, strict=True
        ):
            if needed and want is not None and tensor is not None:
                problems = backward.hold(gradient, name, tensor, want)
                if problems:
                    return Judgement(Verdict.WRONG, problems[0])
        return Judgement(Verdict.RIGHT)

    # --- memory -----------------------------------------------------------------------------------------------------

    def _restore(self, draw: _Draw) -> None:
        """What the op writes is as it was: what another kernel wrote there is no result of this one's."""
        for name, tensor in draw.operands.written.items():
            tensor.copy_(draw.before[name])

    def _poison(self, operands: Operands) -> None:
        """Fills memory of the results' sizes, which the allocator is likely to hand to the call that comes next.

        Results of the kernel before, which lie in it, are no results of one that writes nothing.
        """
        if self._phase is Phase.BACKWARD or operands.written:
            forms = [(tuple(t.shape), t.dtype) for t in operands.tensors if t is not None]
        else:
            forms = [*operands.arguments.results(operands.tensors, operands.values).values()]
        device = torch.device(self._venue.torch_device)
        held = []
        for shape, dtype in forms:
            with contextlib.suppress(torch.OutOfMemoryError):
                held.append(torch.empty(shape, dtype=dtype, device=device))
        for tensor in held:
            tensor.view(-1).view(torch.uint8).fill_(_POISON)


def _judgement(name: str, outcome: Match | Mismatch | str) -> Judgement:
    match outcome:
        case Match():
            return Judgement(Verdict.RIGHT, error=outcome.used if math.isfinite(outcome.used) else None)
        case Mismatch():
            return Judgement(Verdict.WRONG, f"{name}: {outcome}", outcome.used)
        case _:
            return Judgement(Verdict.UNJUDGED, outcome)


def inputs_of(operands: Operands) -> Inputs:
    """A call's arguments as the conformance kit's cases have theirs."""
    contract = operands.contract
    parameters = dict(zip([parameter.name for parameter in contract.parameters], operands.values, strict=True))
    made = contract.at(parameters)
    shapes = {n: tuple(t.shape) for n, t in zip(made.names, operands.tensors, strict=True) if t is not None}
    dims, leading = made.bind_shapes(shapes)
    return Inputs(made, operands.tensors, parameters, dims, leading or ())


def _picked(want: Tensor) -> Tensor | None:
    """Rows of a result to compare, where it has too many elements; None: all."""
    if want.dim() < 2 or want.numel() <= _COMPARED:
        return None
    count = want.numel() // want.shape[-1]
    kept = max(1, _COMPARED // want.shape[-1])
    return torch.randperm(count, generator=generator(1, count))[:kept].sort().values


def _taken(tensor: Tensor | None, shape: Sequence[int], rows: Tensor | None) -> Any:
    """The picked rows of what has a result's rows; anything else as it is."""
    if tensor is None or rows is None or tuple(tensor.shape[:-1]) != tuple(shape[:-1]):
        return tensor
    return at_rows(tensor, rows, tensor.dim() - 1)
