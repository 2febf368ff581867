"""Calls with more elements than 32 bits can number, held against the truth about a part that they repeat.

A tensor of as many rows is drawn as one can look at, and repeated until it has more than 2**31 elements: each
repetition of a result has to be right, and gradients of what rows share are as many times the part's. A number that
wraps around at a power of two meets other rows, for the part has three times 128 of them. What an op gives for two
repetitions is looked at first; where that is not what it gives for one, the kernel is not put to this test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.claims.capability import Capability
from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.contract import Result as TensorResult
from portakernel.contract.case import Case
from portakernel.contract.sizes import parse_size
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.dtypes import DTYPES
from portakernel_kit.conformance.claims import DTypes, case_dtypes, resized
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.inputs import Inputs, case_shape, draw_inputs, generator, is_present
from portakernel_kit.conformance.outcome import Outcome, attempt, result_of
from portakernel_kit.conformance.result import Aspect, Result
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.truth import Gradient, Truth
from portakernel_kit.conformance.venue import Venue, refusals

ELEMENTS = 1 << 31
PART = 3 * 128
# Of the repetitions that differ from the first, so many are compared with the truth.
_COMPARED = 8
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Repetition:
    """A ``part`` whose ``dimension`` is PART, and the ``whole`` in which it is so many ``times`` that."""

    part: Case
    whole: Case
    dimension: str
    times: int


def repetitions(of: Contract, elements: int = ELEMENTS) -> tuple[Repetition, ...]:
    """For each way to choose the shapes of an op, its rows (or batches) repeated, and the tables it picks from.

    None of an op that writes into its arguments: where its rows go is said by others, and repeated rows by none.
    """
    found = list[Repetition]()
    if of.mutated:
        return ()
    for case in _plain_cases(of):
        made = of.at(of.values(case.parameters))
        for dimension in dict.fromkeys((_first(made, made.tensors[0].name), *_tables(made, case))):
            part = resized(of, case, dimension, PART, "", _UNLIMITED)
            twice = resized(of, case, dimension, 2 * PART, "", _UNLIMITED)
            if part is None or twice is None:
                continue
            grown = zip(_shapes(made, part), _shapes(made, twice), strict=True)
            growth = max(math.prod(more) - math.prod(less) for less, more in grown)
            if growth <= 0:
                continue
            times = elements // growth + 1
            whole = resized(of, part, dimension, times * PART, "", _UNLIMITED)
            if whole is not None:
                found.append(Repetition(part, whole, dimension, times))
    return tuple(found)


def _plain_cases(of: Contract) -> Iterator[Case]:
    """Of the cases in default values and layouts, for each choice the one with the longest rows."""
    longest: dict[tuple[Any, ...], Case] = {}
    for case in of.cases:
        if case.layouts or case.given or case.values != "normal" or 0 in (*case.leading, *case.dims.values()):
            continue
        values = of.values(case.parameters)
        choice = tuple(values[name] for name in of.choosers)
        made = of.at(values)
        # rows whose meaning is their place among the others are not the same when they are repeated
        if any(t.leading and not is_present(t, case) for t in made.tensors):
            continue
        if choice not in longest or math.prod(case.dims.values()) > math.prod(longest[choice].dims.values()):
            longest[choice] = case
    yield from longest.values()


def _first(made: Contract, argument: str) -> str:
    """The name of an argument's first dimension."""
    tensor = next(t for t in made.tensors if t.name == argument)
    return tensor.leading or parse_size(tensor.sizes[0]).name or ""


def _tables(made: Contract, case: Case) -> Iterator[str]:
    """The dimensions that indices count, where they are the rows of another argument."""
    for index in made.tensors:
        if index.draw.kind == "index" and is_present(index, case):
            for table in made.tensors:
                if table.leading is None and len(table.sizes) > 1 and _first(made, table.name) == index.draw.below:
                    yield index.draw.below


