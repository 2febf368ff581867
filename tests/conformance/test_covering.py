"""Covering arrays: every pair of levels comes about, or is said not to."""

from __future__ import annotations

import random
from itertools import combinations

from portakernel_kit.conformance.drawn.covering import Covering

FACTORS = {"dtype": ("a", "b", "c"), "layout": ("plain", "odd"), "mask": ("off", "on", "more"), "size": ("1", "2", "3")}


def rows(covering, admitted=lambda row: True):
    chance, found = random.Random(3), []
    while covering.left:
        wishes = covering.wishes(chance)
        if admitted(wishes):
            covering.took(wishes)
            found.append(wishes)
        else:
            covering.missed("not admitted")
    return found


def pairs_in(found):
    return {tuple(sorted(pair)) for row in found for pair in combinations(row.items(), 2)}


def test_every_pair_comes_about_in_few_rows():
    covering = Covering(FACTORS)
    possible = covering.possible
    found = rows(covering)
    assert possible == 3 * 2 + 3 * 3 + 3 * 3 + 2 * 3 + 2 * 3 + 3 * 3
    assert len(pairs_in(found)) == possible == len(covering.asked)
    assert len(found) <= 14  # 9 at least, 54 for all combinations
    assert covering.wishes(random.Random(0)) == {}


def test_triples_are_of_neutral_levels_and_any_other():
    covering = Covering(FACTORS, {"mask": "off", "layout": "plain", "size": "1"})
    found = rows(covering)
    seen = {(row["layout"] == "plain", row["mask"] == "off", row["size"] == "1") for row in found}
    assert len(seen) == 8


def test_levels_that_exclude_each_other_are_never_wished_for_together():
    pair = (("dtype", "a"), ("mask", "on"))
    covering = Covering(FACTORS, apart=frozenset({pair}))
    found = rows(covering)
    assert pair not in pairs_in(found)
    assert pair not in covering.refused
    assert not covering.left


def test_what_is_never_admitted_is_given_up_with_the_reason_and_nothing_else_is():
    covering = Covering(FACTORS)
    rows(covering, lambda row: not (row["dtype"] == "b" and row["size"] == "3"))
    assert covering.refused == {(("dtype", "b"), ("size", "3")): "not admitted"}
    assert covering.possible == len(covering.asked)


def test_a_level_that_never_comes_about_is_given_up_soon():
    covering = Covering({name: tuple("abcdef") for name in "xyz"})
    tried = []
    rows(covering, lambda row: tried.append(row) or row["x"] != "a")
    assert set(covering.refused) == {(("x", "a"), (other, level)) for other in "yz" for level in "abcdef"}
    assert sum(row["x"] == "a" for row in tried) < 30


def test_a_row_that_came_about_otherwise_counts_for_what_came_about():
    covering = Covering({"x": ("0", "1"), "y": ("0", "1")})
    wished = covering.wishes(random.Random(1))
    came = {**wished, "x": "1" if wished["x"] == "0" else "0"}
    covering.took(came)
    covering.missed("no such call")
    assert covering.asked == {tuple(sorted(came.items()))}
    assert covering.left[tuple(sorted(wished.items()))] == 1
