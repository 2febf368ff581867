"""The rules of selection, one section each, over a vendor and plugins that exist in these tests alone."""

from __future__ import annotations

import importlib
import itertools
import json
from dataclasses import replace

import pytest

from portakernel.claims.capability import Capability, ReasonCode, Rejection
from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision
from portakernel.deciding.policies import intern_policy, make_layer
from portakernel.errors import ConfigWarning, NoKernelError
from portakernel.words.arch import Selector
from portakernel.words.target import Device, Target


def told(decision: Decision, name: str) -> list[tuple[str, str]]:
    """Code and text of each of a kernel's rejections."""
    return [(str(rejection.code), rejection.text) for rejection in decision.candidate(name).rejections]


def names(decision: Decision, status: str) -> list[str]:
    return [candidate.kernel.name for candidate in decision.candidates if candidate.status == status]


def under(*wishes: dict):
    """A policy whose layers are called ``context``."""
    return intern_policy(tuple(make_layer("context", **wish) for wish in wishes))


# --- 1: a rejection is never a bool ----------------------------------------------------------------------------------

EVERYTHING = {
    "targets": {"acme": "acme2"},
    "dtypes": {"x": ["float16"], "weight": ["x"]},
    "limits": {"N": {"max": 8}, "M": {"min": 4}, "x.contiguous": {"in": [False]}, "x.alignment": {"in": [4]}},
}
REFUSED = [
    ("arch", "needs acme2; this is acme1", "target"),
    ("dtype", "x needs float16; this is float32", "x"),
    ("dtype", "weight needs x's dtype; this is bfloat16", "weight"),
    ("limit", "needs N <= 8; this is 9", "N"),
    ("limit", "needs M >= 4; this is 3", "M"),
    ("layout", "needs x.contiguous = false; this is true", "x.contiguous"),
    ("alignment", "needs x.alignment = 4; this is 16", "x.alignment"),
    ("feature", "does not serve weight_offset=1.0", "weight_offset"),
    ("not_deterministic", "does not promise equal results from run to run", "deterministic"),
    ("requires_grad", "does not save rstd for backward", "requires_grad"),
]


def refused_request(world):
    request = world.request(
        "rms_norm",
        dtypes={"x": "float32", "weight": "float32"},
        shapes={"x": (3, 9)},
        values={"weight_offset": 1.0},
        phase=Phase.TRAINING,
    )
    dtypes = {"x": "float32", "weight": "bfloat16"}
    return replace(request, requires=frozenset({"deterministic"}), dtypes=dtypes)


def test_rule_1_a_rejection_has_code_text_and_parameter(world):
    world.plugin("p", {"op": "rms_norm", **EVERYTHING})
    registry = world.registry()
    ((_, capability),) = registry.kernels["p.rms_norm"].variants
    request = refused_request(world)
    found = capability.rejections(request, registry.spaces)
    assert [(str(r.code), r.text, r.parameter) for r in found] == REFUSED
    assert not capability.supports(request, registry.spaces)


def test_rule_1_supporting_is_having_no_rejections(world):
    world.plugin("p")
    registry = world.registry()
    ((_, capability),) = registry.kernels["p.add"].variants
    assert capability.rejections(world.request(), registry.spaces) == ()
    assert capability.supports(world.request(), registry.spaces)


# --- 2: all rejections are collected, and kept on success ------------------------------------------------------------


def test_rule_2_all_rejections_are_collected_not_the_first(world):
    world.plugin("p", {"op": "rms_norm", **EVERYTHING, "disabled": "too slow"})
    decision = world.dispatcher().decide(refused_request(world), under({"deny": "p"}))
    texts = [("disabled", "switched off in its manifest: too slow"), ("denied_by_policy", "denied by context")]
    assert told(decision, "p.rms_norm") == [*texts, *((code, text) for code, text, _ in REFUSED)]


