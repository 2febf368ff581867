"""Timing on a CPU: all kernels on the same operands in turn, one regime, and what cannot be captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from portakernel.calling.arguments import Arguments
from portakernel.contracts import contract
from portakernel.runtime import dispatcher
from portakernel.tuning.key import Regime
from portakernel_kit.bench.contenders import Contender
from portakernel_kit.bench.operands import Operands, draw
from portakernel_kit.tune.job import Job
from portakernel_kit.tune.measuring import DeclinedError
from portakernel_kit.tune.timing import CallTimer, estimated_us, sets_wanted

NOW, CPU = dispatcher(), torch.device("cpu")
TARGET = NOW.registry.device("cpu").target
JOB = Job("softmax", "inference", {"x": (4, 64)}, {"x": "float32"}, "eager/cold")
KERNELS = [NOW.registry.kernels[name] for name in ("reference.softmax", "torch.softmax_cpu")]
NAMES = [kernel.name for kernel in KERNELS]


class Timed:
    """A timer of two kernels that do nothing but note which set they were given."""

    def __init__(self, regime: Regime) -> None:
        arguments = Arguments(contract("softmax"), NOW.registry)
        self.sets = [draw(JOB.question(TARGET), arguments, CPU, seed) for seed in range(5)]
        self.seen: dict[str, list[int]] = {name: [] for name in NAMES}
        contenders = {kernel.name: Contender(kernel, self._launch(kernel.name)) for kernel in KERNELS}
        self.timer = CallTimer(CPU, regime, contenders, self.sets)

    def _launch(self, name: str) -> Any:
        def launch(given: Operands) -> str:
            self.seen[name].append(next(place for place, one in enumerate(self.sets) if one is given))
            return f"result of {name}"

        return launch

    def forget(self) -> None:
        for seen in self.seen.values():
            seen.clear()


def test_in_a_round_each_kernel_has_the_same_sets_and_all_have_their_turn():
    timed = Timed(Regime.EAGER_COLD)
    assert all(timed.timer.prepare(name) > 0 for name in NAMES)
    assert set(timed.seen[NAMES[0]]) == {0, 1, 2, 3, 4}
    timed.timer.settle(6_000.0)  # three launches a round
    for number in range(5):
        timed.forget()
        assert all(timed.timer.time(name, number) > 0 for name in reversed(NAMES))
        first, second = timed.seen.values()
        assert first == second == [(3 * number + n) % 5 for n in range(3)]


def test_warm_calls_are_of_one_set_behind_one_that_is_not_timed():
    timed = Timed(Regime.EAGER_WARM)
    timed.timer.settle(6_000.0)
    assert timed.timer.time(NAMES[0], 7) > 0
    assert timed.seen[NAMES[0]] == [2, 2, 2, 2]


@pytest.mark.parametrize("regime", [Regime.GRAPH_COLD, Regime.GRAPH_WARM])
def test_what_has_no_graphs_declines_and_says_what_to_measure(regime):
    eager = regime.replace("graph", "eager")
    with pytest.raises(DeclinedError, match=f"^calls on cpu are captured in no graph; measure {eager}$"):
        Timed(regime).timer.prepare(NAMES[0])


def test_a_regime_of_graphs_is_answered_by_eager_calls_where_there_are_none():
    assert [Regime.GRAPH_COLD.on(vendor) for vendor in ("nvidia", "amd", "cpu", "apple")] == [
        Regime.GRAPH_COLD, Regime.GRAPH_COLD, Regime.EAGER_COLD, Regime.EAGER_COLD,
    ]  # fmt: skip
    assert Regime.GRAPH_WARM.on("intel") is Regime.EAGER_WARM
    assert Regime.EAGER_WARM.on("nvidia") is Regime.EAGER_WARM


def test_the_last_result_is_of_the_first_set_and_a_copy_has_a_time():
    timed = Timed(Regime.EAGER_COLD)
    assert timed.timer.last(NAMES[1]) == f"result of {NAMES[1]}"
    assert timed.seen[NAMES[1]] == [0]
    copied = timed.timer.copy(0)
    assert copied is not None
    assert copied > 0
    assert not timed.timer.is_lost()


def test_sets_are_five_or_more_and_fewer_only_where_memory_is_short():
    assert sets_wanted(CPU, Regime.EAGER_COLD, 1 << 40, None) == 5
    assert sets_wanted(CPU, Regime.EAGER_COLD, 1 << 20, None) == 8
    assert sets_wanted(CPU, Regime.EAGER_COLD, 1 << 20, 12 << 20) == 3
    assert sets_wanted(CPU, Regime.EAGER_COLD, 1 << 20, 1) == 1


def test_an_estimate_is_what_memory_or_arithmetic_take_and_a_launch():
    assert estimated_us(3_000_000, 0, "nvidia") == pytest.approx(6.0)
    assert estimated_us(0, 4_000_000_000, "amd") == pytest.approx(15.0)
    assert estimated_us(0, 0, "cpu") == pytest.approx(10.0)
