"""Norms of few rows are launched otherwise than those of many, and give every row the same bits."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.norms import add_layer_norm, add_rms_norm, layer_norm, norm_forward, rms_norm

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (1, 8, 64, 72, 80, 96, 128, 197, 256, 257, 320, 512, 577, 1001, 2050, 4096, 5120, 8192, 12288, 16384)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that Triton compiles for")


def results(op: str, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """``y``, and the sum where there is one."""
    if op == "rms_norm":
        return (rms_norm.rms_norm(x, weight, eps=1e-6),)
    if op == "layer_norm":
        return (layer_norm.layer_norm(x, weight, bias, eps=1e-6),)
    if op == "add_rms_norm":
        return add_rms_norm.add_rms_norm(x, x.flip(-1), weight, eps=1e-6)
    return add_layer_norm.add_layer_norm(x, x.flip(-1), weight, bias, eps=1e-6)


def compare(op: str, device: str, n: int, dtype: torch.dtype, many: int, seed: int) -> None:
    draw = torch.Generator(device).manual_seed(seed)
    x, weight, bias = (torch.randn(shape, generator=draw, device=device).to(dtype) for shape in ((many, n), (n,), (n,)))
    whole = results(op, x, weight, bias)
    for few in (1, 3):
        parts = results(op, x[:few].clone(), weight, bias)
        for part, of_many in zip(parts, whole, strict=True):
            assert torch.equal(part, of_many[:few]), (op, n, dtype, few)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"])
def test_rows_are_the_same_among_few_and_among_many(op):
    """Interpreted, where a single multiprocessor is pretended: a few rows are many there."""
    with interpreting():
        for n in (96, 257, 1001):
            few = norm_forward._plan(f"{op}.forward", torch.device("cpu"), n, 4, "layer" in op, "none")[0]
            compare(op, "cpu", n, torch.float32, max(few, 3) + 1, seed=n)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"])
def test_bits_are_the_same_among_few_and_among_many(op, dtype):
    widths = {*WIDTHS, *random.Random(f"{op} {dtype}").sample(range(1, 16384), 8)}
    for n in sorted(widths):
        compare(op, "cuda", n, dtype, many=2500, seed=n)


@pytest.mark.parametrize(
    ("n", "centred", "few"), [(4096, True, 3), (96, False, 16), (4096, False, 0), (20480, True, 0)]
)
def test_how_many_rows_are_few(n, centred, few):
    """Where reading parameters early, or programs of one warp, are worth it; of one multiprocessor."""
    with interpreting():
        kernel = "layer_norm.forward" if centred else "rms_norm.forward"
        assert norm_forward._plan(kernel, torch.device("cpu"), n, 2, centred, "none")[0] == few
