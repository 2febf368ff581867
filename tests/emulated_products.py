"""Triton's matrix products, compiled for AMD GPUs that are not here and run in the emulator."""

# ruff: noqa: N803
from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from emulated_kernels import wave_size
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from portakernel.emulation import Run, emulate


@triton.jit
def dot(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr, TURNED: tl.constexpr,
    SUM: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    k = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=SUM)
    for step in range(STEPS):
        left = tl.load(a + i * (K * STEPS) + step * K + k[None, :])
        if TURNED:
            right = tl.load(b + j * (K * STEPS) + step * K + k[:, None])
        else:
            right = tl.load(b + (step * K + k[:, None]) * N + j)
        total = tl.dot(left, right, total, out_dtype=SUM, input_precision="ieee")
    tl.store(c + i * N + j, total)


@triton.jit
def dot_scaled(
    a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    A_PACKED: tl.constexpr, B_PACKED: tl.constexpr, A_SCALED: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    group = tl.arange(0, K // 32)[None, :]
    left = tl.load(a + i * (K // A_PACKED) + tl.arange(0, K // A_PACKED)[None, :])
    right = tl.load(b + tl.arange(0, K // B_PACKED)[:, None] * N + j)
    left_scale = tl.load(a_scale + i * (K // 32) + group) if A_SCALED else None
    right_scale = tl.load(b_scale + tl.arange(0, N)[:, None] * (K // 32) + group)
    tl.store(c + i * N + j, tl.dot_scaled(left, left_scale, A, right, right_scale, B))


def emulated(
    kernel: Any, types: tuple[str, ...], constants: dict[str, Any], arch: str, arguments: list[Any], **options: Any
) -> Run:
    """One workgroup of a kernel; ``options`` are Triton's."""
    code, shared, warps = _compiled(kernel, types, tuple(constants.items()), arch, tuple(options.items()))
    block = (warps * wave_size(arch),)
    name = kernel.fn.__name__
    return emulate(code, name, (1,), block, [*arguments, None, None], arch, dynamic_lds=shared, names=kernel.arg_names)


@functools.cache
def _compiled(
    kernel: Any, types: tuple[str, ...], constants: tuple[tuple[str, Any], ...], arch: str, options: tuple[Any, ...]
) -> tuple[bytes, int, int]:
    signature = dict(zip(kernel.arg_names, (*types, *["constexpr"] * len(constants)), strict=True))
    source = ASTSource(kernel, signature, dict(constants))
    made = triton.compile(source, target=GPUTarget("hip", arch, wave_size(arch)), options=dict(options))
    return made.asm["hsaco"], made.metadata.shared, made.metadata.num_warps


_FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
_DTYPES = {
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip


def scaled_operand(kind: str, rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An operand as a kernel takes it, and its values."""
    if kind == "e2m1":
        codes = torch.randint(0, 16, (rows, k))
        return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), _FP4[codes]
    values = torch.randn(rows, k).to(_DTYPES[kind])
    return values, values.double()
