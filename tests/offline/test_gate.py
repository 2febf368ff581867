"""Every kernel that claims a target compiles for it, and holds the instructions that its claim implies.

Each for a target of either vendor, others in each run, and what takes longest for one of one vendor: all for all take
minutes, and are ``portakernel compile --all``.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from portakernel.offline.workers import compile_job
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_kit.conformance.offline_jobs import jobs
from portakernel_kit.conformance.venue import covers

TARGETS = (
    *("nvidia:sm_80", "nvidia:sm_89", "nvidia:sm_90", "nvidia:sm_100", "nvidia:sm_120"),
    *("amd:gfx90a", "amd:gfx942", "amd:gfx950", "amd:gfx1100", "amd:gfx1201"),
)
# Its libraries take a minute each, and a compiler that is not everywhere: tests/plugins/test_cutlass.py compiles one.
SLOW = "cutlass"
# Two thirds of the compiler's time: 5 to 18 seconds each, with their gradients, where the others take one.
LONG = ("triton.attention", "triton.attention_varlen", "triton.block_sparse_attention", "triton.linear_cross_entropy")
# What a thread of a plugin's kernels may spill, in bytes; Triton's compiler may need one register more for one
# architecture than for another.
MOST_SPILLED = {"triton": 64}
# Where launches were measured: attention's gradients by keys are fastest with more than fits beside their two sums. 192
# bytes were; where programs share queries there are 56 more, none of them in the loop of blocks that are seen whole.
MEASURED = {"nvidia:sm_90": 256}
# Of a kernel whose sums alone are half of all registers: the fastest of what was measured there, and none of it spills
# less than half as much.
OF_KERNELS = {("triton.mla_decode", "nvidia:sm_90"): 768}
# Where the loops have all that they need, and what is spilled is wanted before or after: attention's gradients.
OUTSIDE_LOOPS = {"amd:gfx1100": 544}


@pytest.fixture
def turn(testrun_uid):
    """The same in every worker of a run."""
    return int(testrun_uid, 16)


@pytest.mark.parametrize("target", TARGETS)
def test_a_claimed_kernel_compiles_to_what_its_manifest_names(target, turn):
    registry, asked = dispatcher().registry, Target.parse(target)
    offline = [k for k in registry.kernels.values() if k.first_party and registry.offline(k.plugin) is not None]
    able = [k for k in offline if k.plugin != SLOW and not dispatcher().readiness.not_installed(k)]
    claimed = [k for k in able if any(covers(claim, asked, registry.spaces) for _, claim in k.variants)]
    assert len(claimed) >= 15
    # Five targets in a row are of one vendor: each kernel is compiled for one of the five.
    drawn = able[(TARGETS.index(target) + turn) % 5 :: 5]
    if (TARGETS.index(target) // 5 + turn // 5) % 2:
        drawn = [k for k in drawn if k.name not in LONG]
    jobs_of_drawn = [(k.plugin, job) for k in drawn for job in jobs(dispatcher(), k, asked)]
    # one that cannot be imported has none
    assert [job.kernel for _, job in jobs_of_drawn] == [k.name for k in drawn if k in claimed]
    assert len(jobs_of_drawn) >= 3
    found = [(plugin, compile_job(job)) for plugin, job in jobs_of_drawn]
    lacking = {outcome.reason for _, outcome in found if "missing_toolchain" in outcome.reason}
    found = [(plugin, outcome) for plugin, outcome in found if outcome.reason not in lacking]
    assert [(outcome.call, outcome.reason) for _, outcome in found if outcome.verdict != "native"] == []
    spills = [(plugin, outcome.call, outcome.most("spilled_bytes")) for plugin, outcome in found]
    most = {plugin: (MEASURED | OUTSIDE_LOOPS).get(target, most) for plugin, most in MOST_SPILLED.items()}
    allowed = [OF_KERNELS.get((call.split()[0], target), most.get(plugin, 0)) for plugin, call, _ in spills]
    assert [(call, found) for (_, call, found), most in zip(spills, allowed, strict=True) if found > most] == []
    if lacking:  # the others were held to it
        pytest.skip(f"lacks a compiler: {'; '.join(sorted(lacking))}")


def test_every_kernel_that_is_compiled_says_what_its_assembly_has_to_hold_for_each_vendor():
    registry = dispatcher().registry
    offline = [k for k in registry.kernels.values() if k.first_party and registry.offline(k.plugin) is not None]
    targets = [Target.parse(text) for text in (*TARGETS, "nvidia:sm_75", "amd:gfx906", "amd:gfx908")]
    silent = [
        (kernel.name, target.vendor)
        for kernel in offline
        for target in targets
        if any(covers(claim, target, registry.spaces) for _, claim in kernel.variants)
        and not kernel.evidence.get(target.vendor)
    ]
    assert silent == []
