"""Attention's gradients in one Hopper kernel, without a GPU: barriers on threads, and the code by the compiler."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

import torch
from plugins.gluon_on_threads import Stuck, on_threads

from plugins import gluon_on_threads
from portakernel.authoring.triton import compiling, interpreting, launch
from portakernel.references import attention as reference
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import (
    hopper_gradients,
    hopper_gradients_kernel,
    hopper_memory,
    hopper_tiles,
)

HOPPER = Target("nvidia", "sm_90")


def options(width: int, **more: Any) -> dict[str, Any]:
    usual = {
        "BLOCK": 64 if width == 128 else 128,
        "STAGES": 2,
        "CONSUMER_REGISTERS": 240,
        "PRODUCER_REGISTERS": 24,
    }
    return {**usual, "num_warps": 4, "maxnreg": 168, **more}


@contextmanager
def emulated(
    monkeypatch: pytest.MonkeyPatch, kernel: ModuleType = hopper_gradients_kernel, **more: Any
) -> Iterator[None]:
    def configuration(entry: str, device: torch.device, width: int, *_: int) -> Any:
        return SimpleNamespace(options={"num_warps": 4} if entry.endswith("rows") else options(width, **more))

    with (
        on_threads(monkeypatch, kernel, hopper_memory, hopper_tiles) as on_cpu,
        monkeypatch.context() as patch,
    ):

        def launched(function: Any, grid: tuple[int, int], *args: Any, **meta: Any) -> None:
            if function is kernel.gradients:
                on_cpu(function, grid, *args, **meta)
                return
            with interpreting():
                launch(function, grid, *args, **meta)

        patch.setattr(hopper_gradients, "gradients", kernel.gradients)
        patch.setattr(hopper_gradients, "launch", launched)
        patch.setattr(hopper_gradients, "ROWS", SimpleNamespace(value=64))
        patch.setattr(hopper_gradients, "CONSUMERS", SimpleNamespace(value=2))
        patch.setattr(hopper_gradients, "configuration", configuration)
        patch.setattr(hopper_gradients, "processor", lambda _: SimpleNamespace(multiprocessors=3))
        yield


def inputs(
    batch: int, queries: int, keys: int, heads: int, key_heads: int, width: int = 64
) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(queries * keys + heads)
    shapes = (batch, queries, heads, width), *[(batch, keys, key_heads, width)] * 2, (batch, queries, heads, width)
    return tuple(torch.randn(shape, generator=draw).bfloat16() for shape in shapes)


def faults(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    **values: Any,
) -> list[str]:
    """Which gradients differ from those of the reference in float64."""
    call = {"causal": False, "scale": None, "window": (-1, -1), **values}
    wide = [x.double().requires_grad_() for x in (q, k, v, *([] if sinks is None else [sinks]))]
    of_sinks = wide[3] if sinks is not None else None
    out, lse = reference.forward(*wide[:3], sinks=of_sinks, softcap=0.0, return_lse=True, **call)[:2]
    want = torch.autograd.grad(out, wide, grad.double())
    found = hopper_gradients.backward(
        grad,
        q,
        k,
        v,
        sinks,
        out.detach().to(q.dtype),
        lse.detach().float(),
        return_lse=False,
        needs=(True,) * 4,
        **call,
    )
    # a sum over all queries, of products with out as it was rounded
    allowed = {"q": 0.02, "k": 0.02, "v": 0.02, "sinks": 0.2}
    faulty = []
    for (name, off), one, got in zip(allowed.items(), want, found, strict=False):
        assert got is not None
        assert got.dtype is (q.dtype if name != "sinks" else torch.float32)
        difference = (got.double() - one).abs().max()
        if not bool(difference <= off * (1.0 + one.abs().max())):  # NaN is no less
            faulty.append(f"{name} {difference:.3}")
    return faulty


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("stages", [2, 3])
def test_no_barrier_is_waited_for_in_vain_and_no_block_is_overwritten_too_early(monkeypatch, width, stages):
    with emulated(monkeypatch, STAGES=stages):
        assert faults(*inputs(2, 300, 400, 4, 2, width), causal=True) == []


@pytest.mark.parametrize("queries", [1, 63, 128, 129, 257])
@pytest.mark.parametrize("keys", [1, 64, 129, 257])
def test_every_length_and_mask(monkeypatch, queries, keys):
    sinks = torch.tensor([0.5, float("-inf")])
    for width in (64, 128):
        tensors = inputs(1, queries, keys, 2, 1, width)
        with emulated(monkeypatch):
            for call in (
                {"causal": True},
                {},
                {"window": (40, 30)},
                {"causal": True, "window": (100, -1), "sinks": sinks},
                {"window": (0, 0), "sinks": sinks},
                {"window": (-1, 20)},
            ):
                assert faults(*tensors, **call) == [], (width, call)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-30, 2.0])
def test_every_scale(monkeypatch, scale):
    with emulated(monkeypatch):
        assert faults(*inputs(1, 100, 90, 2, 1), causal=True, scale=scale) == []


def test_queries_and_keys_that_are_not_there():
    for sizes in ((2, 0, 7, 2, 1), (2, 5, 0, 2, 1), (0, 5, 7, 2, 1)):
        q, k, v, grad = inputs(*sizes)
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
        found = hopper_gradients.backward(
            grad, q, k, v, torch.zeros(2), torch.zeros_like(q), lse, causal=True, scale=None, window=(-1, -1),
            return_lse=False, needs=(True,) * 4,
        )  # fmt: skip
        for x, gradient in zip((q, k, v, torch.zeros(2)), found, strict=True):
            assert gradient is not None
            assert torch.equal(gradient, torch.zeros_like(x))


def mutants() -> Iterator[Any]:
    """Each line of the kernel that waits, arrives or announces bytes, as what it becomes without that."""
    lines = inspect.getsource(hopper_gradients_kernel).splitlines()
    for number, line in enumerate(lines):
        # whoever has the queries' place has this one too: it is as right without, and later
        if "mbarrier.wait(grad_empty" in line:
            continue
        if waited := re.search(r"(\w+) = warpgroup_mma_wait\((\w+), deps=\((\w+),\)\)", line):
            changed = f"{waited[1]} = warpgroup_mma_wait({waited[2]} + 1, deps=({waited[3]},))"
        elif re.search(r"mbarrier\.(wait|arrive|expect)\(|\bstore_wait", line):
            changed = "pass"
        else:
            continue
        indent = line[: len(line) - len(line.lstrip())]
        yield pytest.param(number, indent + changed, id=f"{number}: {line.strip()}")


@pytest.mark.parametrize(("number", "line"), list(mutants()))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_lacks_one_wait_or_arrival_is_caught(monkeypatch, tmp_path, number, line):
    lines = inspect.getsource(hopper_gradients_kernel).splitlines()
    lines[number] = line
    path = tmp_path / "mutant.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    module = ModuleType(hopper_gradients_kernel.__name__)
    module.__file__ = str(path)
    monkeypatch.setattr(gluon_on_threads, "PATIENCE_S", 0.5)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(module))
    found = []
    for width in (64, 128):
        with emulated(monkeypatch, module):
            try:
                found += faults(*inputs(4, 200, 300, 4, 2, width), causal=True)
            except (Stuck, AssertionError) as error:
                found.append(str(error))
    assert found


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_compiles_with_the_copy_engine_warpgroups_and_memory_of_a_hopper(width, causal, dtype):
    q, k = (torch.empty(2, 500, heads, width, dtype=dtype, device="meta") for heads in (8, 2))
    lse = torch.empty(2, 8, 500, device="meta")
    with compiling(HOPPER) as found:
        hopper_gradients.backward(
            q, q, k, k, None, q, lse, causal=causal, scale=None, window=(-1, -1), return_lse=False, needs=(True,) * 4
        )
    (compiled,) = [one for one in found if "kernel" in one.function]
    assert "wgmma.mma_async" in compiled.assembly
    assert "cp.reduce.async.bulk.tensor.2d.global" in compiled.assembly
    assert "cp.async.bulk.tensor.5d.shared" in compiled.assembly
    assert "setmaxnreg" in compiled.assembly
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.spilled_bytes <= 256
