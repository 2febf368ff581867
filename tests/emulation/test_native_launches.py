"""Launches of HIP kernels that are declared otherwise than compiled: told as on hardware, before anything runs."""

import pytest

pytest.importorskip("tinygrad")
import torch
from cxx import HAS_CXX
from emulated_hip import needs_hip

from portakernel.authoring.native import Kernel, Source, Unit
from portakernel.emulation import emulating
from portakernel.errors import ArgumentValueError
from portakernel.words.target import Target

pytestmark = [needs_hip, pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine")]
GFX942 = Target("amd", "gfx942")
SCALE = """
#include <hip/hip_runtime.h>

extern "C" __global__ void scale(const float* x, float* out, float by, long long n) {
  long long at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) out[at] = x[at] * by;
}
"""


@pytest.fixture
def unit(tmp_path):
    (tmp_path / "scale.hip").write_text(SCALE, encoding="ascii")
    return Unit(Source(tmp_path, "scale.hip"), ("scale",))


def test_types_as_compiled_are_launched(unit):
    x, out = torch.randn(100), torch.zeros(100)
    with emulating(GFX942) as launches:
        Kernel(unit, ("pointer", "pointer", "float32", "int64"))((2,), (64,), 0, x, out, 3.0, 100)
    assert torch.equal(out, x * 3.0)
    assert [one.kernel for one in launches] == ["scale.scale"]


def test_a_type_of_another_size_than_compiled_is_refused_in_the_words_of_hardware(unit):
    x = torch.zeros(100)
    with emulating(GFX942) as launches, pytest.raises(ArgumentValueError) as raised:
        Kernel(unit, ("pointer", "pointer", "float32", "int32"))((2,), (64,), 0, x, x, 3.0, 100)
    assert launches == []
    assert str(raised.value) == (
        "kernel scale takes 8 bytes at 0, 8 bytes at 8, 4 bytes at 16, 8 bytes at 24; "
        "its parameters are declared as pointer at 0, pointer at 8, float32 at 16, int32 at 20"
    )


@pytest.mark.parametrize("given", [(3.0,), (3.0, 100, 100)])
def test_another_number_of_arguments_than_declared_is_named(unit, given):
    x = torch.zeros(100)
    with emulating(GFX942) as launches, pytest.raises(ArgumentValueError) as raised:
        Kernel(unit, ("pointer", "pointer", "float32", "int64"))((2,), (64,), 0, x, x, *given)
    assert launches == []
    assert str(raised.value) == (
        "kernel scale of scale.hip takes 4 arguments (pointer, pointer, float32, int64); "
        f"its launch gives {2 + len(given)}"
    )
