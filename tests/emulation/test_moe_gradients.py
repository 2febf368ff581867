"""The gradients of ``moe_mlp`` are right where a row has fewer elements than there are threads.

Each element is then loaded by several waves, which go on with it into LDS: none of them may store over it before all
have loaded it.
"""

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX

from portakernel.authoring.triton import compiling
from portakernel.emulation import emulating
from portakernel.words.target import Target
from portakernel_plugins.triton.experts.moe_mlp_gradients import backward

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
TOKENS, HIDDEN, EXPERTS = 5, 16, 3


def drawn(width):
    torch.manual_seed(3)
    experts = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(TOKENS)]).int()
    grad_y, x = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, HIDDEN)
    w_in, w_out = torch.randn(EXPERTS, 2 * width, HIDDEN), torch.randn(EXPERTS, HIDDEN, width)
    return grad_y, x, w_in, w_out, torch.rand(TOKENS, 2), experts


def expected(halves, grad_y, x, w_in, w_out, weights, experts):
    """Of x, w_in, w_out and weights, in float64."""
    x, w_in, w_out, weights = (one.double().requires_grad_() for one in (x, w_in, w_out, weights))
    z = torch.einsum("tkzh,th->tkz", w_in[experts.long()], x)
    gate, up = z.chunk(2, -1) if halves == "concat" else (z[..., 0::2], z[..., 1::2])
    h = torch.nn.functional.silu(gate) * up
    y = torch.einsum("tk,tkhi,tki->th", weights, w_out[experts.long()], h)
    return torch.autograd.grad(y, (x, w_in, w_out, weights), grad_y.double())


@pytest.mark.parametrize(("arch", "width"), [("gfx942", 72), ("gfx1100", 40)])
@pytest.mark.parametrize("halves", ["concat", "interleaved"])
def test_rows_that_several_waves_load_get_the_gradients_of_float64(arch, width, halves):
    given = drawn(width)
    with compiling(Target("amd", arch), emulating=True), emulating(Target("amd", arch)):
        gradients = backward(*given, activation="silu", halves=halves)
    for gradient, right in zip(gradients[:4], expected(halves, *given), strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=1e-3)
