"""The aspects of forward: fresh memory, the caller's memory, over an input, saved tensors, equal bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel.claims.request import Phase
from portakernel.contract import Result as TensorResult
from portakernel.contract.case import Layout
from portakernel_kit.conformance.memory import place_tensor, twin
from portakernel_kit.conformance.outcome import Outcome, attempt
from portakernel_kit.conformance.trial import Trial

# What memory for integers holds before they are written: nothing that an op gives.
_POISON = -(1 << 24) + 1
# How an ``out`` of the caller may lie, by its rank: at an odd address, rows apart, columns apart, rows that no single
# stride serves.
_OUT_LAYOUTS: tuple[tuple[Layout, ...], ...] = (
    ("contiguous", "offset"),
    ("contiguous", "offset", "stepped"),
    ("contiguous", "offset", "sliced", "transposed"),
    ("contiguous", "offset", "sliced", "transposed", "split"),
)


@dataclass(slots=True)
class Forward:
    """Forward's aspects of one trial."""

    trial: Trial
    calls: list[tuple[Tensor, ...]] = field(default_factory=list[tuple[Tensor, ...]])

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome for each aspect that the kernel claims."""
        trial = self.trial
        first = attempt("forward", self.fresh)
        yield first
        if not self.calls:
            return  # it cannot run at all
        yield attempt("out", self.into_out)
        if self._overwritable():
            yield attempt("inplace", self.over_input)
        if (
            trial.contract.saved
            and trial.kernel.saves in ("contract", "own")
            and trial.serves(trial.inputs.tensors, Phase.TRAINING)
        ):
            yield attempt("saved", self.saving)
        if "batch_invariant" in trial.properties and trial.inputs.rows_lie_apart:
            yield attempt("batch_invariance", self.rows_alone)

    @property
    def names(self) -> list[str]:
        """The outputs' names."""
        return [output.name for output in self.trial.contract.outputs]

    def computes(self) -> bool:
        """Whether there is anything to compute: a result with elements, of arguments that all have some.

        Of an empty one sums are 0 and rows are none: what is left is to fill memory, which a kernel may leave to torch.
        """
        if any(tensor.numel() == 0 for tensor in self.trial.inputs.given.values()):
            return False
        results: list[Any] = [result for call in self.calls for result in call]  # a kernel may return anything
        return any(isinstance(result, Tensor) and result.numel() > 0 for result in results)

    def run(self, outs: Sequence[Tensor] | None = None, label: str = "") -> tuple[Tensor, ...]:
        """The outputs of one call; into ``outs`` where given."""
        trial = self.trial
        out = None if outs is None else outs[0] if len(outs) == 1 else tuple(outs)
        return trial.call(Phase.INFERENCE, trial.inputs.tensors, out, written=outs or (), label=label or "forward")

    def fresh(self) -> list[str]:
        """Fresh memory: the right numbers, in contiguous tensors that share memory with nothing.

        Not with the results of an earlier call either: a kernel must not keep one buffer for all.
        """
        first = self.run()
        self.calls = [first]
        problems = self.trial.compare_results(first)
        problems += self.trial.own_memory(first, self.trial.inputs.given, self.names)
        second = self.run(label="a second forward")
        self.calls.append(second)
        earlier = {f"an earlier call's {name}": tensor for name, tensor in zip(self.names, first, strict=False)}
        self.trial.own_memory(second, earlier, self.names)
        return problems

    def _out(self, layout: Layout, result: TensorResult) -> Tensor:
        """Memory for one result, filled with NaN; laid out as near to ``layout`` as its rank allows."""
        shape, dtype = self.trial.inputs.form(result)
        name, device = dtype_name(dtype), self.trial.venue.torch_device
        layout = layout if layout in _OUT_LAYOUTS[min(len(shape), 3)] else "contiguous"
        poison = torch.full(shape, torch.nan if dtype.is_floating_point else _POISON, dtype=torch.float64)
        if dtype.itemsize == 1:
            poison = torch.full(shape, 0x7F, dtype=torch.uint8)
        return place_tensor(poison, shape, layout, name, device)

    def _written(self, outs: Sequence[Tensor], found: Sequence[Any]) -> list[str]:
        """What is wrong with results in memory of the caller."""
        wrong = self.trial.compare_results(outs)
        if any(tensor is not out for tensor, out in zip(found, outs, strict=False)):
            wrong.append("another tensor is returned than the one given as out")
        return wrong

    def into_out(self) -> list[str]:
        """The caller's memory: filled with NaN before, wherever it lies; the same tensors come back."""
        trial, problems = self.trial, list[str]()
        results = trial.contract.outputs
        rank = max(len(trial.inputs.shape(result)) for result in results)
        # the layout of the first result, and that of the others: the first may lie as nothing else of the call does
        layouts = _OUT_LAYOUTS[min(rank, 3)]
        ways = list(zip(layouts, layouts, strict=True))
        if len(results) > 1:
            ways += zip(layouts[1:], layouts[:1] * len(layouts), strict=False)
        for first, rest in trial.some(ways):
            outs = [self._out(rest if place else first, result) for place, result in enumerate(results)]
            told = first if first == rest else f"{first} and {rest}"
            found = self.run(outs, f"forward with {told} out")
            problems += [f"{told} out: {text}" for text in self._written(outs, found)]
        return problems

    def _overwritable(self) -> list[dict[str, int]]:
        """Which arguments may be overwritten in one call, each with the place of the result that does."""
        trial = self.trial
        results, allowed = trial.contract.outputs, trial.contract.inplace
        if "inplace" not in trial.properties:
            return []
        places = {name: 0 if len(results) == 1 else place for place, name in enumerate(allowed)}
        fitting: dict[str, int] = {}
        for name, place in places.items():
            tensor = trial.inputs.given.get(name)
            if tensor is None or (tuple(tensor.shape), tensor.dtype) != trial.inputs.form(results[place]):
                continue
            expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            if not expanded and trial.serves(trial.inputs.tensors, requires=frozenset({"inplace"})):
                fitting[name] = place
        if len(results) == 1:
            return [{name: place} for name, place in fitting.items()]
        return [{name: place} for name, place in fitting.items()] + ([fitting] if len(fitting) > 1 else [])

    def over_input(self) -> list[str]:
        """Over inputs: copies of them that lie in memory alike."""
        trial, problems = self.trial, list[str]()
        for over in trial.some(self._overwritable()):
            twins = {name: twin(trial.inputs.given[name]) for name in over}
            pairs = zip(trial.contract.names, trial.inputs.tensors, strict=True)
            tensors = [twins.get(name, tensor) for name, tensor in pairs]
            outs = [self._out("contiguous", result) for result in trial.contract.outputs]
            for name, place in over.items():
                outs[place] = twins[name]
            shown = " and ".join(over)
            out = outs[0] if len(outs) == 1 else tuple(outs)
            found = trial.call(Phase.INFERENCE, tensors, out, written=outs, label=f"forward over {shown}")
            problems += [f"over {shown}: {text}" for text in self._written(outs, found)]
        return problems

    def train(self, label: str = "") -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The outputs and the saved tensors of one call."""
        trial = self.trial
        found = trial.call(Phase.TRAINING, trial.inputs.tensors, label=label or "forward with save")
        count = len(trial.contract.outputs)
        return found[:count], found[count:]

    def saving(self) -> list[str]:
        """With ``save``: the same outputs, and the tensors that the contract names (or the kernel's own).

        What the contract names lies in memory of its own: a second forward may come before the first one's backward.
        """
        trial = self.trial
        outputs, saved = self.train()
        problems = trial.compare_results(outputs)
        names = [*self.names, *(result.name for result in trial.contract.saved)]
        if trial.kernel.saves == "contract":
            problems += trial.compare_results(saved, saved=True)
            again = [tensor for part in self.train("a second forward with save") for tensor in part]
            earlier = {f"an earlier call's {name}": t for name, t in zip(names, (*outputs, *saved), strict=False)}
            trial.own_memory(again, earlier, names)
        else:
            names = [*self.names, *(f"saved tensor {place}" for place in range(len(saved)))]
        return problems + trial.own_memory((*outputs, *saved), trial.inputs.given, names)

    def repeated(self) -> list[str]:
        """Which outputs of two equal calls are not equal bit by bit."""
        if len(self.calls) < 2:
            return []
        return self.trial.differing_bits(self.calls[0], self.calls[1], self.names, "between two equal calls")

    def rows_alone(self) -> list[str]:
        """The first and the last row alone, and the first half of the rows: the bits that they have in the batch."""
        trial, problems = self.trial, list[str]()
        leading, rows = trial.inputs.leading, math.prod(trial.inputs.leading)
        batch = self.calls[0]
        picks = {f"row {row} alone": _unravel(row, leading) for row in (0, rows - 1)}
        parts = {name: tuple((at, 1) for at in place) for name, place in picks.items()}
        parts["the first half of the rows"] = ((0, (leading[0] + 1) // 2), *((0, size) for size in leading[1:]))
        for name, part in parts.items():
            tensors = tuple(
                _narrowed(tensor, part) if argument.leading is not None and tensor is not None else tensor
                for tensor, argument in zip(trial.inputs.tensors, trial.contract.tensors, strict=True)
            )
            if not trial.serves(tensors):
                continue
            alone = trial.call(Phase.INFERENCE, tensors, None, label=f"forward of {name}")
            wanted = tuple(_narrowed(tensor, part) for tensor in batch)
            problems += trial.differing_bits(alone, wanted, self.names, f"from the batch in {name}")
        return problems


def _narrowed(tensor: Tensor, part: tuple[tuple[int, int], ...]) -> Tensor:
    for dim, (start, length) in enumerate(part):
        tensor = tensor.narrow(dim, start, length)
    return tensor


def _unravel(row: int, leading: tuple[int, ...]) -> tuple[int, ...]:
    place = []
    for size in reversed(leading):
        place.append(row % size)
        row //= size
    return tuple(reversed(place))
