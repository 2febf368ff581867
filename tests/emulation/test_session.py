"""Kernels called by their own Python entries, whose launches are compiled for a target and emulated."""
# ruff: noqa: N803

import importlib.util
import re
import threading
from dataclasses import replace

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
import triton
import triton.language as tl
from cxx import HAS_CXX
from emulated_hip import needs_hip

from portakernel.authoring.native import target_of
from portakernel.authoring.triton import launch, processor
from portakernel.claims.capability import CannotRun
from portakernel.emulation import EmulationError, FindingsError, Kind, emulating
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.words.target import Target
from portakernel_plugins.hip import offline as hip_offline
from portakernel_plugins.hip.rms_norm import rms_norm as hip_rms_norm
from portakernel_plugins.triton.norms.rms_norm import rms_norm as triton_rms_norm

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
GFX942 = Target("amd", "gfx942")
GFX1100 = Target("amd", "gfx1100")


@triton.jit
def _shifted(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at + by, mask=at < n), mask=at < n)


@triton.jit
def _greedy(x, y, out, ROWS: tl.constexpr, TERMS: tl.constexpr):
    few, many = tl.arange(0, ROWS), tl.arange(0, TERMS)
    left, right = tl.load(x + few[:, None] * TERMS + many), tl.load(y + many[:, None] * ROWS + few)
    tl.store(out + few[:, None] * ROWS + few, tl.dot(left, right))


@triton.jit
def _paired(pair, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(pair[0] + at) * pair[1])


@triton.jit
def _scaled(x, out, n, BLOCK: tl.constexpr, factor=2.0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"STEPS": lambda args: triton.cdiv(args["n"], args["BLOCK"])})
@triton.jit
def _tuned(x, out, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    for step in range(STEPS):
        at = step * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + BLOCK, mask=at < n)


def _norm(x, weight):
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()


