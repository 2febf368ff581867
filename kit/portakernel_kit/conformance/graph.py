"""The aspect of CUDA graphs: a captured call, replayed on other numbers, gives what an eager call gives for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.launcher import launcher
from portakernel.claims.request import Phase
from portakernel.tensors.scratch import like, refill
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.outcome import Outcome, attempt
from portakernel_kit.conformance.trial import Trial

# What a capture returns: the results, whose memory the replay writes, and the replay.
Captured = tuple[tuple[Any, ...], Callable[[], None]]
Capture = Callable[[Callable[[], tuple[Any, ...]], torch.device], Captured]
# So often, that graphs which write to the same memory do so while the other one reads it.
_REPLAYS = 40
# Some milliseconds, in which all replays are queued: without them the first graph is done before the second begins.
_GATE_CYCLES = 20_000_000


@dataclass(slots=True)
class Graph:
    """Capture's aspect of one trial.

    ``fresh`` is a trial of the same case with other numbers, ``source`` draws gradients for it. ``capture`` takes a
    call into a graph. Without ``backward`` the case has no gradient.
    """

    trial: Trial
    fresh: Trial
    source: torch.Generator
    capture: Capture
    backward: bool = True

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome, where the kernel claims the property and the case computes something."""
        trial = self.trial
        if "graph_capture" in trial.properties and any(all(trial.inputs.shape(r)) for r in trial.inputs.results):
            yield attempt("graph", self.replayed)

    def replayed(self) -> list[str]:
        """What is wrong with the replay of forward, and of backward where the kernel has one for this case."""
        problems = [f"forward, {text}" for text in self._forward()]
        if self.backward and self.trial.serves(self.trial.inputs.tensors, Phase.BACKWARD):
            problems += [f"backward, {text}" for text in self._backward()]
        return problems

    def _forward(self) -> list[str]:
        names = [result.name for result in self.trial.inputs.results]
        own = dict(zip(self.trial.contract.names, self.trial.inputs.tensors, strict=True))
        other = dict(zip(self.trial.contract.names, self.fresh.inputs.tensors, strict=True))
        eager, found = self._results(Phase.INFERENCE, own, other, None)
        return self.fresh.compare_results(found) + self._differing(eager, found, names)

    def _backward(self) -> list[str]:
        of_own, of_other = Backward(self.trial, self.source), Backward(self.fresh, self.source)
        own_grads, other_grads = of_own.draw("contiguous"), of_other.draw("contiguous")
        truth = self.fresh.truth.gradients(other_grads)
        needs = tuple(gradient is not None for gradient in truth)
        own = dict(enumerate(own_grads)) | of_own.kept()
        other = dict(enumerate(other_grads)) | of_other.kept()
        eager, found = self._results(Phase.BACKWARD, own, other, needs)
        return of_other.compare(found, needs, truth, {}) + self._differing(eager, found, of_other.names)

    def _results(
        self, phase: Phase, own: Mapping[Any, Tensor | None], other: Mapping[Any, Tensor | None], last: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Results for the ``other`` arguments: eager, and replayed where the graph was captured with ``own``."""
        trial = self.trial
        request = trial.caller.arguments.request(trial.inputs.tensors, trial.inputs.values, phase)
        launch = launcher(trial.caller.contract, trial.kernel, request, trial.caller.dispatcher)

        def run(tensors: Mapping[Any, Tensor | None]) -> tuple[Any, ...]:
            with torch.no_grad():
                found = launch(*tensors.values(), *trial.inputs.values, last)
            if trial.contract.mutated:
                return tuple(tensors[result.name] for result in trial.inputs.results)
            return tuple(found) if isinstance(found, (tuple, list)) else (found,)

        eager = run({name: None if tensor is None else like(tensor) for name, tensor in other.items()})
        static = {name: None if tensor is None else like(tensor) for name, tensor in own.items()}
        results, replay = self.capture(lambda: run(static), trial.inputs.device)
        for name, tensor in static.items():
            if tensor is not None and (fresh := other[name]) is not None:
                refill(tensor, fresh)
        replay()
        return eager, tuple(result.clone() if isinstance(result, Tensor) else result for result in results)

    def _differing(self, eager: Sequence[Any], found: Sequence[Any], names: Sequence[str]) -> list[str]:
        if "deterministic" not in self.trial.properties:
            return []
        return self.trial.differing_bits(eager, found, names, "between the eager call and the replay")


def capture_cuda(run: Callable[[], tuple[Any, ...]], device: torch.device) -> Captured:
    """``run`` captured on a CUDA or HIP device, after one run outside of the capture."""
    results, graph = _graph_of(run, device)

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()
            torch.cuda.synchronize(device)

    return results, replay


def replayed_at_once(
    calls: Sequence[Callable[[], tuple[Any, ...]]], device: torch.device
) -> list[list[tuple[Any, ...]]]:
    """The results of each replay of graphs of these calls, all replayed at once, each on a stream of its own."""
    graphs = [_graph_of(call, device) for call in calls]
    kept = [[_like(results) for _ in range(_REPLAYS)] for results, _ in graphs]
    with torch.cuda.device(device):
        gate, *streams = [new_stream(device) for _ in range(len(calls) + 1)]
        torch.cuda.synchronize(device)
        with torch.cuda.stream(gate):
            torch.cuda._sleep(_GATE_CYCLES)  # type: ignore[no-untyped-call]
            opened = gate.record_event()
        for stream in streams:
            stream.wait_event(opened)
        for number in range(_REPLAYS):
            for (results, graph), stream, copies in zip(graphs, streams, kept, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
                    for copy, result in zip(copies[number], results, strict=True):
                        if copy is not None:
                            refill(copy, result)
        torch.cuda.synchronize(device)
    return kept


def _like(results: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(torch.empty_like(result) if isinstance(result, Tensor) else None for result in results)


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of the device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's constructors are not typed


def _graph_of(run: Callable[[], tuple[Any, ...]], device: torch.device) -> tuple[tuple[Any, ...], torch.cuda.CUDAGraph]:
    with torch.cuda.device(device):
        side = new_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            # sums over nothing, say: there is nothing to launch, and nothing wrong with that
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            # on a stream of its own: cuBLAS keeps a workspace for each, which graphs replayed at once may not share
            with torch.cuda.graph(graph, stream=side):
                results = run()
    return results, graph
