"""Subnormal numbers are drawn on no device that takes them for zero: Apple's GPUs, and MI200 where it multiplies."""

from __future__ import annotations

import pytest
import torch

from portakernel.contract.case import Case
from portakernel.words.target import Target
from portakernel_kit.conformance.venue import Venue


@pytest.mark.parametrize("kernel", ["torch.add", "torch.softmax_cpu"])
def test_tiny_magnitudes_are_skipped_on_apple_s_gpus(make_suite, kernel):
    suite = make_suite(kernel)
    units = [unit for unit in suite.units() if unit.case is not None and unit.case.values == "tiny"]
    assert units
    suite.venue = Venue("mps:0", suite.venue.targets, suite.venue.device)
    for unit in units:
        (result,) = suite.run(unit)
        assert (result.aspect, result.status) == ("claim", "skipped")
        assert result.detail == f"{suite.venue} takes subnormal numbers for zero"


@pytest.mark.parametrize(("device", "flushes"), [("mps", True), ("mps:0", True), ("cpu", False), ("cuda:0", False)])
def test_apple_s_gpus_alone_flush(device, flushes):
    assert Venue(device, ()).flushes_subnormals == flushes


MI200, MI300 = Target("amd", "gfx90a"), Target("amd", "gfx942")


@pytest.mark.parametrize(
    ("venue", "flushes"),
    [
        (Venue("cuda:0", (MI200,)), True),
        (Venue("cpu", (MI200,), mode="emulated"), True),
        (Venue("cuda:0", (MI300,)), False),
        (Venue("cpu", (MI300, MI200), mode="interpreter"), False),
    ],
)
def test_matrix_units_of_mi200_alone_flush_halves(venue, flushes):
    assert venue.flushes_halves == flushes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("kernel", "target", "zeroes"),
    [("torch.linear_act", MI200, True), ("torch.linear_act", MI300, False), ("torch.add", MI200, False)],
)
def test_halves_that_mi200_multiplies_as_zero_are_drawn_as_zero(make_suite, kernel, target, zeroes, dtype):
    suite = make_suite(kernel)
    case = Case("drawn", leading=(40,), dims={"K": 64, "N": 8} if "linear" in kernel else {"N": 64}, values="tiny")
    dtypes = dict.fromkeys(suite.contract.names, dtype)
    x = suite._inputs(case, dtypes).tensors[0]
    suite.venue = Venue("cpu", (target,))
    again = suite._inputs(case, dtypes).tensors[0]
    tiny = torch.finfo(x.dtype).tiny
    is_subnormal = (x != 0) & (x.abs() < tiny)
    assert is_subnormal.any()
    assert (~is_subnormal).any()
    flushed = zeroes and dtype != "float32"
    assert torch.equal(again, x.masked_fill(is_subnormal, 0.0) if flushed else x)
