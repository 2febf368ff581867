"""What the kit reports: conforming kernels pass, faults fail, what cannot run is skipped; each with its reason."""

from __future__ import annotations

import json
import os
import random
import re
import zlib
from collections import Counter

import pytest
from cxx import HAS_CXX

from portakernel import runtime
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.contracts import contract
from portakernel.errors import UnknownNameError
from portakernel.words.target import Device, Target
from portakernel_kit.conformance.runner import check, fresh_seed, plan, run, select_kernels
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.venue import Unavailable, Venue, covers, find_venue


def failures(results):
    return [str(result) for result in results if result.status == "failed"]


def results_of(suite, *, only=lambda unit: True):
    return [result for unit in suite.units() if only(unit) for result in suite.run(unit)]


def cpu_device(dispatcher):
    device = next(iter(dispatcher.registry.devices_on("cpu")), None)
    return device or pytest.skip("no backend describes this CPU")


def kernels_for_the_cpu():
    """Every kernel of portakernel's own that claims this machine's CPU."""
    registry = runtime.dispatcher().registry
    cpus = registry.devices_on("cpu")
    found = [kernel for kernel in registry.kernels.values() if kernel.first_party and cpus]
    return [k.name for k in found if any(covers(c, cpus[0].target, registry.spaces) for _, c in k.variants)]


def triton_kernels():
    """Those of the Triton plugin."""
    return [kernel.name for kernel in runtime.dispatcher().registry.kernels.values() if kernel.plugin == "triton"]


# Each takes the interpreter half a minute, with the gradients of thirty cases and more; the others together take less.
LONG = ("triton.attention", "triton.attention_varlen", "triton.block_sparse_attention")
# Inductor compiles each case anew, attention's in 20 s; the references go from block to block, and from page to page.
LONG_ON_THE_CPU = ("inductor.attention", "reference.block_sparse_attention", "reference.paged_attention")


def half_of_the_cases(name, units):
    """Every other case, from the first or the second on as the last commit's tree draws.

    All where none is drawn, and where there is but one.
    """
    drawn = os.environ.get("TESTS_TURN")
    cases = [unit for unit in units if unit.kind == "case"]
    left_out = cases[zlib.crc32(f"{drawn} {name}".encode()) % 2 :: 2] if drawn and len(cases) > 1 else []
    return [unit for unit in units if unit not in left_out]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", kernels_for_the_cpu())
def test_kernel_conforms_on_the_cpu_for_inputs_never_seen_before(name, units_in_turn):
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels[name]
    if kernel.build is not None and not HAS_CXX:
        pytest.skip("lacks a C++ compiler, which Inductor needs")
    suite = Suite(dispatcher, kernel, find_venue(dispatcher, kernel, cpu_device(dispatcher)), fresh_seed())
    first = contract(kernel.op).names[0]
    kinds = sorted({dict(unit.dtypes)[first] for unit in suite.units() if unit.case is not None})
    # what is compiled for each combination of dtypes takes seconds for each
    drawn = {None, *kinds} if kernel.build is None else {None, random.choice(kinds)}
    units = units_in_turn(suite, lambda unit: dict(unit.dtypes).get(first) in drawn)
    units = half_of_the_cases(name, units) if name in LONG_ON_THE_CPU else units
    found = [result for unit in units for result in suite.run(unit)]
    assert failures(found) == []
    if any(r.code is ReasonCode.NOT_INSTALLED for r in dispatcher.readiness.not_installed(kernel)):
        return
    passed = Counter(result.aspect for result in found if result.status == "passed")
    assert passed["coverage"] == 1
    assert passed["forward"] >= (3 if kernel.build is None else 1)
    assert passed["forward"] == passed["purity"] == passed["view"]


@pytest.mark.parametrize(
    ("name", "combinations", "refused"),
    [("reference.add", 3, 0), ("torch.add", 3, 0), ("torch.rms_norm_cpu", 5, 0), ("torch.add_layer_norm_cpu", 5, 30)],
)
def test_every_case_runs_in_every_combination_of_dtypes_that_is_claimed(name, combinations, refused):
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels[name]
    found = list(run(dispatcher, kernel, find_venue(dispatcher, kernel, cpu_device(dispatcher))))
    passed = Counter(result.aspect for result in found if result.status == "passed")
    cases = combinations * len(contract(kernel.op).cases) - refused
    assert {aspect: passed[aspect] for aspect in ("forward", "out", "determinism", "purity", "view")} == dict.fromkeys(
        ("forward", "out", "determinism", "purity", "view"), cases
    )
    assert passed["autograd"] == combinations


