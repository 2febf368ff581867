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
from plugins.gluon_on_threads import Stuck, on_threads, wait_for_earlier
from plugins.hopper_kernels import mutants, mutated
from torch import Tensor

import portakernel
from plugins import gluon_on_threads
from portakernel.authoring.triton import compiling, interpreting
from portakernel.claims.request import Phase
from portakernel.deciding.explaining import explain_in_words
from portakernel.references import grouped_mm as grouped_reference
from portakernel.references import moe_mlp as mlp_reference
from portakernel.runtime import dispatcher
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import hopper_memory
from portakernel_plugins.triton.experts import moe_mlp_hopper
from portakernel_plugins.triton.gates import activations
from portakernel_plugins.triton.matrix import (
    grouped_hopper,
    grouped_hopper_kernel,
    grouped_hopper_sums,
    grouped_hopper_tiles,
)

HOPPER = Target("nvidia", "sm_90")
# Rows of each expert: none, few, one tile, more than one consumer's, several tiles.
PIECES = [(0, 1, 64, 65, 0), (128, 129, 300, 0, 7), (0, 0, 0), (500,), (3,) * 40]


@contextmanager
def emulated(
    monkeypatch: pytest.MonkeyPatch,
    stages: int = 2,
    programs: int = 3,
    buffers: int = 1,
    consumers: int = 2,
    kernel: ModuleType = grouped_hopper_kernel,
    sums: ModuleType = grouped_hopper_sums,
) -> Iterator[None]:
    options = {
        "CONSUMERS": consumers,
        "COLUMNS": 64,
        "STAGES": stages,
        "BUFFERS": buffers,
        "REGISTERS": [[240, 24], [216, 72]],
        "num_warps": 4,
    }
    with monkeypatch.context() as patch:
        patch.setattr(grouped_hopper, "grouped", kernel.grouped)
        adds = {name: getattr(sums, name).fn for name in ("sums", "sums_of_halves", "scaled_sums")}
        modules = kernel, sums, grouped_hopper_tiles, hopper_memory, activations
        launch = on_threads(monkeypatch, *modules, warpgroup_mma_wait=wait_for_earlier, **adds)
        patch.setattr(grouped_hopper, "launch", launch)
        how = SimpleNamespace(options=options, programs=programs)
        patch.setattr(grouped_hopper, "configuration", lambda *_: how)
        yield