def test_rule_2_winner_and_losers_keep_their_reasons(world):
    world.plugin(
        "p",
        {"priority": 20},
        {"name": "slow", "priority": 10},
        {"name": "cannot", "dtypes": {"x": ["float16"], "y": ["x"]}},
    )
    decision = world.dispatcher().decide(world.request())
    assert names(decision, "chosen") == ["p.add"]
    assert names(decision, "eligible") == ["p.slow", "reference.add"]
    assert names(decision, "rejected") == ["p.cannot"]
    assert decision.why == "highest priority 20, before 10 of p.slow"
    assert told(decision, "p.add") == []
    assert told(decision, "p.slow") == [("lower_priority", "priority 10 is below 20 of p.add")]
    assert told(decision, "p.cannot") == [("dtype", "x needs float16; this is float32")]
    assert told(decision, "reference.add") == [("lower_priority", "the reference comes last; p.add serves")]
    assert [candidate.priority for candidate in decision.candidates] == [20, 10, 0, 0]


def test_rule_2_every_variants_reasons_are_told_under_its_name(world):
    half, small = {"name": "half", "dtypes": {"x": ["float16"], "y": ["x"]}}, {"limits": {"M": {"max": 2}}}
    world.plugin("p", {"variants": [half, small]})
    assert told(world.dispatcher().decide(world.request(shapes={"x": (3,)})), "p.add") == [
        ("dtype", "half: x needs float16; this is float32"),
        ("limit", "variant 2: needs M <= 2; this is 3"),
    ]


def test_rule_2_variants_for_other_hardware_are_no_reason_where_one_is_for_this(world):
    variants = [{"targets": {"acme": "acme2"}}, {"name": "half", "dtypes": {"x": ["float16"], "y": ["x"]}}]
    world.plugin("p", {"variants": variants}, {"name": "elsewhere", "variants": variants[:1]})
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(world.request())
    assert told(decision, "p.add") == [("dtype", "half: x needs float16; this is float32")]
    assert told(decision, "p.elsewhere") == [("arch", "variant 1: needs acme2; this is acme1")]
    assert dispatcher.decide(world.request(target="acme:acme2")).candidate("p.add").variant == "variant 1"
    assert dispatcher.decide(world.request(dtypes="float16")).candidate("p.add").variant == "half"
    both = dispatcher.decide(world.request(target="acme:acme2", dtypes="float16"))
    assert both.candidate("p.add").variant == "variant 1"


def test_rule_2_a_decision_is_data_and_text(world):
    world.plugin("p", {"priority": 20}, {"name": "cannot", "limits": {"M": {"max": 2}}})
    decision = world.dispatcher().decide(world.request(shapes={"x": (3,)}))
    as_json = json.loads(json.dumps(decision.to_json()))
    assert as_json["request"]["dims"] == {"M": 3}
    del as_json["request"]
    here = "acme:acme1"
    last = {"code": "lower_priority", "text": "the reference comes last; p.add serves", "parameter": None}
    limit = {"code": "limit", "text": "needs M <= 2; this is 3", "parameter": "M"}
    assumed = ["torch >=2.11 is installed"]
    rows = [
        ("p.add", "chosen", 20, [], here, []),
        ("reference.add", "eligible", 0, [last], here, assumed),
        ("p.cannot", "rejected", 0, [limit], None, []),
    ]
    keys = ("kernel", "status", "priority", "rejections", "target", "assumed")
    shown = [dict(zip(keys, row, strict=True)) | {"form": None} for row in rows]
    assert as_json == {
        "op": "add",
        "target": here,
        "chosen": "p.add",
        "form": None,
        "why": "priority 20; the only one beside the reference",
        "shortfalls": [],
        "notes": [],
        "candidates": shown,
    }
    assert str(decision) == (
        "add on acme:acme1 with x float32, y float32, M=3\n"
        "  chosen: p.add (priority 20; the only one beside the reference)\n"
        "  reference.add  lower_priority: the reference comes last; p.add serves\n"
        "  p.cannot       limit: needs M <= 2; this is 3"
    )


