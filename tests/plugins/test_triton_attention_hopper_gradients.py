"""Attention's gradients in one Hopper kernel, without a GPU: barriers on threads, and the code by the compiler."""

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
from plugins.hopper_kernels import COMPILED_FOR, mutants, mutated
from plugins.ragged import RAGGED, apart, spans

from plugins import gluon_on_threads
from portakernel.authoring.triton import compiling, interpreting, launch
from portakernel.references import attention as reference
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import (
    hopper_gradients,
    hopper_gradients_kernel,
    hopper_memory,
    hopper_softmax,
    hopper_tiles,
    hopper_varlen,
    scores,
    sequences,
    tangents,
)

HOPPER = Target("nvidia", "sm_90")
SHARED = hopper_memory, hopper_softmax, hopper_tiles, scores, sequences, tangents
CALL: dict[str, Any] = {"causal": False, "scale": None, "window": (-1, -1), "softcap": 0.0, "return_lse": False}


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

    on_cpu = on_threads(monkeypatch, kernel, *SHARED)

    def launched(function: Any, grid: tuple[int, int], *args: Any, **meta: Any) -> None:
        if function is kernel.gradients:
            on_cpu(function, grid, *args, **meta)
            return
        with interpreting():
            launch(function, grid, *args, **meta)

    with monkeypatch.context() as patch:
        patch.setattr(hopper_gradients, "gradients", kernel.gradients)
        patch.setattr(hopper_gradients, "launch", launched)
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
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    **values: Any,
) -> list[str]:
    """Which gradients differ from those of the reference in float64."""
    call = {**CALL, **values}
    wide = [x.double().requires_grad_() for x in (q, k, v, *([] if sinks is None else [sinks]))]
    of_sinks = wide[3] if sinks is not None else None
    out, lse = reference.forward(*wide[:3], sinks=of_sinks, alibi_slopes=slopes, **{**call, "return_lse": True})[:2]
    want = torch.autograd.grad(out, wide, grad.double())
    *found, _, of_sinks = hopper_gradients.backward(
        grad, q, k, v, slopes, sinks, out.detach().to(q.dtype), lse.detach().float(), needs=(True,) * 5, **call
    )
    found.append(of_sinks)
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


@pytest.mark.turns(4)
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


@pytest.mark.turns(4)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("slopes", [None, torch.tensor([0.3, -0.02])], ids=["", "alibi"])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 30.0, 1000.0])
def test_changed_scores(monkeypatch, width, slopes, softcap):
    tensors = inputs(1, 150, 200, 2, 1, width)
    with emulated(monkeypatch):
        for call in ({"causal": True, "scale": -0.3}, {"window": (40, 30), "sinks": torch.tensor([0.5, -1.0])}):
            assert faults(*tensors, slopes=slopes, softcap=softcap, **call) == [], call