@pytest.mark.parametrize("target", [GFX942, GFX1100], ids=str)
def test_a_triton_kernels_wrapper_is_run_whole_and_computes_what_float64_does(target):
    torch.manual_seed(1)
    x, weight = torch.randn(5, 300), torch.randn(300)
    with emulating(target) as launches:
        y, rstd = triton_rms_norm(x, weight, eps=1e-6, save=True)
    torch.testing.assert_close(y.double(), _norm(x, weight), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(rstd.double(), torch.rsqrt(x.double().square().mean(-1) + 1e-6), rtol=2e-6, atol=0)
    assert [one.kernel for one in launches] == ["norm_forward._forward"]
    assert launches[0].run.clean
    assert launches[0].run.counts.total > 0


def test_a_launch_by_triton_itself_is_emulated():
    x, out = torch.randn(100), torch.full((100,), torch.nan)
    with emulating(GFX942) as launches:
        _scaled[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out=out, n=100, BLOCK=64, num_warps=2)
    assert torch.equal(out, x * 2.0)
    assert [(one.kernel, one.grid, one.block) for one in launches] == [("test_session._scaled", (2, 1, 1), (128,))]
    assert launches[0].run.clean
    with emulating(GFX942, check=False) as launches:
        _shifted[(1,)](x, out, 100, 1, 128)
    assert [one.region for one in launches[0].run.findings] == ["x"]


def test_an_autotuned_kernel_has_its_first_configuration_and_remembers_none():
    x, out = torch.randn(100), torch.full((100,), torch.nan)
    with emulating(GFX942) as launches:
        _tuned[(1,)](x, out, 100)
    assert torch.equal(out, x + 32)
    assert [one.kernel for one in launches] == ["test_session._tuned"]
    assert not _tuned.cache


def test_outside_of_the_context_and_in_other_threads_triton_launches_itself(monkeypatch):
    def run(kernel, *args, grid, warmup, **options):
        return "Triton's own"

    monkeypatch.setattr(triton.JITFunction, "run", run)
    x, returned = torch.zeros(1), []

    def launch_by_triton():
        returned.append(_scaled[(1,)](x, x, 1, BLOCK=32))

    with emulating(GFX942) as launches:
        with emulating(GFX1100):
            assert triton.JITFunction.run is not run
        thread = threading.Thread(target=launch_by_triton)
        thread.start()
        thread.join()
    launch_by_triton()
    assert launches == []
    assert returned == ["Triton's own"] * 2
    assert triton.JITFunction.run is run


def test_a_grid_without_programs_launches_nothing():
    x, out = torch.arange(33, dtype=torch.float32), torch.zeros(32)
    with emulating(GFX942) as launches:
        launch(_shifted, (0, 1), x, out, 32, 1, BLOCK=32)
        launch(_shifted, (1, 0), x, out, 32, 1, BLOCK=32)
    assert launches == []
    assert not out.any()


def test_a_launch_may_say_that_it_does_not_overlap_the_one_before():
    """AMD's backend has no such option at all."""
    x, out = torch.arange(33, dtype=torch.float32), torch.zeros(32)
    with emulating(GFX942):
        launch(_shifted, (1, 1), x, out, 32, 1, BLOCK=32, launch_pdl=False)
    assert out.tolist() == x[1:].tolist()
    with emulating(GFX942), pytest.raises(KeyError, match="launch_pdl was specified but unrecognised"):
        launch(_shifted, (1, 1), x, out, 32, 1, BLOCK=32, launch_pdl=True)


@needs_hip
def test_a_hip_kernels_wrapper_is_run_whole_for_the_targets_configuration():
    torch.manual_seed(2)
    x, weight = torch.randn(5, 300), torch.randn(300)
    with emulating(GFX942) as launches, hip_offline.compiling(GFX942, emulating=True):
        y = hip_rms_norm(x, weight, eps=1e-6)
    torch.testing.assert_close(y.double(), _norm(x, weight), rtol=2e-6, atol=1e-6)
    assert [one.kernel for one in launches] == ["norms.norms"]
    with pytest.raises(ArgumentValueError, match="a HIP kernel was given tensors on cpu; it is compiled for GPUs"):
        hip_rms_norm(x, weight, eps=1e-6)


def test_launches_are_shaped_for_the_emulated_processor_and_for_none_behind_the_context():
    before = processor(torch.device("cpu"))
    with emulating(GFX1100):
        here = processor(torch.device("cpu"))
        assert (here.arch, here.warp_size) == ("gfx1100", 32)
        assert target_of(torch.empty(1)) == GFX1100
    assert processor(torch.device("cpu")) == before
    with pytest.raises(ArgumentValueError, match=r"take tensors on GPUs \(torch device cuda\); this one is on cpu"):
        target_of(torch.empty(1))


def test_a_finding_is_raised_as_the_context_ends_with_instruction_wave_lane_and_source_line():
    x, out = torch.randn(64), torch.zeros(64)
    with (
        pytest.raises(FindingsError, match=r"^emulated on amd:gfx942, test_session\._shifted over 1x1x1 ") as raised,
        emulating(GFX942),
    ):
        launch(_shifted, (1, 1), x, out, 64, 1, BLOCK=64, num_warps=1)
    (finding,) = raised.value.launches[0].run.findings
    assert (finding.kind, finding.region, finding.wave, finding.lane) == (Kind.OUTSIDE, "x", 0, 63)
    assert re.search(r"test_session\.py:\d+\); workgroup \(0, 0, 0\), wave 0, lane 63", str(raised.value))
    assert torch.equal(out[:63], x[1:])


@pytest.mark.parametrize(
    ("by", "what", "times"),
    [
        (2, "an access of 4 bytes ends 4 bytes past the end of x: ", ", 2 accesses of lanes in all"),
        (1 << 26, r"an access of 4 bytes at 0x[0-9a-f]+, which is no argument's memory: ", ", 64 accesses of lanes"),
    ],
)
def test_an_access_outside_says_how_far_it_is_from_the_nearest_tensor_unless_it_is_meant_for_none(by, what, times):
    x, out = torch.randn(64), torch.zeros(64)
    with emulating(GFX942, check=False) as launches:
        launch(_shifted, (1, 1), x, out, 64, by, BLOCK=64, num_warps=1)
    (finding,) = launches[0].run.findings
    assert re.search(rf"^{what}.*, lane \d+{times}", str(finding)), str(finding)
    before = replace(finding, distance=-4)
    assert str(before).startswith("an access of 4 bytes begins 4 bytes before the start of x: ")


def test_findings_can_be_read_instead_of_raised():
    x, out = torch.randn(64), torch.zeros(64)
    with emulating(GFX942, check=False) as launches:
        launch(_shifted, (1, 1), x, out, 64, 0, BLOCK=64, num_warps=1)
        launch(_shifted, (1, 1), x, out, 64, 2, BLOCK=64, num_warps=1)
    told = [[(finding.distance, finding.count) for finding in one.run.findings] for one in launches]
    assert told == [[], [(4, 2)]]


def test_a_launch_that_uses_up_its_budget_raises_at_once():
    x, out = torch.randn(64), torch.zeros(64)
    with emulating(GFX942, budget=5, check=False) as launches:
        with pytest.raises(FindingsError, match="which did not run to its end"):
            launch(_shifted, (1, 1), x, out, 64, 0, BLOCK=64, num_warps=1)
        (finding,) = launches[0].run.findings
        assert finding.kind is Kind.BUDGET
        assert str(finding).startswith("an endless loop, or more than 5 instructions of a wave: ")
    assert torch.equal(out, torch.zeros(64))


def test_arguments_in_tuples_are_passed_one_by_one():
    x, out = torch.randn(64), torch.zeros(64)
    with emulating(GFX942):
        launch(_paired, (1, 1), (x, 3.0), out, BLOCK=64, num_warps=1)
    assert torch.equal(out, x * 3.0)


def test_a_tensor_without_elements_is_a_null_pointer():
    x, out = torch.empty(8)[:0], torch.zeros(64)
    with emulating(GFX942) as launches:
        launch(_shifted, (1, 1), x, out, 0, 0, BLOCK=64, num_warps=1)
    assert launches[0].run.clean
    assert torch.equal(out, torch.zeros(64))


def test_what_needs_more_shared_memory_than_the_target_has_declares_that_it_cannot_run():
    x, y, out = torch.randn(16, 2048), torch.randn(2048, 16), torch.zeros(16, 16)
    with (
        pytest.raises(CannotRun, match=r"_greedy needs \d+ bytes of shared memory; the device has 65536"),
        emulating(GFX942),
    ):
        launch(_greedy, (1, 1), x, y, out, ROWS=16, TERMS=2048, num_warps=4)


@pytest.mark.parametrize("target", [Target("nvidia", "sm_90"), Target("amd", "gfx1030")], ids=str)
def test_another_target_is_refused_by_name(target):
    with pytest.raises(EmulationError) as raised, emulating(target):
        pytest.fail("the context was entered")
    known = "amd:gfx90a, amd:gfx942, amd:gfx950, amd:gfx1100, amd:gfx1201"
    assert str(raised.value) == f"{target} is not emulated; these are: {known}"


def test_a_target_may_be_given_as_text():
    x, out = torch.randn(64), torch.zeros(64)
    with emulating("amd:gfx1100") as launches:
        launch(_shifted, (1, 1), x, out, 64, 0, BLOCK=64, num_warps=1)
        assert target_of(x) == GFX1100
    assert torch.equal(out, x)
    assert launches[0].run.clean
    with (
        pytest.raises(ArgumentValueError, match=r"^target 'gfx942' is not of the form vendor:arch"),
        emulating("gfx942"),
    ):
        pytest.fail("the context was entered")


def test_what_is_no_target_is_refused_with_what_is_one():
    with pytest.raises(ArgumentTypeError) as raised, emulating(None):
        pytest.fail("the context was entered")
    assert str(raised.value) == ("emulating takes a target, such as 'amd:gfx942' or Target('amd', 'gfx942'), not None")


def test_without_tinygrad_the_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tinygrad" else find(name))
    with pytest.raises(EmulationError, match=r"`pip install 'portakernel\[emulate\]'` installs it"), emulating(GFX942):
        pytest.fail("the context was entered")