def test_rule_2_the_kernels_that_would_have_gone_first_are_named_in_their_order(world):
    for name, priority in (("a", 9), ("b", 30), ("c", 20)):
        world.plugin(name, {"priority": priority, "limits": {"M": {"max": priority}}})
    dispatcher = world.dispatcher()
    passed_over = {m: dispatcher.decide(world.request(shapes={"x": (m,)})).passed_over for m in (5, 15, 25, 35)}
    assert passed_over == {5: (), 15: (), 25: (), 35: ("b.add", "c.add", "a.add")}
    preferred = dispatcher.decide(world.request(shapes={"x": (25,)}), under({"prefer": "c"}))
    assert (preferred.chosen.name, preferred.passed_over) == ("b.add", ("c.add",))


# --- 3: explicit is strict -------------------------------------------------------------------------------------------


def test_rule_3_use_binds_its_op_to_that_kernel_or_an_error_with_its_rejections(world):
    world.plugin("p", {"limits": {"M": {"max": 8}}})
    world.plugin("q", {"priority": 99})
    dispatcher = world.dispatcher()
    served = dispatcher.decide(world.request(shapes={"x": (8,)}), under({"use": "p.add"}))
    assert (served.chosen.name, served.why) == ("p.add", "context uses it")
    strictly = ("denied_by_policy", "context uses p.add strictly")
    assert told(served, "q.add") == [strictly]
    refused = dispatcher.decide(world.request(shapes={"x": (9,)}), under({"use": "p.add"}))
    assert refused.chosen is None
    assert told(refused, "p.add") == [("limit", "needs M <= 8; this is 9")]
    assert told(refused, "q.add") == told(refused, "reference.add") == [strictly]


def test_rule_3_use_of_a_plugin_is_strict_for_the_ops_that_it_ships_alone(world):
    world.plugin("p", {"targets": {"acme": "acme2"}})
    world.plugin("q", {}, {"op": "rms_norm"})
    dispatcher = world.dispatcher()
    assert dispatcher.decide(world.request("add"), under({"use": "p"})).chosen is None
    assert dispatcher.decide(world.request("rms_norm"), under({"use": "p"})).chosen.name == "q.rms_norm"


def test_rule_3_of_several_used_kernels_the_first_that_can_serves(world):
    world.plugin("p", {"limits": {"M": {"max": 8}}})
    world.plugin("q", {"priority": 99})
    dispatcher, policy = world.dispatcher(), under({"use": ["p.add", "q.add"]})
    small = dispatcher.decide(world.request(shapes={"x": (8,)}), policy)
    assert small.chosen.name == "p.add"
    assert told(small, "q.add") == [("lower_priority", "context puts p.add before it")]
    assert dispatcher.decide(world.request(shapes={"x": (9,)}), policy).chosen.name == "q.add"
    assert names(small, "rejected") == ["reference.add"]


def test_rule_3_prefer_is_soft(world):
    world.plugin("p", {"limits": {"M": {"max": 8}}})
    world.plugin("q", {"priority": 99})
    dispatcher, policy = world.dispatcher(), under({"prefer": "p.add"})
    small = dispatcher.decide(world.request(shapes={"x": (8,)}), policy)
    assert (small.chosen.name, small.why) == ("p.add", "context prefers it")
    assert told(small, "q.add") == [("lower_priority", "context puts p.add before it")]
    large = dispatcher.decide(world.request(shapes={"x": (9,)}), policy)
    assert (large.chosen.name, large.why) == ("q.add", "priority 99; the only one beside the reference")
    assert told(large, "p.add") == [("limit", "needs M <= 8; this is 9")]


# --- 4: fall back only on a declared "cannot" ------------------------------------------------------------------------


def test_rule_4_what_a_kernel_said_it_cannot_is_a_rejection_of_this_decision_alone(world):
    world.plugin("p", {"priority": 9})
    world.plugin("q", {"priority": 5})
    dispatcher = world.dispatcher()
    rejection = Rejection(ReasonCode.SHARED_MEMORY, "needs 228 KiB; 99 KiB are there", "N")
    decision = dispatcher.decide(world.request(), cannot={"p.add": rejection})
    assert decision.chosen.name == "q.add"
    assert decision.candidate("p.add").rejections == (rejection,)
    assert dispatcher.decide(world.request()).chosen.name == "p.add"


