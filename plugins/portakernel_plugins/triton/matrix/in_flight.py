"""Where products end whose first operand is in registers.

Hopper's tensor cores read these registers after the instruction was issued, until a wait says that the product is done.
Triton waits a step later, for as long as that takes the operand's other registers; ptxas before CUDA 13.3 gives them to
others at once, and what a next step decodes is multiplied in the last one. A loop that decodes such an operand waits
for its products at the end of each step.
"""

from __future__ import annotations

import triton
import triton.language as tl

_WAIT = tl.constexpr("wgmma.wait_group.sync.aligned 0; mov.b32 $0, 0;")


@triton.jit
def end_products(ASYNCHRONOUS: tl.constexpr):
    """Waits for all products that this program began; nothing where they are not ``ASYNCHRONOUS``."""
    if ASYNCHRONOUS:
        tl.inline_asm_elementwise(_WAIT, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
