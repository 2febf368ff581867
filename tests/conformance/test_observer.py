"""What a kernel's claims refuse is tried: what works is reported, whatever the manifest says, and what does not too."""

from __future__ import annotations

import pytest

from portakernel.contracts import contract
from portakernel_kit.conformance.observing.observation import AGAINST, Begun, Findings, Finished, Observation
from portakernel_kit.conformance.observing.observer import Known, Observer
from portakernel_kit.conformance.venue import find_venue

SEED = 20261122
# Refuses what no manifest says.
PICKY = """

def add(x, y, *, out=None, works=add):
    if x.dtype is torch.float16:
        {refuses}
    return works(x, y, out=out)
"""


@pytest.fixture
def observer(acme):
    """An observer of the one kernel that an entry of plugin.yaml and a source describe."""

    def make(claims: str, source: str = "", *, op: str = "add") -> Observer:
        dispatcher = acme(claims, source, op=op)
        kernel = dispatcher.registry.kernels[f"acme.{op}"]
        cpu = next(iter(dispatcher.registry.devices_on("cpu")))
        return Observer(dispatcher, kernel, find_venue(dispatcher, kernel, cpu), SEED)

    return make


def findings(observer: Observer, *, seconds: float = 600.0, known: Known | None = None) -> Findings:
    """What comes of everything that the kernel's claims refuse."""
    found = Findings(observer.kernel.name, observer.kernel.op)
    for event in observer.events(seconds, claims=False, known=known):
        found.take(event)
    return found


def verdicts(found: Findings) -> dict[str, str]:
    """Of each claim but those of properties, of which ``add`` lacks one that is no test's concern but its own."""
    told = {observed.refusal.claim: observed.verdict for observed in found.observed()}
    return {claim: verdict for claim, verdict in told.items() if "property" not in claim}


def observed(found: Findings, claim: str) -> list[Observation]:
    return [observation for observation in found.observations if observation.claim == claim]


def test_nothing_is_refused_by_a_kernel_that_claims_all_that_the_op_accepts(observer):
    found = findings(observer("dtypes: {x: [float32, float16, bfloat16], y: [x]}"))
    assert verdicts(found) == {}
    assert (found.planned.several, found.done) == (0, True)


def test_dtypes_that_are_left_out_and_work_would_have_worked_in_every_case(observer):
    found = findings(observer("dtypes: {x: [bfloat16], y: [bfloat16]}"))
    assert verdicts(found) == {"x not float32": "would_have_worked", "x not float16": "would_have_worked"}
    for dtype in ("float32", "float16"):
        cases = {observation.case for observation in observed(found, f"x not {dtype}")}
        assert cases == {f"add[{case.name}, x={dtype}, y={dtype}]" for case in contract("add").cases}
    assert found.planned.several == 0
    (refusal,) = [refusal for refusal in found.planned.refusals if refusal.claim == "x not float32"]
    assert (refusal.code, refusal.parameter, refusal.cases) == ("dtype", "x", len(contract("add").cases))


def test_layout_that_the_kernel_ignores_is_refused_rightly_and_three_cases_show_it(observer):
    source = """

def add(x, y, *, out=None):
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    flat = [t.reshape(-1) if t.is_contiguous() else t.flatten().flip(0) for t in (x, y)]
    return out.copy_(torch.add(*flat).reshape(x.shape))
"""
    claims = "dtypes: {x: [float32], y: [x]}, limits: {x.contiguous: {in: [true]}, y.contiguous: {in: [true]}}"
    found = findings(observer(claims, source))
    told = verdicts(found)
    assert (told["x.contiguous = true"], told["y.contiguous = true"]) == ("right", "right")
    wrong = [o for o in observed(found, "x.contiguous = true") if o.outcome != "correct"]
    assert [o.outcome for o in wrong] == ["wrong"] * 3
    assert all(o.detail.startswith("forward: sum: ") for o in wrong)
    # both lie elsewhere, or the dtype is another one too
    assert found.planned.several > 0


@pytest.mark.parametrize(
    ("limit", "claim", "tried"),
    [
        ("M: {max: 600}", "M <= 600", {"M = 601", "M = 1200"}),
        ("M: {max: 4096, multiple_of: 8}", "M a multiple of 8", {"M = 7", "M = 9"}),
        ("M: {min: 3}", "M >= 3", {"M = 2"}),
        ("M: {max: 600, multiple_of: 8}", "M <= 600", {"M = 608", "M = 1200"}),
    ],
)
def test_sizes_just_beyond_a_limit_are_tried(observer, limit, claim, tried):
    found = findings(observer(f"dtypes: {{x: [float32], y: [x]}}, limits: {{{limit}}}"))
    assert verdicts(found)[claim] == "would_have_worked"
    names = {o.case.removeprefix("add[").partition(",")[0] for o in observed(found, claim)}
    assert tried <= names