# --- 5: features must be listed --------------------------------------------------------------------------------------


def test_rule_5_a_feature_goes_to_a_kernel_that_lists_it_and_a_value_to_all(world):
    world.plugin("p", {"op": "rms_norm", "priority": 9})
    world.plugin("q", {"op": "rms_norm", "features": ["weight_offset"]})
    dispatcher = world.dispatcher()
    assert dispatcher.decide(world.request("rms_norm", values={"eps": 0.5})).chosen.name == "p.rms_norm"
    assert dispatcher.decide(world.request("rms_norm", values={"weight_offset": 0.0})).chosen.name == "p.rms_norm"
    decision = dispatcher.decide(world.request("rms_norm", values={"weight_offset": 1.0}))
    assert decision.chosen.name == "q.rms_norm"
    assert told(decision, "p.rms_norm") == [("feature", "does not serve weight_offset=1.0")]


# --- 6: the reference is last ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, -5])
def test_rule_6_the_reference_comes_after_every_kernel_of_ours_whatever_its_priority(world, priority):
    world.plugin("zz", {"priority": priority})
    decision = world.dispatcher().decide(world.request())
    assert decision.chosen.name == "zz.add"
    assert decision.why == f"priority {priority}; the only one beside the reference"
    assert told(decision, "reference.add") == [("lower_priority", "the reference comes last; zz.add serves")]


def test_rule_6_the_reference_serves_where_nothing_else_does(world):
    decision = world.dispatcher().decide(world.request("rms_norm", values={"weight_offset": 1.0}))
    assert decision.chosen.name == "reference.rms_norm"
    assert decision.why == "the only kernel that can serve this request"


def test_rule_6_a_policy_can_forbid_the_reference_and_the_reason_names_the_source(world):
    decision = world.dispatcher().decide(world.request(), under({"reference": "forbid"}))
    assert decision.chosen is None
    assert told(decision, "reference.add") == [("denied_by_policy", "reference: forbid (context)")]
    decision = world.dispatcher(REFERENCE="forbid").decide(world.request())
    assert told(decision, "reference.add") == [("denied_by_policy", "reference: forbid (PORTAKERNEL_REFERENCE)")]


def test_rule_6_the_reference_is_free_where_torchs_device_is_the_cpu(world):
    world.backend("host", torch_device="cpu", lines=[["h1"]])
    assert world.dispatcher().reference_is_free == {"host"}


# --- 7: nothing can serve --------------------------------------------------------------------------------------------


def test_rule_7_the_error_lists_the_request_every_kernel_the_references_denial_and_the_way_out(world):
    world.plugin(
        "p", {"limits": {"M": {"max": 8}}, "targets": {"acme": "acme2"}}, {"name": "off", "disabled": "too slow"}
    )
    dispatcher = world.dispatcher(REFERENCE="forbid")
    decision = dispatcher.decide(world.request(shapes={"x": (3, 3)}))
    assert (decision.chosen, decision.why) == (None, "no kernel can serve this request")
    error = decision.error()
    assert isinstance(error, NoKernelError)
    assert isinstance(error, NotImplementedError)
    assert error.decision is decision
    assert str(error) == (
        "no kernel for op add on acme:acme1 with x float32, y float32, M=9\n"
        "  p.add          arch              needs acme2; this is acme1\n"
        "  p.add          limit             needs M <= 8; this is 9\n"
        "  p.off          disabled          switched off in its manifest: too slow\n"
        "  reference.add  denied_by_policy  reference: forbid (PORTAKERNEL_REFERENCE)\n"
        "  Run `portakernel explain add --target acme:acme1 --dtype float32 --shape x=9 --reference forbid` for the"
        " full decision."
    )


def test_rule_7_the_way_out_leaves_out_a_dtype_that_was_not_given(world):
    dispatcher = world.dispatcher(REFERENCE="forbid")
    error = dispatcher.decide(world.request(dtypes=None)).error()
    assert str(error).splitlines()[0] == "no kernel for op add on acme:acme1"
    command = "portakernel explain add --target acme:acme1 --reference forbid"
    assert str(error).splitlines()[-1] == f"  Run `{command}` for the full decision."


