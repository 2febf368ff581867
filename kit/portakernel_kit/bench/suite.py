"""The run: for each request its operands, what is expected, who competes, and the times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from portakernel.calling.arguments import Arguments
from portakernel.claims.request import Phase
from portakernel.contract import Contract, Cost, GridRow
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.runtime import dispatcher
from portakernel_kit.bench.contenders import (
    Field,
    Filter,
    backward_field,
    build_waiting,
    contender,
    described_error,
    forward_field,
    prepare_backward,
)
from portakernel_kit.bench.measurement import Expected, measure, results_of
from portakernel_kit.bench.operands import Operands, draw, memory_bytes
from portakernel_kit.bench.question import Question, has_backward_kernels
from portakernel_kit.bench.results import Cell, LeftOut, Measured
from portakernel_kit.bench.steps import step_times
from portakernel_kit.bench.stopwatch import Stopwatch, stopwatch
from portakernel_kit.bench.traffic import FaultyOp, backward_cost, forward_cost, is_compute_bound

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: requests, and phases of each; ``chosen_sizes`` where somebody asked for exactly these.

    ``drawn`` where nobody chose the ops of each: of one without backward kernels, and of what is not trained, forward
    is all that is meant.
    """

    questions: tuple[Question, ...]
    forward: bool = True
    backward: bool = False
    chosen_sizes: bool = False
    drawn: bool = False

    def phases(self, op: Contract, row: GridRow) -> tuple[Phase, ...]:
        """The phases of a ``row`` of ``op``; backward only of ops that have kernels for it."""
        has_backward = self.backward and has_backward_kernels(op) and (row.trained or not self.drawn)
        return (*((Phase.INFERENCE,) if self.forward else ()), *((Phase.BACKWARD,) if has_backward else ()))

    def cells(self) -> int:
        """How many pairs of a request and a phase there are, those that are left out included."""
        if self.drawn:
            return sum(len(self.phases(contract(question.op), question.row)) for question in self.questions)
        return (self.forward + self.backward) * len(self.questions)