def test_limit_that_no_tensor_here_is_large_enough_for_is_not_tried(observer):
    found = findings(observer("dtypes: {x: [float32, float16, bfloat16], y: [x]}, limits: {M: {max: 1073741824}}"))
    assert verdicts(found) == {"M <= 1073741824": "not_tried"}
    (refusal,) = [refusal for refusal in found.planned.refusals if refusal.parameter == "M"]
    assert (refusal.code, refusal.cases) == ("limit", 0)


@pytest.mark.parametrize(
    ("refuses", "outcome", "detail"),
    [
        ("raise ValueError('no halves')", "declined", "ValueError: no halves"),
        (
            "raise CannotRun(Rejection(ReasonCode.SHARED_MEMORY, 'no halves', 'x'))",
            "declined",
            "the kernel declared that it cannot run: shared_memory: no halves",
        ),
        ("torch.ones(2) @ torch.ones(3)", "raised", "RuntimeError: "),
        ("return works(x, y, out=out) + 1", "wrong", "sum: "),
    ],
)
def test_what_the_kernel_itself_refuses_is_told_apart_from_what_it_fails_at(observer, refuses, outcome, detail):
    found = findings(observer("dtypes: {x: [float32], y: [x]}", PICKY.replace("{refuses}", refuses)))
    assert verdicts(found) == {"x not float16": "right", "x not bfloat16": "would_have_worked"}
    against = observed(found, "x not float16")
    assert {o.outcome for o in against if o.outcome in AGAINST} == {outcome}
    assert all(o.detail.startswith(f"forward: {detail}") for o in against if o.outcome == outcome)


RMS_NORM = """

def rms_norm(x, weight, *, eps{parameter}, out=None):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (weight.float() + {offset})
    return y.to(x.dtype).contiguous() if out is None else out.copy_(y)
"""


@pytest.mark.parametrize(
    ("parameter", "offset", "verdict", "outcomes"),
    [
        (", weight_offset=0.0", "weight_offset", "would_have_worked", {"correct"}),
        (", weight_offset=0.0", "0", "right", {"wrong"}),
        ("", "0", "right", {"raised"}),
    ],
    ids=["served", "ignored", "unknown"],
)
def test_feature_that_is_not_listed_is_asked_for(observer, parameter, offset, verdict, outcomes):
    source = RMS_NORM.replace("{parameter}", parameter).replace("{offset}", offset)
    found = findings(observer("dtypes: {x: [float32], weight: [x]}", source, op="rms_norm"))
    assert verdicts(found)["without feature weight_offset"] == verdict
    assert {o.outcome for o in observed(found, "without feature weight_offset")} == outcomes


def test_dtype_beside_another_is_one_that_is_refused_for_itself(observer):
    source = RMS_NORM.replace("{parameter}", "").replace("{offset}", "0")
    claims = "dtypes: {x: [float32, bfloat16], weight: [x]}"
    found = findings(observer(claims, source, op="rms_norm"))
    assert verdicts(found) == {
        "x not float16": "would_have_worked",
        "weight not float32": "would_have_worked",
        "without feature weight_offset": "right",
        "without saving rstd": "right",
        "without forward-mode derivatives": "would_have_worked",
    }
    pairs = {o.case[o.case.index("x=") : -1] for o in observed(found, "weight not float32")}
    assert pairs == {"x=bfloat16, weight=float32"}
    # x in half precision beside a weight in single: neither dtype is claimed
    assert found.planned.several > 0


def test_check_of_the_manifest_is_one_more_claim(observer):
    source = """

def small(M):
    return Rejection(ReasonCode.LIMIT, "M is odd", "M") if M % 2 else None
"""
    claims = "dtypes: {x: [float32, float16, bfloat16], y: [x]}, check: {entry: 'HERE:small', reads: [M]}"
    found = findings(observer(claims, source))
    assert verdicts(found) == {"check of M": "would_have_worked"}
    odd = [case for case in contract("add").cases if len(case.leading) == 1 and case.leading[0] % 2]
    assert {f"add[{case.name}, x=float32, y=float32]" for case in odd} <= {o.case for o in found.observations}


