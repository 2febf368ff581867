"""Who notices a manifest that claims more, or less, than it should; and that a kit which sees nothing is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from portakernel import runtime
from portakernel_kit.conformance import trial
from portakernel_kit.conformance.mutation import spelling
from portakernel_kit.conformance.mutation.mutants import mutants
from portakernel_kit.conformance.mutation.mutation import Judged, Listed
from portakernel_kit.conformance.mutation.spelling import differences, entry_index, read_back
from portakernel_kit.conformance.mutation.trying import Mutator
from portakernel_kit.conformance.observing import observer as observing
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Unavailable, find_venue

SEED = 20261122
# It is wrong in halves, beyond 600 elements and where x is not contiguous, and says so.
CLAIMS = "dtypes: {x: [float32, bfloat16], y: [x]}, limits: {M: {max: 600}, x.contiguous: {in: [true]}}"
LIMITED = """

def add(x, y, *, out=None, works=add):
    good = x.dtype is not torch.float16 and x.numel() <= 600 and x.is_contiguous()
    return works(x, y, out=out) if good else works(x, y + 1, out=out)
"""


@pytest.fixture
def judge(acme) -> Callable[..., dict[str, Judged]]:
    """What came of each mutation of the one kernel that an entry of plugin.yaml and a source describe, by its words."""

    def judged(claims: str, source: str = "", *, op: str = "add", only: str = "") -> dict[str, Judged]:
        dispatcher = acme(claims, source, op=op)
        kernel = dispatcher.registry.kernels[f"acme.{op}"]
        cpu = next(iter(dispatcher.registry.devices_on("cpu")))
        mutator = Mutator(dispatcher, kernel, find_venue(dispatcher, kernel, cpu), SEED)
        if only:
            (mutant,) = (m for m in mutants(dispatcher, kernel, mutator.venue) if m.mutation.claim == only)
            return {only: mutator.judge(mutant)}
        listed, *events = mutator.events()
        assert isinstance(listed, Listed)
        found = [event for event in events if isinstance(event, Judged)]
        assert [one.mutation for one in found] == list(listed.mutations)
        return {one.mutation.claim: one for one in found}

    return judged


def told(found: dict[str, Judged], kind: str) -> dict[str, tuple[str, str]]:
    """Verdict and witness of each mutation of a kind that was not skipped."""
    judged = {claim: one for claim, one in found.items() if one.mutation.kind == kind and one.verdict != "skipped"}
    return {claim: (one.verdict, one.by) for claim, one in judged.items()}


def test_each_claim_of_a_kernel_that_says_what_it_can_do_is_missed_when_it_is_changed(judge):
    found = judge(CLAIMS, LIMITED)
    assert told(found, "widened") == {
        "M <= 600": ("noticed", "lint"),
        "M <= 600 and not 1200": ("noticed", "check"),
        "x.contiguous = true": ("noticed", "lint"),
        "x not float16": ("noticed", "check"),
        "y not float32": ("noticed", "check"),
        "y not bfloat16": ("noticed", "check"),
        "y not float16": ("noticed", "check"),
        # torch adds each element by itself
        "without property batch_invariant": ("would_have_worked", "lint"),
    }
    assert told(found, "removed") == dict.fromkeys(
        [
            "x as float32",
            "x as bfloat16",
            "M between 300 and 600",
            "property deterministic",
            "property inplace",
            found_target(found),
        ],
        ("noticed", "lint"),
    )
    assert "x=float16" in found["x not float16"].detail
    assert " elements differ; " in found["M <= 600 and not 1200"].detail
    assert "y=float16, which add does not accept" in found["y not float16"].detail


def found_target(found: dict[str, Judged]) -> str:
    """The arch of this CPU, as the mutation of the kernel's targets names it."""
    return next(claim for claim in found if claim.startswith("cpu:"))


