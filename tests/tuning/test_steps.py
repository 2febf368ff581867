"""Training of ops whose forward and backward are one choice: who is timed, on what, and what then decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portakernel.claims.request import Phase, Request
from portakernel.deciding.explaining import decide_as_called
from portakernel.deciding.measurements import Measurements
from portakernel.runtime import dispatcher
from portakernel.tuning.key import Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import source_digest
from portakernel.tuning.store import Writer, folder_of
from portakernel_kit.tune import worker
from portakernel_kit.tune.job import Job
from portakernel_kit.tune.measuring import Judgement, Measured

NOW = dispatcher()
CPU = NOW.registry.device("cpu")
SHAPES, DTYPES = dict.fromkeys("qkv", (1, 12, 2, 8)), dict.fromkeys("qkv", "float32")
ATTENTION = Job("attention", "training", SHAPES, DTYPES, "eager/cold")
RECORDED, FLASH, REFERENCE = "torch.attention_flash_cpu_recorded", "torch.attention_flash_cpu", "reference.attention"
Measuring = Callable[[Job], tuple[Record, dict[str, Judgement]]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    """Has a worker judge each contender of a job, and time none."""
    of_attention = {
        name: source_digest(kernel) for name, kernel in NOW.registry.kernels.items() if kernel.op == "attention"
    }
    monkeypatch.setattr(worker, "source_digest", lambda kernel: of_attention.get(kernel.name, ""))
    monkeypatch.setattr(worker, "build_waiting", lambda *_: {})
    judgements: dict[str, Judgement] = {}

    def judge(names: Sequence[str], sources: Mapping[str, str], numerics: Any, *_: Any, **__: Any) -> Measured:
        judgements.clear()
        judgements.update({name: numerics.before(name) for name in names})
        # the second is the fastest
        ratio = {names[1]: {names[0]: (0.7, 0.75, 0.8)}} if len(names) > 1 else {}
        return Measured(
            {
                name: Entry(
                    source=sources[name], verdict=one.verdict, detail=one.detail, us=(1.0, 2.0, 3.0),
                    against=ratio.get(name, {}),
                )
                for name, one in judgements.items()
            }
        )  # fmt: skip

    monkeypatch.setattr(worker, "measure", judge)
    return lambda job: (worker.make_worker("cpu").measure(job, lambda _: None), judgements)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Has the process go by records."""

    def follow(*records: Record) -> None:
        for one in records:
            with Writer(folder_of(tmp_path, one.key.target, one.key.units), one.key.kind.op) as writer:
                writer.write(one)
        NOW.routes.set(None, Measurements(NOW.registry, [tmp_path], Regime.EAGER_COLD))

    yield follow
    NOW.routes.set(None, None)


def asked(phase: Phase) -> Request:
    return replace(ATTENTION.request(CPU.target), phase=phase, device=CPU)


def test_contenders_are_those_that_dispatch_can_pick_the_default_first(measured: Measuring) -> None:
    record, judgements = measured(ATTENTION)
    decided = NOW.decide(asked(Phase.TRAINING))
    assert [*judgements] == [one.kernel.name for one in decided.candidates if one.status in ("chosen", "eligible")]
    assert next(iter(judgements)) == record.default == RECORDED
    assert {FLASH, "torch.attention_math", REFERENCE} <= judgements.keys()
    assert {one.verdict for one in judgements.values()} == {Verdict.RIGHT}


def test_outputs_and_gradients_of_a_step_are_held(measured: Measuring, monkeypatch: pytest.MonkeyPatch) -> None:
    made = worker.training_step

    def spoilt(place: int) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            right = made(*arguments)

            def launch() -> Any:
                found = [*right()]
                found[place] = found[place] * 1.1
                return tuple(found)

            return launch

        return step

    for place, text in ((0, "out: "), (2, "gradient of k: ")):
        monkeypatch.setattr(worker, "training_step", spoilt(place))
        _, judgements = measured(ATTENTION)
        assert {one.verdict for one in judgements.values()} == {Verdict.WRONG}
        assert all(one.detail.startswith(text) for one in judgements.values())


def test_what_was_measured_decides_and_explain_says_so(measured: Measuring, followed: Callable[..., None]) -> None:
    training, backward = measured(ATTENTION)[0], measured(replace(ATTENTION, phase="backward"))[0]
    followed(training, backward)
    decided = decide_as_called(NOW, asked(Phase.TRAINING), NOW.policy())
    assert (decided.chosen.name, decided.notes) == (FLASH, ())
    assert "0.75 of the time of what priorities pick" in decided.why
    # what it saved is no other's to read, whoever is the fastest of the others
    decided = decide_as_called(NOW, asked(Phase.BACKWARD), NOW.policy())
    assert (decided.chosen.name, decided.notes) == (FLASH, ())
    # of what any forward saves these two are no readers that came later
    assert not {RECORDED, FLASH} & backward.kernels.keys()
    assert not any("flash_cpu" in note for note in NOW.routes.notes(asked(Phase.BACKWARD)))


@pytest.mark.parametrize(("waited", "busy"), [(0.05, False), (0.5, True)])
def test_a_record_of_threads_that_had_to_wait_for_processors_is_busy(measured: Measuring, monkeypatch, waited, busy):
    monkeypatch.setattr(worker.CallTimer, "waited", lambda _: waited)
    assert measured(ATTENTION)[0].busy is busy
