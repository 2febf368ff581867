"""A row's bits do not depend on others, on AMD too, where a program has several rows of a norm.

LLVM contracts products and sums of some of a program's rows and of others not (gfx942: a square and the sum that it
goes into, but not where two rows are multiplied at once), so that these kernels are compiled without contraction.
"""

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX

from portakernel.authoring.triton import compiling
from portakernel.emulation import emulating
from portakernel.words.target import Target
from portakernel_plugins.triton.norms.layer_norm import layer_norm
from portakernel_plugins.triton.norms.rms_norm import rms_norm

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
ROWS, COLUMNS = 10, 15


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1201"])
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_each_row_alone_has_the_bits_that_it_has_among_others(arch, norm):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS), torch.randn(COLUMNS)

    def of(rows):
        with compiling(Target("amd", arch), emulating=True), emulating(Target("amd", arch)):
            return rms_norm(rows, weight, eps=1e-6) if norm == "rms_norm" else layer_norm(rows, weight, bias, eps=1e-5)

    together = of(x)
    alone = torch.cat([of(x[row : row + 1]) for row in range(ROWS)])
    assert torch.equal(together, alone)