def test_other_hardware_proves_nothing(judge):
    found = judge("targets: {cpu: any, nvidia: sm_90+, amd: [cdna3]}, " + CLAIMS, LIMITED)
    skipped = {claim: one.detail for claim, one in found.items() if one.mutation.parameter == "target"}
    assert skipped["targets of nvidia"] == "no such device of nvidia is here"
    assert skipped["not on nvidia:sm_70 and 6 more"] == "no such device of nvidia is here"
    assert skipped["not on amd:gfx908 and 15 more"] == "no such device of amd is here"
    assert found["targets of amd"].verdict == "skipped"


def test_claims_that_are_too_narrow_are_told_apart_from_holes(judge):
    found = told(judge(CLAIMS), "widened")
    for claim in ("M <= 600", "M <= 600 and not 1200", "x.contiguous = true", "x not float16"):
        assert found[claim] == ("would_have_worked", "lint")


@pytest.mark.parametrize("claim", ["x not float16", "M <= 600", "x.contiguous = true"])
def test_kit_that_takes_any_number_for_right_is_found_out(judge, monkeypatch, claim):
    monkeypatch.setattr(trial, "compare", lambda *_, **__: None)
    monkeypatch.setattr(trial.Trial, "differing_bits", lambda *_: [])
    (judged,) = judge(CLAIMS, LIMITED, only=claim).values()
    assert judged.verdict == "unnoticed"
    assert judged.detail.endswith("passes with wrong results too")


def test_kit_without_a_case_is_found_out(judge, monkeypatch):
    monkeypatch.setattr(Suite, "run", lambda *_: iter(()))
    (judged,) = judge(CLAIMS, LIMITED, only="x not float16").values()
    assert judged.verdict == "unnoticed"
    assert judged.detail.endswith("cases that it admits shows whether it holds")


def test_lint_that_tries_no_refusal_is_found_out(judge, monkeypatch):
    monkeypatch.setattr(observing, "widenings", lambda *_: ())
    (judged,) = judge(CLAIMS, LIMITED, only="x as bfloat16").values()
    assert judged.verdict == "unnoticed"
    assert "are refused, of which lint tries none: add[" in judged.detail


def test_dispatch_that_does_not_read_a_claim_is_found_out(judge, monkeypatch):
    reads = spelling.plugin_kernels

    def deaf(*arguments):
        (read,) = reads(*arguments)
        ((name, capability),) = read.variants
        return (replace(read, variants=((name, replace(capability, limits=())),)),)

    monkeypatch.setattr(spelling, "plugin_kernels", deaf)
    (judged,) = judge(CLAIMS, LIMITED, only="M between 300 and 600").values()
    assert (judged.verdict, judged.detail) == ("unnoticed", "what the manifest says of variants[0] is not read")


def test_check_of_the_manifest_is_a_claim(judge):
    source = """

def few(M):
    return Rejection(ReasonCode.LIMIT, "M is large", "M") if M is not None and M > 600 else None
"""
    claims = "dtypes: {x: [float32], y: [x]}, check: {entry: 'HERE:few', reads: [M]}"
    (judged,) = judge(claims, LIMITED + source, only="check of M").values()
    assert (judged.verdict, judged.by) == ("noticed", "check"), judged.detail


def test_kernel_that_is_switched_off_is_missed_when_it_is_on(judge):
    wrong = LIMITED.replace("<= 600", "< 0")
    found = judge("dtypes: {x: [float32], y: [x]}, disabled: wrong everywhere", wrong)
    assert told(found, "widened") == {"disabled: wrong everywhere": ("noticed", "check")}


@pytest.mark.parametrize(
    ("source", "verdict"),
    [("import {module}\n", "noticed"), ("", "would_have_worked")],
    ids=["needed", "not needed"],
)
def test_module_that_is_required_is_taken_away(judge, tmp_path, source, verdict):
    module = f"needed_by_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text("", encoding="utf-8")
    claims = f"dtypes: {{x: [float32], y: [x]}}, requires: {{modules: {{{module}: '>=0'}}}}"
    (judged,) = judge(claims, source.format(module=module), only=f"requires {module} >=0").values()
    assert (judged.verdict, module in judged.detail) == (verdict, True)