def test_rule_7_kernels_for_other_vendors_are_counted(world):
    world.backend("zeta", lines=[["z1"]])
    world.plugin("p", {"disabled": "too slow"})
    world.plugin("q", {"targets": {"zeta": "any"}}, {"targets": {"zeta": "any"}, "name": "two"})
    error = world.dispatcher(REFERENCE="forbid").decide(world.request()).error()
    assert str(error).splitlines()[1:-1] == [
        "  p.add          disabled          switched off in its manifest: too slow",
        "  reference.add  denied_by_policy  reference: forbid (PORTAKERNEL_REFERENCE)",
        "  2 more are for other hardware",
    ]


def test_rule_7_a_strict_kernels_own_reasons_come_first_and_the_others_are_counted(world):
    world.plugin("p", {"limits": {"M": {"max": 8}}})
    world.plugin("q")
    world.plugin("r", {"limits": {"M": {"max": 8}}})
    dispatcher = world.dispatcher()
    policy = dispatcher.policy(make_layer("argument", use=("p.add",)))
    error = dispatcher.decide(world.request(shapes={"x": (3, 3)}), policy).error()
    assert str(error) == (
        "no kernel for op add on acme:acme1 with x float32, y float32, M=9: argument uses p.add strictly\n"
        "  p.add  limit  needs M <= 8; this is 9\n"
        "  3 more are left out by that; nothing else is known against q.add and 1 other\n"
        "  Run `portakernel explain add --target acme:acme1 --dtype float32 --shape x=9 --use p.add` for the full"
        " decision."
    )


@pytest.mark.parametrize(
    ("environment", "left_out"),
    [
        ({"DENY": "q"}, "nothing else is known against reference.add"),
        ({"REFERENCE": "forbid"}, "nothing else is known against q.add"),
        ({"DENY": "q", "REFERENCE": "forbid"}, "and could not serve either"),
        ({"PLUGINS": "p", "DENY": "reference"}, "and could not serve either"),
    ],
)
def test_rule_7_what_is_denied_beside_a_strict_policy_is_not_said_to_be_able_to_serve(world, environment, left_out):
    world.plugin("p", {"limits": {"M": {"max": 8}}})
    world.plugin("q")
    dispatcher = world.dispatcher(USE="p", **environment)
    error = dispatcher.decide(world.request(shapes={"x": (3, 3)})).error()
    separator = "," if left_out.startswith("and") else ";"
    assert str(error).splitlines()[-2] == f"  2 more are left out by that{separator} {left_out}"


# --- 8: ties by full name; third parties -----------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(["b", "a", "c"])))
def test_rule_8_ties_break_by_full_name_and_never_by_load_order(world, order):
    for name in order:
        world.plugin(name, {"priority": 7})
    decision = world.dispatcher().decide(world.request())
    assert [candidate.kernel.name for candidate in decision.candidates] == ["a.add", "b.add", "c.add", "reference.add"]
    assert decision.why == "priority 7, shared with b.add; the first by name"
    assert told(decision, "b.add") == [("lower_priority", "priority 7 equals that of a.add, whose name comes first")]


WAITS = "a third party's kernel waits until a policy names it (prefer: stranger, or PORTAKERNEL_PREFER=stranger)"


def test_rule_8_a_third_partys_kernel_does_not_win_by_its_priority(world):
    world.plugin("stranger", {"priority": 1_000_000}, first_party=False)
    world.plugin("ours", {"priority": 1})
    decision = world.dispatcher().decide(world.request())
    assert decision.chosen.name == "ours.add"
    assert decision.why == "priority 1; the only one beside the reference and kernels of third parties"
    assert told(decision, "stranger.add") == [("third_party", f"{WAITS}; ours.add serves")]


