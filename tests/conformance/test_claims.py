"""Claims are held to the cases: none without a case, none wider than the kernel, and nothing outside is accepted."""

from __future__ import annotations

from dataclasses import fields

import pytest

from portakernel.claims.capability import Capability, Limit
from portakernel.contracts import contract
from portakernel_kit.conformance.boundary import boundary_outcomes
from portakernel_kit.conformance.claims import just_inside, just_outside


def coverage(suite):
    (result,) = suite.run(next(unit for unit in suite.units() if unit.kind == "coverage"))
    return result.status, result.detail


def test_claims_that_cases_cover_pass(make_suite):
    assert coverage(make_suite("reference.rms_norm")) == ("passed", "")


def test_dtypes_that_the_op_does_not_accept_fail(make_suite):
    suite = make_suite("reference.rms_norm", dtypes={"x": ("float32", "float16"), "weight": ("float32", "float16")})
    assert coverage(suite) == ("failed", "claims x=float32, weight=float16, which rms_norm does not accept")


def test_dtypes_that_no_case_runs_in_fail(make_suite):
    # an address that only tensors of 16-bit elements have: one element past an aligned one
    suite = make_suite("torch.add", limits=(Limit("x.alignment", one_of=(2,)),))
    assert coverage(suite) == ("failed", "claims x=float32, y=float32, and no case runs in it")


def test_feature_that_no_case_asks_for_fails(make_suite):
    suite = make_suite("reference.rms_norm", limits=(Limit("N", one_of=(128, 129)),))
    assert coverage(suite) == ("failed", "claims feature weight_offset, and no case that runs asks for it")


def test_backward_that_no_case_runs_fails(make_suite):
    suite = make_suite("reference.rms_norm", limits=(Limit("N", one_of=(70,)),), features=frozenset())
    assert coverage(suite) == ("failed", "claims a backward, and no case runs it")


def test_value_that_no_case_runs_with_fails(make_suite):
    claims = {"limits": (Limit("K", one_of=(40,)),), "values": {"activation": ("relu", "silu")}}
    status, detail = coverage(make_suite("reference.linear_act", **claims))
    assert status == "failed"
    assert detail.split("; ")[-1] == "claims activation='silu', and no case runs with it"


def test_claims_under_which_nothing_runs_fail(make_suite):
    suite = make_suite("torch.add", limits=(Limit("x.stride_last", one_of=(7,)),))
    assert coverage(suite) == ("failed", "no case of the op runs: everything that is claimed goes unchecked")


def test_limit_that_is_wider_than_the_kernel_fails_at_its_end(make_suite):
    def short(kernel):
        def rows_of_2000(x, weight, **keywords):
            results = kernel(x, weight, **keywords)
            (results[0] if isinstance(results, tuple) else results)[..., 2000:] = 0.0
            return results

        return rows_of_2000

    dtypes = {"x": ("float32", "float16", "bfloat16"), "weight": ("x",)}
    suite = make_suite("torch.rms_norm_cpu", forward=short, dtypes=dtypes, limits=(Limit("N", min=1, max=4096),))
    found = [result for unit in suite.units() if unit.kind == "case" for result in suite.run(unit)]
    failed = {result.case for result in found if result.status == "failed"}
    assert failed == {
        f"rms_norm[N = 4096, a limit, x={dtype}, weight={dtype}]" for dtype in ("float32", "float16", "bfloat16")
    }
    assert {result.case for result in found if result.case.startswith("rms_norm[N = 1, a limit")} != set()


@pytest.mark.parametrize(
    ("limit", "outside"),
    [
        (Limit("N", max=8), (9,)),
        (Limit("N", min=1), (0,)),
        (Limit("N", min=0), ()),
        (Limit("N", min=2, max=8), (1, 9)),
        (Limit("N", multiple_of=16), (15, 17)),
        (Limit("N", multiple_of=16, min=64, max=128), (15, 17, 63, 65, 79, 81, 127, 129)),
        (Limit("x.stride_last", one_of=(1,)), (0, 2)),
        (Limit("x.contiguous", one_of=(True,)), (False,)),
        (Limit("N", one_of=(64, 65, 128)), (63, 66, 127, 129)),
        (Limit("N", power_of_two=True), (0, 3, 5)),
    ],
    ids=str,
)
def test_just_outside_are_the_nearest_values_that_a_limit_does_not_admit(limit, outside):
    assert just_outside(limit) == outside
    assert not any(limit.admits(value) for value in outside)