RMS_NORM = """

def rms_norm(x, weight, *, eps, weight_offset=0.0, save=False, out=None):
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    y = (wide * rstd.unsqueeze(-1) * (weight.float() + {offset})).to(x.dtype).contiguous()
    y = y if out is None else out.copy_(y)
    return (y, rstd) if save else y
"""


def test_features_and_saved_tensors_are_claims(judge):
    served = RMS_NORM.replace("{offset}", "weight_offset")
    found = judge(
        "dtypes: {x: [float32], weight: [x]}, saves: contract, features: [weight_offset]", served, op="rms_norm"
    )
    removed = told(found, "removed")
    assert (removed["feature weight_offset"], removed["saving rstd"]) == (("noticed", "lint"), ("noticed", "lint"))


def test_feature_that_is_ignored_and_tensors_that_are_not_saved_are_missed(judge):
    ignored = RMS_NORM.replace("{offset}", "0").replace("return (y, rstd) if save else y", "return y")
    found = told(judge("dtypes: {x: [float32], weight: [x]}", ignored, op="rms_norm"), "widened")
    assert found["without feature weight_offset"] == ("noticed", "check")
    assert found["without saving rstd"] == ("noticed", "check")
    # it is made of torch's operators
    assert found["without forward-mode derivatives"] == ("would_have_worked", "lint")


def test_tangent_that_is_lost_is_missed(judge):
    lost = RMS_NORM.replace("{offset}", "0").replace("wide = x.float()", "wide = x.detach().float()")
    (judged,) = judge(
        "dtypes: {x: [float32], weight: [x]}", lost, op="rms_norm", only="without forward-mode derivatives"
    ).values()
    assert (judged.verdict, judged.by) == ("noticed", "check"), judged.detail
    assert "tangents and gradients do not go together" in judged.detail


def test_rows_that_share_a_result_are_not_independent_of_each_other():
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels["triton.quantize_fp8"]
    venue = find_venue(dispatcher, kernel)
    if isinstance(venue, Unavailable):
        pytest.skip(venue.reason)
    mutator = Mutator(dispatcher, kernel, venue, SEED)
    claim = "without property batch_invariant (shared)"
    (mutant,) = (m for m in mutants(dispatcher, kernel, venue) if m.mutation.claim == claim)
    judged = mutator.judge(mutant)
    assert (judged.verdict, judged.by) == ("noticed", "check")
    assert judged.detail.startswith("coverage: claims property batch_invariant for ")
    assert judged.detail.endswith(", where rows share scale")


def kernels_with_manifests() -> list[str]:
    """Those whose entry stands in a plugin.yaml, and does not come from a hook."""
    registry = runtime.dispatcher().registry
    described = [kernel for kernel in registry.kernels.values() if kernel.first_party and kernel.package is not None]
    return [k.name for k in described if entry_index(registry.manager.plugins[k.plugin][1], k) is not None]


@pytest.mark.parametrize("name", kernels_with_manifests())
def test_every_mutation_can_be_said_by_a_manifest_and_is_read(name):
    dispatcher = runtime.dispatcher()
    registry, kernel = dispatcher.registry, dispatcher.registry.kernels[name]
    package, loaded = registry.manager.plugins[kernel.plugin]
    index = entry_index(loaded, kernel)
    assert differences(kernel, read_back(package, loaded, index, kernel, registry.spaces)) == []
    found = mutants(dispatcher, kernel, None, nowhere="not here")
    assert len({mutant.mutation for mutant in found}) == len(found)
    for mutant in found:
        assert differences(mutant.kernel, read_back(package, loaded, index, mutant.kernel, registry.spaces)) == []
        other_hardware = mutant.mutation.parameter == "target" and mutant.mutation.kind == "widened"
        assert other_hardware or differences(kernel, mutant.kernel) != []
