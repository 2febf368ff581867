"""Each dispatch appears in torch.profiler with op and kernel; without a profiler nothing is asked of torch."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from portakernel.calling.bound_kernel import bind_kernel
from portakernel.deciding.policies import make_layer

# torch.profiler says so itself when it is first used
pytestmark = pytest.mark.filterwarnings("ignore:Profiler clears events:UserWarning")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def recorded(call) -> list[str]:
    """The names of portakernel's events while ``call`` runs, in order."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    return [event.name for event in events if event.name.startswith("portakernel.")]


def test_a_call_appears_with_op_and_kernel(ops):
    x, weight = normal(3, 4), normal(4)
    ops.rms_norm(x, weight)
    assert recorded(lambda: ops.rms_norm(x, weight)) == ["portakernel.rms_norm [raw_kernels.rms_norm]"]
    named = recorded(lambda: ops.rms_norm(x, weight, kernel="reference"))
    assert named == ["portakernel.rms_norm [reference.rms_norm]"]


def test_a_call_into_out_appears(ops):
    x = normal(3, 4)
    assert recorded(lambda: ops.add(x, x, out=torch.empty(3, 4))) == ["portakernel.add [raw_kernels.add]"]


def test_a_bound_call_appears(ops):
    x, weight = normal(3, 4), normal(4)
    handle = bind_kernel(ops.caller("rms_norm"), (x, weight), (1e-6, 0.0), None)
    assert recorded(lambda: handle(x, weight)) == ["portakernel.rms_norm [raw_kernels.rms_norm]"]


def test_forward_and_backward_of_a_training_step_appear(ops):
    x, weight = normal(3, 4), normal(4).requires_grad_()
    assert recorded(lambda: ops.rms_norm(x, weight).sum().backward()) == [
        "portakernel.rms_norm training [raw_kernels.rms_norm]",
        "portakernel.rms_norm backward [raw_kernels.rms_norm]",
    ]


def test_a_compiled_graphs_kernels_appear(ops):
    torch._dynamo.reset()
    ops.dispatcher.set_process_layer(make_layer("set_policy", compiled="call"))
    compiled = torch.compile(lambda x, weight: ops.rms_norm(x, weight) + 1, fullgraph=True, backend="aot_eager")
    x, weight = normal(3, 4), normal(4)
    compiled(x, weight)
    assert recorded(lambda: compiled(x, weight)) == ["portakernel.rms_norm [raw_kernels.rms_norm]"]


def test_without_a_profiler_no_event_is_made(ops, monkeypatch):
    monkeypatch.setattr(torch.profiler, "record_function", lambda _name: pytest.fail("an event without a profiler"))
    x = normal(3, 4)
    for _ in range(2):
        assert torch.equal(ops.add(x, x), 2 * x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NVTX is CUDA's")
def test_under_emit_nvtx_each_dispatch_is_a_range_that_torch_pushes():
    from portakernel import ops

    x, weight = torch.randn(4, 64, device="cuda"), torch.randn(64, device="cuda")
    ops.rms_norm(x, weight)
    with torch.autograd.profiler.emit_nvtx():
        # what sends calls through record_function, which pushes a range while NVTX is emitted
        assert torch.autograd.profiler._is_profiler_enabled
        ops.rms_norm(x, weight)
    assert not torch.autograd.profiler._is_profiler_enabled
