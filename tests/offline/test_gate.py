"""Every kernel that claims a target compiles for it, and holds the instructions that its claim implies."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from portakernel.conformance.offline_jobs import jobs
from portakernel.offline.workers import compile_job
from portakernel.runtime import dispatcher
from portakernel.target import Target

TARGETS = (
    *("nvidia:sm_80", "nvidia:sm_89", "nvidia:sm_90", "nvidia:sm_100", "nvidia:sm_120"),
    *("amd:gfx90a", "amd:gfx942", "amd:gfx950", "amd:gfx1100", "amd:gfx1201"),
)
# Its libraries take a minute each, and a compiler that is not everywhere: tests/plugins/test_cutlass.py compiles one.
SLOW = "cutlass"
# What a thread may spill, in bytes; an architecture's compiler may need one register more than another's.
MOST_SPILLED = 64


@pytest.mark.parametrize("target", TARGETS)
def test_every_claimed_kernel_compiles_to_what_its_manifest_names(target):
    registry = dispatcher().registry
    offline = [k for k in registry.kernels.values() if k.first_party and registry.offline(k.plugin) is not None]
    able = [k for k in offline if k.plugin != SLOW and not dispatcher().readiness.not_installed(k)]
    found = [compile_job(job) for kernel in able for job in jobs(dispatcher(), kernel, Target.parse(target))]
    assert len(found) >= 15
    assert [(outcome.call, outcome.reason) for outcome in found if outcome.verdict != "native"] == []
    assert [outcome.call for outcome in found if outcome.most("spilled_bytes") > MOST_SPILLED] == []
