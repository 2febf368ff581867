"""What shapes decide is worked out once, and remembered within bounds."""

import pytest

from portakernel.calling.fast.shape_numbers import MAX_SHAPES, Verdicts


def test_outcomes_are_told_apart_by_a_number_and_asked_for_once():
    asked = []

    def decide(n):
        asked.append(n)
        return None if n < 0 else (n % 2 == 0,)

    verdicts = Verdicts(decide)
    numbers = {n: verdicts.known.get((n,)) or verdicts.judge(n) for n in (2, 3, 4, 5)}
    assert numbers[2] == numbers[4] != numbers[3] == numbers[5]
    assert all(numbers.values())
    assert {n: verdicts.known.get((n,)) for n in numbers} == numbers
    assert asked == [2, 3, 4, 5]


def test_what_does_not_fit_is_zero_and_not_remembered():
    verdicts = Verdicts(lambda _: None)
    assert verdicts.judge(1) == 0
    assert not verdicts.known


def test_sizes_that_never_come_again_take_no_more_memory_and_keep_their_numbers():
    verdicts = Verdicts(lambda n: (n % 3,))
    first = [verdicts.judge(n) for n in range(3)]
    for n in range(3 * MAX_SHAPES):
        assert verdicts.judge(n) == first[n % 3]
        assert len(verdicts.known) <= MAX_SHAPES


def test_a_key_asks_each_check_once_for_its_shapes():
    torch = pytest.importorskip("torch")
    from portakernel.calling.fast.claim_reads import Reads
    from portakernel.calling.fast.expressions import expressions
    from portakernel.calling.fast.keys import make_key
    from portakernel.claims.capability import Limit
    from portakernel.contracts import contract

    asked = []

    def check(rows, columns, weight_offset):
        asked.append((rows, columns, weight_offset))
        return columns * rows < 100 and weight_offset == 0.0

    rms_norm = contract("rms_norm")
    reads = Reads((Limit("N", multiple_of=2),), (), ((("M", "N", "weight_offset"), check),))
    key = make_key(rms_norm, expressions(rms_norm, reads), checked=True)
    few, many, odd = ((torch.zeros(rows, n), torch.zeros(n), 1e-5) for rows, n in ((2, 8), (50, 8), (2, 9)))
    assert key(*few, 0.0) == key(*few, 0.0)
    assert len({key(*few, 0.0), key(*many, 0.0), key(*odd, 0.0), key(*few, 1.0)}) == 4
    assert asked == [(2, 8, 0.0), (50, 8, 0.0), (2, 9, 0.0), (2, 8, 1.0)]
    assert key(torch.zeros(2, 8), torch.zeros(9), 1e-5, 0.0) is None