def _shapes(made: Contract, case: Case) -> list[tuple[int, ...]]:
    return [case_shape(tensor, case) for tensor in made.tensors if is_present(tensor, case)]


def results(
    dispatcher: Dispatcher, kernel: Kernel, venue: Venue, seed: int, elements: int = ELEMENTS
) -> Iterator[Result]:
    """The results of one kernel: forward, saved tensors and backward for each repetition, in its smallest dtypes."""
    op = contract(kernel.op)
    made = repetitions(op, elements)
    if venue.mode is not None or not made:
        text = f"not in mode {venue.mode!r}" if venue.mode is not None else "the op has no rows to repeat"
        yield result_of(kernel, venue, f"{op.op}[huge]", Outcome("claim", "skipped", text))
        return
    for repetition in made:
        dtypes = _smallest(op, venue.variants(kernel, dispatcher), repetition.part)
        size = repetition.times * PART
        name = f"{op.op}[{repetition.dimension} = {size}, {_shown(repetition.part, dtypes)}]"
        if dtypes is None:
            outcome = Outcome("claim", "skipped", "no dtypes are claimed for the case")
            yield result_of(kernel, venue, name, outcome)
            continue
        for outcome in _Huge(dispatcher, kernel, venue, seed, repetition, dtypes).outcomes():
            yield result_of(kernel, venue, name, outcome)


def cases_reported(kernel: Kernel, venue: Venue) -> int:
    """How many different ``case``s the results have."""
    return max(1, len(repetitions(contract(kernel.op)))) if venue.mode is None else 1


def _smallest(of: Contract, variants: Sequence[Capability], case: Case) -> DTypes | None:
    """Of the claimed dtypes those that take the fewest bytes together; bfloat16 before float16.

    A sum over so many rows may leave the range of float16.
    """
    found = [dtypes for variant in variants for dtypes in case_dtypes(of, variant, case, all_of_them=False)]

    def cost(dtypes: DTypes) -> tuple[int, int]:
        return sum(DTYPES[dtype].bits for dtype in dtypes.values()), list(dtypes.values()).count("float16")

    return min(found, key=cost, default=None)


def _shown(case: Case, dtypes: DTypes | None) -> str:
    terms = {**case.parameters, **(dtypes or {})}
    return ", ".join(f"{name}={value}" for name, value in terms.items())


