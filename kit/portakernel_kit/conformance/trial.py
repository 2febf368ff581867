"""One case in given dtypes: runs the kernel as calls do and holds every result against the truth."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from portakernel.calling.arguments import Tensors, dtype_name
from portakernel.calling.caller import OpCaller
from portakernel.calling.launcher import launcher
from portakernel.claims.request import Phase
from portakernel.contract import Contract, alternatives
from portakernel.contract import Result as TensorResult
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.allowances import grown, growth
from portakernel_kit.conformance.comparison import (
    Comparison,
    Mismatch,
    compare,
    compare_integers,
    compare_rows,
    with_lost,
)
from portakernel_kit.conformance.inputs import Inputs
from portakernel_kit.conformance.memory import changed_around, footprint, same_bits, shares_memory
from portakernel_kit.conformance.outcome import Outcome
from portakernel_kit.conformance.truth import Truth, exact
from portakernel_kit.conformance.venue import Venue, refusals

Way = TypeVar("Way")

# About the largest of normal numbers, as gradients are, and what counts as the largest of others.
_USUAL, _MOST = 8.0, 1024.0


@dataclass(slots=True)
class Trial:
    """A kernel, a place to run it, inputs and the truth about them.

    ``is_drawn``: the inputs may be longer than those of the op's cases, which its tolerances are made for.
    ``disturbed`` and ``aliased`` gather what the calls did to memory that was not theirs, and which results were no
    tensors of their own; ``right`` has copies of results that were compared already. ``largest`` is about the largest
    number that others are multiplied by. The reference computes the truth ``on`` a device.
    """

    caller: OpCaller
    kernel: Kernel
    venue: Venue
    inputs: Inputs
    properties: frozenset[str]
    truth: Truth = field(init=False)
    disturbed: dict[str, None] = field(default_factory=dict[str, None])
    aliased: dict[str, None] = field(default_factory=dict[str, None])
    launchers: dict[Phase, Callable[..., Any]] = field(default_factory=dict[Phase, Callable[..., Any]])
    is_drawn: bool = False
    right: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    largest: float = field(init=False, default=_USUAL)
    on: str = "cpu"

    def __post_init__(self) -> None:
        self.truth = Truth.of(self.inputs, self.on)
        if self.contract.tolerance.flushed != "nothing":
            floats = [exact(t, self.on) for t in self.inputs.given.values() if t.dtype.is_floating_point and t.numel()]
            found = (float(t.abs().nan_to_num(0.0, 0.0).max()) for t in floats)
            self.largest = min(max([_USUAL, *found]), _MOST)

    @property
    def contract(self) -> Contract:
        """The op's contract, without open choices."""
        return self.inputs.contract

    @property
    def permitted(self) -> frozenset[str]:
        """The arguments that backward may write over in this case."""
        given = self.inputs.parameters
        return frozenset(p.permission for p in self.contract.parameters if p.permission and given[p.name])

    @property
    def longest_row(self) -> int:
        """The largest last dimension of an argument; of attention also the keys, which no result has, being summed."""
        rows = [tensor.shape[-1] for tensor in self.inputs.given.values() if tensor.dim()]
        if self.contract.tolerance.rule == "plain":
            results = self.inputs.contract.outputs
            kept = {size for result in results for shape in alternatives(result.shape) for size in shape}
            rows += [size for name, size in self.inputs.dims.items() if name not in kept]
        return max(rows, default=0)

    def of(self, kernel: Kernel, venue: Venue) -> Trial:
        """Another kernel's trial of the same inputs, about which the truth is known already."""
        other = copy.copy(self)
        other.kernel, other.venue = kernel, venue
        other.disturbed, other.aliased, other.launchers, other.right = {}, {}, {}, {}
        return other

    # --- calling ---------------------------------------------------------------------------------------------------

    def serves(
        self, tensors: Tensors, phase: Phase = Phase.INFERENCE, *, requires: frozenset[str] = frozenset()
    ) -> bool:
        """Whether the kernel claims this call."""
        saved_by = self.kernel.name if self.kernel.saves == "own" and phase is Phase.BACKWARD else None
        request = self.caller.arguments.request(
            tensors, self.inputs.values, phase, requires=requires, saved_by=saved_by
        )
        return not refusals(self.caller.dispatcher, self.kernel, self.venue, request)

    def call(
        self,
        phase: Phase,
        tensors: Tensors,
        *more: Any,
        given: Mapping[str, Tensor | None] | None = None,
        written: Sequence[Tensor] = (),
        label: str = "",
    ) -> tuple[Any, ...]:
        """The kernel's results for the arguments ``tensors``, or for ``given``, by name, in their place.

        ``more`` comes behind the parameters. Checks that nothing but ``written`` has changed.
        """
        launch = self.launchers.get(phase)
        if launch is None:
            request = self.caller.arguments.request(tensors, self.inputs.values, phase)
            launch = launcher(self.caller.contract, self.kernel, request, self.caller.dispatcher)
            self.launchers[phase] = launch
        passed = dict(zip(self.contract.names, tensors, strict=True)) if given is None else dict(given)
        named = {name: tensor for name, tensor in passed.items() if tensor is not None}
        for place, tensor in enumerate(written):
            if all(other is not tensor for other in named.values()):
                named["out" if len(written) == 1 else f"out {place}"] = tensor
        footprints = {name: footprint(tensor) for name, tensor in named.items()}
        with self.venue.enter(), torch.no_grad():
            found = launch(*passed.values(), *self.inputs.values, *more)
        synchronise(torch.device(self.venue.torch_device))
        for name, tensor in named.items():
            if all(other is not tensor for other in written):
                if not torch.equal(footprint(tensor), footprints[name]):
                    self.disturbed[f"{label or phase} changed {name} or memory around it"] = None
            elif changed_around(tensor, footprints[name]):
                self.disturbed[f"{label or phase} wrote beside {name}"] = None
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def some(self, ways: Sequence[Way], count: int = 1) -> list[Way]:
        """All of the ways to call; of a drawn request so many: other requests take the others.

        Of an emulated one too, whose calls take a thousand times as long as hardware's.
        """
        if not self.is_drawn and self.venue.emulator is None:
            return list(ways)
        inputs = self.inputs
        chance = random.Random(f"{inputs.dims} {inputs.leading} {sorted(inputs.parameters.items(), key=str)}")
        return chance.sample(list(ways), min(count, len(ways)))

    # --- comparing -------------------------------------------------------------------------------------------------

    def compare_results(self, found: Sequence[Any], *, saved: bool = False) -> list[str]:
        """What is wrong with the outputs, or with the saved tensors, in form or in numbers."""
        specs = self.contract.saved if saved else self.inputs.results
        truth = self.truth.saved if saved else self.truth.outputs
        if len(found) != len(specs):
            return [f"returned {len(found)} tensors; {', '.join(spec.name for spec in specs) or 'none'} are wanted"]
        problems, tolerance = [], self.contract.tolerance
        times = growth(self.longest_row) if self.is_drawn else 1.0
        allowed = grown(tolerance.saved if saved else tolerance.forward, times)
        for tensor, spec in zip(found, specs, strict=True):
            if self._is_right(tensor, spec):
                continue
            want = self._where_specified(tensor, self._allowing_nan(tensor, truth[spec.name], spec.name), spec.name)
            magnitude, plain = self.truth.magnitudes.get(spec.name), self.truth.plain.get(spec.name)
            slack = self.truth.slack.get(spec.name)
            if not saved and tolerance.flushed == "all":
                terms, size = (self.longest_row, None) if tolerance.rule == "plain" else (1, want.abs())
                slack = self.with_flushed(slack, terms, size if magnitude is None else magnitude)
            form = self.inputs.form(spec)
            signed = tolerance.signed_zeros and not saved
            wrong = self.compare(
                tensor, spec.name, *form, want, allowed, magnitude, plain, slack=slack, signed_zeros=signed
            )
            problems += wrong
            if not wrong and tensor.dtype.itemsize > 1:  # not every operator knows those of a byte and less
                self.right[spec.name] = tensor.detach().clone()
        return problems

    def with_flushed(self, slack: Tensor | None, terms: float, size: Tensor | None) -> Tensor:
        """``slack``, and what sums of so many terms, whose absolute values come to ``size``, lose of subnormal ones.

        Each may be subnormal in float32, or be multiplied by an argument after it was: by one within reason, so that
        large arguments leave something to tell.
        """
        lost = torch.tensor(terms * self.largest * torch.finfo(torch.float32).tiny).double()
        lost = lost if size is None else torch.fmin(lost, size)
        return with_lost(slack, lost)

    def _is_right(self, found: Any, spec: TensorResult) -> bool:
        """Whether a result has the bits of one that was right, as most of a trial's calls give."""
        known = self.right.get(spec.name)
        if known is None or not isinstance(found, Tensor) or self.form(found, spec.name, *self.inputs.form(spec)):
            return False
        return same_bits(found, known)

    def _where_specified(self, found: Any, want: Tensor, name: str) -> Tensor:
        """``want``, with what the kernel gives where the contract says nothing, or lets a sum overflow."""
        free, overflowing = self.truth.free.get(name), self.truth.overflowing.get(name)
        if (free is None and overflowing is None) or not isinstance(found, Tensor) or found.shape != want.shape:
            return want
        given = exact(found)
        if overflowing is not None:
            want = torch.where(overflowing.reshape(want.shape) & ~given.isfinite(), given, want)
        return want if free is None else torch.where(free.reshape(want.shape), given, want)

    def _allowing_nan(self, found: Any, want: Tensor, name: str) -> Tensor:
        """``want``, with NaN where the kernel gives it and the contract lets a row of an infinity be NaN.

        The infinity may be an argument's or another output's.
        """
        if self.contract.infinite_rows == "exact" or not isinstance(found, Tensor):
            return want
        pairs = zip(self.inputs.tensors, self.contract.tensors, strict=True)
        rows = [t.isinf().any(-1).cpu() for t, a in pairs if t is not None and a.leading and len(a.fixed) == 1]
        numbers = exact(found)
        if not rows or numbers.shape != want.shape:
            return want
        others = [output for other, output in self.truth.outputs.items() if other != name]
        rows += [output.isinf().any(-1) for output in others if output.shape[:-1] == rows[0].shape]
        infinite = torch.stack(rows).any(0)
        infinite = infinite.reshape(want.shape) if infinite.numel() == want.numel() else infinite.unsqueeze(-1)
        return torch.where(infinite & numbers.isnan(), math.nan, want)

    def compare(
        self,
        found: Any,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        want: Tensor,
        tolerance: Mapping[str, float],
        magnitude: Tensor | None = None,
        plain: Tensor | None = None,
        *,
        cancelling: float | Tensor | None = None,
        slack: Tensor | None = None,
        signed_zeros: bool = False,
    ) -> list[str]:
        """What is wrong with one result: in ulp, or where the op's rule says so by the plain formula's distance."""
        outcome = self.compared(
            found,
            name,
            shape,
            dtype,
            want,
            tolerance,
            magnitude,
            plain,
            cancelling=cancelling,
            slack=slack,
            signed_zeros=signed_zeros,
        )
        if isinstance(outcome, Mismatch):
            return [f"{name}: {outcome}"]
        return [outcome] if isinstance(outcome, str) else []

    def compared(
        self,
        found: Any,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        want: Tensor,
        tolerance: Mapping[str, float],
        magnitude: Tensor | None = None,
        plain: Tensor | None = None,
        *,
        cancelling: float | Tensor | None = None,
        slack: Tensor | None = None,
        signed_zeros: bool = False,
    ) -> Comparison | str:
        """How one result compares; a sentence where it has another form, or the contract no tolerance for it."""
        if problem := self.form(found, name, shape, dtype):
            return problem
        kind = dtype_name(dtype)
        got = found.detach().to("cpu")
        if not got.dtype.is_floating_point:
            return compare_integers(got, want)
        allowed = tolerance.get(f"{name}.{kind}", tolerance.get(kind))
        if allowed is None and plain is not None:
            if magnitude is not None:
                slack = with_lost(slack, torch.finfo(torch.float32).eps * magnitude.nan_to_num(0.0, 0.0))
            return compare_rows(got, want, plain, cancelling=cancelling, slack=slack)
        if allowed is None:
            return f"{name} is {kind}, for which the op's contract gives no tolerance"
        allowed += self.venue.allowance_ulp.get(kind, 0.0)
        return compare(got, want, allowed, magnitude, slack=slack, signed_zeros=signed_zeros)

    def form(self, found: Any, name: str, shape: Sequence[int], dtype: torch.dtype) -> str:
        """What is wrong with a result before its numbers are looked at; empty when nothing is."""
        if not isinstance(found, Tensor):
            return f"{name} is {type(found).__name__}, not a tensor"
        wanted = {"shape": tuple(shape), "dtype": dtype, "device": self.inputs.device}
        got = {"shape": tuple(found.shape), "dtype": found.dtype, "device": found.device}
        wrong = [f"{key} {got[key]}, not {value}" for key, value in wanted.items() if got[key] != value]
        return f"{name} has {' and '.join(wrong)}" if wrong else ""

    def own_memory(self, results: Sequence[Any], others: Mapping[str, Tensor], names: Sequence[str]) -> list[str]:
        """What is wrong with where fresh results lie: they are contiguous and share memory with nothing."""
        problems = []
        tensors = [(n, r) for n, r in zip(names, results, strict=False) if isinstance(r, Tensor)]
        for place, (name, tensor) in enumerate(tensors):
            if not tensor.is_contiguous():
                problems.append(f"{name} has strides {tensor.stride()}; fresh results are contiguous")
            neighbours = [*others.items(), *tensors[:place]]
            shared = [other for other, memory in neighbours if shares_memory(tensor, memory)]
            self.aliased |= dict.fromkeys(f"{name} lies in the memory of {other}" for other in shared)
        return problems

    def differing_bits(self, first: Sequence[Any], second: Sequence[Any], names: Sequence[str], when: str) -> list[str]:
        """Which results of two calls are not equal bit by bit, where the contract says what they are."""
        problems = []
        for name, one, other in zip(names, first, second, strict=False):
            a, b = (self._said(tensor, name) for tensor in (one, other))
            if isinstance(a, Tensor) and isinstance(b, Tensor) and not same_bits(a, b):
                count = _differing(exact(a), exact(b)) if a.shape == b.shape else a.numel()
                problems.append(f"{name} differs {when}: in {count} of {a.numel()} elements")
        return problems

    def _said(self, found: Any, name: str) -> Any:
        """A result, zeros where the contract says nothing of it."""
        free = self.truth.free.get(name)
        if free is None or not isinstance(found, Tensor) or found.numel() != free.numel():
            return found
        return found.masked_fill(free.reshape(found.shape).to(found.device), 0)

    def memory_outcomes(self) -> Iterator[Outcome]:
        """What all calls so far did to memory."""
        yield Outcome("purity", "failed" if self.disturbed else "passed", "; ".join(self.disturbed))
        yield Outcome("view", "failed" if self.aliased else "passed", "; ".join(self.aliased))


def synchronise(device: torch.device) -> None:
    """Waits for ``device``, so that an error of a launch belongs to the call that launched it."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def is_lost(torch_device: str) -> bool:
    """Whether the device answers no more: after an error on it nothing that this process says of it counts."""
    try:
        synchronise(torch.device(torch_device))
    except Exception:  # noqa: BLE001 - the plugin border: whatever a kernel left behind
        return True
    return False


def _differing(a: Tensor, b: Tensor) -> int:
    """How many numbers differ; NaN from NaN does not."""
    return int(((a != b) & ~(a.isnan() & b.isnan())).sum())
