"""The kit's aspect ``graph``: what a capture must do, put to the test with captures that go wrong."""

from __future__ import annotations

import pytest
import torch

from portakernel import runtime
from portakernel.calling.caller import OpCaller
from portakernel.contracts import contract
from portakernel_kit.conformance.graph import Captured, Graph, capture_cuda
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_kit.conformance.runner import run, select_kernels
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.venue import Unavailable, find_venue

RMS_NORM = contract("rms_norm")
CLAIMED = frozenset({"graph_capture", "deterministic"})


def rerun(call, device) -> Captured:
    """As a graph does: the replay computes anew, into the memory of the results."""
    results = call()

    def replay() -> None:
        for old, new in zip(results, call(), strict=True):
            if old is not None:
                old.copy_(new)

    return results, replay


def stale(call, device) -> Captured:
    """As a kernel does that read its arguments on the host: the numbers are those of the capture."""
    return call(), lambda: None


def nearly(call, device) -> Captured:
    """A replay whose last bit differs."""
    results, replay = rerun(call, device)

    def replayed() -> None:
        replay()
        results[0].view(-1)[0].copy_(torch.nextafter(results[0].view(-1)[0], torch.tensor(torch.inf)))

    return results, replayed


def cpu(dispatcher):
    return next(d for d in dispatcher.registry.devices if d.torch_device == "cpu" and not d.attached)


def outcomes(capture, properties=CLAIMED, kernel="reference.rms_norm"):
    dispatcher = runtime.dispatcher()
    venue = find_venue(dispatcher, dispatcher.registry.kernels[kernel], cpu(dispatcher))
    assert not isinstance(venue, Unavailable)
    chosen = RMS_NORM.cases[0]
    dtypes = {"x": "float32", "weight": "float32"}
    caller = OpCaller(RMS_NORM, dispatcher)

    def trial(seed: int) -> Trial:
        inputs = draw_inputs(RMS_NORM, chosen, dtypes, "cpu", generator(seed))
        return Trial(caller, dispatcher.registry.kernels[kernel], venue, inputs, properties)

    return [(o.aspect, o.status, o.detail) for o in Graph(trial(1), trial(2), generator(3), capture).outcomes()]


def test_a_replay_that_computes_anew_passes_forward_and_backward():
    assert outcomes(rerun) == [("graph", "passed", "")]


def test_a_replay_that_keeps_the_captures_numbers_fails_in_both():
    ((aspect, status, detail),) = outcomes(stale)
    assert (aspect, status) == ("graph", "failed")
    assert "forward, y: " in detail
    assert "backward, gradient of x: " in detail


def test_a_replay_that_is_within_tolerance_and_not_equal_fails_a_claim_to_be_deterministic():
    ((_, status, detail),) = outcomes(nearly)
    assert status == "failed"
    assert "forward, y differs between the eager call and the replay: in 1 of " in detail
    assert outcomes(nearly, frozenset({"graph_capture"})) == [("graph", "passed", "")]


def test_a_kernel_that_does_not_claim_it_is_not_tested():
    assert outcomes(stale, frozenset({"deterministic"})) == []


def test_on_a_cpu_nothing_is_captured():
    dispatcher = runtime.dispatcher()
    kernel = dispatcher.registry.kernels["torch.add"]
    venue = find_venue(dispatcher, kernel, cpu(dispatcher))
    assert not isinstance(venue, Unavailable)
    assert not venue.captures
    assert "graph" not in {result.aspect for result in run(dispatcher, kernel, venue, seed=1)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph: needs a GPU")
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "attention", "linear_act", "cross_entropy"])
def test_on_a_gpu_the_kernels_that_serve_a_decoder_replay(op):
    dispatcher = runtime.dispatcher()
    gpu = next(d for d in dispatcher.registry.devices if (d.torch_device or "").startswith("cuda"))
    tried = 0
    for kernel in select_kernels(dispatcher, op=op):
        venue = find_venue(dispatcher, kernel, gpu)
        if kernel.build is not None or isinstance(venue, Unavailable):
            continue
        found = [result for result in run(dispatcher, kernel, venue, seed=20261121) if result.aspect == "graph"]
        assert [str(result) for result in found if result.status == "failed"] == []
        tried += len(found)
    assert tried > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph: needs a GPU")
def test_a_capture_on_a_gpu_replays_what_is_in_the_memory_then():
    x = torch.ones(8, device="cuda")
    (doubled,), replay = capture_cuda(lambda: (x * 2,), x.device)
    x.fill_(3)
    replay()
    assert doubled.tolist() == [6.0] * 8
