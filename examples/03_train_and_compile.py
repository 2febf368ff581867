"""A model of portakernel.nn learns, called and compiled, and keeps its weights in torch's own names.

Prints, on a CPU::

    weights of torch.nn.RMSNorm: loaded
    called:   step 1 loss ..., step 60 loss ...
    compiled: step 1 loss ..., step 60 loss ...
    both learn, and their losses are at most ... apart
    called, rms_norm: torch.rms_norm_cpu, forward and backward
    called, silu_and_mul: torch.silu_and_mul_cpu, forward and backward
    compiled, rms_norm: inline, which Inductor fuses
"""

from __future__ import annotations

import copy

import torch

import portakernel
from portakernel import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(nn.RMSNorm(32), nn.SwiGLU(32, 64), nn.RMSNorm(32), torch.nn.Linear(32, 1)).to(device)
model[0].load_state_dict(torch.nn.RMSNorm(32).state_dict())
print("weights of torch.nn.RMSNorm: loaded")

x = torch.randn(256, 32, device=device)
wanted = (x[:, :1] * x[:, 1:2]).tanh()


def train(module, forward):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = (forward(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


twin = copy.deepcopy(model)
called = train(model, model)
compiled = train(twin, torch.compile(twin, fullgraph=True))
for name, losses in (("called:  ", called), ("compiled:", compiled)):
    print(f"{name} step 1 loss {losses[0]:.4f}, step 60 loss {losses[-1]:.4f}")
apart = max(abs(one - other) for one, other in zip(called, compiled, strict=True))
assert max(called[-1], compiled[-1]) < 0.5 * called[0]
assert apart < 1e-3
print(f"both learn, and their losses are at most {apart:.0e} apart")

for served in portakernel.stats():
    if served.phase == "backward":
        print(f"called, {served.op}: {served.kernel}, forward and backward")
decision = portakernel.explain("rms_norm", x, model[0].weight, compiled=True)
print(f"compiled, rms_norm: {decision.form}, which Inductor fuses")