def drawn(pieces: tuple[int, ...], columns: int, inners: int, *, more: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, matrices and offsets; rows behind the last offset, and every memory that nobody is to read, are NaN."""
    source = torch.Generator().manual_seed(columns * inners + len(pieces))
    ends = torch.tensor([0, *pieces]).cumsum(0).int()
    a = torch.randn(int(ends[-1]) + more, inners, generator=source)
    a[int(ends[-1]) :] = float("nan")
    b = torch.randn(len(pieces), columns, inners, generator=source)
    return a.bfloat16(), b.bfloat16(), ends


def scales_of(a: Tensor, b: Tensor, form: str) -> dict[str, Any]:
    source, blocks = torch.Generator().manual_seed(3), -(-a.shape[1] // 128)
    experts, columns, _ = b.shape
    sizes = {
        "row": ((len(a), 1), (experts, columns, 1)),
        "block": ((len(a), blocks), (experts, -(-columns // 128), blocks)),
    }
    scale_a, scale_b = (torch.rand(size, generator=source) + 0.5 for size in sizes[form])
    return {"scale_a": scale_a, "scale_b": scale_b, "format": form}


def wide(x: Tensor, scale: Tensor | None, form: str, *, square: bool) -> Tensor:
    """In float64, times its scales."""
    if scale is not None and form == "block":
        scale = scale.repeat_interleave(128, -1)[..., : x.shape[-1]]
        scale = scale.repeat_interleave(128, -2)[..., : x.shape[-2], :] if square else scale
    return x.double() if scale is None else x.double() * scale


def assert_right(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    gather: Tensor | None = None,
    shared: int = 1,
    gate: str | None = None,
    halves: str = "concat",
    **scales: Any,
) -> None:
    form = scales.get("format", "none")
    left = wide(a, scales.get("scale_a"), form, square=False)
    right = wide(b, scales.get("scale_b"), form, square=True)
    left = left if gather is None else left[gather.long() // shared]
    columns, last = b.shape[1] // (1 if gate is None else 2), int(offsets[-1])
    y = torch.full((len(left), columns), 7.0, dtype=torch.bfloat16)
    how = {"gather": gather, "shared": shared, "gate": gate, "halves": halves}
    grouped_hopper.multiply("forward", a, b, offsets, y, **how, **scales)
    for expert, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        z = left[begin:end] @ right[expert].T
        if gate is not None:
            z, up = z.chunk(2, -1) if halves == "concat" else (z[:, ::2], z[:, 1::2])
            z = (torch.nn.functional.silu(z) if gate == "silu" else z.relu()) * up
        torch.testing.assert_close(y[begin:end].double(), z, atol=0.02, rtol=0.01)
    assert bool((y[last:] == 7.0).all())


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_every_tile_is_multiplied_once_and_nobody_elses_rows_are_written(monkeypatch, pieces, consumers, programs):
    with emulated(monkeypatch, programs=programs, consumers=consumers):
        for columns in (8, 64, 104):
            assert_right(*drawn(pieces, columns, 72))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("inners", [8, 64, 328])
def test_no_block_is_overwritten_too_early(monkeypatch, stages, buffers, inners):
    with emulated(monkeypatch, stages, programs=4, buffers=buffers):
        assert_right(*drawn((70, 200, 0, 130), 72, inners))


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
@pytest.mark.parametrize("gate", ["silu", "relu"])
@pytest.mark.parametrize("inners", [64, 72])
def test_gate_and_up_meet_and_rows_are_gathered_from_anywhere(monkeypatch, halves, gate, inners):
    pieces = (70, 0, 130, 3)
    a, b, offsets = drawn(pieces, 144, inners, more=0)
    source = torch.Generator().manual_seed(1)
    gather = torch.randint(0, 2 * len(a), (sum(pieces) + 5,), generator=source).int()
    with emulated(monkeypatch):
        assert_right(a, b, offsets, gate=gate, halves=halves)
        assert_right(a, b, offsets, gate=gate, halves=halves, gather=gather, shared=2)
        assert_right(a, b, offsets, gather=gather.long() // 2)


@pytest.mark.parametrize("format", ["row", "block"])
@pytest.mark.parametrize("stages", [2, 3])
def test_float8_with_its_scales(monkeypatch, format, stages):
    pieces = (70, 0, 130, 3)
    a, b, offsets = drawn(pieces, 320, 272, more=0)
    gather = torch.randint(0, 2 * len(a), (sum(pieces) + 5,), generator=torch.Generator().manual_seed(1)).int()
    narrow = a.to(torch.float8_e4m3fn), b.mul(0.2).to(torch.float8_e4m3fn)
    scales = scales_of(a, b, format)
    with emulated(monkeypatch, stages):
        assert_right(*narrow, offsets, **scales)
        for halves in ("concat", "interleaved"):
            assert_right(*narrow, offsets, gate="silu", halves=halves, gather=gather, shared=2, **scales)


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
        ((a[:, :12], b[..., :12]), {}),
    ):
        grouped_hopper.multiply("forward", *given, offsets, y, **values)
        assert len(called) == 1
        assert called.pop().items() >= values.items()


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("part", "module", "number", "line"),
    [
        pytest.param(part, module, *found.values, id=f"{part} {found.id}")
        for part, module in (("kernel", grouped_hopper_kernel), ("sums", grouped_hopper_sums))
        for found in mutants(module)
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_lacks_one_wait_or_arrival_is_caught(monkeypatch, tmp_path, part, module, number, line):
    changed = {part: mutated(module, number, line, tmp_path / "mutant.py")}
    monkeypatch.setattr(gluon_on_threads, "PATIENCE_S", 0.5)
    a, b, offsets = drawn((200, 64, 300, 70), 136, 208, more=0)
    gather = torch.arange(len(a)).flip(0).int()
    narrow = a.to(torch.float8_e4m3fn), b.mul(0.2).to(torch.float8_e4m3fn)

    def all_of_them() -> None:
        with emulated(monkeypatch, programs=6, buffers=2, **changed):
            assert_right(a, b, offsets)
            assert_right(a, b, offsets, gather=gather)
            assert_right(*narrow, offsets, **scales_of(a, b, "block"))
        with emulated(monkeypatch, programs=6, consumers=3, **changed):
            assert_right(a, b, offsets)

    with pytest.raises((Stuck, AssertionError)):
        all_of_them()


@pytest.mark.parametrize("format", ["none", "row", "block"])
@pytest.mark.parametrize(("gate", "gathered", "inners"), [(None, False, 768), ("silu", True, 768), ("silu", True, 784)])
def test_it_compiles_with_the_copy_engine_warpgroups_and_memory_of_a_hopper(format, gate, gathered, inners):
    def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    dtype = torch.bfloat16 if format == "none" else torch.float8_e4m3fn
    a, b = numbers(9000, inners, dtype=dtype), numbers(64, 512, inners, dtype=dtype)
    offsets, gather = numbers(65, dtype=torch.int32), numbers(9000, dtype=torch.int32) if gathered else None
    y, scales = numbers(9000, 256 if gate else 512), {}
    if format != "none":
        sizes = ((9000, 1), (64, 512, 1)) if format == "row" else ((9000, 7), (64, 4, 7))
        scales = {f"scale_{name}": numbers(*size, dtype=torch.float32) for name, size in zip("ab", sizes, strict=True)}
    with compiling(HOPPER) as found:
        grouped_hopper.multiply("forward", a, b, offsets, y, gate=gate, gather=gather, format=format, **scales)
    (compiled,) = found
    assert f"wgmma.mma_async.sync.aligned.m64n{'256k16' if format == 'none' else '128k32'}" in compiled.assembly
    assert "cp.async.bulk.tensor.4d.shared" in compiled.assembly
    assert "cp.async.bulk.tensor.4d.global" in compiled.assembly
    assert ("cp.async.mbarrier.arrive.noinc" in compiled.assembly) == gathered
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.spilled_bytes == 0


def test_few_rows_are_the_other_kernels():
    a, b, offsets = drawn((5, 0, 7), 24, 32, more=0)
    gather = torch.tensor([3, 3, 0, 11, 5, 6, 7, 8, 9, 10, 1, 2], dtype=torch.int32)
    with interpreting():
        found = grouped_hopper.grouped_mm_hopper(a, b, offsets, gather=gather)
    assert torch.equal(found, grouped_reference.forward(a, b, offsets, gather=gather))


@pytest.mark.parametrize("halves", ["concat", "interleaved"])
def test_a_mixture_of_experts_of_it(monkeypatch, halves):
    source = torch.Generator().manual_seed(4)
    x, w_in, w_out = (
        torch.randn(size, generator=source).bfloat16() / 4 for size in ((150, 48), (3, 80, 48), (3, 48, 40))
    )
    experts = torch.rand(150, 3, generator=source).argsort(-1)[:, :2].int()
    experts[3, 0] = -1
    weights = torch.rand(150, 2, generator=source)
    call = {"activation": "silu", "halves": halves}
    with emulated(monkeypatch), interpreting():
        found = moe_mlp_hopper.moe_mlp_hopper(x, w_in, w_out, weights, experts, **call)
    wide_ones = (tensor.double() for tensor in (x, w_in, w_out, weights))
    want = mlp_reference.forward(*wide_ones, experts, **call)
    torch.testing.assert_close(found.double(), want, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("op", ["grouped_mm", "moe_mlp"])
def test_it_is_claimed_for_hopper_alone(op):
    shape = {
        "grouped_mm": {"a": (4096, 512), "b": (8, 256, 512), "offsets": (9,)},
        "moe_mlp": {
            "x": (512, 256),
            "w_in": (8, 256, 256),
            "w_out": (8, 256, 128),
            "weights": (512, 2),
            "experts": (512, 2),
        },
    }[op]
    values = {"activation": "silu"} if op == "moe_mlp" else {}
    for target, claimed in (
        ("nvidia:sm_90", True),
        ("nvidia:sm_80", False),
        ("nvidia:sm_100", False),
        ("amd:gfx942", False),
    ):
        decision = portakernel.explain(op, target=target, dtype="bfloat16", shape=shape, **values)
        (one,) = (one for one in decision.candidates if one.kernel.name == f"triton.{op}_hopper")
        assert (one.status != "rejected") == claimed


def chosen(op: str, dtype: str, shape: dict[str, tuple[int, ...]], **values: Any) -> str:
    """The kernel for an H200. The op's own format is no word of ``explain``."""
    words = {"target": "nvidia:sm_90", "device": None, "dtype": dtype, "shape": shape, "format": None}
    found = explain_in_words(
        dispatcher(), op, **words, parameters=values, phase=Phase("inference"), compiled=False, kernel=None
    )
    return str(found.chosen and found.chosen.name)


@pytest.mark.parametrize(
    ("format", "rows", "experts", "columns", "inners", "kernel"),
    [
        ("none", 16384, 8, 4096, 14336, "grouped_mm"),
        ("none", 16384, 128, 1536, 2048, "grouped_mm"),
        ("none", 16384, 128, 2048, 1536, "grouped_mm_hopper"),
        ("none", 1024, 128, 2048, 1536, "grouped_mm"),
        ("row", 16384, 8, 4096, 14336, "grouped_mm_hopper_float8"),
        ("block", 16384, 8, 4096, 14336, "grouped_mm_hopper_float8"),
        ("row", 4096, 128, 1536, 2048, "grouped_mm_hopper_float8"),
        ("block", 4096, 128, 1536, 2048, "grouped_mm_hopper_float8"),
        ("row", 2048, 128, 1536, 2048, "grouped_mm_float8"),
        ("row", 1024, 8, 4096, 14336, "grouped_mm_hopper_float8"),
        ("row", 128, 8, 4096, 14336, "grouped_mm_float8"),
    ],
)
def test_grouped_products_go_by_it_where_it_was_seen_to_win(format, rows, experts, columns, inners, kernel):
    shape = {"a": (rows, inners), "b": (experts, columns, inners), "offsets": (experts + 1,)}
    if format == "row":
        shape |= {"scale_a": (rows, 1), "scale_b": (experts, columns, 1)}
    if format == "block":
        shape |= {"scale_a": (rows, inners // 128), "scale_b": (experts, columns // 128, inners // 128)}
    dtype = "bfloat16" if format == "none" else "float8_e4m3fn"
    assert chosen("grouped_mm", dtype, shape, format=format) == f"triton.{kernel}"


@pytest.mark.parametrize(
    ("format", "tokens", "kernel"),
    [
        ("none", 512, "moe_mlp"),
        ("none", 1024, "moe_mlp_hopper"),
        ("none", 4096, "moe_mlp"),
        ("row", 64, "moe_mlp_float8"),
        ("row", 256, "moe_mlp_float8"),
        ("row", 512, "moe_mlp_hopper_float8"),
        ("row", 4096, "moe_mlp_hopper_float8"),
        ("block", 512, "moe_mlp_hopper_float8"),
    ],
)
def test_mixtures_go_by_it_where_it_was_seen_to_win(format, tokens, kernel):
    shape = {
        "x": (tokens, 2048),
        "w_in": (128, 1536, 2048),
        "w_out": (128, 2048, 768),
        "weights": (tokens, 8),
        "experts": (tokens, 8),
    }
    if format == "row":
        shape |= {"scale_x": (tokens, 1), "scale_in": (128, 1536, 1), "scale_out": (128, 2048, 1)}
    if format == "block":
        shape |= {"scale_x": (tokens, 16), "scale_in": (128, 12, 16), "scale_out": (128, 16, 6)}
    dtype = "bfloat16" if format == "none" else "float8_e4m3fn"
    assert chosen("moe_mlp", dtype, shape, activation="silu", format=format) == f"triton.{kernel}"


def test_three_consumers_have_registers_enough(monkeypatch):
    options = {"CONSUMERS": 3, "COLUMNS": 256, "STAGES": 3, "BUFFERS": 1, "REGISTERS": [[160, 32]] * 2}
    how = SimpleNamespace(options={**options, "num_warps": 4, "maxnreg": 128}, programs=132)
    monkeypatch.setattr(grouped_hopper, "configuration", lambda *_: how)

    def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    a, b, offsets = numbers(9000, 768), numbers(64, 512, 768), numbers(65, dtype=torch.int32)
    with compiling(HOPPER) as found:
        grouped_hopper.multiply("forward", a, b, offsets, numbers(9000, 512))
    (compiled,) = found
    assert "wgmma.mma_async.sync.aligned.m64n128k16" in compiled.assembly
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.spilled_bytes == 0