@dataclass(slots=True)
class Suite:
    """Measures requests on one device with the kernels of one dispatcher."""

    dispatcher: Dispatcher
    device: torch.device
    admitted: Filter
    seconds: float
    seed: int = 0
    builds: bool = False
    replays: bool = False
    advance: Progress = lambda _: None
    _watch: Stopwatch | None = field(default=None, init=False)

    def run(self, plan: Plan) -> Iterator[Cell | LeftOut]:
        """Each cell as it is measured, and what is left out with its reason."""
        for question in plan.questions:
            op = contract(question.op)
            phases = plan.phases(op, question.row)
            if plan.backward and not plan.drawn and Phase.BACKWARD not in phases:
                reason = f"{op.op} has no backward kernels (its gradient is: {op.gradient})"
                yield LeftOut(op.op, question.row.name, str(Phase.BACKWARD), reason)
            reason = "" if plan.chosen_sizes else self._too_large(question)
            for phase in phases:
                if reason:
                    yield LeftOut(op.op, question.row.name, phase_name(phase), reason)
                    continue
                self.advance(f"{op.op} {question.row.name} {phase_name(phase)}")
                try:
                    yield self._cell(question, phase)
                except FaultyOp as fault:
                    yield self._unmeasured(question, phase, str(fault))
                except RuntimeError as error:
                    # torch's own, of the reference: no memory left, or a device that broke
                    yield LeftOut(op.op, question.row.name, phase_name(phase), described_error(error))
            self._release()

    @property
    def watch(self) -> Stopwatch:
        """The stopwatch, made on first use: its buffer is the device's memory."""
        if self._watch is None:
            self._watch = stopwatch(self.device)
        return self._watch

    def _too_large(self, question: Question) -> str:
        free_bytes: int | None = None
        if self.device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(self.device)[0]
        return question.too_large(on_cpu=self.device.type == "cpu", free_bytes=free_bytes)

    def _release(self) -> None:
        """Gives back what the allocator keeps, so that what is free is known before the next request."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # --- one cell --------------------------------------------------------------------------------------------------

    def _cell(self, question: Question, phase: Phase) -> Cell:
        op = contract(question.op)
        arguments = Arguments(op, self.dispatcher.registry)
        first = draw(question, arguments, self.device, self.seed)
        count = self.watch.sets(first.bytes())
        sets = [first, *(draw(question, arguments, self.device, self.seed + i) for i in range(1, count))]
        cost = forward_cost(op, question.request, first.lengths())
        if phase is Phase.BACKWARD:
            try:
                prepare_backward(self.dispatcher, sets, self.seed)
            except RuntimeError:
                raise  # torch's own, which need not be the reference's fault
            except (Exception, SystemExit) as error:
                text = f"the reference of {op.op} is at fault: {described_error(error)}"
                raise FaultyOp(text) from error
            read = {name: memory_bytes(tensor) for name, tensor in (first.grads | first.kept).items()}
            needed = [t for t, need in zip(first.tensors, first.needs, strict=True) if need]
            cost = backward_cost(op, cost, read, [memory_bytes(tensor) for tensor in needed])
        if self.builds:
            for name, text in build_waiting(self.dispatcher, first, phase, self.admitted).items():
                self.advance(f"not built {name}: {text}")
        if phase is Phase.BACKWARD:
            competing = backward_field(self.dispatcher, first, self.admitted)
        else:
            requires = frozenset({"graph_capture"} if self.replays else ())
            competing = forward_field(self.dispatcher, first, self.admitted, requires)
        expected, reference_failure = self._expected(first, phase, competing)
        kernels, copy = measure(
            competing,
            sets,
            expected,
            self.watch,
            moved_bytes=cost.bytes,
            seconds=self.seconds,
            replays=self.replays,
            advance=lambda text: self.advance(f"{op.op} {question.row.name} {phase_name(phase)}: {text}"),
        )
        source = expected.source if expected else None
        cell = self._result(question, phase, cost, competing, (source, reference_failure), (kernels, copy))
        if phase is Phase.BACKWARD:
            return replace(cell, steps=self._steps(first, cell))
        return cell

    def _steps(self, operands: Operands, cell: Cell) -> dict[str, float]:
        """The times of whole steps, where PyTorch records the picked kernel's gradient and others seem faster."""
        faster = cell.faster_than_chosen()
        picked = self.dispatcher.registry.kernels.get(cell.chosen or "")
        if not faster or picked is None or picked.saves != "autograd" or self.dispatcher is not dispatcher():
            return {}
        if self.builds:
            build_waiting(self.dispatcher, operands, Phase.TRAINING, self.admitted)
        told = partial(self._without_step, cell)
        return step_times(operands, (picked.name, *faster), self.watch, self.seconds, told)

    def _without_step(self, cell: Cell, kernel: str, error: Exception) -> None:
        self.advance(f"{cell.op} {cell.case}: no step by {kernel}: {described_error(error)}")

    def _expected(self, operands: Operands, phase: Phase, competing: Field) -> tuple[Expected | None, str]:
        """The reference's results; where it cannot run, those of the kernel that is picked, or else of any, and why."""
        made = operands.arguments.at(operands.values)
        names = tuple(operands.written) or tuple(output.name for output in made.outputs)
        if phase is Phase.BACKWARD:
            names = tuple(f"gradient of {name}" for name in operands.contract.names)
        others = sorted(competing.contenders, key=lambda one: one.kernel.name != competing.chosen)
        failure = ""
        reference = self.dispatcher.registry.kernels[f"reference.{operands.contract.op}"]
        for judge in (contender(self.dispatcher, operands, reference, phase), *others):
            if judge.launch is None:
                failure = failure or judge.failure
                continue
            try:
                results = results_of(judge, operands, self.watch)
                if len(results) == len(names):
                    return Expected(results, judge.kernel.name, names), failure
                failure = failure or f"{judge.kernel.name} returned {len(results)} results, not {len(names)}"
            except Exception as error:  # noqa: BLE001 - the plugin border: others than the first are shown in their turn
                failure = failure or described_error(error)
        return None, failure

    def _unmeasured(self, question: Question, phase: Phase, reason: str) -> Cell:
        """A request of an op that is at fault itself: every kernel of it that takes part has failed."""
        kernels = filter(self.admitted.admits, self.dispatcher.registry.kernels.values())
        failed = tuple(Measured(k.name, "failed", reason=reason) for k in kernels if k.op == question.op)
        nobody = Field(None, ())
        return self._result(question, phase, Cost(bytes=0, flops=0), nobody, (None, ""), (failed, None))

    def _result(
        self, question: Question, phase: Phase, cost: Cost, competing: Field, judge: tuple[str | None, str], times: Any
    ) -> Cell:
        kernels, copy = times
        source, reference_failure = judge
        return Cell(
            op=question.op,
            case=question.row.name,
            phase=phase_name(phase),
            dtypes=question.dtypes,
            shapes=question.row.shapes,
            values=question.row.values,
            bytes=cost.bytes,
            flops=cost.flops,
            bound="compute" if is_compute_bound(cost) else "memory",
            chosen=competing.chosen,
            checked_against=source,
            reference_failure=reference_failure,
            copy=copy,
            kernels=kernels,
            rejected={
                name: [{"code": str(r.code), "text": r.text, "parameter": r.parameter} for r in rejections]
                for name, rejections in competing.rejected.items()
            },
            foreign=self.dispatcher.registry.foreign,
        )


def phase_name(phase: Phase) -> str:
    """A phase as results name it: ``forward``, which is timed without a gradient, or ``backward``."""
    return "forward" if phase is Phase.INFERENCE else str(phase)