class _Huge:
    """One kernel on one repetition."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        kernel: Kernel,
        venue: Venue,
        seed: int,
        repetition: Repetition,
        dtypes: DTypes,
    ) -> None:
        self.dispatcher, self.kernel, self.venue, self.repetition = dispatcher, kernel, venue, repetition
        op = contract(kernel.op)
        self.source = generator(seed, op.op, "huge", repetition.dimension, *dtypes.values())
        inputs = draw_inputs(op, repetition.part, dtypes, venue.torch_device, self.source)
        # the truth is about the part; what is called with the whole is called through it
        self.trial = Trial(OpCaller(op, dispatcher), kernel, venue, inputs, frozenset())

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome for each aspect that the kernel claims."""
        if not self._repeats():
            text = "for two repetitions the op gives something else than twice what it gives for one"
            yield Outcome("claim", "skipped", text)
            return
        try:
            whole = self._whole(self.repetition.times)
        except torch.OutOfMemoryError:
            yield _too_large("claim")
            return
        request = self.trial.caller.arguments.request(whole.tensors, whole.values, Phase.INFERENCE)
        if refused := refusals(self.dispatcher, self.kernel, self.venue, request):
            text = "; ".join(f"{rejection.code}: {rejection.text}" for rejection in refused)
            yield Outcome("claim", "skipped", f"refused: {text}")
            return
        yield self._attempt("forward", lambda: self.forward(whole))
        contracts_own = self.kernel.saves == "contract"
        if self.trial.contract.saved and contracts_own and self.trial.serves(whole.tensors, Phase.TRAINING):
            yield self._attempt("saved", lambda: self.saving(whole))
        # the gradient of a table has the sum of what all of its parts give
        of_a_table = self.repetition.dimension in _tables(self.trial.contract, self.repetition.part)
        if not of_a_table and contracts_own and self.trial.serves(whole.tensors, Phase.BACKWARD):
            yield self._attempt("backward", lambda: self.backward(whole))
        yield from self.trial.memory_outcomes()

    def _attempt(self, aspect: Aspect, check: Any) -> Outcome:
        """The outcome of ``check``; a device that has no room for it proves nothing."""
        outcome = attempt(aspect, check)
        return _too_large(aspect) if outcome.detail.startswith("OutOfMemoryError") else outcome

    # --- repeating -------------------------------------------------------------------------------------------------

    def _whole(self, times: int) -> Inputs:
        """The part's inputs, so many times."""
        part, made, of = self.trial.inputs, self.trial.contract, self.repetition
        case = resized(self.trial.caller.contract, of.part, of.dimension, times * PART, "", _UNLIMITED)
        assert case is not None  # nor was it when the repetition was made
        tensors = tuple(
            None
            if tensor is None
            else self._anywhere(tensor, times)
            if argument.draw.kind == "index" and argument.draw.below == self.repetition.dimension
            else repeated(tensor, case_shape(argument, case))
            for argument, tensor in zip(made.tensors, part.tensors, strict=True)
        )
        named = {n: tuple(t.shape) for n, t in zip(made.names, tensors, strict=True) if t is not None}
        dims, leading = made.bind_shapes(named)
        return Inputs(made, tensors, part.parameters, dims, leading or ())

    def _anywhere(self, index: Tensor, times: int) -> Tensor:
        """The index of the same row in any of the repetitions; what is no index (below zero) stays."""
        shift = PART * torch.randint(times, tuple(index.shape), generator=self.source)
        return torch.where(index < 0, index, index + shift.to(index.device, index.dtype))

    def _repeats(self) -> bool:
        """Whether the reference gives for two parts what it gives for one, twice."""
        once, twice = self.trial.truth, Truth.of(self._whole(2))
        pairs = [(once.outputs[name], twice.outputs[name]) for name in once.outputs]
        pairs += [(once.saved[name], twice.saved[name]) for name in once.saved]
        for one, two in pairs:
            growing = two.dim() and two.shape[:1] == (2 * one.shape[0],) and two.shape[1:] == one.shape[1:]
            if not growing and two.shape != one.shape:
                return False
            if not torch.allclose(two, repeated(one, two.shape), rtol=1e-9, atol=1e-12, equal_nan=True):
                return False
        return True

    # --- the aspects -----------------------------------------------------------------------------------------------

    def forward(self, whole: Inputs) -> list[str]:
        """What is wrong with the outputs."""
        found = self.trial.call(Phase.INFERENCE, whole.tensors, None, label="forward")
        return self._results(whole, found, self.trial.contract.outputs, saved=False)

    def saving(self, whole: Inputs) -> list[str]:
        """What is wrong with the saved tensors."""
        outputs, saved = self.trial.contract.outputs, self.trial.contract.saved
        found = self.trial.call(Phase.TRAINING, whole.tensors, label="forward with save")
        problems = self._results(whole, found[: len(outputs)], outputs, saved=False)
        return problems + self._results(whole, found[len(outputs) :], saved, saved=True)

    def _results(self, whole: Inputs, found: Sequence[Any], specs: Sequence[TensorResult], *, saved: bool) -> list[str]:
        for tensor, spec in zip(found, specs, strict=True):
            if problem := self.trial.form(tensor, spec.name, *whole.form(spec)):
                return [problem]
        parts = [_parts(tensor, self.trial.inputs.shape(spec)) for tensor, spec in zip(found, specs, strict=True)]
        return self._each(parts, lambda tensors: self.trial.compare_results(tensors, saved=saved))

    def backward(self, whole: Inputs) -> list[str]:
        """What is wrong with the gradients: rows' repeat, and what rows share gets the sum."""
        trial, times = self.trial, self.repetition.times
        backward = Backward(trial, self.source)
        grads, kept = backward.draw("contiguous"), backward.kept()
        truth = trial.truth.gradients(grads)
        needs = tuple(gradient is not None for gradient in truth)
        wide = {result.name: whole.shape(result) for result in (*trial.contract.outputs, *trial.contract.saved)}
        wide |= {name: tuple(tensor.shape) for name, tensor in whole.given.items()}
        outputs = [output.name for output in trial.contract.outputs if output.differentiable]
        given: dict[str, Tensor | None] = {
            f"grad_{name}": repeated(grad, wide[name]) for name, grad in zip(outputs, grads, strict=True)
        }
        given |= {name: None if tensor is None else repeated(tensor, wide[name]) for name, tensor in kept.items()}
        found = trial.call(Phase.BACKWARD, whole.tensors, needs, given=given, label="backward")
        parts, wanted = list[Tensor | None](), list[Gradient | None]()
        for gradient, want, one, all_of_it in zip(found, truth, trial.inputs.tensors, whole.tensors, strict=True):
            if want is None or one is None or all_of_it is None:
                parts.append(None)
                wanted.append(None)
                continue
            if problem := trial.form(gradient, "a gradient", all_of_it.shape, all_of_it.dtype):
                return [problem]
            shared = all_of_it.shape == one.shape
            parts.append(gradient.unsqueeze(0) if shared else _parts(gradient, one.shape))
            wanted.append(_sum_of(want, times) if shared else want)
        return self._each(parts, lambda tensors: backward.compare(tensors, needs, wanted, {}))

    def _each(self, parts: Sequence[Tensor | None], compare: Any) -> list[str]:
        """What ``compare`` says of the first repetition, and of those with other bits."""
        different = sorted({place for tensor in parts if tensor is not None for place in _differing(tensor)})
        problems = []
        for place in (0, *different[:_COMPARED]):
            chosen = [None if t is None else t[place if t.shape[0] > 1 else 0].contiguous() for t in parts]
            where = f"repetition {place} of {self.repetition.times}"
            problems += [f"{where}: {text}" for text in compare(chosen)]
        if problems and len(different) > _COMPARED:
            problems.append(f"{len(different)} repetitions have other bits than the first")
        return problems