@pytest.mark.turns(6)
@pytest.mark.usefixtures("ways_in_turn")
@pytest.mark.parametrize("name", triton_kernels())
def test_triton_kernel_conforms_in_its_interpreter(make_suite, name, units_in_turn):
    pytest.importorskip("triton")
    suite = make_suite(name)
    assert (suite.venue.mode, suite.venue.torch_device) == ("interpreter", "cpu")

    def kind(unit: Unit) -> str | None:
        return dict(unit.dtypes).get(suite.contract.names[0])

    # in the first argument's dtype that engines use, where there is one: the others take the interpreter minutes
    kinds = {kind(unit) for unit in suite.units() if unit.case is not None}
    usual = (kinds & {"bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2"} or kinds) | {None}

    def narrow(unit: Unit) -> bool:
        return kind(unit) in usual

    units = units_in_turn(suite, narrow)
    units = half_of_the_cases(name, units) if name in LONG else units
    found = [result for unit in units for result in suite.run(unit)]
    assert failures(found) == []
    assert {result.mode for result in found} == {"interpreter"}
    if "hopper" in name:  # Gluon is not interpreted
        assert {result.status for result in found if result.aspect == "claim"} == {"skipped"}
        assert not any(result.aspect == "forward" for result in found)
        return
    passed = Counter(result.aspect for result in found if result.status == "passed")
    enough = min(10, len({unit.case.name for unit in units if unit.case is not None}))
    assert passed["forward"] >= enough >= 3
    assert (passed["backward"] >= enough) == (suite.kernel.backward is not None)