def test_rule_8_a_third_partys_kernel_waits_where_only_the_reference_stands_beside_it(world):
    before = world.dispatcher().decide(world.request()).chosen.name
    world.plugin("stranger", {"priority": 1_000_000}, first_party=False)
    decision = world.dispatcher().decide(world.request())
    assert decision.chosen.name == before == "reference.add"
    assert decision.why == "priority 0; the only one beside kernels of third parties"
    assert told(decision, "stranger.add") == [("third_party", f"{WAITS}; reference.add serves")]
    assert world.dispatcher(PREFER="stranger").decide(world.request()).chosen.name == "stranger.add"


@pytest.mark.parametrize("wishes", [{"reference": "forbid"}, {"deny": "reference.add"}])
def test_rule_8_a_third_partys_kernel_serves_unnamed_where_the_reference_may_not(world, wishes):
    world.plugin("stranger", first_party=False)
    decision = world.dispatcher().decide(world.request(), under(wishes))
    assert (decision.chosen.name, decision.why) == ("stranger.add", "the only kernel that can serve this request")
    assert decision.passed_over == ()


def test_rule_8_a_preferred_reference_that_may_not_serve_counts_as_passed_over(world):
    world.plugin("stranger", first_party=False)
    with pytest.warns(ConfigWarning, match="'reference' cannot go first: context denies it"):
        decision = world.dispatcher().decide(world.request(), under({"prefer": "reference", "deny": "reference"}))
    assert (decision.chosen.name, decision.passed_over) == ("stranger.add", ("reference.add",))


def test_rule_8_among_third_parties_that_nobody_named_priority_decides(world):
    world.plugin("a", {"priority": 1}, first_party=False)
    world.plugin("b", {"priority": 2}, first_party=False)
    decision = world.dispatcher(REFERENCE="forbid").decide(world.request())
    assert (decision.chosen.name, decision.why) == ("b.add", "highest priority 2, before 1 of a.add")


@pytest.mark.parametrize(("wish", "why"), [("use", "context uses it"), ("prefer", "context prefers it")])
@pytest.mark.parametrize("name", ["stranger", "stranger.add"])
def test_rule_8_a_third_partys_kernel_wins_by_policy(world, wish, why, name):
    world.plugin("stranger", {"priority": 1}, first_party=False)
    world.plugin("ours", {"priority": 9})
    decision = world.dispatcher().decide(world.request(), under({wish: name}))
    assert (decision.chosen.name, decision.why) == ("stranger.add", why)


def test_rule_8_a_third_partys_kernel_waits_where_first_party_kernels_cannot_serve(world):
    world.plugin("stranger", {"priority": 1}, first_party=False)
    world.plugin("ours", {"priority": 9, "targets": {"acme": "acme2"}})
    decision = world.dispatcher().decide(world.request())
    assert decision.chosen.name == "reference.add"
    assert told(decision, "stranger.add") == [("third_party", f"{WAITS}; reference.add serves")]


# --- 9: targets are per device; attached targets ---------------------------------------------------------------------


@pytest.fixture
def attached(world):
    """Plugin ``side`` for a device of vendor ``side`` that shares the memory of ``acme:0``."""
    world.backend("side", attach=True, torch_device="acme", lines=[["s1", "s2"]])
    world.plugin(
        "side_kernels",
        {"priority": 99, "targets": {"side": "s1+"}},
        ready="fake_side_kernels:ready",
        source="devices = []\ndef ready(device):\n    devices.append(device)\n",
    )
    world.plugin("ours", {"priority": 1})
    return Device(Target("side", "s2"), "Side 2", "acme:0", attached=True)


def test_rule_9_an_attached_targets_kernel_competes_only_when_a_policy_names_it(world, attached):
    request = world.request(attached=(attached,))
    dispatcher = world.dispatcher()
    decision = dispatcher.decide(request)
    assert decision.chosen.name == "ours.add"
    text = "runs on side:s2, attached to acme:acme1: only when a policy names it"
    assert told(decision, "side_kernels.add") == [("attached_target", text)]
    for wish in ("use", "prefer"):
        for name in ("side_kernels", "side_kernels.add"):
            assert dispatcher.decide(request, under({wish: name})).chosen.name == "side_kernels.add"


