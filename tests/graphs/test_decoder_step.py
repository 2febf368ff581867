"""A decoder's step with cached keys and values, and a training step, as CUDA graphs: the eager numbers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import portakernel
from portakernel import ops
from portakernel.errors import CaptureError
from portakernel.tensors.capture import is_capturing
from portakernel_kit.demo import decoder
from portakernel_kit.demo.decoder import Cache
from portakernel_kit.demo.decoder_ops import Ops, PlainTorch, ThroughPortakernel

# float32 is not for FlashAttention
pytestmark = pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph: needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CACHED = 17  # tokens before the one that is decoded


class Step:
    """One token of the demo's decoder after ``CACHED`` others, from memory that stays."""

    def __init__(self, ops: Ops, device: str) -> None:
        self.ops, self.parameters = ops, decoder.initial_parameters(device)
        self.symbol = torch.zeros(1, 1, dtype=torch.int64, device=device)
        size = (1, CACHED, decoder.GROUPS, decoder.HEAD_WIDTH)
        self.caches = [
            Cache(torch.zeros(size, device=device), torch.zeros(size, device=device)) for _ in range(decoder.LAYERS)
        ]

    def __call__(self) -> tuple[Tensor, ...]:
        """Logits, then the keys and values with the new ones."""
        with torch.no_grad():
            logits, caches = decoder.forward(self.parameters, self.symbol, self.ops, self.caches)
        return logits, *(tensor for cache in caches for tensor in (cache.keys, cache.values))

    def fill(self, seed: int) -> None:
        """Another token after others."""
        generator = torch.Generator().manual_seed(seed)
        self.symbol.copy_(torch.randint(decoder.SYMBOLS, (1, 1), generator=generator))
        for cache in self.caches:
            for tensor in (cache.keys, cache.values):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))


def test_the_step_is_warm_after_a_warmup_and_agrees_with_plain_torch():
    step, plain = Step(ThroughPortakernel(), DEVICE), Step(PlainTorch(), DEVICE)
    with portakernel.policy(deny="inductor", reference="allow"):
        found = portakernel.warmup(step)
        assert found.settled
        called = {call.request.op for call in found.calls}
        assert called == {
            "embedding_bag", "rms_norm", "add_rms_norm", "linear_act", "rotary_embedding", "attention", "silu_and_mul",
        }  # fmt: skip
        step.fill(1)
        plain.fill(1)
        torch.testing.assert_close(step()[0], plain()[0], rtol=1e-3, atol=1e-3)


@needs_gpu
def test_a_captured_decoder_step_replays_with_the_eager_numbers():
    step = Step(ThroughPortakernel(), DEVICE)
    with portakernel.policy(deny="inductor", reference="allow"):
        assert portakernel.warmup(step).settled
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        for seed in (1, 2, 3):
            step.fill(seed)
            eager = [tensor.clone() for tensor in step()]
            for tensor in captured:
                tensor.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            for found, want in zip(captured, eager, strict=True):
                torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


@needs_gpu
def test_a_captured_training_step_replays_with_the_eager_gradients():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(64, 256, generator=generator).to(DEVICE).requires_grad_()
    weight = torch.ones(256, device=DEVICE, requires_grad=True)

    def step() -> tuple[Tensor, ...]:
        y = ops.rms_norm(x, weight)
        return torch.autograd.grad((y * y).sum() + y.sum(), (x, weight))

    with portakernel.policy(deny="inductor", reference="allow"):
        found = portakernel.warmup(step)
        assert {str(call.request.phase) for call in found.calls} == {"training", "backward"}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            x.copy_(torch.randn(64, 256, generator=generator))
        eager = step()
        graph.replay()
        torch.cuda.synchronize()
        for found_gradient, want in zip(captured, eager, strict=True):
            torch.testing.assert_close(found_gradient, want, rtol=1e-5, atol=1e-5)


@needs_gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of the capture that ends at once
def test_a_kernel_that_is_not_compiled_is_refused_in_a_capture_and_works_after_a_warmup():
    pytest.importorskip("triton")
    n = 1536 + 3  # of no other test
    x, weight = torch.randn(4, n, device=DEVICE), torch.ones(n, device=DEVICE)
    with portakernel.use("triton.rms_norm"):
        ops.rms_norm(torch.randn(4, 8, device=DEVICE), torch.ones(8, device=DEVICE))  # probed and imported
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert is_capturing()
            with pytest.raises(CaptureError, match=r"portakernel\.warmup"):
                ops.rms_norm(x, weight)
        assert not is_capturing()
        assert portakernel.warmup("rms_norm", x, weight).compiled
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ops.rms_norm(x, weight)
        graph.replay()
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (n,), weight, 1e-6))


@needs_gpu
def test_a_warm_step_compiles_and_decides_nothing_and_does_not_wait_for_the_device():
    step = Step(ThroughPortakernel(), DEVICE)
    with portakernel.policy(deny="inductor", reference="allow"):
        portakernel.warmup(step)
        before = portakernel.stats()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the mode does not see every wait
                torch.cuda.set_sync_debug_mode("error")
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        after = portakernel.stats()
    assert {row.kernel for row in after} == {row.kernel for row in before}
