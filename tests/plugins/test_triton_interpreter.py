"""The interpreter's shortcuts change no bit of what a kernel computes, and Triton is as it was behind each launch."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as of_triton

from portakernel.triton_launch import interpreter, interpreter_shortcuts
from portakernel.triton_launch.interpreter_shortcuts import shortcuts

AS_IT_IS = not interpreter_shortcuts._replacements()


@triton.jit
def _halved(x):
    return x * 0.5


@triton.jit
def _much(x_ptr, y_ptr, sums_ptr, bits_ptr, n: tl.constexpr, block: tl.constexpr):
    """Some of everything: masks, casts, broadcasts between ranks, reductions, sorts, products, integers that wrap."""
    row = tl.program_id(0)
    columns = tl.arange(0, block)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
    wide = x.to(tl.float32)
    outer = wide[:, None] * _halved(wide)[None, :] + 1
    product = tl.dot(outer, tl.trans(outer), input_precision="ieee")
    total = tl.sum(product, axis=1)
    for step in tl.range(3):
        total += tl.max(tl.where(columns[:, None] > step, outer, -outer), axis=1)
    tl.store(y_ptr + row * n + columns, (total / tl.sqrt(tl.sum(wide * wide) + 1e-3)).to(x.dtype), mask=columns < n)
    tl.store(sums_ptr + row, tl.sum(tl.cumsum(total, axis=0)))
    mixed = (columns * 2147483 + row) * 1103515245 + 12345
    bits = tl.sort(mixed).to(tl.uint32, bitcast=True) >> 3
    bits += tl.xor_sum(mixed, axis=0).to(tl.uint32, bitcast=True)
    tl.store(bits_ptr + row * block + columns, (bits ^ (bits << 7)).to(tl.int32, bitcast=True))


@triton.jit
def _laid_out(x_ptr, y_ptr, flags_ptr, n: tl.constexpr):
    """Scalars beside transposed blocks, whose sums depend on how they lie; pointers that go back; truth values."""
    rows = tl.arange(0, n)
    places = rows[:, None] * n + rows[None, :]
    tile = tl.load(x_ptr + places).to(tl.float32)
    turned = tl.trans(tile) * 1.5 + 0.1 - tl.load(x_ptr + 1)
    chosen = tl.where(turned > 0.0, -0.0, 1.0 / turned) + tl.where(rows % 3 == 1, 2.5, rows[:, None])
    y = tl.sum(turned, axis=0) + tl.sum(-3.0 * chosen, axis=1) - tl.sum(7 - turned, axis=1)
    tl.store(y_ptr + (n - 1) - rows, y, mask=rows.to(tl.uint32) >= 2)
    flags = (turned <= tile) & (rows[:, None] != 3) | (rows[None, :] == rows[:, None]) ^ (rows > 1)
    tl.store(flags_ptr + places.to(tl.uint32), flags.to(tl.int8) + (tile < 0).to(tl.int8) * 2)


def results_laid_out(dtype):
    x = torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(dtype)
    y, flags = torch.zeros(16, dtype=torch.float32), torch.empty(16, 16, dtype=torch.int8)
    interpreter.run(_laid_out, (1,), (x, y, flags), {"n": 16})
    return [y.view(torch.uint8).clone(), flags]


def results(dtype):
    x = torch.randn(3, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[1, 2:5] = torch.tensor([torch.inf, torch.nan, -0.0])
    y, sums = torch.empty_like(x), torch.empty(3, dtype=torch.float32)
    bits = torch.empty(3, 16, dtype=torch.int32)
    interpreter.run(_much, (3,), (x, y, sums, bits), {"n": 13, "block": 16})
    found = [tensor.contiguous().view(torch.uint8).clone() for tensor in (y, sums, bits)]
    return found + results_laid_out(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_bit_is_what_tritons_own_interpreter_gives(monkeypatch, dtype):
    found = [results(dtype), results(dtype)]  # the second with what the first one kept
    monkeypatch.setattr(interpreter, "shortcuts", nullcontext)
    for pair in found:
        assert all(map(torch.equal, pair, results(dtype)))


def everything():
    """What stands in Triton's modules and classes, but for what warnings leave there."""
    owners = (core, tl, core.block_type, core.tensor, core.dtype, TritonSemantic, of_triton)
    return [{name: value for name, value in vars(owner).items() if name != "__warningregistry__"} for owner in owners]


def test_triton_is_as_it_was_behind_a_launch(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(interpreter, "shortcuts", nullcontext)
        results(torch.float32)  # Triton's own launch leaves names behind
    before = everything()
    results(torch.float32)
    assert everything() == before


@pytest.mark.skipif(AS_IT_IS, reason=f"Triton {triton.__version__} is not one that is changed")
def test_what_raises_leaves_triton_as_it_was_too():
    before = dict(vars(core.block_type))

    def launched():
        with shortcuts():
            assert dict(vars(core.block_type)) != before
            core.block_type(tl.float32, [3])

    with pytest.raises(ValueError, match="must be a power of 2"):
        launched()
    assert dict(vars(core.block_type)) == before


def test_a_release_whose_code_was_not_read_runs_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="4.0.0"))
    assert interpreter_shortcuts._replacements.__wrapped__() == ()


@pytest.mark.skipif(AS_IT_IS, reason=f"Triton {triton.__version__} is not one that is changed")
def test_overflow_is_looked_for_where_somebody_is_told(monkeypatch):
    from portakernel.triton_launch import interpreter_operations

    asked = []
    monkeypatch.setattr(interpreter_operations, "_sanitize_any", lambda *given: asked.append(given))
    (replaced,) = [
        value for _, name, value in interpreter_operations.of_operations() if name == "binary_op_sanitize_overflow_impl"
    ]
    for debug in (False, True):
        semantic = SimpleNamespace(builder=SimpleNamespace(options=SimpleNamespace(debug=debug)))
        replaced(semantic, 1, 2, None)
        assert len(asked) == debug


FIRST_INTERPRETED = """
import sys

import torch
import triton
import triton.language as tl

from portakernel.authoring.triton import compiling, interpreting, launch
from portakernel.words.target import Target


@triton.jit
def doubled(x_ptr, n):
    tl.store(x_ptr, tl.load(x_ptr) * n)


assert "triton.experimental.gluon" not in sys.modules
x = torch.ones(1)
with interpreting():
    launch(doubled, (1, 1), x, 2)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def halved(x_ptr):
    gl.store(x_ptr + gl.program_id(0), gl.load(x_ptr) * 0.5)


with compiling(Target.parse("nvidia:sm_90")) as found:
    launch(halved, (1, 1), torch.empty(1, device="meta"))
print(x.item(), [compiled.function for compiled in found])
"""


def test_gluon_compiles_in_a_process_whose_first_launch_was_interpreted(python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FIRST_INTERPRETED, encoding="utf-8")
    ran = python(program, env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)})
    assert (ran.returncode, ran.stdout.strip()) == (0, "2.0 ['__main__.halved']"), ran.stderr
