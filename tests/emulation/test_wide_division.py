"""Division of 64-bit integers, which these processors have no instruction for: both paths that compilers make.

Kernels divide the numbers of their programs so. Operands beyond 32 bits, which the kit's small tensors never have, take
the longer path; here they do.
"""

import functools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
import triton
import triton.language as tl
from cxx import HAS_CXX
from emulated_kernels import ARCHS, compiled, wave_size
from portakernel_pages.emulated import reasons, recorded

from portakernel.emulation import emulate

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]

# Behind the end of the code, between instructions, and behind a branch of LLVM's whose condition is a constant.
NEVER = frozenset({"s_code_end", "s_nop", "s_branch"})
BLOCK = 64
NARROW = ((0, 5), (1000, 7), ((1 << 32) - 1, 3), (5, (1 << 32) - 1))


@triton.jit
def divide(numerator, denominator, out):
    quotient = numerator // denominator
    tl.store(out, quotient)
    tl.store(out + 1, numerator - quotient * denominator)


@triton.jit
def divide_each(numerators, denominators, out, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(numerators + at) // tl.load(denominators + at))


def truncated(numerator: int, denominator: int) -> list[int]:
    quotient = abs(numerator) // abs(denominator) * (1 if (numerator < 0) == (denominator < 0) else -1)
    return [quotient, numerator - quotient * denominator]


def run(arch: str, numerator: int, denominator: int):
    code, shared = compiled(divide, ("i64", "i64", "*i64"), (), arch)
    out = torch.zeros(2, dtype=torch.int64)
    given = [numerator, denominator, out, None, None]
    ran = emulate(code, "divide", (1,), (4 * wave_size(arch),), given, arch, dynamic_lds=shared)
    assert ran.clean, ran.findings
    return ran, out.tolist()


def run_each(arch: str, pairs):
    """All pairs at once, each in a lane of its own, as kernels divide the numbers of a block's elements."""
    code, shared = compiled(divide_each, ("*i64", "*i64", "*i64"), (("BLOCK", BLOCK),), arch)
    numerators, denominators = (torch.tensor([*side, *[1] * (BLOCK - len(side))]) for side in zip(*pairs, strict=True))
    out = torch.zeros(BLOCK, dtype=torch.int64)
    given = [numerators, denominators, out, None, None]
    ran = emulate(code, "divide_each", (1,), (4 * wave_size(arch),), given, arch, dynamic_lds=shared)
    assert ran.clean, ran.findings
    assert out[: len(pairs)].tolist() == [truncated(*pair)[0] for pair in pairs]
    return ran


@functools.cache
def operands() -> list[tuple[int, int]]:
    drawn = np.random.default_rng(7)
    made = []
    for bits in (33, 47, 62):
        for below in (2, 31, bits - 1):
            a, b = int(drawn.integers(1 << bits - 1, 1 << bits)), int(drawn.integers(1, 1 << below))
            made += [(a, b), (-a, b), (a, -b), (-a, -b)]
    edges = (
        (1 << 32, 1),
        (1 << 32, 1 << 32),
        ((1 << 32) - 1, 1 << 32),
        ((1 << 63) - 1, 1),
        ((1 << 63) - 1, (1 << 63) - 1),
    )
    return [*made, *edges, (-(1 << 63), 3), (7 - (1 << 63), 1 << 32)]


@pytest.mark.parametrize("arch", ARCHS)
def test_integers_are_divided_as_python_divides_them_and_every_instruction_of_both_paths_is_executed(arch):
    narrow: set[str] = set()
    wide: set[str] = set()
    for executed, pairs in ((narrow, NARROW), (wide, operands())):
        for numerator, denominator in pairs:
            ran, result = run(arch, numerator, denominator)
            assert result == truncated(numerator, denominator), (numerator, denominator)
            executed.update(ran.executed)
    assert wide - narrow
    assert narrow | wide >= ran.present - NEVER
    ran = run_each(arch, (*NARROW, *operands()))
    wide.update(ran.executed)
    assert wide >= ran.present - NEVER
    here = str(Path(__file__).relative_to(Path(__file__).parents[2]))
    said = {name for reason in reasons() if reason.test == here for name in reason.instructions}
    never = next((row["never"] for row in recorded()["coverage"] if row["target"] == f"amd:{arch}"), {})
    assert narrow | wide >= said & never.keys()
