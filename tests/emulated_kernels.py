"""Triton kernels that tests compile for AMD GPUs that are not here, and run in the emulator."""

# ruff: noqa: N803
from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


def wave_size(arch: str) -> int:
    return 64 if arch.startswith("gfx9") else 32


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def add_past_the_end(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at <= n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def rms_norm(x, weight, out, n, epsilon, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / n + epsilon)
    tl.store(out + row * n + at, value * scale * tl.load(weight + at, mask=at < n), mask=at < n)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    powers = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * n + at, powers / tl.sum(powers, 0), mask=at < n)


@triton.jit
def spin(out, n):
    at = n
    while at >= n:
        at += tl.load(out)
    tl.store(out, at)


@functools.cache
def compiled(
    kernel: Any, types: tuple[str, ...], constants: tuple[tuple[str, int], ...], arch: str
) -> tuple[bytes, int]:
    """The code object, and the bytes of LDS that a launch gives it."""
    names = kernel.arg_names
    signature = dict(zip(names, (*types, *["constexpr"] * len(constants)), strict=True))
    source = ASTSource(kernel, signature, dict(constants))
    made = triton.compile(source, target=GPUTarget("hip", arch, wave_size(arch)), options={"num_warps": 4})
    return made.asm["hsaco"], made.metadata.shared