def test_rule_9_the_decision_names_the_attached_target_that_it_runs_on(world, attached):
    decision = world.dispatcher().decide(world.request(attached=(attached,)), under({"use": "side_kernels"}))
    assert (str(decision.target), str(decision.request.target)) == ("side:s2", "acme:acme1")
    assert "  chosen: side_kernels.add on side:s2 (context uses it)" in str(decision).splitlines()


def test_rule_9_without_the_attached_device_its_kernel_is_of_another_vendor(world, attached):
    decision = world.dispatcher().decide(world.request(), under({"prefer": "side_kernels"}))
    assert decision.chosen.name == "ours.add"
    assert told(decision, "side_kernels.add") == [("vendor", "serves side, not acme")]


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"DISABLE": "side"}, "PORTAKERNEL_DISABLE switches it off"),
        ({"PLUGINS": "side_kernels,ours"}, "PORTAKERNEL_PLUGINS allows only side_kernels, ours"),
    ],
)
def test_rule_9_a_backend_that_is_switched_off_is_no_missing_device(world, environment, why):
    world.backend("side", attach=True, torch_device="acme", lines=[["s1"]], first_party=False)
    world.plugin("side_kernels", {"targets": {"side": "s1+"}})
    world.plugin("ours")
    decision = world.dispatcher(**environment).decide(world.request(present=True))
    (reason,) = (text for code, text in told(decision, "side_kernels.add") if code == "vendor")
    assert reason == f"serves side, not acme: the side backend looks for no device here: {why}"


def test_rule_9_readiness_is_asked_of_the_attached_device(world, attached):
    dispatcher = world.dispatcher()
    request = world.request(attached=(attached,), present=True)
    assert dispatcher.decide(request, under({"use": "side_kernels"})).chosen.name == "side_kernels.add"
    assert importlib.import_module("fake_side_kernels").devices == [attached]


def test_rule_9_each_device_gets_a_decision_of_its_own(world):
    world.plugin("old", {"targets": {"acme": "acme1"}})
    world.plugin("new", {"targets": {"acme": "acme2"}})
    dispatcher = world.dispatcher()
    chosen = [
        dispatcher.decide(world.request(target=f"acme:{arch}")).chosen.name for arch in ("acme1", "acme2", "acme1")
    ]
    assert chosen == ["old.add", "new.add", "old.add"]


def test_rule_9_a_kernel_for_a_vendor_without_a_backend_is_told_so(world):
    world.plugin("p", {"targets": {"nowhere": "n1"}})
    decision = world.dispatcher().decide(world.request())
    assert told(decision, "p.add") == [("vendor", "serves nowhere, not acme")]
    decision = world.dispatcher().decide(world.request(target="nowhere:n1"))
    assert told(decision, "p.add") == [("vendor", "no backend for vendor nowhere is installed")]
    assert decision.chosen.name == "reference.add"


def test_rule_9_the_reference_does_not_serve_an_attached_target_and_says_so_in_words(world, attached):
    decision = world.dispatcher().decide(world.request(target="side:s1"))
    ((code, text),) = told(decision, "reference.add")
    assert code == "vendor"
    assert "side" in text
    assert "*" not in text


# --- 10: an arch newer than the list ---------------------------------------------------------------------------------


def test_rule_10_a_newer_arch_is_inside_for_source_and_outside_for_prebuilt_kernels_and_the_decision_says_so(world):
    world.plugin("source", {"targets": {"acme": "acme1+"}})
    world.plugin("binary", {"targets": {"acme": "acme1+"}, "prebuilt": True, "priority": 9})
    dispatcher = world.dispatcher()
    assert dispatcher.decide(world.request(target="acme:acme2")).chosen.name == "binary.add"
    decision = dispatcher.decide(world.request(target="acme:acme3"))
    assert decision.chosen.name == "source.add"
    note = "acme3 is not among the listed acme archs; taken as a later member of its line"
    assert decision.candidate("source.add").assumed == (note,)
    text = "acme3 is newer than the listed archs, and a prebuilt kernel has no code for it"
    assert told(decision, "binary.add") == [("arch", text)]


