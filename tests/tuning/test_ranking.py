"""Ranking on a clock that drifts and jumps: no switch between equals, one to what is faster."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.ranking import STAGES, Race, bounds, decide, ratio_of
from portakernel.tuning.record import Entry, Record, Verdict

KEY = Key(
    Kind("rms_norm", "inference", {"x": "bfloat16"}), "nvidia:sm_90", 132, Regime.GRAPH_COLD, {"M": 64, "N": 4096}
)
SOURCES = {name: f"of {name}" for name in ("first", "second", "third")}


def raced(true_us: Mapping[str, float], seed: int, default: str = "first") -> Race:
    """A race on a clock with 3 % of drift that all share in a round, 1 % of each one's own, and outliers, 2 in 100."""
    clock, race = random.Random(seed), Race(tuple(true_us), default, seed)
    while turn := race.turn():
        shared = clock.gauss(1.0, 0.03)
        times = {}
        for name in turn:
            outlier = clock.uniform(1.3, 2.5) if clock.random() < 0.02 else 1.0
            times[name] = true_us[name] * shared * clock.gauss(1.0, 0.01) * outlier
        race.add(times)
    return race


def recorded(race: Race, **verdicts: Verdict) -> Record:
    kernels = {
        name: Entry(
            source=SOURCES[name], verdict=verdicts.get(name, Verdict.RIGHT), us=us, rounds=rounds, against=pairs
        )
        for name, (us, rounds, pairs) in race.results().items()
    }
    return Record(KEY, "9f1c", kernels, "2026-11-27T00:00:00Z", "first")


def winner(true_us: Mapping[str, float], seed: int = 0, **verdicts: Verdict) -> str | None:
    return decide(recorded(raced(true_us, seed), **verdicts), SOURCES, tuple(SOURCES)).kernel


def test_equal_kernels_are_never_exchanged():
    assert {winner({"first": 10.0, "second": 10.0}, seed) for seed in range(1000)} == {"first"}


def test_one_that_takes_5_percent_less_is_used():
    found = [winner({"first": 10.0, "second": 9.5}, seed) for seed in range(1000)]
    assert found.count("second") >= 990


def test_bounds_hold_what_they_are_for():
    source, missed = random.Random(1), dict.fromkeys(STAGES, 0)
    for count in STAGES:
        for _ in range(4000):
            found = bounds([source.expovariate(1.0) for _ in range(count)])
            assert found is not None
            missed[count] += found[2] < 0.6931471805599453
    assert all(number <= 0.0125 * 4000 for number in missed.values()), missed
    assert bounds([1.0] * 6) is None
    assert bounds([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == (1.0, 4.0, 7.0)


def test_who_is_hopeless_runs_nine_rounds_and_who_is_known_25():
    race = raced({"first": 10.0, "second": 20.0, "third": 10.5}, 0)
    rounds = {name: len(times) for name, times in race.times.items()}
    assert rounds == {"first": 25, "second": 9, "third": 25}
    near = raced({"first": 10.0, "second": 9.81}, 0)
    assert {len(times) for times in near.times.values()} == {41}
    assert {len(times) for times in raced({"first": 10.0, "second": 30.0}, 0).times.values()} == {9}


def test_rounds_mix_the_order_in_which_contenders_run():
    race, orders = Race(("first", "second", "third"), "first"), set()
    for _ in range(9):
        orders.add(turn := race.turn())
        race.add(dict.fromkeys(turn, 1.0))
    assert len(orders) > 2


def test_who_fails_in_a_round_is_out_and_without_the_default_it_is_over():
    race = Race(("first", "second"), "first")
    race.turn()
    race.add({"first": 1.0})
    assert race.turn() == ("first",)
    race.add({})
    assert race.turn() == ()


def test_of_several_that_are_faster_the_fastest_is_used_and_of_those_alike_the_one_before():
    assert winner({"first": 10.0, "second": 8.0, "third": 7.0}) == "third"
    assert winner({"first": 10.0, "second": 8.0, "third": 7.99}) == "second"


def test_what_is_not_right_never_wins_however_fast():
    for verdict in set(Verdict) - {Verdict.RIGHT}:
        assert winner({"first": 10.0, "second": 5.0}, second=verdict) == "first"


def test_a_default_that_is_wrong_gives_way_to_the_next_and_one_that_could_not_be_timed_decides_nothing():
    true_us = {"first": 10.0, "second": 12.0, "third": 9.0}
    assert winner(true_us, first=Verdict.WRONG) == "third"
    assert winner({**true_us, "third": 11.99}, first=Verdict.CRASHED) == "second"
    for verdict in (Verdict.DECLINED, Verdict.UNJUDGED):
        found = decide(recorded(raced(true_us, 0), first=verdict), SOURCES, tuple(SOURCES))
        assert (found.kernel, found.why) == (None, f"first was {verdict}")


def test_an_entry_of_another_source_counts_for_nothing():
    record = recorded(raced({"first": 10.0, "second": 8.0, "third": 9.0}, 0))
    order = tuple(SOURCES)
    assert decide(record, {**SOURCES, "second": "new"}, order).kernel == "third"
    found = decide(record, {**SOURCES, "first": "new"}, order)
    assert (found.kernel, found.why) == (None, "first has changed since it was measured")
    found = decide(record, {**SOURCES, "newest": "x"}, ("newest", *order))
    assert (found.kernel, found.why) == (None, "newest was not there when it was measured")


def test_another_default_than_that_of_the_record_is_compared_with_whom_it_took_turns():
    record = recorded(raced({"first": 10.0, "second": 8.0, "third": 7.0}, 0))
    assert decide(record, SOURCES, ("second", "first", "third")).kernel == "third"
    assert decide(record, SOURCES, ("third", "first", "second")).kernel == "third"
    assert decide(record, {**SOURCES, "first": "new"}, ("second", "first", "third")).kernel == "third"
    assert decide(record, SOURCES, ("second", "first")).kernel == "second"


def test_a_pair_has_its_bounds_once_and_both_may_be_asked():
    record = recorded(raced({"first": 10.0, "second": 8.0, "third": 9.0}, 0))
    one, other = ratio_of(record, "second", "first"), ratio_of(record, "first", "second")
    assert one is not None
    assert other == pytest.approx((1 / one[2], 1 / one[1], 1 / one[0]))
    assert ratio_of(record, "third", "second") is not None
    assert ratio_of(record, "third", "nobody") is None


def test_what_was_measured_on_a_busy_device_decides_nothing_and_the_same_record_decides_the_same():
    record = recorded(raced({"first": 10.0, "second": 8.0}, 0))
    assert decide(replace(record, busy=True), SOURCES, tuple(SOURCES)).kernel is None
    found: list[Any] = [decide(Record.parse(record.line()), SOURCES, tuple(SOURCES)) for _ in range(3)]
    assert found == [decide(record, SOURCES, tuple(SOURCES))] * 3


def test_times_are_those_of_rounds():
    race = raced({"first": 10.0, "second": 20.0}, 0)
    low, middle, high = race.results()["first"][0]
    assert low < middle == statistics.median(race.times["first"]) < high
