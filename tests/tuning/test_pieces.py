"""Pieces: where a winner holds, and where nobody does."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from portakernel.tuning.pieces import Piece, Point, gaps, pieces


def line(found: Mapping[int, str]) -> list[Point]:
    return [Point({"M": size, "N": 4096}, winner) for size, winner in found.items()]


def ranges(found: tuple[Piece, ...], name: str = "M") -> list[tuple[tuple[int, int], str]]:
    return [(piece.bounds[name], piece.winner) for piece in found]


def test_neighbours_that_agree_and_are_at_most_four_times_apart_are_one_piece():
    assert ranges(pieces(line({64: "a", 256: "a", 1024: "a", 4097: "a"}))) == [((64, 1024), "a"), ((4097, 4097), "a")]


def test_between_points_that_disagree_lies_nobody_s_gap():
    found = pieces(line({64: "a", 128: "a", 256: "b", 512: "b"}))
    assert ranges(found) == [((64, 128), "a"), ((256, 512), "b")]
    assert list(gaps(found, {"M": 200, "N": 4096})) == ["not measured: M 128 (a) and 256 (b) disagree"]
    assert list(gaps(found, {"M": 100, "N": 4096})) == []


def test_gaps_say_why_nothing_holds():
    found = pieces(line({64: "a", 512: "a"}))
    apart = "not measured: M 64 (a) and 512 (a) are more than 4 times apart"
    assert list(gaps(found, {"M": 100, "N": 4096})) == [apart]
    assert list(gaps(found, {"M": 32, "N": 4096})) == ["not measured: M 32 is less than 64, the least that was"]
    assert list(gaps(found, {"M": 600, "N": 4096})) == ["not measured: M 600 is more than 512, the most that was"]
    assert list(gaps(found, {"M": 64, "N": 8192})) == ["not measured: N 8192 is more than 4096, the most that was"]
    assert list(gaps(found, {"M": 100, "N": 8192})) == []


def test_boxes_grow_along_one_dimension_after_the_other():
    grid = [Point({"M": m, "N": n}, "a") for m in (64, 128) for n in (1024, 4096)]
    assert [dict(piece.bounds) for piece in pieces(grid)] == [{"M": (64, 128), "N": (1024, 4096)}]
    corner = [Point(p.dims, "b" if p.dims == {"M": 128, "N": 4096} else "a") for p in grid]
    found = {
        piece.winner: [dict(p.bounds) for p in pieces(corner) if p.winner == piece.winner] for piece in pieces(corner)
    }
    assert found == {
        "a": [{"M": (64, 128), "N": (1024, 1024)}, {"M": (64, 64), "N": (4096, 4096)}],
        "b": [{"M": (128, 128), "N": (4096, 4096)}],
    }


def test_a_point_inside_that_says_otherwise_keeps_boxes_apart():
    corners = [Point({"M": m, "N": n}, "a") for m in (64, 128) for n in (1024, 4096)]
    for inside in ("b", ""):
        found = pieces([*corners, Point({"M": 100, "N": 2000}, inside)])
        assert [dict(piece.bounds) for piece in found if piece.winner == "a"] == [
            {"M": (64, 128), "N": (1024, 1024)},
            {"M": (64, 128), "N": (4096, 4096)},
        ]
    assert len([p for p in pieces([*corners, Point({"M": 100, "N": 2000}, "a")]) if p.bounds["N"] == (1024, 4096)]) == 1


def test_a_point_that_decided_nothing_is_no_bridge():
    assert ranges(pieces(line({64: "a", 128: "", 256: "a"}))) == [((64, 64), "a"), ((128, 128), ""), ((256, 256), "a")]


@pytest.mark.parametrize("seed", range(20))
def test_every_point_is_covered_by_its_winner_and_by_no_other_s_box(seed):
    source = random.Random(seed)
    sizes = {(source.choice((1, 2, 8, 64, 200, 512)), source.choice((7, 64, 100, 256, 1000))) for _ in range(20)}
    points = [Point({"M": m, "N": n}, source.choice(("a", "b", ""))) for m, n in sorted(sizes)]
    found = pieces(points)
    for point in points:
        assert {piece.winner for piece in found if piece.covers(point.dims)} == {point.winner}
    source.shuffle(points)
    assert {str(piece.bounds) for piece in pieces(points)} == {str(piece.bounds) for piece in found}


def test_no_points_make_no_pieces_and_one_without_dimensions_is_everywhere():
    assert pieces([]) == ()
    assert [piece.covers({}) for piece in pieces([Point({}, "a")])] == [True]


def test_how_wide_rows_are_is_as_it_was_measured():
    grid = [Point({"M": m, "N": n}, "a") for m in (64, 128) for n in (1024, 4096)]
    found = [dict(piece.bounds) for piece in pieces(grid, {"N"})]
    assert found == [{"M": (64, 128), "N": (n, n)} for n in (1024, 4096)]
