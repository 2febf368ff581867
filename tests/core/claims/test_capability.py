"""Limits: what they admit, how they read, and the code of the reason when they refuse."""

from __future__ import annotations

import pytest

from portakernel.claims.capability import CannotRun, Capability, Limit, ReasonCode, Rejection
from portakernel.claims.request import Request
from portakernel.words.arch import Selector
from portakernel.words.target import Target

CODES = """\
not_installed import_failed probe_failed api_version disabled needs_build denied_by_policy not_allowed not_in_plan
vendor arch driver missing_library missing_toolchain dtype scale_format layout alignment limit feature requires_grad
no_backward backward_mismatch not_deterministic not_batch_invariant not_capturable workspace shared_memory cannot_run
shadow_mismatch attached_target third_party lower_priority"""


def test_the_reason_codes_are_those_of_the_design():
    assert [str(code) for code in ReasonCode] == CODES.split()


@pytest.mark.parametrize(
    ("limit", "text", "inside", "outside"),
    [
        (Limit("N", min=2), "N >= 2", [2, 3], [1, 0]),
        (Limit("N", max=8), "N <= 8", [8, 0], [9]),
        (Limit("N", multiple_of=8), "N a multiple of 8", [0, 8, 64], [1, 12]),
        (Limit("N", one_of=(64, 128)), "N in 64, 128", [64, 128], [96]),
        (Limit("N", one_of=(64,)), "N = 64", [64], [63]),
        (Limit("N", power_of_two=True), "N a power of two", [1, 2, 1024], [0, 3, -4]),
        (Limit("N", min=2, max=8, multiple_of=2), "N >= 2 and <= 8 and a multiple of 2", [2, 8], [0, 3, 10]),
    ],
)
def test_a_limit_admits_refuses_and_says_what_it_needs(limit, text, inside, outside):
    assert str(limit) == text
    for value in inside:
        assert limit.admits(value)
        assert limit.rejection(value) is None
    for value in outside:
        assert not limit.admits(value)
        assert limit.rejection(value) == Rejection(ReasonCode.LIMIT, f"needs {text}; this is {value}", "N")


@pytest.mark.parametrize(
    ("parameter", "limit", "value", "code", "text"),
    [
        ("x.contiguous", {"one_of": (True,)}, False, "layout", "needs x.contiguous = true; this is false"),
        ("x.stride_last", {"one_of": (1,)}, 2, "layout", "needs x.stride_last = 1; this is 2"),
        ("x.alignment", {"min": 16}, 4, "alignment", "needs x.alignment >= 16; this is 4"),
    ],
)
def test_a_layout_fact_is_refused_under_a_code_of_its_own(parameter, limit, value, code, text):
    assert Limit(parameter, **limit).rejection(value) == Rejection(ReasonCode(code), text, parameter)


def test_cannot_run_carries_its_rejection():
    rejection = Rejection(ReasonCode.SHARED_MEMORY, "needs 200 KiB", "N")
    assert CannotRun(rejection).rejection is rejection
    assert str(CannotRun(rejection)) == "shared_memory: needs 200 KiB"


@pytest.mark.parametrize(
    ("claimed", "asked", "text"),
    [
        ({}, {"activation": "silu"}, None),
        ({"activation": ("none", "relu")}, {"activation": "relu"}, None),
        ({"activation": ("none", "relu")}, {"activation": "silu"}, "activation takes none, relu; this is 'silu'"),
        ({"causal": (False,)}, {"causal": False}, None),
        ({"causal": (False,)}, {"causal": True}, "causal takes false; this is true"),
    ],
)
def test_a_value_that_is_not_claimed_is_refused(claimed, asked, text):
    capability = Capability({"acme": Selector(("any",))}, {}, values=claimed)
    (name,) = asked
    expected = () if text is None else (Rejection(ReasonCode.FEATURE, text, name),)
    assert capability.rejections(Request("op", Target("acme", "a1"), values=asked), {}) == expected


def test_a_value_that_a_question_leaves_open_is_assumed():
    capability = Capability({"acme": Selector(("any",))}, {}, values={"activation": ("none", "relu")})
    request = Request("op", Target("acme", "a1"))
    assert capability.rejections(request, {}) == ()
    assert capability.assumptions(request, {}, {}) == ("activation in none, relu",)
