"""Checks take no more than their share, the first of a large call neither."""

from __future__ import annotations

import pytest

from portakernel.shadow.budget import Budget


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock) -> Budget:
    return Budget(0.001, clock)


@pytest.mark.parametrize(("work", "seconds"), [(0, 20.0), (10**8, 20.0), (10**9, 100.0), (3 * 10**10, 3000.0)])
def test_a_check_of_unknown_length_waits_by_the_work_of_its_call(
    budget: Budget, clock: Clock, work: int, seconds: float
) -> None:
    clock.now += 0.99 * seconds
    assert not budget.fits("op", "kernel", work)
    clock.now += 0.02 * seconds
    assert budget.fits("op", "kernel", work)


def test_what_the_last_check_took_is_expected_of_the_next_and_more_of_a_larger_call(
    budget: Budget, clock: Clock
) -> None:
    clock.now += 20.0
    budget.spend("op", "kernel", 1000, 0.005)
    assert budget.fits("op", "kernel", 1000)  # 0.005 spent, as much expected, 0.02 allowed
    assert budget.fits("op", "kernel", 10)
    assert not budget.fits("op", "kernel", 4000)
    clock.now += 5.1
    assert budget.fits("op", "kernel", 4000)


def test_what_was_spent_over_the_share_has_to_pass_first(budget: Budget, clock: Clock) -> None:
    clock.now += 20.0
    budget.spend("op", "kernel", 1, 0.05)
    clock.now += 49.9  # 0.0699 allowed, 0.05 spent and 0.02 expected of another
    assert not budget.fits("op", "other", 1)
    clock.now += 0.2
    assert budget.fits("op", "other", 1)
    assert budget.spent("op", "kernel") == 0.05
    assert budget.spent("op", "other") == 0.0
