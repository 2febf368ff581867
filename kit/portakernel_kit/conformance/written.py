"""The aspects of an op that writes into its arguments: what it writes, and that it writes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from portakernel.claims.request import Phase
from portakernel.tensors.dense import as_bytes
from portakernel_kit.conformance.forward import Forward
from portakernel_kit.conformance.inputs import Inputs
from portakernel_kit.conformance.memory import same_bits, twin
from portakernel_kit.conformance.outcome import Outcome, attempt
from portakernel_kit.conformance.trial import Trial


def forward_of(trial: Trial) -> Forward | Written:
    """The aspects of forward that the op has."""
    return Written(trial) if trial.contract.mutated else Forward(trial)


def with_twins(trial: Trial) -> tuple[list[Tensor | None], tuple[Tensor, ...]]:
    """The arguments, copies that lie in memory alike standing for those that are written; and these."""
    pairs = list(zip(trial.contract.tensors, trial.inputs.tensors, strict=True))
    tensors = [twin(t) if a.mutated and t is not None else t for a, t in pairs]
    written = (t for (a, _), t in zip(pairs, tensors, strict=True) if a.mutated and t is not None)
    return tensors, tuple(written)


def call_on_twins(trial: Trial, label: str = "") -> tuple[Tensor, ...]:
    """Calls the kernel on them; what it has written."""
    tensors, written = with_twins(trial)
    trial.call(Phase.INFERENCE, tensors, None, written=written, label=label)
    return written


def call_before(trial: Trial, inputs: Inputs) -> list[str]:
    """Calls the kernel on inputs of the same form with other numbers: what it keeps of them, it must not use again."""
    before = trial.of(trial.kernel, trial.venue)
    before.inputs = inputs
    call_on_twins(before, "a call with other numbers")
    return []


@dataclass(slots=True)
class Written:
    """Forward's aspects of one trial."""

    trial: Trial
    calls: list[tuple[Tensor, ...]] = field(default_factory=list[tuple[Tensor, ...]])

    def outcomes(self) -> Iterator[Outcome]:
        """The numbers, then the bits that had to stay."""
        yield attempt("forward", self.fresh)
        if self.calls:
            yield attempt("written", self.untouched)

    @property
    def names(self) -> list[str]:
        """The names of the arguments that are written."""
        return [result.name for result in self.trial.inputs.results]

    def computes(self) -> bool:
        """Whether there is anything to write: not of no tokens, or of none that has a place."""
        return not all(bool(stays.all()) for stays in self.trial.truth.untouched().values())

    def fresh(self) -> list[str]:
        """Two calls, each on copies that lie in memory like the arguments: the right numbers."""
        self.calls = [call_on_twins(self.trial, label) for label in ("forward", "a second forward")]
        return self.trial.compare_results(self.calls[0])

    def untouched(self) -> list[str]:
        """Elements that the op does not write have the bits that they had, NaN's included."""
        problems, kept = [], self.trial.truth.untouched()
        for name, tensor in zip(self.names, self.calls[0], strict=True):
            stays = kept[name].to(tensor.device)
            before = self.trial.inputs.given[name]
            if not same_bits(as_bytes(tensor)[stays], as_bytes(before)[stays]):
                problems.append(f"{name} changed where the op writes nothing")
        return problems

    def repeated(self) -> list[str]:
        """Which arguments two equal calls leave with different bits."""
        return self.trial.differing_bits(self.calls[0], self.calls[1], self.names, "between two equal calls")