# --- what a policy requires ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("deterministic", "not_deterministic", "does not promise equal results from run to run"),
        ("batch_invariant", "not_batch_invariant", "does not promise a row's result independent of the other rows"),
        ("graph_capture", "not_capturable", "cannot be launched while a stream is captured"),
        ("inplace", "layout", "cannot write its output over one of its inputs"),
    ],
)
def test_a_required_property_must_be_declared(world, name, code, text):
    world.plugin("p", {"priority": 9, "properties": {name: False}})
    world.plugin("q", {"properties": {name: True}})
    decision = world.dispatcher().decide(world.request(), under({"require": name}))
    assert decision.chosen.name == "q.add"
    assert told(decision, "p.add") == [(code, f"{text} (required by context)")]
    assert world.dispatcher().decide(world.request()).chosen.name == "p.add"


# --- scale formats and open questions --------------------------------------------------------------------------------


def test_a_scale_format_must_be_listed(world):
    capability = Capability({"*": Selector(("any",))}, {}, formats={"x": ("row", "tensor")})
    request = replace(world.request(), formats={"x": "mxfp8"})

    def told(claim):
        return [(r.code, r.text, r.parameter) for r in claim.rejections(request, {})]

    assert told(capability) == [("scale_format", "x takes row, tensor; this is mxfp8", "x")]
    assert told(replace(capability, formats={})) == [("scale_format", "x takes no scale format; this is mxfp8", "x")]
    assert capability.supports(replace(request, formats={"x": "row"}), {})


def test_what_a_question_leaves_open_rejects_nothing_and_is_assumed(world):
    limits = {"N": {"max": 8}, "x.contiguous": {"in": [True]}}
    some = {"x": ["float16", "bfloat16"], "weight": ["x", "float32"]}
    world.plugin("p", {"op": "rms_norm", "limits": limits}, {"op": "rms_norm", "name": "some", "dtypes": some})
    decision = world.dispatcher().decide(world.request("rms_norm", dtypes=None))
    assert decision.chosen.name == "p.rms_norm"
    assert list(decision.candidate("p.rms_norm").assumed) == ["N <= 8"]
    assert list(decision.candidate("p.some").assumed) == ["x in float16, bfloat16"]


def test_priority_steers_by_size(world):
    rules = [{"when": {"M": {"max": 64}}, "priority": 70}, {"priority": 10}]
    world.plugin("p", {"priority": rules})
    world.plugin("q", {"priority": 50})
    dispatcher = world.dispatcher()
    assert dispatcher.decide(world.request(shapes={"x": (8, 8)})).chosen.name == "p.add"
    assert dispatcher.decide(world.request(shapes={"x": (8, 9)})).chosen.name == "q.add"


# --- portakernel_decided ---------------------------------------------------------------------------------------------

LISTENER = """\
from portakernel.hookspecs import hookimpl
seen = []
@hookimpl
def portakernel_decided(decision):
    seen.append(decision)
    {}
"""


def listening(world, then: str):
    world.plugin("p")
    manifest = {"schema_version": 1, "plugin": "ear", "hooks": ["portakernel_decided"]}
    world.packages.append(world.site.package("ear", plugin=manifest, source=LISTENER.format(then)))
    return world.dispatcher()


def test_portakernel_decided_hears_each_announced_decision_once(world):
    dispatcher = listening(world, "pass")
    decisions = [dispatcher.decide(world.request()), dispatcher.decide(world.request("rms_norm"))]
    for decision in decisions:
        dispatcher.announce(decision)
    assert importlib.import_module("fake_ear").seen == decisions
    assert dispatcher.registry.manager.broken == []


@pytest.mark.parametrize("then", ["raise RuntimeError('no network')", "raise SystemExit(3)"])
def test_a_portakernel_decided_that_fails_changes_nothing_and_is_kept(world, then):
    dispatcher = listening(world, then)
    for _ in range(2):
        dispatcher.announce(dispatcher.decide(world.request()))
    (fault,) = dispatcher.registry.manager.broken
    assert fault.package.name == "ear"
    assert fault.reason.startswith("portakernel_decided raised ")
