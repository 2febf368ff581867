"""The aspects of forward: fresh memory, the caller's memory, over an input, saved tensors, equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from portakernel.conformance.inputs import place_tensor, twin
from portakernel.conformance.trial import Outcome, Trial, attempt
from portakernel.contract import Layout
from portakernel.request import Phase

# How an ``out`` of the caller may lie, by its rank: rows apart, columns apart, rows that no single stride serves.
_OUT_LAYOUTS: tuple[tuple[Layout, ...], ...] = (
    ("contiguous",),
    ("contiguous", "stepped"),
    ("contiguous", "sliced", "transposed"),
    ("contiguous", "sliced", "transposed", "split"),
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
        if self._inplace_arguments():
            yield attempt("inplace", self.over_input)
        if trial.contract.saved and trial.kernel.saves != "none" and trial.serves(trial.inputs.tensors, Phase.TRAINING):
            yield attempt("saved", self.saving)
        if "batch_invariant" in trial.properties:
            yield attempt("batch_invariance", self.rows_alone)

    @property
    def names(self) -> list[str]:
        """The outputs' names."""
        return [output.name for output in self.trial.contract.outputs]

    def run(self, out: Tensor | None = None, label: str = "") -> tuple[Tensor, ...]:
        """The outputs of one call."""
        trial = self.trial
        return trial.call(Phase.INFERENCE, trial.inputs.tensors, out, written=out, label=label or "forward")

    def numbers(self, found: tuple[Tensor, ...]) -> list[str]:
        """What is wrong with the outputs."""
        trial = self.trial
        outputs, tolerance = trial.contract.outputs, trial.contract.tolerance.forward
        return trial.compare_results(found, outputs, trial.truth.outputs, tolerance)

    def fresh(self) -> list[str]:
        """Fresh memory: the right numbers, in contiguous tensors that share memory with nothing.

        Not with the results of an earlier call either: a kernel must not keep one buffer for all.
        """
        first = self.run()
        self.calls = [first]
        problems = self.numbers(first) + self.trial.own_memory(first, self.trial.argument_memory(), self.names)
        second = self.run(label="a second forward")
        self.calls.append(second)
        earlier = {f"an earlier call's {name}": tensor for name, tensor in zip(self.names, first, strict=False)}
        self.trial.own_memory(second, earlier, self.names)
        return problems

    def into_out(self) -> list[str]:
        """The caller's memory: filled with NaN before, wherever it lies; the same tensor comes back."""
        trial, problems = self.trial, list[str]()
        result = trial.contract.outputs[0]
        shape, dtype = trial.inputs.shape(result), str(trial.inputs.dtype(result)).removeprefix("torch.")
        for layout in _OUT_LAYOUTS[min(len(shape), 3)]:
            poison = torch.full(shape, torch.nan, dtype=torch.float64)
            out = place_tensor(poison, shape, layout, dtype, trial.venue.torch_device)
            found = self.run(out, f"forward with {layout} out")
            wrong = self.numbers((out,))
            if found[0] is not out:
                wrong.append("another tensor is returned than the one given as out")
            problems += [f"{layout} out: {text}" for text in wrong]
        return problems

    def _inplace_arguments(self) -> list[str]:
        trial = self.trial
        result = trial.contract.outputs[0]
        if "inplace" not in trial.properties:
            return []
        found = []
        for name in trial.contract.inplace:
            tensor = trial.inputs.tensor(name)
            fits = tuple(tensor.shape) == trial.inputs.shape(result) and tensor.dtype == trial.inputs.dtype(result)
            expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            if fits and not expanded and trial.serves(trial.inputs.tensors, requires=frozenset({"inplace"})):
                found.append(name)
        return found

    def over_input(self) -> list[str]:
        """Over an input: a copy of it that lies in memory alike."""
        trial, problems = self.trial, list[str]()
        for name in self._inplace_arguments():
            original = trial.inputs.tensor(name)
            over = twin(original)
            tensors = [over if tensor is original else tensor for tensor in trial.inputs.tensors]
            label = f"forward over {name}"
            found = trial.call(Phase.INFERENCE, tensors, over, written=over, label=label)
            wrong = self.numbers((over,))
            if found[0] is not over:
                wrong.append("another tensor is returned than the one given as out")
            problems += [f"over {name}: {text}" for text in wrong]
        return problems

    def train(self, label: str = "") -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The outputs and the saved tensors of one call."""
        trial = self.trial
        found = trial.call(Phase.TRAINING, trial.inputs.tensors, label=label or "forward with save")
        count = len(trial.contract.outputs)
        return found[:count], found[count:]

    def saving(self) -> list[str]:
        """With ``save``: the same outputs, and the tensors that the contract names (or the kernel's own)."""
        trial = self.trial
        outputs, saved = self.train()
        problems = self.numbers(outputs)
        names = [*self.names, *(result.name for result in trial.contract.saved)]
        if trial.kernel.saves == "contract":
            tolerance = trial.contract.tolerance.saved
            problems += trial.compare_results(saved, trial.contract.saved, trial.truth.saved, tolerance)
        else:
            names = [*self.names, *(f"saved tensor {place}" for place in range(len(saved)))]
        return problems + trial.own_memory((*outputs, *saved), trial.argument_memory(), names)

    def repeated(self) -> list[str]:
        """Which outputs of two equal calls are not equal bit by bit."""
        if len(self.calls) < 2:
            return []
        return self.trial.differing_bits(self.calls[0], self.calls[1], self.names, "between two equal calls")

    def rows_alone(self) -> list[str]:
        """The first and the last row alone, and the first half of the rows: the bits that they have in the batch."""
        trial, problems = self.trial, list[str]()
        leading = trial.inputs.leading
        rows = trial.inputs.dims.get(next((t.leading for t in trial.contract.tensors if t.leading), ""), 0)
        if rows < 2:
            return []
        batch = self.calls[0]
        picks = {f"row {row} alone": _unravel(row, leading) for row in (0, rows - 1)}
        parts = {name: tuple((at, 1) for at in place) for name, place in picks.items()}
        parts["the first half of the rows"] = ((0, (leading[0] + 1) // 2), *((0, size) for size in leading[1:]))
        for name, part in parts.items():
            tensors = tuple(
                _narrowed(tensor, part) if argument.leading is not None else tensor
                for tensor, argument in zip(trial.inputs.tensors, trial.contract.tensors, strict=True)
            )
            if not trial.serves(tensors):
                continue
            alone = trial.call(Phase.INFERENCE, tensors, None, label=f"forward of {name}")
            wanted = tuple(
                _narrowed(tensor, part) if any(size.startswith("*") for size in output.shape) else tensor
                for tensor, output in zip(batch, trial.contract.outputs, strict=True)
            )
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
