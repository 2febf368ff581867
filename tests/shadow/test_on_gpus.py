"""On a GPU: copies are made on the call's stream, and the thread that judges breaks no capture."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from portakernel import ops
from portakernel.deciding.shadow_wishes import ShadowWishes
from portakernel.runtime import caller
from portakernel.shadow.counts import Counts
from portakernel.shadow.process import judge
from portakernel.shadow.sampler import Sampler
from portakernel.tuning.record import Verdict

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="runs on a stream: needs a GPU")


def sampler(counts: Counts, judging: Any = judge) -> Sampler:
    return Sampler(ShadowWishes(share=1.0), lambda: [caller("rms_norm")], judging, counts, iter(range(1000)).__next__)


def draw() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16), torch.ones(1024, device="cuda").bfloat16()


def test_a_call_on_another_stream_is_copied_there_and_judged():
    x, weight = draw()
    ops.rms_norm(x, weight)
    counts, stream = Counts(), torch.cuda.Stream()
    looking = sampler(counts)
    looking.turn()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = x * 2
        ops.rms_norm(late, weight)
        late.zero_()  # behind the copy
    assert looking.check_waiting() == 1
    assert (counts.report().checked, counts.report().mismatched, counts.report().errors) == (1, 0, ())


def test_a_check_breaks_no_capture_of_another_thread():
    x, weight = draw()
    ops.rms_norm(x, weight)
    counts, begun, captured = Counts(), threading.Event(), threading.Event()

    def judging(*arguments: Any) -> tuple[Verdict, str]:
        begun.wait()
        found = judge(*arguments)
        # what a capture in torch's mode refuses every other thread
        torch.empty(64 << 20, device="cuda").add_(1).sum().item()
        captured.set()
        return found

    looking = sampler(counts, judging)
    looking.turn()
    ops.rms_norm(x, weight)
    thread = threading.Thread(target=looking.check_waiting)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        begun.set()
        y = ops.rms_norm(x, weight)
        assert captured.wait(60)
    thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, ops.rms_norm(x, weight))
    assert (counts.report().checked, counts.report().errors) == (1, ())


def test_a_captured_call_is_passed_over():
    x, weight = draw()
    ops.rms_norm(x, weight)
    counts = Counts()
    looking = sampler(counts)
    looking.turn()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        ops.rms_norm(x, weight)
    assert dict(counts.report().skipped) == {"captured": 1}
    assert looking.check_waiting() == 0
