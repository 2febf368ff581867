"""The grouped products' Hopper kernel without a GPU: its barriers and tiles on threads, its code by the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

import torch
from plugins.gluon_on_threads import Stuck, on_threads
from plugins.hopper_kernels import mutants, mutated
from torch import Tensor

from plugins import gluon_on_threads
from portakernel.authoring.triton import compiling
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import hopper_memory
from portakernel_plugins.triton.gates import activations
from portakernel_plugins.triton.matrix import grouped_hopper, grouped_hopper_kernel

HOPPER = Target("nvidia", "sm_90")
# Rows of each expert: none, few, one tile, more than one consumer's, several tiles.
PIECES = [(0, 1, 64, 65, 0), (128, 129, 300, 0, 7), (0, 0, 0), (500,), (3,) * 40]


@contextmanager
def emulated(
    monkeypatch: pytest.MonkeyPatch, stages: int = 2, programs: int = 3, kernel: ModuleType = grouped_hopper_kernel
) -> Iterator[None]:
    options = {"BLOCK_K": 32, "STAGES": stages, "CONSUMER_REGISTERS": 240, "PRODUCER_REGISTERS": 24, "num_warps": 4}
    with monkeypatch.context() as patch:
        patch.setattr(grouped_hopper, "grouped", kernel.grouped)
        patch.setattr(grouped_hopper, "launch", on_threads(monkeypatch, kernel, hopper_memory, activations))
        patch.setattr(
            grouped_hopper, "configuration", lambda *_: SimpleNamespace(options=options, programs=programs)
        )  # fmt: skip
        yield


def drawn(pieces: tuple[int, ...], columns: int, inners: int, *, more: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, matrices and offsets; rows behind the last offset, and every memory that nobody is to read, are NaN."""
    source = torch.Generator().manual_seed(columns * inners + len(pieces))
    ends = torch.tensor([0, *pieces]).cumsum(0).int()
    a = torch.randn(int(ends[-1]) + more, inners, generator=source)
    a[int(ends[-1]) :] = float("nan")
    b = torch.randn(len(pieces), columns, inners, generator=source)
    return a.bfloat16(), b.bfloat16(), ends


def wanted(a: Tensor, b: Tensor, offsets: Tensor, gate: str | None, halves: str) -> Tensor:
    found = []
    for expert, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        z = a[begin:end].double() @ b[expert].double().T
        if gate is not None:
            left, right = z.chunk(2, -1) if halves == "concat" else (z[:, ::2], z[:, 1::2])
            z = (torch.nn.functional.silu(left) if gate == "silu" else left.relu()) * right
        found.append(z)
    return torch.cat(found)


def assert_right(
    a: Tensor, b: Tensor, offsets: Tensor, *, gate: str | None = None, halves: str = "concat", **values: Any
) -> None:
    gather = values.get("gather")
    rows = a if gather is None else a[gather.long() // values.get("shared", 1)]
    columns = b.shape[1] // (1 if gate is None else 2)
    y = torch.full((len(rows), columns), 7.0, dtype=a.dtype)
    grouped_hopper.multiply("forward", a, b, offsets, y, gate=gate, halves=halves, **values)
    last = int(offsets[-1])
    torch.testing.assert_close(y[:last].double(), wanted(rows, b, offsets, gate, halves), atol=0.02, rtol=0.01)
    assert bool((y[last:] == 7.0).all())


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_every_tile_is_multiplied_once_and_nobody_elses_rows_are_written(monkeypatch, pieces, programs):
    with emulated(monkeypatch, programs=programs):
        for columns in (8, 256, 392):
            assert_right(*drawn(pieces, columns, 72))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("inners", [8, 32, 200])
def test_no_block_is_overwritten_too_early(monkeypatch, stages, inners):
    with emulated(monkeypatch, stages, programs=4):
        assert_right(*drawn((70, 200, 0, 130), 264, inners))


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("gate", ["silu", "relu"])
@pytest.mark.parametrize("inners", [32, 40])
def test_gate_and_up_meet_and_rows_are_gathered_from_anywhere(monkeypatch, halves, gate, inners):
    pieces = (70, 0, 130, 3)
    a, b, offsets = drawn(pieces, 272, inners, more=0)
    source = torch.Generator().manual_seed(1)
    gather = torch.randint(0, 2 * len(a), (sum(pieces) + 5,), generator=source).int()
    with emulated(monkeypatch):
        assert_right(a, b, offsets, gate=gate, halves=halves)
        assert_right(a, b, offsets, gate=gate, halves=halves, gather=gather, shared=2)
        assert_right(a, b, offsets, gather=gather.long() // 2)


def test_what_the_copy_engine_cannot_follow_goes_by_the_other_kernel(monkeypatch):
    called: list[dict[str, Any]] = []
    monkeypatch.setattr(grouped_hopper.grouped_mm, "multiply", lambda *_, **values: called.append(values))
    a, b, offsets = drawn((5, 7), 16, 32, more=0)
    y = a.new_empty(12, 16)
    bias = torch.zeros(2, 16)
    for given, values in (
        ((a, b.transpose(1, 2).contiguous().transpose(1, 2)), {}),
        ((a.T.contiguous().T, b), {}),
        ((a.float(), b.float()), {}),
        ((a, b), {"bias": bias}),
        ((a, b), {"rest": True}),
        ((a[:, :12], b[..., :12]), {}),
    ):
        grouped_hopper.multiply("forward", *given, offsets, y, **values)
        assert len(called) == 1
        assert called.pop().items() >= values.items()


@pytest.mark.turns(3)
@pytest.mark.parametrize(("number", "line"), list(mutants(grouped_hopper_kernel)))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_lacks_one_wait_or_arrival_is_caught(monkeypatch, tmp_path, number, line):
    module = mutated(grouped_hopper_kernel, number, line, tmp_path / "mutant.py")
    monkeypatch.setattr(gluon_on_threads, "PATIENCE_S", 0.5)
    a, b, offsets = drawn((200, 64, 300, 70), 520, 136, more=0)
    gather = torch.arange(len(a)).flip(0).int()
    with emulated(monkeypatch, programs=6, kernel=module), pytest.raises((Stuck, AssertionError)):
        assert_right(a, b, offsets)
        assert_right(a, b, offsets, gather=gather)


@pytest.mark.parametrize(("gate", "gathered"), [(None, False), ("silu", True), (None, True)])
@pytest.mark.parametrize("inners", [768, 776])
def test_it_compiles_with_the_copy_engine_warpgroups_and_memory_of_a_hopper(gate, gathered, inners):
    def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    gather = numbers(4096, dtype=torch.int32) if gathered else None
    a, b, offsets = numbers(4096, inners), numbers(128, 512, inners), numbers(129, dtype=torch.int32)
    with compiling(HOPPER) as found:
        grouped_hopper.multiply("forward", a, b, offsets, numbers(4096, 256 if gate else 512), gate=gate, gather=gather)
    (compiled,) = found
    assert "wgmma.mma_async.sync.aligned.m64n256k16" in compiled.assembly
    assert "cp.async.bulk.tensor.4d.shared" in compiled.assembly
    assert "cp.async.bulk.tensor.4d.global" in compiled.assembly
    assert ("cp.async.mbarrier.arrive.noinc" in compiled.assembly) == gathered
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.spilled_bytes == 0
