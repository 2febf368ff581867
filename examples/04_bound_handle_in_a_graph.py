"""A bound handle fixes the choice of a kernel; on a GPU a step of handles is captured in a CUDA graph and replayed.

Prints, on a CPU::

    rms_norm is bound to torch.rms_norm_cpu on cpu:..., silu_and_mul to torch.silu_and_mul_cpu
    the step of handles equals the step of ops: True
    a policy made later leaves the handle its kernel: torch.rms_norm_cpu, and ops take reference.rms_norm
    other rows: (2, 64), the same kernel
    no GPU here: a CUDA graph is captured on one; this step would be, after portakernel.warmup(step, x)
"""

from __future__ import annotations

import torch

import portakernel
from portakernel import ops

device = "cuda" if torch.cuda.is_available() else "cpu"
x, weight = torch.randn(8, 128, device=device), torch.randn(128, device=device)

norm = portakernel.bind("rms_norm", x, weight, eps=1e-6)  # decided once, for such tensors and these values
gate = portakernel.bind("silu_and_mul", x)
names = norm.decision.chosen.name, gate.decision.chosen.name
print(f"rms_norm is bound to {names[0]} on {norm.decision.target}, silu_and_mul to {names[1]}")


def step(x):
    return gate(norm(x, weight))


equal = torch.equal(step(x), ops.silu_and_mul(ops.rms_norm(x, weight, eps=1e-6)))
print(f"the step of handles equals the step of ops: {equal}")
with portakernel.policy(use="reference"):
    now = portakernel.explain("rms_norm", x, weight).chosen.name
    print(f"a policy made later leaves the handle its kernel: {norm.decision.chosen.name}, and ops take {now}")
print(f"other rows: {tuple(step(x[:2]).shape)}, the same kernel")

if device == "cuda":
    portakernel.warmup(step, x)  # all that the step compiles and loads, so that the capture meets nothing new
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step(x)
    for _ in range(3):
        x.normal_()  # the graph reads x and writes y, where they lie
        graph.replay()
        assert torch.equal(y, step(x))
    print("captured in a CUDA graph: 3 replays on new numbers equal the step")
else:
    told = "a CUDA graph is captured on one; this step would be, after portakernel.warmup(step, x)"
    print(f"no GPU here: {told}")
