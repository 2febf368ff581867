"""On a GPU: sources compiled for it, launched on torch's current stream, and their numbers."""

from __future__ import annotations

import threading

import pytest
import torch

from portakernel.authoring.native import Kernel, Options, Source, Unit, compiler_for, target_of
from portakernel.claims.capability import CannotRun, Rejection
from portakernel.native.driver import Driver

SOURCE = """\
#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime.h>
#endif
template <class T> __global__ void scale(T* y, const T* x, long long n, float factor) {
  extern __shared__ float room[];
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  room[threadIdx.x] = factor;
  if (i < n) y[i] = T(float(x[i]) * room[threadIdx.x]);
}
"""


@pytest.fixture
def kernel(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch reaches")
    try:
        Driver()
    except CannotRun as declared:
        pytest.skip(declared.rejection.text)
    target = target_of(torch.zeros(1, device="cuda"))
    if isinstance(found := compiler_for(target), Rejection):
        pytest.skip(found.text)
    source = Source(tmp_path, "scale.cu" if target.vendor == "nvidia" else "scale.hip")
    source.path.write_text(SOURCE)
    return Kernel(Unit(source, ("scale<float>",), Options()), ("pointer", "pointer", "int64", "float32"))


def run(kernel, x, factor=3.0):
    y = torch.empty_like(x)
    kernel((-(-x.numel() // 256),), (256,), 1024, y, x, x.numel(), factor)
    return y


def test_the_numbers_are_right_on_the_default_stream_and_on_another(kernel):
    x = torch.randn(100_003, device="cuda")
    assert torch.equal(run(kernel, x), x * 3.0)
    with torch.cuda.stream(torch.cuda.Stream()):
        late = torch.randn(1 << 24, device="cuda") @ torch.randn(1 << 24, device="cuda") * 0 + x
        assert torch.equal(run(kernel, late), late * 3.0)


def test_a_fresh_thread_can_launch(kernel):
    x = torch.randn(1000, device="cuda")
    run(kernel, x)
    found = []
    thread = threading.Thread(target=lambda: found.append(run(kernel, x)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], x * 3.0)


def test_a_launch_can_be_captured(kernel):
    x = torch.randn(1000, device="cuda")
    run(kernel, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(kernel, x)
    x.fill_(2.0)
    graph.replay()
    assert torch.equal(y, torch.full_like(x, 6.0))


def test_the_device_is_the_tensors(kernel):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for index in range(2):
        with torch.cuda.device(index):
            x = torch.randn(1000, device="cuda")
            assert torch.equal(run(kernel, x), x * 3.0)
