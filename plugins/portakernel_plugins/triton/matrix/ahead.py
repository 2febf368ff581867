"""Programs that begin before the kernel before has ended, and what they wait for."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_turn(OVERLAP: tl.constexpr):
    """With ``OVERLAP``, waits for what the kernel before wrote, and lets the next one begin. Nothing is read before."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
