"""Which known kind of call is nearest to one that is not known, and what is said of the difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portakernel.tuning.key import Kind
from portakernel.tuning.nearest import Known, differences, nearest

KIND = Kind("rms_norm", "inference", {"x": "bfloat16", "weight": "bfloat16"})
SIZES = {"M": 64, "N": 4096}


def known(where: str = "plan.yaml:3", kind: Kind = KIND, **bounds: tuple[int, int]) -> Known:
    return Known(kind, bounds, where)


@pytest.mark.parametrize(
    ("kind", "bounds", "text"),
    [
        (replace(KIND, phase="training"), {}, "phase: training there, this call inference"),
        (
            replace(KIND, dtypes={"x": "bfloat16", "weight": "float32"}),
            {},
            "dtype of weight: float32 there, this call bfloat16",
        ),
        (replace(KIND, dtypes={"x": "bfloat16"}), {}, "dtype of weight: none there, this call bfloat16"),
        (replace(KIND, formats={"x": "mx"}), {}, "scale format of x: mx there, this call none"),
        (replace(KIND, features={"causal": True}), {}, "causal: True there, this call its default"),
        (
            replace(KIND, layout=("x.contiguous = true",)),
            {},
            "layout of x: without x.contiguous = true there, this call plain memory",
        ),
        (KIND, {"M": (1, 32)}, "M 64 lies outside of 1..32"),
        (KIND, {"M": (32, 32)}, "M 64 is not 32"),
        (KIND, {"S": (1, 32)}, "S 1..32 there, this call leaves it open"),
    ],
)
def test_a_part_that_differs_is_named_with_both_sides(kind, bounds, text):
    assert list(differences(known(kind=kind, **bounds), KIND, SIZES)) == [text]


def test_fewer_parts_are_nearer_and_then_sizes_that_are_less_far():
    far, near = known("plan.yaml:1", M=(1, 2)), known("plan.yaml:2", M=(1, 32))
    other = known("plan.yaml:3", replace(KIND, phase="training", features={"causal": True}), M=(1, 64))
    assert nearest([far, other, near], KIND, SIZES) == "the nearest is plan.yaml:2: M 64 lies outside of 1..32"
    assert nearest([far, other], KIND, SIZES) == "the nearest is plan.yaml:1: M 64 lies outside of 1..2"


def test_many_parts_are_counted_and_where_nothing_is_known_or_differs_nothing_is_said():
    features = dict.fromkeys("abcdef", 1)
    text = nearest([known(kind=replace(KIND, features=features))], KIND, SIZES)
    assert text.startswith("the nearest is plan.yaml:3: a: 1 there, this call its default; b: ")
    assert text.endswith("; and 2 parts more")
    assert nearest([], KIND, SIZES) == ""
    assert nearest([known(M=(1, 64))], KIND, SIZES) == ""
