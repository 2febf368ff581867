"""What there is to measure: calls in words as jobs, those left out that a store has, the longest device time first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from portakernel.claims.request import Phase, Request
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.tuning.key import Key, Regime
from portakernel.tuning.record import ENDED, Record
from portakernel.tuning.sources import contract_digest
from portakernel.tuning.store import Found, folder_of, read
from portakernel.warming.outcome import Call
from portakernel.words.target import Target
from portakernel_kit.bench.question import Question
from portakernel_kit.bench.traffic import FaultyOp, backward_cost, forward_cost
from portakernel_kit.tune.contending import contending
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.timing import estimated_us

_TRAINING = (Phase.TRAINING, Phase.BACKWARD)


def jobs_of_calls(calls: Iterable[Call], target: Target, regime: Regime, seed: int = 0) -> list[Job]:
    """A job for each call of a file, two for one with gradients; what is listed again counts for more.

    None for those with tangents, which kernels made of PyTorch's operators serve: they are not timed.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: a call does not fit its op.
    """
    found: dict[str, Job] = {}
    for call in calls:
        if call.forward_ad:
            continue
        op = contract(call.op)
        memory = call.memory
        request = ask(
            op, target, dtypes=call.dtype, shapes=call.shape, formats=call.format, values=call.parameters,
            facts=memory.facts,
        )  # fmt: skip
        defaults = {parameter.name: parameter.default for parameter in op.parameters}
        values = {name: value for name, value in request.values.items() if value != defaults[name]}
        dtypes = {name: dtype for name, dtype in request.dtypes.items() if name in op.names}
        shapes = {name: tuple(shape) for name, shape in call.shape.items()}
        for phase in _TRAINING if call.training and op.gradient == "kernel" else (Phase.INFERENCE,):
            job = Job(
                call.op, str(phase), shapes, dtypes, str(regime), values, count=call.count, seed=seed,
                layout=memory.facts, strides=memory.strides,
            )  # fmt: skip
            text = str(replace(job, count=0))
            found[text] = replace(job, count=job.count + (found[text].count if text in found else 0))
    return list(found.values())


def jobs_of_questions(
    questions: Iterable[Question], regime: Regime, *, training: bool = False, seed: int = 0
) -> list[Job]:
    """A job for inference of each, and two more for gradients, of ops that have kernels for them."""
    return [
        Job.of(question, phase, regime, seed=seed)
        for question in questions
        for phase in (Phase.INFERENCE, *(_TRAINING if training else ()))
        if phase is Phase.INFERENCE or contract(question.op).gradient == "kernel"
    ]


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs in the order in which they are measured, with about how long a call of each takes, and how many are kept."""

    jobs: tuple[tuple[Job, float], ...]
    kept: int


class Store:
    """What a store has, as it is when an op is first asked for on a kind of device."""

    def __init__(self, root: Path, now: Dispatcher) -> None:
        self._root, self._now = root, now
        self._found: dict[tuple[str, str, int], Found] = {}

    def of(self, job: Job, facts: Facts) -> tuple[Record, ...]:
        """The records of a job's call on such a device: the newest, and behind it what it may not displace."""
        key = self.key(job, facts)
        place = job.op, key.target, key.units
        if place not in self._found:
            self._found[place] = read(folder_of(self._root, key.target, key.units), job.op)
        found = self._found[place]
        several = (records.get(key.text) for records in (found.busy, found.records))
        return tuple({id(record): record for record in several if record is not None}.values())

    def key(self, job: Job, facts: Facts) -> Key:
        """Under what a job's record is kept on such a device."""
        return job.key(Target.parse(facts.target), facts.units, self._now.registry)

    def is_done(self, job: Job, facts: Facts, *, stale: bool = False) -> bool:
        """Whether a job need not be measured: contract and sources are those of its record, and no kernel is new.

        With ``stale`` what was measured with another driver or torch, or beside others, is to be measured again.
        """
        return any(self._says_all(record, job, facts, stale=stale) for record in self.of(job, facts))

    def _says_all(self, record: Record, job: Job, facts: Facts, *, stale: bool) -> bool:
        if record.contract != contract_digest(contract(job.op)):
            return False
        sources = facts.sources
        if any(sources.get(name) != entry.source for name, entry in record.kernels.items()):
            return False
        decided = self._now.decide(self._here(job.request(Target.parse(facts.target))))
        if not {kernel.name for kernel in contending(decided)} <= record.kernels.keys():
            return False
        fresh = (record.driver, record.torch) == (facts.driver, facts.torch) and not record.busy
        return fresh or not stale

    def with_known(self, job: Job, facts: Facts) -> Job:
        """The job, but for kernels that ended their process before and have not changed since."""
        ended = {
            name: entry.model_dump(mode="json")
            for record in reversed(self.of(job, facts))  # what is newer goes before
            for name, entry in record.kernels.items()
            if entry.verdict in ENDED and facts.sources.get(name) == entry.source
        }
        return replace(job, known=ended) if ended else job

    def _here(self, request: Request) -> Request:
        """The request as a call on a device here makes it, so that kernels are asked whether they are ready."""
        devices = [
            d for d in self._now.registry.devices if d.target == request.target and d.torch_device and not d.attached
        ]
        return replace(request, device=devices[0]) if devices else request


def work(jobs: Sequence[Job], store: Store, devices: Sequence[Facts], *, stale: bool = False) -> Work:
    """The jobs that some device has not done, those with the most device time first: calls times time of each."""
    first = devices[0]
    jobs = _distinct(jobs, store, first)
    todo = [job for job in jobs if not all(store.is_done(job, facts, stale=stale) for facts in devices)]
    timed = [(store.with_known(job, first), _estimated_us(job, Target.parse(first.target))) for job in todo]
    timed.sort(key=lambda one: (-one[0].count * one[1], one[0].name))
    return Work(tuple(timed), len(jobs) - len(todo))


def _distinct(jobs: Iterable[Job], store: Store, facts: Facts) -> list[Job]:
    """The jobs of which there would be other records; of those with one key the first, with the calls of all."""
    found: dict[str, Job] = {}
    for job in jobs:
        key = store.key(job, facts).text
        found[key] = replace(found[key], count=found[key].count + job.count) if key in found else job
    return list(found.values())


def _estimated_us(job: Job, target: Target) -> float:
    """About how long a call takes; a contract that says nothing of that goes last."""
    try:
        cost = forward_cost(contract(job.op), job.request(target))
        if job.phase == Phase.BACKWARD:
            cost = backward_cost(contract(job.op), cost, {"": cost.bytes}, [cost.bytes])
    except FaultyOp:
        return 0.0
    return estimated_us(cost.bytes, cost.flops, target.vendor)