@pytest.mark.turns(4)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("lengths", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize(
    "call",
    [{"causal": True, "softcap": 20.0}, {"window": (50, 20), "sinks": torch.tensor([0.5, -1.0])}],
    ids=["causal softcap", "window and sinks"],
)
def test_nothing_of_a_neighbour_reaches_a_sequence(monkeypatch, width, lengths, call):
    """Each sequence between others that are NaN has the gradients that it has alone."""
    pairs, behind = lengths
    call = {**CALL, "sinks": None, **call}
    sinks = call.pop("sinks")
    ends_q, ends_k = ([sum(pair[side] for pair in pairs[:n]) for n in range(len(pairs) + 1)] for side in (0, 1))
    tensors = [x[0] for x in inputs(1, ends_q[-1] + behind, ends_k[-1] + 11, 2, 1, width)]
    for group in apart(len(pairs)):
        alone = [torch.full_like(x, float("nan")) for x in tensors]
        out, lse = torch.full_like(tensors[0], float("nan")), torch.full((2, len(tensors[0])), float("nan"))
        wanted = []
        for own in (spans(pairs)[number] for number in group):
            parts = own[0], own[1], own[1], own[0]
            for x, y, part in zip(alone, tensors, parts, strict=True):
                x[part] = y[part]
            leaves = [x[part][None].double().requires_grad_() for x, part in zip(tensors[:3], parts, strict=False)]
            given, given_lse = reference.forward(*leaves, sinks=sinks, **{**call, "return_lse": True})[:2]
            want = [torch.zeros_like(leaf) for leaf in leaves]
            if all(leaf.numel() for leaf in leaves):
                want = torch.autograd.grad(given, leaves, tensors[3][own[0]][None].double())
            out[own[0]], lse[:, own[0]] = given[0].to(out.dtype), given_lse[0].float()
            wanted.append((parts, want))
        # what forward gives where there are no keys to see
        out[ends_q[-1] :], lse[:, ends_q[-1] :] = 0.0, float("-inf") if sinks is None else sinks[:, None]
        q, k, v, grad = alone
        with emulated(monkeypatch):
            *found, _, _, _, _ = hopper_varlen.backward(
                grad,
                q,
                k,
                v,
                *(torch.tensor(ends, dtype=torch.int32) for ends in (ends_q, ends_k)),
                None,
                sinks,
                out,
                lse,
                max_seqlen_q=None,
                max_seqlen_k=max((pair[1] for pair in pairs), default=0),
                needs=(True,) * 7,
                **call,
            )
        for parts, want in wanted:
            for gradient, one, part in zip(found, want, parts, strict=False):
                torch.testing.assert_close(gradient[part].double(), one[0], atol=0.03, rtol=0.03)
        for gradient, ends in zip(found, (ends_q, ends_k, ends_k), strict=True):
            assert torch.equal(gradient[ends[-1] :], torch.zeros_like(gradient[ends[-1] :]))


def test_queries_and_keys_that_are_not_there():
    for sizes in ((2, 0, 7, 2, 1), (2, 5, 0, 2, 1), (0, 5, 7, 2, 1)):
        q, k, v, grad = inputs(*sizes)
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
        *found, _, of_sinks = hopper_gradients.backward(
            grad, q, k, v, None, torch.zeros(2), torch.zeros_like(q), lse, needs=(True,) * 5, **CALL
        )
        for x, gradient in zip((q, k, v, torch.zeros(2)), (*found, of_sinks), strict=True):
            assert gradient is not None
            assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("asked", [(), (0,), (1,), (0, 2), (4,), (1, 4), (0, 1, 2, 4)])
def test_only_gradients_that_are_asked_for_are_given(monkeypatch, asked):
    q, k, v, grad = inputs(1, 70, 90, 2, 1)
    sinks = torch.zeros(2)
    out, lse = reference.forward(*(x.double() for x in (q, k, v)), sinks=sinks, **{**CALL, "return_lse": True})[:2]
    saved = out.to(q.dtype), lse.float()

    def gradients(*needed: int) -> tuple[torch.Tensor | None, ...]:
        needs = tuple(place in needed for place in range(5))
        with emulated(monkeypatch):
            return hopper_gradients.backward(grad, q, k, v, None, sinks, *saved, needs=needs, **CALL)

    for place, (found, one) in enumerate(zip(gradients(*asked), gradients(0, 1, 2, 4), strict=True)):
        assert (found is not None) == (place in asked)
        if found is not None and one is not None:
            torch.testing.assert_close(found, one)


# whoever has the queries' place has this one too: it is as right without, and later
@pytest.mark.turns(3)
@pytest.mark.parametrize(("number", "line"), list(mutants(hopper_gradients_kernel, "mbarrier.wait(grad_empty")))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_lacks_one_wait_or_arrival_is_caught(monkeypatch, tmp_path, number, line):
    module = mutated(hopper_gradients_kernel, number, line, tmp_path / "mutant.py")
    monkeypatch.setattr(gluon_on_threads, "PATIENCE_S", 0.5)
    found = []
    for width in (64, 128):
        if found:
            break
        with emulated(monkeypatch, module):
            try:
                found += faults(*inputs(4, 200, 300, 4, 2, width), causal=True)
            except (Stuck, AssertionError) as error:
                found.append(str(error))
    assert found


@pytest.mark.parametrize(("width", "causal", "dtype"), COMPILED_FOR)
def test_it_compiles_with_the_copy_engine_warpgroups_and_memory_of_a_hopper(width, causal, dtype):
    q, k = (torch.empty(2, 500, heads, width, dtype=dtype, device="meta") for heads in (8, 2))
    lse = torch.empty(2, 8, 500, device="meta")
    with compiling(HOPPER) as found:
        hopper_gradients.backward(q, q, k, k, None, None, q, lse, needs=(True,) * 5, **{**CALL, "causal": causal})
    (compiled,) = [one for one in found if "kernel" in one.function]
    assert "wgmma.mma_async" in compiled.assembly
    assert "cp.reduce.async.bulk.tensor.2d.global" in compiled.assembly
    assert "cp.async.bulk.tensor.5d.shared" in compiled.assembly
    assert "setmaxnreg" in compiled.assembly
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.spilled_bytes <= 256