def repeated(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """``tensor`` over and over along its first dimension, until it has ``shape``; itself where it has."""
    if tuple(shape) == tuple(tensor.shape):
        return tensor
    # as bytes where there are no others: not every operator knows the 8-bit floats
    stored = tensor.view(torch.uint8) if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1 else tensor
    return stored.repeat(shape[0] // tensor.shape[0], *(1 for _ in shape[1:])).view(tensor.dtype)


def _parts(tensor: Tensor, part: Sequence[int]) -> Tensor:
    """The repetitions in a result; one where it does not grow."""
    return tensor.reshape(-1, *part) if tuple(tensor.shape) != tuple(part) else tensor.unsqueeze(0)


def _differing(parts: Tensor) -> list[int]:
    """The repetitions that have other bits than the first."""
    rows = parts.reshape(parts.shape[0], -1).contiguous().view(torch.uint8)
    step = max(1, (1 << 28) // max(rows.shape[1], 1))
    found = []
    for start in range(0, len(rows), step):
        differ = (rows[start : start + step] != rows[0]).any(1).nonzero().reshape(-1)
        found += [start + int(place) for place in differ]
    return found


def _sum_of(gradient: Gradient, times: int) -> Gradient:
    """As many times the gradient, and what it is measured by."""
    magnitude, plain = gradient.magnitude, gradient.plain
    return Gradient(
        gradient.value * times,
        None if magnitude is None else magnitude * times,
        None if plain is None else plain * times,
        slack=None if gradient.slack is None else gradient.slack * times,
    )


def _too_large(aspect: Aspect) -> Outcome:
    return Outcome(aspect, "skipped", "needs more memory than the device has free")
