"""Kernels are compiled for targets that are not here, and the assembly is read."""

# ruff: noqa: N803
from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl

from portakernel.claims.request import Phase
from portakernel.offline.compiled import Compiled
from portakernel.offline.outcome import Outcome
from portakernel.runtime import dispatcher
from portakernel.triton_launch.offline import compiling
from portakernel.words.target import Target
from portakernel_kit.conformance import offline_jobs
from portakernel_kit.conformance.offline_jobs import jobs
from portakernel_plugins.triton.norms import rms_norm


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def _doubled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def kernel(name: str):
    return next(kernel for kernel in dispatcher().registry.named(name) if kernel.name == name)


def function(**changed) -> Compiled:
    return replace(Compiled("m.f", "nvidia:sm_90", 40, 0, 128, 0.1, "ld.global.v4.b32\nret"), **changed)


def test_a_kernel_has_one_job_for_a_target_that_it_claims_with_backward_and_even_sizes():
    (job,) = jobs(dispatcher(), kernel("triton.rms_norm"), Target.parse("amd:gfx942"))
    assert job.phases == (Phase.INFERENCE, Phase.TRAINING, Phase.BACKWARD)
    x, weight = job.tensors
    assert (x.dtype, x.shape[-1] % 16, x.offset, x.requires_grad) == (torch.bfloat16, 0, 0, True)
    assert weight.requires_grad
    assert job.multiprocessors is None
    every = jobs(dispatcher(), kernel("triton.rms_norm"), Target.parse("amd:gfx942"), every=True)
    assert job in every
    assert [one for one in every if one.evidence] == [job]
    assert {one.tensors[0].dtype for one in every} == {torch.float32, torch.float16, torch.bfloat16}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning")
@pytest.mark.parametrize("target", ["amd:gfx942", "nvidia:sm_90"])
def test_a_launch_by_triton_itself_is_compiled_in_its_first_configuration(target):
    x = torch.empty(100, device="meta")
    with compiling(Target.parse(target)) as compiled:
        _doubled[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, torch.empty_like(x), 100)
    assert [(one.function, one.target) for one in compiled] == [("test_compile._doubled", target)]
    assert "_doubled" in compiled[0].assembly


# What ranks first among the cases of cutlass.scaled_mm it does not serve.
@pytest.mark.parametrize(("name", "most"), [("triton.rms_norm", 1), ("cutlass.scaled_mm", 2)])
def test_for_one_job_no_more_inputs_are_drawn_than_may_yet_be_it(name, most, monkeypatch):
    drawn, draw_inputs = list[str](), offline_jobs.draw_inputs

    def counted(described, case, *how):
        drawn.append(case.name)
        return draw_inputs(described, case, *how)

    monkeypatch.setattr(offline_jobs, "draw_inputs", counted)
    (job,) = jobs(dispatcher(), kernel(name), Target.parse("nvidia:sm_90"))
    assert len(drawn) == most
    assert drawn[-1] in job.call
    drawn.clear()
    every = jobs(dispatcher(), kernel(name), Target.parse("nvidia:sm_90"), every=True)
    assert len(drawn) > most
    assert [one for one in every if one.evidence] == [job]


def test_what_is_not_claimed_is_no_job():
    assert jobs(dispatcher(), kernel("triton.rms_norm"), Target.parse("amd:gfx1030")) == []
    assert jobs(dispatcher(), kernel("triton.rms_norm"), Target.parse("cpu:x86_64")) == []


@pytest.mark.parametrize(("target", "wide"), [("nvidia:sm_80", r"ld\.global.*\.v4"), ("amd:gfx942", "load_dwordx4")])
def test_the_plugin_compiles_forward_and_backward_and_reads_their_resources(target, wide):
    x, weight = torch.empty(8, 4096, dtype=torch.bfloat16, device="meta"), torch.empty(4096, device="meta")
    with compiling(Target.parse(target)) as found:
        rms_norm.rms_norm(x, weight, eps=1e-6)
        inside = len(found)
        rms_norm.backward(x, x, weight, torch.empty(8, device="meta"), eps=1e-6, needs=(True, True))
    assert inside == 1
    assert len(found) >= 2
    assert found[0].function.endswith("._forward")
    for one in found:
        assert one.target == target
        assert 8 <= one.registers <= 255
        assert one.spilled_bytes == 0
    assert any(re.search(wide, one.assembly) for one in found)


def test_outside_the_context_nothing_is_compiled_for_a_meta_tensor():
    with compiling(Target.parse("nvidia:sm_90")):
        pass
    x = torch.empty(8, 64, device="meta")
    with pytest.raises(Exception, match=r"driver|CUDA|active"):
        rms_norm.rms_norm(x, torch.empty(64, device="meta"), eps=1e-6)


def test_an_outcome_is_native_with_its_evidence_and_fails_without():
    found = Outcome("p.k", "nvidia:sm_90", "a call", (function(),), r"ld\.global\.v4")
    assert (found.verdict, found.reason) == ("native", "")
    lacking = replace(found, functions=(function(assembly="ret"),))
    assert (lacking.verdict, lacking.reason) == ("fails", r"no function has 'ld\\.global\\.v4' in its assembly")
    assert replace(found, evidence="").verdict == "compiles"
    assert replace(found, error="ptxas says no").verdict == "fails"
    assert Outcome("p.k", "nvidia:sm_90", "").verdict == "unclaimed"
