"""Numbers that are subnormal in float32 are drawn on no device that takes them for zero."""

from __future__ import annotations

import pytest

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
