"""The real worker: the kernels of this installation, on one device, in this process."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract, Cost
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError
from portakernel.host.distributions import version
from portakernel.registry.kernel import Kernel
from portakernel.runtime import caller, dispatcher
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.words.target import Device
from portakernel_kit.bench.contenders import Contender, Filter, build_waiting, contender, prepare_backward
from portakernel_kit.bench.operands import Operands, draw, memory_bytes
from portakernel_kit.bench.steps import training_step
from portakernel_kit.bench.traffic import backward_cost, forward_cost
from portakernel_kit.tune.contending import contending
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.judging import Numerics
from portakernel_kit.tune.measuring import BUSY, At, measure
from portakernel_kit.tune.others import others_at_work
from portakernel_kit.tune.timing import CallTimer, sets_wanted

# On a CPU frequency and scheduler alone make a copy vary more; ratios within a round bear with it.
_BUSY_CPU = 1.5
# Of the time that CPU kernels are measured, all threads' waits for a processor: beyond, others had them.
_WAITED = 0.1
_DIGITS = 16


class TorchWorker:
    """Measures on one device of this process."""

    def __init__(self, device: Device, now: Dispatcher) -> None:
        self._device, self._now = device, now
        self._place = torch.device(device.torch_device or "cpu")
        units = units_of(device)
        if units is None:
            raise ArgumentValueError(f"torch does not say how many units {device.name} has: nothing can be kept of it")
        kernels = now.registry.kernels
        self._facts = Facts(
            str(device.target),
            units,
            hashlib.sha256((device.uuid or device.name).encode()).hexdigest()[:_DIGITS],
            device.driver or "",
            version("torch") or str(torch.__version__),
            {name: source_digest(kernel) for name, kernel in kernels.items()},
        )

    def facts(self) -> Facts:
        """What device and software it has."""
        return self._facts

    def measure(self, job: Job, at: At) -> Record:
        """The record of a job; see ``Worker``."""
        try:
            return self._measured(job, at)
        finally:
            if self._place.type == "cuda":  # so that what is free is known before the next job
                torch.cuda.empty_cache()

    def _measured(self, job: Job, at: At) -> Record:
        phase, regime = Phase(job.phase), Regime(job.regime)
        at(f"reference.{job.op}")
        sets, cost = self._operands(job, phase, regime)
        first = sets[0]
        request = first.request(phase)
        self._build(first, phase, at)
        kernels = contending(self._now.decide(request))
        step = phase is Phase.TRAINING and any(kernel.is_paired for kernel in kernels)
        if step:
            cost = _with_backward(cost, self._prepared(job, sets, cost))
            self._build(first, Phase.BACKWARD, at)
        contenders = {kernel.name: self._contender(sets, kernel, phase, at, step=step) for kernel in kernels}
        timer = CallTimer(self._place, regime, contenders, sets)
        at(f"reference.{job.op}")
        judge = Numerics(caller(job.op), self._device, phase, cost, sets, contenders, timer.last, step=step)
        known = {name: Entry.model_validate(entry) for name, entry in job.known.items()}
        for name, one in contenders.items():
            if one.launch is None and name not in known:
                entry = Entry(source=self._facts.sources[name], verdict=Verdict.FAILED, detail=one.failure[:300])
                known[name] = entry
        on_cpu = self._place.type == "cpu"
        found = measure(
            tuple(contenders),
            self._facts.sources,
            judge,
            timer,
            at,
            known=known,
            busy=_BUSY_CPU if on_cpu else BUSY,
            seed=job.seed,
        )
        busy = found.busy or timer.waited() > _WAITED or others_at_work(self._device)
        return self._record(job, request, found.entries, busy=busy)

    # --- one job ----------------------------------------------------------------------------------------------------

    def _operands(self, job: Job, phase: Phase, regime: Regime) -> tuple[list[Operands], Cost]:
        """The sets of arguments, and what a call moves and computes."""
        op, question = contract(job.op), job.question(self._device.target)
        arguments = caller(job.op).arguments
        free = torch.cuda.mem_get_info(self._place)[0] if self._place.type == "cuda" else None
        first = draw(question, arguments, self._place, job.seed)
        count = sets_wanted(self._place, regime, first.bytes(), free)
        sets = [first, *(draw(question, arguments, self._place, job.seed + n) for n in range(1, count))]
        cost = forward_cost(op, question.request, first.lengths())
        if phase is Phase.BACKWARD:
            _check_gradient(op)
            cost = self._prepared(job, sets, cost)
        elif phase is Phase.TRAINING:
            _check_gradient(op)
        return sets, cost

    def _build(self, operands: Operands, phase: Phase, at: At) -> None:
        for text in build_waiting(self._now, operands, phase, Filter()).values():
            at(text)

    def _prepared(self, job: Job, sets: Sequence[Operands], forward: Cost) -> Cost:
        """Gives the sets what backward is given; what that moves and computes."""
        first = sets[0]
        prepare_backward(self._now, sets, job.seed)
        read = {name: memory_bytes(tensor) for name, tensor in (first.grads | first.kept).items()}
        needed = [t for t, need in zip(first.tensors, first.needs, strict=True) if need]
        return backward_cost(first.contract, forward, read, [memory_bytes(tensor) for tensor in needed])

    def _contender(self, sets: Sequence[Operands], kernel: Kernel, phase: Phase, at: At, *, step: bool) -> Contender:
        """The kernel as something to launch; its module is imported for that.

        In a ``step`` with its backward. Forward alone says nothing where the two are one choice: one kernel may compute
        there what another leaves to backward.
        """
        at(kernel.name)
        found = contender(self._now, sets[0], kernel, phase)
        if not step or found.launch is None:
            return found
        steps = {id(operands): training_step(operands, kernel.name) for operands in sets}
        return replace(found, launch=lambda given: steps[id(given)]())

    def _record(self, job: Job, request: Request, entries: Mapping[str, Entry], *, busy: bool) -> Record:
        kind = Kind.of(request, self._now.registry.for_op(job.op))
        key = Key(kind, self._facts.target, self._facts.units, Regime(job.regime), dict(request.dims))
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        decision = self._now.decide(request)
        return Record(
            key,
            contract_digest(contract(job.op)),
            entries,
            now,
            decision.chosen.name if decision.chosen else "",
            self._facts.device,
            self._facts.driver,
            self._facts.torch,
            busy,
        )


def make_worker(torch_device: str) -> TorchWorker:
    """The worker on a device of this process.

    Raises:
        PortakernelError: there is no such device here.
    """
    now = dispatcher()
    return TorchWorker(now.registry.device(torch_device), now)


def _with_backward(forward: Cost, backward: Cost) -> Cost:
    """What both move and compute."""
    return Cost(forward.bytes + backward.bytes, forward.flops + backward.flops)


def _check_gradient(op: Contract) -> None:
    if op.gradient != "kernel":
        raise ArgumentValueError(f"{op.op} has no backward kernels (its gradient is: {op.gradient}); measure inference")
