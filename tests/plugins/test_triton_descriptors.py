"""Kernels whose arguments are tensor descriptors: interpreted, compiled ahead, and held with their maps."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from portakernel.triton_launch import descriptors, direct
from portakernel.triton_launch.interpreter import interpreting
from portakernel.triton_launch.launch import launch, prepared
from portakernel.triton_launch.offline import compiling
from portakernel.words.target import Target


@triton.jit
def _copied(x, y, factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: N803 - as Triton writes constexprs
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    y.store([row, column], (x.load([row, column]).to(tl.float32) * factor).to(y.dtype))


def copied(x: torch.Tensor, y: torch.Tensor, rows: int = 16, columns: int = 32, padding: str = "zero") -> None:
    """Writes twice ``x`` into ``y``, by descriptors of both."""
    grid = triton.cdiv(y.shape[0], rows), triton.cdiv(y.shape[1], columns)
    source = TensorDescriptor(x, x.shape, x.stride(), [rows, columns], padding)
    into = TensorDescriptor(y, y.shape, y.stride(), [rows, columns])
    launch(_copied, grid, source, into, 2.0, ROWS=rows, COLUMNS=columns, num_warps=4)


@pytest.mark.parametrize("shape", [(16, 32), (50, 72), (1, 8)])
def test_the_interpreter_takes_descriptors(shape):
    x = torch.randn(shape)
    y = torch.full(shape, -1.0)
    with interpreting():
        copied(x, y)
    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("target", ["nvidia:sm_80", "nvidia:sm_90", "amd:gfx942"])
def test_descriptors_of_meta_tensors_compile_for_other_machines(target):
    x = torch.empty(64, 128, dtype=torch.bfloat16, device="meta")
    vendor, arch = target.split(":")
    with compiling(Target(vendor, arch)) as found:
        copied(x, torch.empty_like(x))
    (compiled,) = found
    assert compiled.assembly
    assert ("cp.async.bulk.tensor" in compiled.assembly) == (arch == "sm_90")


def test_a_held_launch_is_told_apart_by_dtype_and_block_alone(monkeypatch):
    held = direct.Held(_copied, {"ROWS": 16, "COLUMNS": 32}, lambda held, grid, args: None)

    def key(shape: tuple[int, int], block: list[int], dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
        x = torch.empty(shape, dtype=dtype)
        described = TensorDescriptor(x, x.shape, x.stride(), block)
        return held.key((described, described, 2.0))

    first = key((64, 64), [16, 32])
    assert key((128, 64), [16, 32]) == first
    assert key((64, 64), [16, 16]) != first
    assert key((64, 64), [16, 32], torch.float16) != first


def test_an_argument_that_is_a_descriptor_or_absent_is_left_to_triton():
    kind = TensorDescriptor
    assert descriptors.is_descriptor(kind)
    assert not descriptors.is_descriptor(torch.Tensor)
    assert direct._is_mixed({kind, type(None)})
    assert direct._is_mixed({kind, torch.Tensor})
    assert not direct._is_mixed({kind})
    assert not direct._is_mixed({torch.Tensor, type(None)})


def test_a_map_is_made_once_for_a_place_sizes_and_strides(monkeypatch):
    """As Triton 3.6 wraps a launcher: a function around it, which encodes each descriptor with its own facts."""
    made: list[Any] = []

    def make_tensordesc_arg(described: Any, meta: Any) -> list[Any]:
        made.append((described.base.data_ptr(), described.padding, meta))
        return [("map", described.base.data_ptr(), meta), *described.shape, *described.strides]

    module = ModuleType("a_driver")
    monkeypatch.setitem(sys.modules, "a_driver", module)
    vars(module)["make_tensordesc_arg"] = make_tensordesc_arg

    def wrapped(launcher: Any, tensordesc_meta: list[Any]) -> Any:
        def inner(*args: Any) -> Any:
            return launcher(tensordesc_meta, *args)

        inner.__module__ = "a_driver"
        return inner

    seen: list[Any] = []
    run = SimpleNamespace(
        launch=wrapped(lambda *args: seen.append(args), ["of x", "of y"]),
        launch_cooperative_grid=False,
        launch_pdl=False,
    )
    launching = direct._by_c_launcher(run, "packed")
    assert len(launching.encoders) == 2
    x = torch.randn(64, 64)
    first, second = (
        encode(x.data_ptr(), tuple(x.shape), x.stride(), padding)
        for encode, padding in zip(launching.encoders, ("zero", "nan"), strict=True)
    )
    assert first == (("map", x.data_ptr(), "of x"), 64, 64, 64, 1)
    assert second[0] == ("map", x.data_ptr(), "of y")
    for _ in range(3):
        assert launching.encoders[0](x.data_ptr(), (64, 64), (64, 1), "zero") is first
    assert len(made) == 2
    assert launching.encoders[0](x.data_ptr(), (32, 64), (64, 1), "zero") is not first
    assert len(made) == 3
    launching.call("grid")
    assert seen == [("grid",)]  # past the function that encodes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
class TestOnAGPU:
    """The maps that are kept are of the tensors that are given."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
    def test_every_launch_copies_what_it_is_given(self, dtype):
        for shape in [(16, 64), (48, 64), (50, 96), (16, 64), (1000, 128)] * 2:
            for offset in (0, 16, 32):
                memory = torch.randn(offset + 2 * shape[0] * shape[1], device="cuda").to(dtype)
                x = memory[offset : offset + shape[0] * shape[1] * 2].view(shape[0], 2 * shape[1])[:, : shape[1]]
                y = torch.empty(shape, dtype=dtype, device="cuda")
                copied(x, y)
                assert torch.equal(y.float(), (x.float() * 2).to(dtype).float())

    def test_a_second_launch_makes_no_map_and_asks_triton_nothing(self, monkeypatch):
        x, y = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
        for _ in range(2):  # Triton launches the first, and the second makes the maps
            copied(x, y)
        asked: list[int] = []
        real = _copied.run
        monkeypatch.setattr(_copied, "run", lambda *args, **more: asked.append(1) or real(*args, **more))
        utils = triton.runtime.driver.active.utils
        name = next(name for name in ("fill_tma_descriptor", "fill_tma_descriptor_tiled") if hasattr(utils, name))
        encode = getattr(utils, name)
        monkeypatch.setattr(utils, name, lambda *args: asked.append(2) or encode(*args))
        for _ in range(3):
            y.zero_()
            copied(x, y)
            assert torch.equal(y, x * 2)
        assert asked == ([] if direct._VERSION == "3.6" else [2, 2] * 3)

    def test_a_thread_that_has_used_no_device_launches_it(self):
        x, y, z = torch.randn(64, 64, device="cuda"), *torch.empty(2, 64, 64, device="cuda")
        for _ in range(2):
            copied(x, y)
        torch.cuda.synchronize()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copied, x, z).result()
        torch.cuda.synchronize()
        assert torch.equal(z, x * 2)

    def test_what_lies_outside_is_filled_as_the_descriptor_says(self):
        x = torch.randn(20, 64, device="cuda")
        y = torch.empty(32, 64, device="cuda")
        for padding in ("zero", "nan", "zero"):
            copied(x, y, padding=padding)
            assert torch.equal(y[:20], x * 2)
            assert bool((y[20:].isnan() if padding == "nan" else y[20:] == 0).all())

    def test_a_captured_graph_replays_it(self):
        x, y = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
        copied(x, y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            copied(x, y)
        x.copy_(torch.randn_like(x))
        y.zero_()
        graph.replay()
        assert torch.equal(y, x * 2)

    def test_the_kernel_is_held(self):
        held = prepared(_copied, {"ROWS": 16, "COLUMNS": 32, "num_warps": 4})
        x = torch.randn(64, 64, device="cuda")
        copied(x, torch.empty_like(x))
        assert held._kernels
