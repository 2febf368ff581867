"""The aspect of backward: gradients for every set of arguments that may need one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel.claims.request import Phase
from portakernel.contract.case import Layout
from portakernel_kit.conformance.allowances import FARTHEST, LONG_ROW
from portakernel_kit.conformance.comparison import ulp_at, with_lost
from portakernel_kit.conformance.forward import Forward
from portakernel_kit.conformance.inputs import draw_values
from portakernel_kit.conformance.memory import place_tensor, twin
from portakernel_kit.conformance.outcome import Outcome, attempt
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.truth import Gradient

# Equal terms are the worst to add up one by one: of drawn requests so many are within the tolerances of ops' own cases.
_MOST_EQUAL_TERMS = 128
# And so many of terms that are each rounded alike: n/2 units at most (0.27 n were seen of one row that 9864 share).
_MOST_ROUNDED_ALIKE = 64


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
        return [f"gradient of {name}" for name in self.trial.contract.names]

    def kept(self) -> dict[str, Tensor | None]:
        """What backward is given beside the gradients: the contract's tensors, rounded once.

        Of a kernel that saves in its own way, what its forward returned.
        """
        trial, whole = self.trial, self.trial.caller.contract
        names = [*whole.backward_inputs, *(saved.name for saved in whole.saved)]
        kept = dict(zip(names, trial.truth.kept(trial.inputs.device), strict=True))
        if trial.kernel.saves == "own":
            outputs, saved = Forward(trial).train()
            kept |= dict(zip((output.name for output in trial.contract.outputs), outputs, strict=True))
            kept |= dict(zip(names[len(whole.backward_inputs) :], saved, strict=True))
            kept = {name: kept[name] for name in names}
        return kept

    def draw(self, layout: Layout) -> tuple[Tensor, ...]:
        """Gradients of the outputs; ``expanded`` ones are one number seen everywhere, as from ``sum().backward()``."""
        trial, found = self.trial, []
        for output in trial.contract.outputs:
            if not output.differentiable:
                continue
            shape, dtype = trial.inputs.shape(output), dtype_name(trial.inputs.dtype(output))
            values = draw_values(() if layout == "expanded" else shape, "normal", dtype, self.source)
            place = trial.venue.torch_device
            if layout == "expanded":
                found.append(place_tensor(values, (), "contiguous", dtype, place).expand(shape))
            else:
                fitting = layout if len(shape) >= (2 if layout == "transposed" else 1) else "contiguous"
                found.append(place_tensor(values, shape, fitting, dtype, place))
        return tuple(found)

    def run(
        self,
        grads: Sequence[Tensor | None],
        kept: Mapping[str, Tensor | None],
        needs: tuple[bool, ...],
        label: str = "backward",
    ) -> tuple[Tensor | None, ...]:
        """The gradients of one call; what it may write over is a copy that lies in memory alike."""
        trial = self.trial
        names = [f"grad_{output.name}" for output in trial.contract.outputs if output.differentiable]
        over = {name: twin(kept_one) for name in trial.permitted if (kept_one := kept.get(name)) is not None}
        given = dict(zip(names, grads, strict=True)) | dict(kept) | over
        written = tuple(over.values())
        return trial.call(Phase.BACKWARD, trial.inputs.tensors, needs, given=given, written=written, label=label)

    def gradients(self) -> list[str]:
        """Every gradient in the combinations of needs; all of them where an output's lies elsewhere or is absent."""
        trial, problems = self.trial, list[str]()
        kept = self.kept()
        grads = self.draw("contiguous")
        truth = trial.truth.gradients(grads)
        everything = tuple(gradient is not None for gradient in truth)
        needed = [place for place, needs in enumerate(everything) if needs]
        rank = min(len(trial.inputs.shape(output)) for output in trial.contract.outputs if output.differentiable)
        others: list[Layout] = ["expanded"]
        if trial.is_drawn and (self._terms(everything) > _MOST_EQUAL_TERMS or trial.longest_row > LONG_ROW):
            others = []
        if rank >= 1:
            others.append("transposed" if rank >= 2 else "stepped")
        fewer = [needs for needs in _combinations(needed, len(everything)) if needs != everything]
        layouts: dict[Layout, list[tuple[bool, ...]]] = {"contiguous": [everything, *trial.some(fewer)]}
        layouts |= {layout: [everything] for layout in trial.some(others)}
        for layout, asked in layouts.items():
            given = grads if layout == "contiguous" else self.draw(layout)
            want = truth if given is grads else trial.truth.gradients(given)
            problems += [f"{layout} gradient, {text}" for text in self._held(given, kept, asked, want)]
        for place in trial.some(range(len(grads) if len(grads) > 1 else 0)):
            alone = [grad if i == place else None for i, grad in enumerate(grads)]
            want = trial.truth.gradients(alone)
            texts = self._held(alone, kept, [everything], want)
            problems += [f"gradient of output {place} alone, {text}" for text in texts]
        return problems

    def _terms(self, everything: Sequence[bool]) -> float:
        """About how many numbers of the outputs' gradients are added up for one of an argument's."""
        inputs = self.trial.inputs
        found = max(math.prod(inputs.shape(o)) for o in self.trial.contract.outputs if o.differentiable)
        pairs = zip(inputs.tensors, everything, strict=True)
        least = min((t.numel() for t, needs in pairs if needs and t is not None), default=1)
        # where indices say which, it may be all of them
        named = max((t.numel() for t in inputs.given.values() if not t.dtype.is_floating_point), default=0)
        return max(math.prod(inputs.leading), named, found / max(least, 1))

    def _held(
        self,
        grads: Sequence[Tensor | None],
        kept: Mapping[str, Tensor | None],
        asked: Sequence[tuple[bool, ...]],
        truth: Sequence[Gradient | None],
    ) -> list[str]:
        """What is wrong with the gradients in each of these combinations of needs."""
        trial, problems = self.trial, list[str]()
        memory = trial.inputs.given | {name: tensor for name, tensor in kept.items() if tensor is not None}
        memory |= {f"grad {place}": grad for place, grad in enumerate(grads) if grad is not None}
        for needs in asked:
            found = self.run(grads, kept, needs)
            shown = "".join("1" if needed else "0" for needed in needs)
            problems += [f"needs {shown}: {text}" for text in self.compare(found, needs, truth, memory)]
            if not self.calls:
                self._again(found, grads, kept, needs)
        return problems

    def compare(
        self,
        found: Sequence[Tensor | None],
        needs: Sequence[bool],
        truth: Sequence[Gradient | None],
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
            elif tensor is not None and want is not None:
                problems += self.hold(gradient, name, tensor, want)
        return problems + trial.own_memory(found, memory, self.names)

    def hold(self, gradient: Any, name: str, tensor: Tensor, want: Gradient) -> list[str]:
        """What is wrong with one gradient."""
        growth, given = self._growth(tensor), self.trial.contract.tolerance.backward
        tolerance = {kind: ulp * growth if kind.endswith("float32") else ulp for kind, ulp in given.items()}
        # what float32 loses, before the sum is rounded to less
        slack = want.slack
        if self.trial.contract.tolerance.flushed != "nothing":
            sizes = (size for t in self.trial.inputs.given.values() for size in t.shape)
            slack = self.trial.with_flushed(slack, max([self._summed(tensor), *sizes]), want.magnitude)
        wide = tensor.dtype is torch.float32 or "float32" not in tolerance
        if want.magnitude is not None and growth > 1 and not wide:
            slack = with_lost(slack, tolerance["float32"] * ulp_at(want.magnitude, torch.float32))
        return self.trial.compare(
            gradient,
            name,
            tensor.shape,
            tensor.dtype,
            want.value,
            tolerance,
            want.magnitude,
            want.plain,
            cancelling=want.cancelling,
            slack=slack,
        )

    def _growth(self, tensor: Tensor) -> float:
        """How many times the contract's tolerance a float32 gradient of a drawn request may be off.

        Of terms of one sign, added one by one, the error grows like the root of their number: Higham 2002, Accuracy and
        Stability of Numerical Algorithms, 4.2. Equal terms (a bag's gradient is one for each of its indices) are each
        rounded alike: the error grows like their number.
        """
        if not self.trial.is_drawn:
            return 1.0
        summed = self._summed(tensor)
        bags = any(argument.draw.kind == "offsets" for argument in self.trial.contract.tensors)
        return max(FARTHEST, math.sqrt(summed / _MOST_EQUAL_TERMS), summed / _MOST_ROUNDED_ALIKE if bags else 0.0)

    def _summed(self, tensor: Tensor) -> float:
        """How many terms at most an argument's gradient is the sum of."""
        terms = self._terms([gradient is not None for gradient in self.trial.inputs.tensors])
        pairs = zip(self.trial.contract.tensors, self.trial.inputs.tensors, strict=True)
        rows = tensor.dim() > 1 or any(argument.leading for argument, given in pairs if given is tensor)
        if rows:  # each element may depend on all others of its row
            inputs = self.trial.inputs
            results = [inputs.shape(output) for output in self.trial.contract.outputs]
            terms = max(terms, *(shape[-1] for shape in results if shape), 1)
            if all(shape == inputs.leading for shape in results):  # one number of a row: all that it is computed from
                terms = max(terms, *inputs.dims.values())
        return terms

    def _again(
        self,
        first: tuple[Tensor | None, ...],
        grads: Sequence[Tensor | None],
        kept: Mapping[str, Tensor | None],
        needs: tuple[bool, ...],
    ) -> None:
        """A second call, whose gradients lie in memory of their own; the bits are compared later."""
        second = self.run(grads, kept, needs, "a second backward")
        named = zip(self.names, first, strict=False)
        earlier = {f"an earlier call's {name}": memory for name, memory in named if isinstance(memory, Tensor)}
        self.trial.own_memory(second, earlier, self.names)
        self.calls = [first, second]

    def repeated(self) -> list[str]:
        """Which gradients of two equal calls are not equal bit by bit."""
        if len(self.calls) < 2:
            return []
        return self.trial.differing_bits(self.calls[0], self.calls[1], self.names, "between two equal calls")


def _combinations(needed: Sequence[int], count: int) -> list[tuple[bool, ...]]:
    """Which gradients are asked for: every combination of up to three arguments, of more all, and each alone."""
    if len(needed) <= 3:
        picks = [set(p) for n in range(len(needed), 0, -1) for p in itertools.combinations(needed, n)]
    else:
        picks = [set(needed), *({place} for place in needed)]
    return [tuple(place in picked for place in range(count)) for picked in picks]
