"""``torch.autograd.gradcheck`` of the public ops: float64 is served by the references, and by nothing else."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from portakernel_pages.modes.subject import Subject, smallest_case

import portakernel
from portakernel.contract import Case
from portakernel.contracts import contract, own_contracts
from portakernel.errors import ArgumentTypeError, NoKernelError
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Venue

DIFFERENTIATED = sorted(op for op, described in own_contracts().items() if described.in_float64)


def cases() -> list[tuple[str, Case]]:
    """Of each op the smallest case, and small ones in which each further tensor, and each feature, is there."""
    found: list[tuple[str, Case]] = []
    for op in DIFFERENTIATED:
        described, seen = contract(op), set[str]()
        found.append((op, smallest_case(described)))
        for case in described.cases:
            new = {*case.present, *case.parameters} - seen
            ordinary = case.values == "normal" and case.backward and not case.layouts
            if new and ordinary and elements(op, case) <= 6000:
                found.append((op, case))
                seen |= new
    return found


def elements(op: str, case: Case) -> int:
    return sum(tensor.numel() for tensor in Subject(op, case).tensors if tensor is not None)


CASES = cases()
NAMES = [f"{op}: {case.name}" for op, case in CASES]


def test_every_op_with_a_gradient_is_asked():
    assert [op for op, described in own_contracts().items() if described.gradient != "none"] == DIFFERENTIATED
    assert len(DIFFERENTIATED) >= 15
    assert {op for op, _ in CASES} == set(DIFFERENTIATED)


@pytest.mark.parametrize(("op", "case"), CASES, ids=NAMES)
def test_gradcheck_passes(op: str, case: Case):
    subject = Subject(op, case).in_float64()
    assert torch.autograd.gradcheck(subject.of_floats, subject.leaves(), fast_mode=True)


@pytest.mark.parametrize("op", DIFFERENTIATED)
def test_gradgradcheck_passes(op: str):
    # what another activation of linear_act saves cannot be computed again, which backward's gradient says
    plain = Case("plain", (2,), {"K": 3, "N": 4}, parameters={"activation": "none"}, present=("bias",))
    subject = Subject(op, plain if op == "linear_act" else None).in_float64()

    def differentiable(*floats: torch.Tensor) -> Any:
        return tuple(subject.differentiable(subject.of_floats(*floats)))

    assert torch.autograd.gradgradcheck(differentiable, subject.leaves(), fast_mode=True)


@pytest.mark.parametrize("op", DIFFERENTIATED)
def test_the_results_are_in_float64_with_out_under_tracing_and_as_a_torch_op_too(op: str):
    subject = Subject(op).in_float64()
    found = subject.of_floats(*subject.plain())
    results = found if isinstance(found, tuple) else (found,)
    assert {result.dtype for result in results if result.is_floating_point()} == {torch.float64}
    out = tuple(map(torch.empty_like, results))
    positional, keywords = subject.inputs.keywords(subject.tensors)
    function = getattr(portakernel.ops, op)
    for _ in range(2):  # as a new form, and as a known one
        written = function(*positional, **keywords, out=out if isinstance(found, tuple) else out[0])
        for result, wanted in zip(written if isinstance(written, tuple) else (written,), results, strict=True):
            assert torch.equal(result, wanted)
    narrow = tuple(result.float() for result in results)
    with pytest.raises(ArgumentTypeError, match="float32"):
        function(*positional, **keywords, out=narrow if isinstance(found, tuple) else narrow[0])
    traced = torch.compile(function, backend="aot_eager", fullgraph=True)(*positional, **keywords)
    for result, wanted in zip(traced if isinstance(traced, tuple) else (traced,), results, strict=True):
        assert result.dtype is wanted.dtype
        assert torch.equal(result, wanted)


def test_whoever_serves_float64_is_the_reference_and_explain_says_why_others_do_not():
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    decision = portakernel.explain("rms_norm", x, weight)
    assert decision.chosen is not None
    assert decision.chosen.name == "reference.rms_norm"
    rejections = decision.candidate("torch.rms_norm").rejections
    text = "x needs float32, float16, bfloat16; this is float64"
    assert ("dtype", "x") in {(str(rejection.code), rejection.parameter) for rejection in rejections}
    assert any(rejection.text.endswith(text) for rejection in rejections)
    asked = portakernel.explain("rms_norm", target="nvidia:sm_90", dtype="float64")
    assert asked.chosen is not None
    assert (asked.chosen.name, asked.request.dtypes) == ("reference.rms_norm", {"x": "float64", "weight": "float64"})
    with pytest.raises(NoKernelError, match="x needs float32, float16, bfloat16; this is float64"):
        portakernel.ops.rms_norm(x, weight, kernel="torch")


def test_no_other_kernel_claims_float64():
    claims = [(k.name, c) for k in dispatcher().registry.kernels.values() for _, c in k.variants if not k.is_reference]
    assert len(claims) > 50
    assert [name for name, claim in claims if any("float64" in dtypes for dtypes in claim.dtypes.values())] == []


def test_an_op_without_gradients_refuses_float64_and_so_do_arguments_beside_a_narrower_first_one():
    x = torch.randn(3, 32, dtype=torch.float64)
    with pytest.raises(
        ArgumentTypeError, match=r"^quantize_fp8: x is float64; it must be float32 or float16 or bfloat16$"
    ):
        portakernel.ops.quantize_fp8(x)
    with pytest.raises(ArgumentTypeError, match=r"^rms_norm: weight is float64; it must be float32$"):
        portakernel.ops.rms_norm(x.float(), x[0])
    told = "it must be float32 or float16 or bfloat16, or float64, which the reference serves"
    with pytest.raises(ArgumentTypeError, match=f"^rms_norm: x is int64; {told}$"):
        portakernel.ops.rms_norm(x.long(), x[0])
    assert "or float64, which the reference alone serves" in (portakernel.ops.rms_norm.__doc__ or "")


def test_on_an_accelerator_too_a_call_in_float64_is_a_test_and_warns_of_nothing(monkeypatch):
    monkeypatch.setattr(dispatcher(), "reference_is_free", frozenset())
    x = torch.randn(3, 24, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        portakernel.ops.softmax(x)
    with portakernel.policy(reference="forbid"), pytest.raises(NoKernelError, match="reference: forbid"):
        portakernel.ops.softmax(x)


def test_the_kit_asks_nobody_for_float64():
    """Not the reference either: what it would be compared with is itself."""
    kernel = dispatcher().registry.kernels["reference.rms_norm"]
    assert [("float64" in claim.dtypes["x"]) for _, claim in kernel.variants] == [True]
    suite = Suite(dispatcher(), kernel, Venue("cpu", (Target.parse("cpu:x86_64"),)), seed=0)
    dtypes = {dtype for unit in suite.units() for _, dtype in unit.dtypes}
    assert dtypes == {"float32", "float16", "bfloat16"}


def test_an_op_whose_contract_has_float64_for_every_kernel_has_no_tests_beside_it():
    described = contract("rms_norm")
    wide = replace(described.tensors[0], dtypes=("float64", "float32"))
    everywhere = replace(described, tensors=(wide, *described.tensors[1:]))
    assert (described.in_float64, everywhere.in_float64) == ("x", "")
    everywhere.check_dtypes({"x": "float64", "weight": "float32"})
    assert everywhere.form(described.saved[0], {"M": 3, "N": 4}, (3,), {"x": "float64"}, {})[1] == "float32"
