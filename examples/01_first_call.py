"""A first call of an op, which kernel served it, and why: on this machine, and on one that is not here.

Needs torch and portakernel. Prints, on a CPU::

    rms_norm of 4 rows of 512, at most ... from the formula in float64
    torch.rms_norm_cpu serves it on cpu:...: priority ...
    not reference.rms_norm: the reference comes last; torch.rms_norm_cpu serves
    not triton.rms_norm: serves nvidia, amd, not cpu
    on an MI300X in bfloat16: triton.rms_norm, highest priority ...
    served so far: 1 call by torch.rms_norm_cpu
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
wide = x.double()
exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
print(f"rms_norm of 4 rows of 512, at most {(y - exact).abs().max():.1e} from the formula in float64")

decision = portakernel.explain("rms_norm", x, weight)  # for exactly this call; print(decision) shows all of it
chosen = decision.chosen.name
print(f"{chosen} serves it on {decision.target}: {decision.why}")
for name in ("reference.rms_norm", "triton.rms_norm"):
    if name != chosen:
        print(f"not {name}: {decision.candidate(name).rejections[0].text}")

# No GPU is asked for this: what kernels claim, and what architectures have, is known.
there = portakernel.explain("rms_norm", target="mi300x", dtype="bfloat16", shape={"x": (4096, 8192)})
print(f"on an MI300X in bfloat16: {there.chosen.name}, {there.why}")

for served in portakernel.stats():
    print(f"served so far: {served.calls} call by {served.kernel}")

before = {served.kernel: served.calls for served in portakernel.stats()}
with portakernel.policy(deny="torch"):  # in this block, in this thread
    ops.rms_norm(x, weight)
for served in portakernel.stats():
    if made := served.calls - before.get(served.kernel, 0):
        print(f"without the plugin torch: {made} call by {served.kernel}")
