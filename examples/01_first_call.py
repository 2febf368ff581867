"""A first call of an op, which kernel served it, and why: on this machine, and on one that is not here.

Prints, on a CPU::

    rms_norm of 4 rows of 512: at most ... from torch's in float64
    torch.rms_norm_cpu serves it on cpu:...: priority ...
    not reference.rms_norm: the reference comes last; torch.rms_norm_cpu serves
    not triton.rms_norm: serves nvidia, amd, not cpu
    on an MI300X in bfloat16: triton.rms_norm, highest priority ...
    this process: 1 call by torch.rms_norm_cpu
    without the plugin torch: 1 call by reference.rms_norm
"""

from __future__ import annotations

import torch

import portakernel
from portakernel import ops

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(4, 512, device=device)
weight = torch.randn(512, device=device)

y = ops.rms_norm(x, weight, eps=1e-6)
exact = torch.nn.functional.rms_norm(x.double(), (512,), weight.double(), 1e-6)
print(f"rms_norm of 4 rows of 512: at most {(y - exact).abs().max():.1e} from torch's in float64")

decision = portakernel.explain("rms_norm", x, weight)  # for exactly this call; print(decision) shows all of it
chosen = decision.chosen.name
print(f"{chosen} serves it on {decision.target}: {decision.why}")
for name in sorted({"reference.rms_norm", "triton.rms_norm"} - {chosen}):
    print(f"not {name}: {decision.candidate(name).rejections[0].text}")

# Of hardware that is not here it is known what kernels claim.
there = portakernel.explain("rms_norm", target="mi300x", dtype="bfloat16", shape={"x": (4096, 8192)})
print(f"on an MI300X in bfloat16: {there.chosen.name}, {there.why}")

before = {served.kernel: served.calls for served in portakernel.stats()}
for kernel, calls in before.items():
    print(f"this process: {calls} call by {kernel}")
with portakernel.policy(deny="torch"):  # in this block, in this thread
    ops.rms_norm(x, weight)
for served in portakernel.stats():
    if more := served.calls - before.get(served.kernel, 0):
        print(f"without the plugin torch: {more} call by {served.kernel}")
