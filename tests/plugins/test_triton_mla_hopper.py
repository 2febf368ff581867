"""Latent attention's Hopper kernel without a GPU: its barriers and shares on threads, its code by the compiler."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

import torch
from plugins.gluon_on_threads import Stuck, on_threads
from plugins.hopper_kernels import mutants, mutated
from torch import Tensor

import portakernel
from plugins import gluon_on_threads
from portakernel.authoring.triton import compiling, interpreting
from portakernel.references import mla_decode as reference
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import hopper_memory, hopper_mla, hopper_mla_kernel, parts, shares
from portakernel_plugins.triton.attention import mla_decode as any_device

C, R, PAGE = 64, 16, 64
VALUES: dict[str, Any] = {
    "scale": 0.15,
    "causal": True,
    "window": (-1, -1),
    "max_seqlen_q": None,
    "max_seqlen_k": None,
    "return_lse": True,
}


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch, programs: int, kernel: ModuleType = hopper_mla_kernel) -> Iterator[None]:
    """The kernel on threads, what adds up its parts interpreted."""
    how = SimpleNamespace(programs=programs, options={"LEAST": 1, "PRODUCER_REGISTERS": 24, "num_warps": 8})
    with monkeypatch.context() as patch, interpreting():
        patch.setattr(hopper_mla, "decode", kernel.decode)
        patch.setattr(hopper_mla, "launch", on_threads(monkeypatch, kernel, hopper_memory, shares, parts))
        patch.setattr(hopper_mla, "configuration", lambda *_: how)
        yield


def drawn(lengths: tuple[int, ...], queries: tuple[int, ...], heads: int = 64, page: int = PAGE) -> tuple[Tensor, ...]:
    """The arguments of sequences with so many keys and queries; what nobody sees is NaN, and dead entries nowhere."""
    source = torch.Generator().manual_seed(sum(lengths) + heads)
    width = max(1, *(-(-length // page) for length in lengths))
    count = len(lengths) * width
    cache = torch.randn(count + 1, page, C + R, generator=source).half()
    order = torch.randperm(count, generator=source).reshape(len(lengths), width)
    table, seen = torch.full_like(order, -(2**31)), torch.zeros(count + 1, page, dtype=torch.bool)
    for n, length in enumerate(lengths):
        table[n, : -(-length // page)] = order[n, : -(-length // page)]
        j = torch.arange(length)
        seen[order[n][j // page], j % page] = True
    cache[~seen] = math.nan
    starts = torch.tensor([*accumulate(queries, initial=0)], dtype=torch.int32)
    q = torch.randn(sum(queries), heads, C + R, generator=source).half()
    ends = (table.int(), torch.tensor(lengths, dtype=torch.int32), starts)
    return q[..., :C].contiguous(), q[..., C:].contiguous(), cache[..., :C], cache[..., C:], *ends


def faults(given: tuple[Tensor, ...], **more: Any) -> list[str]:
    """How the kernel's results differ from the reference's, of the same numbers in float64."""
    call = {**VALUES, **more}
    found, lse = hopper_mla.mla_decode(*given, **call)
    wide = [x.double().nan_to_num(0.0) if x.is_floating_point() else x for x in given]
    wide[4] = wide[4].clamp(min=0)
    want, want_lse = reference.forward(*wide, **call)
    there = want_lse.isfinite()
    held = {
        "out": bool(((found.double() - want).abs() <= 0.01).all()),
        "who sees nothing": torch.equal(there, lse.isfinite()),
        "lse": torch.allclose(lse[there].double(), want_lse[there].double(), atol=1e-4),
    }
    return [name for name, holds in held.items() if not holds]


@pytest.mark.parametrize("programs", [1, 3, 5, 16])
@pytest.mark.parametrize("heads", [16, 32, 64, 128])
def test_shares_end_anywhere_and_parts_come_to_the_whole(monkeypatch, programs, heads):
    with emulated(monkeypatch, programs):
        assert faults(drawn((300, 64, 1, 0, 129), (1, 2, 1, 1, 1), heads)) == []
        assert faults(drawn((0, 700, 65), (0, 1, 7), heads), max_seqlen_q=7) == []


@pytest.mark.parametrize(("heads", "page"), [(64, 64), (64, 128), (16, 64), (32, 64)])
@pytest.mark.parametrize("window", [(-1, -1), (70, 0), (0, 0), (100, 30)])
def test_every_mask_with_nan_in_all_that_nobody_sees(monkeypatch, window, heads, page):
    given = drawn((130, 64, 200, 63), (3, 1, 2, 5), heads, page)
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(1))
    with emulated(monkeypatch, 4):
        assert faults(given, window=window) == []
        assert faults(given, window=window, causal=False, sinks=sinks) == []


@pytest.mark.parametrize("scale", [0.0, 1e-30, 3.0, 1e30, -0.5])
def test_every_scale(monkeypatch, scale):
    with emulated(monkeypatch, 2):
        assert faults(drawn((130, 20), (1, 2)), scale=scale) == []


def test_few_rows_and_strides_that_the_copy_engine_cannot_follow_are_computed_otherwise(monkeypatch):
    given = list(drawn((130, 20), (1, 1)))
    served = []
    monkeypatch.setattr(any_device, "launch", lambda kernel, *_, **__: served.append(kernel.__name__))
    hopper_mla.mla_decode(*drawn((130, 20), (1, 1), heads=16), **{**VALUES, "max_seqlen_q": 1})
    assert [served.pop(), served.pop()] == ["merge", "decode"]
    odd = torch.empty(given[2].shape[0], PAGE, C + 1, dtype=torch.half)[..., 1:]
    hopper_mla.mla_decode(*given[:2], odd, *given[3:], **VALUES)
    assert served == ["decode", "merge"]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("number", "line"), list(mutants(hopper_mla_kernel)))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_lacks_one_wait_or_arrival_is_caught(monkeypatch, tmp_path, number, line):
    module = mutated(hopper_mla_kernel, number, line, tmp_path / "mutant.py")
    monkeypatch.setattr(gluon_on_threads, "PATIENCE_S", 0.5)
    found: list[str] = []
    with emulated(monkeypatch, 6, module):
        try:
            found += faults(drawn((500, 0, 300, 64, 700), (1, 2, 2, 1, 1), 128))
        except (Stuck, AssertionError) as error:
            found.append(str(error))
    assert found


@pytest.mark.parametrize(("heads", "dtype"), [(16, torch.bfloat16), (64, torch.float16), (128, torch.bfloat16)])
def test_it_compiles_with_the_copy_engine_warpgroups_and_memory_of_a_hopper(heads, dtype):
    floats = [
        torch.empty(shape, dtype=dtype, device="meta") for shape in ((4, heads, 512), (4, heads, 64), (40, 64, 576))
    ]
    ends = [torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((4, 9), (4,), (5,))]
    caches = floats.pop().split([512, 64], 2)
    with compiling(Target.parse("nvidia:sm_90")) as found:
        hopper_mla.mla_decode(*floats, *caches, *ends, **{**VALUES, "window": (100, 0)})
    compiled, _ = found
    assert "wgmma.mma_async.sync.aligned.m64n256k16" in compiled.assembly
    assert "cp.async.bulk.tensor.5d.shared" in compiled.assembly
    assert compiled.shared_bytes <= 227 * 1024
    # where a list begins and ends: of what the loop takes, few are read again
    assert compiled.spilled_bytes <= 224


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("page", [16, 64, 256])
def test_other_heads_and_pages_expect_nothing_of_it(heads, page):
    shapes = {"q_latent": (4, heads, 512), "q_rope": (4, heads, 64), "latent_cache": (9, page, 512)}
    at = {"target": "nvidia:sm_90", "dtype": {"q_latent": "bfloat16"}}
    decision = portakernel.explain("mla_decode", **at, shape={**shapes, "rope_cache": (9, page, 64)})
    assert decision.chosen.name == "triton.mla_decode" + ("_hopper" if heads > 8 and page > 16 else "")
    assert not decision.passed_over