@pytest.mark.parametrize(("addend", "verdict"), [("-0.0", "would_have_worked"), ("0", "right"), ("1", "right")])
def test_kernel_that_its_manifest_switches_off_is_tried(observer, addend, verdict):
    source = f"\n\ndef add(x, y, *, out=None, works=add):\n    return works(x, y, out=out).add_({addend})\n"
    found = findings(observer("dtypes: {x: [float32], y: [x]}, disabled: wrong in 2024", source))
    assert verdicts(found) == {"disabled: wrong in 2024": verdict}


@pytest.mark.parametrize(("jitter", "verdict"), [("0.0", "would_have_worked"), ("torch.rand(())", "right")])
def test_property_that_is_not_listed_is_looked_for(observer, jitter, verdict):
    # rows alone, and in both calls, are given the same only where nothing is drawn
    source = RMS_NORM.replace("{parameter}", "").replace(
        "{offset}", f"1e-9 * {jitter} if x.dtype == torch.float32 else 0"
    )
    source = source.replace("wide = x.float()", f"wide = x.float() * (1 + 2.4e-7 * {jitter})")
    claims = "dtypes: {x: [float32], weight: [x]}, properties: {graph_capture: true, inplace: true}"
    found = findings(observer(claims, source, op="rms_norm"))
    told = {o.refusal.claim: o.verdict for o in found.observed()}
    assert told["without property deterministic"] == verdict
    shown = [o for o in observed(found, "without property deterministic") if o.outcome == "wrong"]
    assert all(o.detail.startswith("determinism: y differs between two equal calls") for o in shown)


def test_what_the_reference_cannot_judge_says_nothing(observer, monkeypatch):
    from portakernel_kit.conformance.truth import Truth

    made = observer("dtypes: {x: [float32], y: [x]}")
    truth = Truth.of

    def failing(inputs, on):
        if str(inputs.tensors[0].dtype) == "torch.float16":
            raise ArithmeticError("the truth is out there")
        return truth(inputs, on)

    monkeypatch.setattr(Truth, "of", failing)
    found = findings(made)
    assert verdicts(found) == {"x not float16": "not_tried", "x not bfloat16": "would_have_worked"}
    assert {(o.outcome, o.detail) for o in observed(found, "x not float16")} == {
        ("unjudged", "ArithmeticError: the truth is out there")
    }


def test_without_time_what_is_left_is_counted(observer):
    found = findings(observer("dtypes: {x: [float32], y: [x]}"), seconds=-1.0)
    assert set(verdicts(found).values()) == {"not_tried"}
    assert {o.refusal.claim: o.left for o in found.observed() if "property" not in o.refusal.claim} == dict.fromkeys(
        ("x not float16", "x not bfloat16"), len(contract("add").cases)
    )


def test_what_is_known_is_not_run_again_and_a_suspect_runs_alone(observer):
    made = observer("dtypes: {x: [float32], y: [x]}")
    first = findings(made)
    again = findings(made, known=Known(frozenset(first.asked), tuple(first.observations)))
    assert (again.observations, again.asked) == ([], set())
    suspect = Begun(first.observations[0].claim, first.observations[0].case)
    alone = findings(made, known=Known(frozenset(first.asked - {suspect}), (), suspect))
    assert alone.asked == {suspect}
    assert alone.observations == first.observations[:1]


def test_refusals_take_turns_in_an_order_of_the_seed(observer):
    made = observer("dtypes: {x: [float32], y: [x]}")
    events = list(made.events(600.0, claims=False))
    claims = [event.claim for event in events if isinstance(event, Begun)]
    assert claims[:6] == ["x not float16", "x not bfloat16", "without property batch_invariant"] * 2
    assert [e for e in made.events(600.0, claims=False) if isinstance(e, Begun)] == [
        e for e in events if isinstance(e, Begun)
    ]
    assert events[-1] == Finished()


def test_kernel_that_lacks_what_it_requires_cannot_run(observer):
    found = findings(observer("dtypes: {x: [float32], y: [x]}, requires: {modules: {no_such_module: '>=1'}}"))
    assert (found.planned.refusals, found.ran) == ((), False)
    assert found.reason == "not_installed: needs no_such_module >=1; it is not installed"


def test_claims_are_checked_first_when_they_are_asked_for(observer):
    made = observer(
        "dtypes: {x: [float32, float16], y: [x]}", PICKY.replace("{refuses}", "return works(y, y, out=out)")
    )
    found = Findings(made.kernel.name, made.kernel.op)
    for event in made.events(-1.0):
        found.take(event)
    assert {result.case.partition(", x=")[2] for result in found.failures} == {"float16, y=float16]"}
    assert found.counts()["passed"] > 0
    assert sum(isinstance(event, Begun) for event in made.events(-1.0)) == found.planned.units
