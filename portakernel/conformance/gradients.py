"""The aspect of backward: gradients for every set of arguments that may need one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from portakernel.conformance.forward import Forward
from portakernel.conformance.inputs import draw_values, place_tensor
from portakernel.conformance.trial import Outcome, Trial, attempt
from portakernel.conformance.truth import Gradient
from portakernel.contract import Layout
from portakernel.request import Phase


@dataclass(slots=True)
class Backward:
    """Backward's aspects of one trial; ``source`` draws the outputs' gradients."""

    trial: Trial
    source: torch.Generator
    calls: list[tuple[Tensor | None, ...]] = field(default_factory=list[tuple[Tensor | None, ...]])

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome, when the kernel claims a backward for this case."""
        if self.trial.serves(self.trial.inputs.tensors, Phase.BACKWARD):
            yield attempt("backward", self.gradients)

    @property
    def names(self) -> list[str]:
        """The gradients' names."""
        return [f"gradient of {name}" for name in self.trial.inputs.names]

    def saved(self) -> tuple[Tensor, ...]:
        """What backward is given: the contract's tensors, rounded once, or what the kernel's own forward saves."""
        trial = self.trial
        if trial.kernel.saves == "own":
            return Forward(trial).train()[1]
        return trial.truth.rounded_saved(trial.inputs.tensors[0].device)

    def draw(self, layout: Layout) -> tuple[Tensor, ...]:
        """Gradients of the outputs; ``expanded`` ones are one number seen everywhere, as from ``sum().backward()``."""
        trial, found = self.trial, []
        for output in trial.contract.outputs:
            shape, dtype = trial.inputs.shape(output), str(trial.inputs.dtype(output)).removeprefix("torch.")
            stored = () if layout == "expanded" else shape
            values = draw_values(stored, "normal", dtype, self.source)
            if layout == "expanded":
                found.append(place_tensor(values, (), "contiguous", dtype, trial.venue.torch_device).expand(shape))
            else:
                found.append(place_tensor(values, shape, layout, dtype, trial.venue.torch_device))
        return tuple(found)

    def run(
        self, grads: Sequence[Tensor], saved: Sequence[Tensor], needs: tuple[bool, ...], label: str = "backward"
    ) -> tuple[Tensor | None, ...]:
        """The gradients of one call."""
        trial = self.trial
        return trial.call(Phase.BACKWARD, trial.inputs.tensors, needs, before=grads, after=saved, label=label)

    def gradients(self) -> list[str]:
        """Every gradient in every combination of needs, and all of them for gradients that lie elsewhere."""
        trial, problems = self.trial, list[str]()
        saved = self.saved()
        count = len(trial.inputs.tensors)
        everything = (True,) * count
        combinations = [needs for needs in itertools.product((True, False), repeat=count) if any(needs)]
        rank = min(len(trial.inputs.shape(output)) for output in trial.contract.outputs)
        layouts: dict[Layout, list[tuple[bool, ...]]] = {"contiguous": combinations, "expanded": [everything]}
        if rank >= 1:
            layouts["transposed" if rank >= 2 else "stepped"] = [everything]
        for layout, asked in layouts.items():
            grads = self.draw(layout)
            truth = trial.truth.gradients(grads)
            memory = {**trial.argument_memory(), **_numbered("grad", grads), **_numbered("saved tensor", saved)}
            for needs in asked:
                found = self.run(grads, saved, needs)
                wrong = self.compare(found, needs, truth, memory)
                problems += [f"{layout} gradient, needs {_shown(needs)}: {text}" for text in wrong]
                if not self.calls:
                    self._again(found, grads, saved, needs)
        return problems

    def compare(
        self,
        found: Sequence[Tensor | None],
        needs: Sequence[bool],
        truth: Sequence[Gradient],
        memory: Mapping[str, Tensor],
    ) -> list[str]:
        """What is wrong with one call's gradients."""
        trial, problems = self.trial, list[str]()
        if len(found) != len(needs):
            return [f"returned {len(found)} gradients for {len(needs)} tensor arguments"]
        arguments = zip(self.names, found, needs, truth, trial.inputs.tensors, strict=True)
        for name, gradient, needed, want, tensor in arguments:
            if not needed:
                problems += [] if gradient is None else [f"{name} was not asked for, and is not None"]
                continue
            tolerance = trial.contract.tolerance.backward
            problems += trial.compare(gradient, name, tensor.shape, tensor.dtype, want.value, tolerance, want.magnitude)
        return problems + trial.own_memory(found, memory, self.names)

    def _again(
        self,
        first: tuple[Tensor | None, ...],
        grads: Sequence[Tensor],
        saved: Sequence[Tensor],
        needs: tuple[bool, ...],
    ) -> None:
        """A second call, whose gradients lie in memory of their own; the bits are compared later."""
        second = self.run(grads, saved, needs, "a second backward")
        named = zip(self.names, first, strict=False)
        earlier = {f"an earlier call's {name}": memory for name, memory in named if isinstance(memory, Tensor)}
        self.trial.own_memory(second, earlier, self.names)
        self.calls = [first, second]

    def repeated(self) -> list[str]:
        """Which gradients of two equal calls are not equal bit by bit."""
        if len(self.calls) < 2:
            return []
        return self.trial.differing_bits(self.calls[0], self.calls[1], self.names, "between two equal calls")


def _numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name} {place}": tensor for place, tensor in enumerate(tensors)}


def _shown(needs: Sequence[bool]) -> str:
    return "".join("1" if needed else "0" for needed in needs)