def test_two_draws_of_half_of_the_cases_have_every_case(make_suite, units_in_turn, monkeypatch):
    units = units_in_turn(make_suite("reference.rms_norm"), lambda _: True)
    halves = []
    for tree in map(str, range(20)):
        monkeypatch.setenv("TESTS_TURN", tree)
        halves.append(half_of_the_cases("reference.rms_norm", units))
    assert [unit for unit in units if not any(unit in half for half in halves)] == []
    cases = sum(unit.kind == "case" for unit in units)
    assert {len(units) - len(half) for half in halves} <= {cases // 2, cases - cases // 2}
    monkeypatch.setenv("TESTS_TURN", "")
    assert half_of_the_cases("reference.rms_norm", units) == list(units)


def test_taken_in_turn_every_case_runs_once_and_every_combination_of_dtypes_in_some_case(make_suite, units_in_turn):
    suite = make_suite("reference.rms_norm")
    all_units, found = (
        [unit for unit in units if unit.kind == "case"]
        for units in (suite.units(), units_in_turn(suite, lambda unit: dict(unit.dtypes).get("x") != "float16"))
    )
    assert {unit.case.name for unit in found} == {unit.case.name for unit in all_units}
    assert {unit.dtypes for unit in found} == {u.dtypes for u in all_units if dict(u.dtypes)["x"] != "float16"}
    assert len(found) < len(suite.cases) + 3
    times = Counter(unit.dtypes for unit in found).values()
    assert max(times) - min(times) <= 1


def test_the_modes_allowance_is_added_to_the_ops_tolerance_for_its_dtypes_alone(make_suite):
    suite = make_suite("torch.add", forward=lambda kernel: lambda x, y, **kw: _one_ulp_more(kernel(x, y, **kw)))
    unit = next(unit for unit in suite.units() if unit.name == "add[odd, x=bfloat16, y=bfloat16]")
    assert [r.aspect for r in suite.run(unit) if r.status == "failed"] == ["forward", "out", "inplace"]
    suite.venue = Venue("cpu", suite.venue.targets, suite.venue.device, allowance_ulp={"bfloat16": 3.0})
    assert failures(suite.run(unit)) == []
    other = next(unit for unit in suite.units() if unit.name == "add[odd, x=float16, y=float16]")
    assert failures(suite.run(other)) != []


def _one_ulp_more(result):
    import torch

    bits = result.view(torch.int16) if result.element_size() == 2 else result.view(torch.int32)
    bits += 1
    return result


def test_kernel_without_a_device_or_mode_is_one_skipped_result():
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels["torch.rms_norm"]
    venue = find_venue(dispatcher, kernel, cpu_device(dispatcher))
    target = cpu_device(dispatcher).target
    assert venue == Unavailable(f"serves amd any, nvidia any; here: {target}")
    (only,) = run(dispatcher, kernel, venue)
    assert (only.case, only.aspect, only.status, only.detail) == ("rms_norm[*]", "claim", "skipped", venue.reason)


def test_archs_of_several_variants_are_told_once():
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels["torch.scaled_mm"]
    venue = find_venue(dispatcher, kernel, cpu_device(dispatcher))
    here = cpu_device(dispatcher).target
    assert venue == Unavailable(f"serves amd gfx950, gfx1200, gfx1201, gfx942, nvidia sm_89+; here: {here}")


def test_mode_stands_in_only_for_the_device_that_its_tensors_lie_on():
    pytest.importorskip("triton")
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels["triton.add"]
    strange = Device(Target("acme", "npu1"), "NPU", "npu:0")
    assert isinstance(find_venue(dispatcher, kernel, strange), Unavailable)
    found = find_venue(dispatcher, kernel, cpu_device(dispatcher))
    assert isinstance(found, Venue)
    assert found.mode == "interpreter"


@pytest.mark.parametrize("op", ["add", "rms_norm", "linear_act"])
def test_plan_counts_the_cases_that_check_reports(op):
    dispatcher = runtime.dispatcher()
    asked = {"plugin": "torch", "op": op, "device": cpu_device(dispatcher)}
    found = list(check(dispatcher, **asked, seed=1))
    assert plan(dispatcher, **asked) == len({(result.kernel, result.case) for result in found})
    assert {result.kernel for result in found} == {kernel.name for kernel in select_kernels(dispatcher, "torch", op)}


def test_results_are_json():
    dispatcher = runtime.dispatcher()
    first = next(check(dispatcher, plugin="torch", op="add", device=cpu_device(dispatcher), seed=1))
    found = json.loads(json.dumps(first.to_json()))
    assert found.pop("seconds") > 0
    assert found == {
        "kernel": "torch.add",
        "op": "add",
        "case": "add[one element, x=float32, y=float32]",
        "aspect": "forward",
        "status": "passed",
        "detail": "",
        "device": f"{cpu_device(dispatcher).target} (cpu)",
        "mode": None,
        "traceback": "",
    }


def test_unknown_names_are_told_with_the_nearest():
    dispatcher = runtime.dispatcher()
    with pytest.raises(UnknownNameError) as caught:
        next(check(dispatcher, plugin="torhc"))
    assert str(caught.value) == "unknown plugin 'torhc'; did you mean 'torch'?"
    with pytest.raises(UnknownNameError) as caught:
        plan(dispatcher, op="ad")
    assert str(caught.value) == "unknown op 'ad'; did you mean 'add'?"
    assert [kernel.name for kernel in select_kernels(dispatcher, "reference", "add")] == ["reference.add"]


def test_seeds_are_fresh_and_a_seed_gives_the_same_failure_again(make_suite):
    assert fresh_seed() != fresh_seed()

    def spoil(kernel):
        def spoilt(x, y, *, out=None):
            result = kernel(x, y, out=out)
            result[(0,) * result.dim()] += 1.0
            return result

        return spoilt

    suite = make_suite("torch.add", forward=spoil)
    unit = suite.units()[0]
    details = [[r.detail for r in suite.run(unit) if r.aspect == "forward"] for _ in range(2)]
    assert details[0] == details[1]
    assert details[0][0].endswith(f"(seed {suite.seed})")
    suite.seed += 1
    assert [r.detail for r in suite.run(unit) if r.aspect == "forward"] != details[0]


def test_exception_fails_its_case_with_type_message_and_traceback(make_suite):
    def raising(kernel):
        def broken_kernel(x, y, *, out=None):
            if x.dim() == 3:
                raise IndexError("no third dimension")
            return kernel(x, y, out=out)

        return broken_kernel

    suite = make_suite("torch.add", forward=raising)
    found = results_of(suite, only=lambda unit: unit.kind == "case")
    failed = [result for result in found if result.status == "failed"]
    assert {result.case.partition(",")[0] for result in failed} == {"add[three dimensions"}
    assert {result.detail for result in failed} == {f"IndexError: no third dimension (seed {suite.seed})"}
    assert all("broken_kernel" in result.traceback for result in failed)


def test_declared_refusal_at_run_time_is_skipped_and_leaves_its_claim_uncovered(make_suite):
    def declining(kernel):
        def picky(x, y, *, out=None):
            if x.element_size() == 4:
                raise CannotRun(Rejection(ReasonCode.SHARED_MEMORY, "needs more than there is", "N"))
            return kernel(x, y, out=out)

        return picky

    suite = make_suite("torch.add", forward=declining)
    found = results_of(suite, only=lambda unit: unit.kind in {"case", "coverage"})
    skipped = {result.detail for result in found if result.status == "skipped"}
    assert skipped == {"the kernel declared that it cannot run: shared_memory: needs more than there is"}
    assert failures(found) == [
        "torch.add add[coverage] coverage: failed: claims x=float32, y=float32, and no case runs in it"
    ]


def test_kernel_that_is_switched_off_is_skipped_with_that_reason(make_suite):
    found = results_of(make_suite("torch.add", disable=("torch",)), only=lambda u: u.kind in {"case", "coverage"})
    assert {result.status for result in found} == {"skipped"}
    assert {result.detail for result in found if result.aspect == "claim"} == {
        "refused (not usable): disabled: PORTAKERNEL_DISABLE names torch"
    }
    assert found[-1].detail == "the kernel cannot be used here: disabled: PORTAKERNEL_DISABLE names torch"


def test_kernel_whose_import_fails_is_a_failure_and_no_refusal(make_suite):
    suite = make_suite("torch.add", entry="portakernel_plugins.torch.add:addition")
    found = results_of(suite, only=lambda unit: unit.name == "add[odd, x=float32, y=float32]")
    assert [(result.aspect, result.status) for result in found] == [("claim", "failed")]
    assert "import_failed" in found[0].detail
    assert "portakernel_plugins.torch.add has no function 'addition'" in found[0].detail


SHARED = """
BUFFERS = {}

def add(x, y, *, out=None):
    if out is None:
        out = BUFFERS.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
    return torch.add(x, y, out=out)
"""


def test_one_buffer_that_all_threads_are_given_has_the_numbers_of_one_of_them(acme):
    dispatcher = acme("dtypes: {x: [float32], y: [x]}", SHARED)
    kernel = dispatcher.registry.kernels["acme.add"]
    suite = Suite(dispatcher, kernel, find_venue(dispatcher, kernel, cpu_device(dispatcher)), fresh_seed())
    found = results_of(suite, only=lambda unit: unit.kind == "repetition")
    (detail,) = [result.detail for result in found if result.aspect == "threads"]
    assert re.search(r" when another thread made one while it was in line 18 of acme_\w+/__init__.py: a buf", detail)


KEPT = """
KEPT = {kept}
BUILT = []

def build(request, tensors, values):
    BUILT.append(request.dtypes["x"])

def built(request):
    missing = request.dtypes["x"] not in (*KEPT, *BUILT)
    return Rejection(ReasonCode.NEEDS_BUILD, "not built") if missing else None
"""


@pytest.mark.parametrize("kept", [(), ("float32",), ("float32", "float16", "bfloat16")])
def test_of_what_a_cache_has_every_case_runs_and_of_the_rest_as_few_as_put_claims_to_the_test(acme, kept):
    dtypes = "dtypes: {x: [float32, float16, bfloat16], y: [x]}"
    dispatcher = acme(f"build: 'HERE:build', built: 'HERE:built', {dtypes}", KEPT.format(kept=kept))
    kernel = dispatcher.registry.kernels["acme.add"]
    venue = find_venue(dispatcher, kernel, cpu_device(dispatcher))
    suite, every = (Suite(dispatcher, kernel, venue, 0, all_builds=all_builds) for all_builds in (False, True))
    names = [{unit.name for unit in one.units() if unit.kind == "case"} for one in (suite, every)]
    of = [
        {dtype: [n for n in found if f"x={dtype}" in n] for dtype in ("float32", "float16", "bfloat16")}
        for found in names
    ]
    for dtype, found in of[0].items():
        assert len(found) == (len(of[1][dtype]) if dtype in kept else 1), dtype
    told = [result.detail for result in results_of(suite, only=lambda unit: unit.kind == "unbuilt")]
    left = sum(map(len, of[1].values())) - sum(map(len, of[0].values()))
    text = f"{left} more cases are left out, each of which is a build; `portakernel check --all-builds` runs them"
    assert told == ([text] if left else [])