def test_just_inside_is_admitted_by_all_limits_on_a_dimension():
    limits = [Limit("N", multiple_of=24), Limit("N", min=100, max=150)]
    value = just_inside(limits)
    assert value is not None
    assert all(limit.admits(value) for limit in limits)
    assert just_inside([Limit("N", max=3), Limit("N", min=4)]) is None
    assert just_inside([]) is not None


@pytest.mark.parametrize("name", ["triton.rms_norm", "triton.add", "torch.rms_norm_cpu", "reference.rms_norm"])
def test_just_outside_every_claim_is_refused(registry, name):
    kernel = registry.kernels[name]
    found = dict(boundary_outcomes(contract(kernel.op), kernel, registry.spaces))
    assert {claim: outcome.detail for claim, outcome in found.items() if outcome.status != "passed"} == {}
    for _, capability in kernel.variants:
        assert {f"limit {limit}" for limit in capability.limits} <= found.keys()
        assert {f"dtypes of {argument}" for argument in capability.dtypes} <= found.keys()


def test_just_outside_claimed_values_is_refused(registry):
    found = dict(boundary_outcomes(contract("linear_act"), registry.kernels["torch.linear_act"], registry.spaces))
    variants = ("gpu", "gpu_float32", "cpu")
    assert {name for name in found if "values" in name} == {f"{name}: values of activation" for name in variants}
    assert {outcome.status for outcome in found.values()} == {"passed"}


def test_variants_are_named_and_each_is_checked(make_suite, registry):
    suite = make_suite("torch.add")
    (_, capability), *_ = suite.kernel.variants
    kernel = type(suite.kernel)(
        **{field.name: getattr(suite.kernel, field.name) for field in fields(suite.kernel) if field.name != "variants"},
        variants=(("small", capability), ("", capability)),
    )
    names = [name for name, _ in boundary_outcomes(contract("add"), kernel, registry.spaces)]
    assert {name.partition(":")[0] for name in names} == {"small", "variant 2"}


class Careless(Capability):
    """A claim that is declared and not enforced."""

    __slots__ = ()

    def rejections(self, request, spaces):
        found = super().rejections(request, spaces)
        return tuple(rejection for rejection in found if rejection.parameter not in {"N", "x", "weight_offset"})


def test_claim_that_is_not_enforced_fails(make_suite, registry):
    dtypes = {"x": ("float32",), "weight": ("x",)}
    kernel = make_suite("torch.rms_norm_cpu", dtypes=dtypes, limits=(Limit("N", max=64),), features=frozenset()).kernel
    ((name, capability),) = kernel.variants
    careless = Careless(**{field.name: getattr(capability, field.name) for field in fields(capability)})
    kernel = type(kernel)(
        **{field.name: getattr(kernel, field.name) for field in fields(kernel) if field.name != "variants"},
        variants=((name, careless),),
    )
    found = dict(boundary_outcomes(contract("rms_norm"), kernel, registry.spaces))
    failed = {claim: outcome.detail for claim, outcome in found.items() if outcome.status == "failed"}
    assert failed == {
        "limit N <= 64": "N = 65 is outside what is claimed, and is not refused",
        "without feature weight_offset": "weight_offset is outside what is claimed, and is not refused",
    }


def test_claim_that_contradicts_itself_fails(make_suite):
    suite = make_suite("torch.rms_norm_cpu", limits=(Limit("N", max=3), Limit("N", min=4)))
    found = {r.case: (r.status, r.detail) for r in suite.run(next(u for u in suite.units() if u.kind == "boundary"))}
    contradiction = "no request is inside all claims: N {} contradicts another limit"
    detail = f"{contradiction.format('<= 3')}; {contradiction.format('>= 4')}"
    assert found["rms_norm[something inside]"] == ("failed", detail)


def test_properties_are_those_of_the_variant_that_serves_a_case(make_suite):
    suite = make_suite("torch.attention_flash_cpu", properties=frozenset())
    last = {unit.dtypes[0][1]: unit for unit in suite.units() if unit.kind == "case"}
    found = {dtype: [result.aspect for result in suite.run(unit)] for dtype, unit in last.items()}
    assert "determinism" not in found["float32"]
    assert "determinism" in found["bfloat16"]
