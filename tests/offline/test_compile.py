"""Kernels are compiled for targets that are not here, each in a process that may die, and the assembly is read."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch

from portakernel.offline import workers
from portakernel.offline.compiled import Compiled
from portakernel.offline.jobs import jobs
from portakernel.offline.outcome import Outcome
from portakernel.offline.workers import compile_all, compile_job
from portakernel.request import Phase
from portakernel.runtime import dispatcher
from portakernel.target import Target
from portakernel_plugins.triton import rms_norm
from portakernel_plugins.triton.offline import compiling


def kernel(name: str):
    return next(kernel for kernel in dispatcher().registry.named(name) if kernel.name == name)


def function(**changed) -> Compiled:
    return replace(Compiled("m.f", "nvidia:sm_90", 40, 0, 128, 0.1, "ld.global.v4.b32\nret"), **changed)


def test_a_kernel_has_one_job_for_a_target_that_it_claims_with_backward_and_even_sizes():
    (job,) = jobs(dispatcher(), kernel("triton.rms_norm"), Target.parse("amd:gfx942"))
    assert job.phases == (Phase.INFERENCE, Phase.TRAINING, Phase.BACKWARD)
    assert dict(job.dtypes)["x"] == "bfloat16"
    every = jobs(dispatcher(), kernel("triton.rms_norm"), Target.parse("amd:gfx942"), every=True)
    assert job in every
    assert {dict(one.dtypes)["x"] for one in every} == {"float32", "float16", "bfloat16"}


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


def test_a_compilers_diagnosis_on_stderr_is_in_the_error(monkeypatch):
    @contextmanager
    def failing(target):
        os.write(2, b"ptxas: line 7: unknown instruction\n")
        raise RuntimeError("PassManager::run failed")
        yield []

    monkeypatch.setattr(workers, "offline_context", lambda now, kernel: failing)
    (job,) = jobs(dispatcher(), kernel("triton.add"), Target.parse("nvidia:sm_90"))
    outcome = compile_job(job)
    assert outcome.error == "RuntimeError: PassManager::run failed\nptxas: line 7: unknown instruction"


def test_a_compiler_that_ends_its_process_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    """The workers import this package's stand-in for the plugin's context, which kills the process for one arch."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('KILL_FOR'):\n"
        "    import portakernel.offline.workers as workers\n"
        "    real = workers.offline_context\n"
        "    def context(now, kernel):\n"
        "        made = real(now, kernel)\n"
        "        return lambda target: os._exit(9) if target.arch == os.environ['KILL_FOR'] else made(target)\n"
        "    workers.offline_context = context\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("KILL_FOR", "sm_89")
    asked = [
        job for arch in ("sm_89", "sm_90") for job in jobs(dispatcher(), kernel("triton.add"), Target("nvidia", arch))
    ]
    outcomes = {outcome.target: outcome for outcome in compile_all(asked, workers=2)}
    assert outcomes["nvidia:sm_89"].error == "the compiler ended its process"
    assert outcomes["nvidia:sm_90"].verdict in ("native", "compiles"), outcomes["nvidia:sm_90"].error
    assert len(outcomes["nvidia:sm_90"].functions) == 1
