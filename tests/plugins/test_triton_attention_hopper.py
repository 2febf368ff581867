"""Attention's Hopper kernel without a GPU: its barriers and tiles on threads, its code by the compiler, its claims."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

import torch
import triton
from plugins.gluon_on_threads import Stuck, on_threads
from plugins.hopper_kernels import COMPILED_FOR, mutants, mutated
from plugins.ragged import RAGGED, apart, spans

import portakernel
from plugins import gluon_on_threads
from portakernel.authoring import ReasonCode
from portakernel.authoring.triton import compiling, interpreting
from portakernel.references import attention as reference
from portakernel.words.target import Target
from portakernel_plugins.triton.attention import (
    bounded_scores,
    hopper,
    hopper_kernel,
    hopper_memory,
    hopper_probe,
    hopper_queue,
    hopper_softmax,
    hopper_tiles,
    hopper_varlen,
    scores,
    sequences,
    tangents,
)
from portakernel_plugins.triton.attention.row_blocks import copied_strides

HOPPER = Target("nvidia", "sm_90")
ON_HOPPER = [
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="no Hopper GPU"
        ),
    )
]
SHARED = bounded_scores, hopper_memory, hopper_queue, hopper_softmax, hopper_tiles, scores, sequences, tangents


def options(**more: Any) -> dict[str, Any]:
    usual = {"BLOCK": 64, "STAGES": 2, "PINGPONG": False, "EVERY": 0}
    return {**usual, "CONSUMER_REGISTERS": 240, "PRODUCER_REGISTERS": 24, "num_warps": 4, **more}


@contextmanager
def emulated(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], kernel: ModuleType = hopper_kernel, multiprocessors: int = 3
) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(hopper, "forward", kernel.forward)
        patch.setattr(hopper, "launch", on_threads(monkeypatch, kernel, *SHARED))
        patch.setattr(hopper, "processor", lambda _: SimpleNamespace(multiprocessors=multiprocessors))
        patch.setattr(hopper, "configuration", lambda *_: SimpleNamespace(options=how))
        yield


CALL: dict[str, Any] = {"causal": True, "scale": None, "window": (-1, -1), "softcap": 0.0, "return_lse": False}


def inputs(batch: int, queries: int, keys: int, heads: int, key_heads: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(queries * keys + heads)
    shapes = (batch, queries, heads, 64), *[(batch, keys, key_heads, 64)] * 2
    return tuple(torch.randn(shape, generator=draw).bfloat16() for shape in shapes)


def faults(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sinks: torch.Tensor | None = None, **values: Any
) -> list[str]:
    """How the kernel's results differ from the reference's, of the same numbers in float64."""
    call = {**CALL, "causal": False, "return_lse": True, "sinks": sinks, **values}
    found, lse, saved = hopper.attention_hopper(q, k, v, save=True, **call)
    wide = (x.double() for x in (q, k, v))
    want, want_lse = reference.forward(*wide, **call)[:2]
    there = want_lse.isfinite()
    held = {
        "out": bool(((found.float() - want).abs() <= 0.03).all()),
        "who sees nothing": torch.equal(there, lse.isfinite()),
        "lse": torch.allclose(lse[there].double(), want_lse[there].double(), atol=1e-4),
        "logsumexp": torch.equal(lse, saved),
    }
    return [name for name, holds in held.items() if not holds]


@pytest.mark.parametrize("multiprocessors", [3, 100])
@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("stages", [2, 3])
def test_no_barrier_is_waited_for_in_vain_and_no_block_is_overwritten_too_early(
    monkeypatch, multiprocessors, pingpong, stages
):
    how = options(PINGPONG=pingpong, STAGES=stages, BLOCK=32)
    with emulated(monkeypatch, how, multiprocessors=multiprocessors):
        assert faults(*inputs(2, 300, 400, 2, 1), causal=True) == []


@pytest.mark.turns(3)
@pytest.mark.parametrize("queries", [1, 17, 128, 129, 257])
@pytest.mark.parametrize("keys", [1, 64, 129, 257])
def test_every_length_and_mask(monkeypatch, queries, keys):
    q, k, v = inputs(1, queries, keys, 2, 2)
    sinks = torch.tensor([0.5, float("-inf")])
    with emulated(monkeypatch, options(PINGPONG=True)):
        for call in (
            {"causal": True},
            {},
            {"window": (40, 30)},
            {"causal": True, "window": (100, -1), "sinks": sinks},
            {"window": (0, 0), "sinks": sinks},
            {"window": (-1, 20)},
        ):
            assert faults(q, k, v, **call) == [], call


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-30, 2.0])
def test_every_scale(monkeypatch, scale):
    with emulated(monkeypatch, options()):
        assert faults(*inputs(1, 100, 90, 2, 1), causal=True, scale=scale) == []


@pytest.mark.parametrize(("size", "scale"), [(1.0, 1e30), (1.0, -1e30), (1e15, None), (3e4, 0.5), (3e2, -1.0)])
@pytest.mark.parametrize("device", ["cpu", *ON_HOPPER])
def test_huge_scores_leave_all_weight_to_the_largest(monkeypatch, device, size, scale):
    q, k, v = (x.to(device) for x in inputs(1, 200, 150, 2, 1))
    q, k = q * size, k * size
    sinks = torch.tensor([0.5, 1e35], device=device)
    with emulated(monkeypatch, options()) if device == "cpu" else nullcontext():
        assert faults(q, k, v, causal=True, scale=scale, sinks=sinks) == []


@pytest.mark.turns(3)
@pytest.mark.parametrize("slopes", [None, (0.3, -0.02)])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 30.0, 1000.0])
@pytest.mark.parametrize("scale", [None, -2.0, 0.0])
def test_changed_scores(monkeypatch, slopes, softcap, scale):
    call = {"softcap": softcap, "scale": scale, "alibi_slopes": None if slopes is None else torch.tensor(slopes)}
    with emulated(monkeypatch, options()):
        for more in ({"causal": True}, {"window": (40, 30), "sinks": torch.tensor([0.5, -1.0])}):
            assert faults(*inputs(1, 150, 200, 2, 1), **call, **more) == [], more


@pytest.mark.turns(3)
@pytest.mark.parametrize("lengths", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize(
    "call",
    [{"causal": True}, {"window": (50, 20), "sinks": torch.tensor([0.5, -1.0])}, {"causal": True, "softcap": 20.0}],
    ids=["causal", "window and sinks", "softcap"],
)
def test_nothing_of_a_neighbour_reaches_a_sequence(monkeypatch, lengths, call):
    """Each sequence between others that are NaN has what it has alone."""
    pairs, behind = lengths
    call = {**CALL, "causal": False, "return_lse": True, **call}
    ends_q, ends_k = ([sum(pair[side] for pair in pairs[:n]) for n in range(len(pairs) + 1)] for side in (0, 1))
    q, k, v = (x[0] for x in inputs(1, ends_q[-1] + behind, ends_k[-1] + 11, 2, 1))
    for group in apart(len(pairs)):
        owned = [spans(pairs)[number] for number in group]
        alone = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        for x, y, side in zip(alone, (q, k, v), (0, 1, 1), strict=True):
            for own in owned:
                x[own[side]] = y[own[side]]
        with emulated(monkeypatch, options(PINGPONG=True)):
            found, lse, saved = hopper_varlen.attention_hopper(
                *alone,
                *(torch.tensor(ends, dtype=torch.int32) for ends in (ends_q, ends_k)),
                max_seqlen_q=None,
                max_seqlen_k=max((pair[1] for pair in pairs), default=0),
                save=True,
                **call,
            )
        for own in owned:
            if own[0].start == own[0].stop:
                continue
            wide = (x[part][None].double() for x, part in zip((q, k, v), (own[0], own[1], own[1]), strict=True))
            want, want_lse = reference.forward(*wide, **call)[:2]
            torch.testing.assert_close(found[own[0]].double(), want[0].double(), atol=0.03, rtol=0)
            torch.testing.assert_close(lse[:, own[0]].double(), want_lse[0].double(), atol=1e-4, rtol=0)
            assert torch.equal(lse[:, own[0]], saved[:, own[0]])
        assert torch.equal(found[ends_q[-1] :], torch.zeros_like(found[ends_q[-1] :]))


def test_strides_that_the_copy_engine_follows_are_not_copied_and_others_are(monkeypatch):
    joined = torch.randn(2, 150, 8, 64).bfloat16()
    odd = torch.randn(2, 150, 4, 65).bfloat16()[..., 1:]
    shared = torch.randn(1, 150, 4, 64).bfloat16().expand(2, -1, -1, -1)
    turned = torch.randn(2, 4, 150, 64).bfloat16().transpose(1, 2)
    offset = torch.randn(2 * 150 * 4 * 64 + 1).bfloat16()[1:].view(2, 150, 4, 64)
    assert offset.is_contiguous()
    assert not copied_strides(offset)
    assert copied_strides(joined[:, :, :4])
    assert copied_strides(turned)
    assert not copied_strides(odd)
    assert not copied_strides(shared)
    with emulated(monkeypatch, options()):
        for q, k, v in (
            (joined[:, :, :4], joined[:, :, 4:6], joined[:, :, 6:]),
            (turned, odd, shared),
            (offset, turned, offset),
        ):
            assert faults(q, k, v, causal=True) == []
            want = hopper.attention_hopper(q, k, v, **CALL)
            for out in (torch.empty_like(turned), torch.empty(2, 150, 4, 65).bfloat16()[..., 1:]):
                assert out.shape == want.shape
                hopper.attention_hopper(q, k, v, **CALL, out=out)
                assert torch.equal(out, want)


def test_no_keys_and_no_queries():
    call = {**CALL, "return_lse": True}
    q, k, v = inputs(2, 5, 0, 2, 1)
    found, lse = hopper.attention_hopper(q, k, v, **call)
    assert torch.equal(found, torch.zeros_like(found))
    assert torch.equal(lse, torch.full_like(lse, float("-inf")))
    sinks = torch.tensor([1.0, 2.0])
    _, lse = hopper.attention_hopper(q, k, v, sinks=sinks, **call)
    assert torch.equal(lse, sinks[None, :, None].expand(2, 2, 5))
    assert hopper.attention_hopper(*inputs(2, 0, 7, 2, 1), **call)[0].shape == (2, 0, 2, 64)


def test_its_gradients_are_those_of_the_kernels_for_every_gpu():
    """Of every argument that it takes, in the order in which it takes them."""
    q, k, v = inputs(1, 40, 50, 2, 1)
    slopes, sinks = torch.tensor([0.3, 0.1]), torch.tensor([0.5, -1.0])
    call = {**CALL, "softcap": 5.0}
    out, logsumexp = reference.forward(q, k, v, alibi_slopes=slopes, sinks=sinks, save=True, **call)
    with interpreting():
        found = hopper.backward(
            q, q, k, v, slopes, sinks, out, logsumexp, **call, needs=(True, True, True, False, True)
        )
    leaves = [x.double().requires_grad_() for x in (q, k, v, sinks)]
    reference.forward(*leaves[:3], alibi_slopes=slopes, sinks=leaves[3], **call).backward(q.double())
    assert found[3] is None
    for gradient, leaf in zip((*found[:3], found[4]), leaves, strict=True):
        torch.testing.assert_close(gradient.double(), leaf.grad, atol=0.03, rtol=0.03)


# without turns it is as right
@pytest.mark.turns(3)
@pytest.mark.parametrize(("number", "line"), list(mutants(hopper_kernel, "order.index(CONSUMER)")))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_lacks_one_wait_or_arrival_is_caught(monkeypatch, tmp_path, number, line):
    module = mutated(hopper_kernel, number, line, tmp_path / "mutant.py")
    monkeypatch.setattr(gluon_on_threads, "PATIENCE_S", 0.5)
    found = []
    for how in (options(PINGPONG=True, BLOCK=32), options(STAGES=3, BLOCK=32)):
        if found:
            break
        with emulated(monkeypatch, how, module, multiprocessors=6):
            try:
                found += faults(*inputs(2, 384, 400, 2, 1), causal=True)
            except (Stuck, AssertionError) as error:
                found.append(str(error))
    assert found


@pytest.mark.parametrize(("width", "causal", "dtype"), COMPILED_FOR)
def test_it_compiles_with_the_copy_engine_warpgroups_and_memory_of_a_hopper(width, causal, dtype):
    q, k = (torch.empty(2, 500, heads, width, dtype=dtype, device="meta") for heads in (8, 2))
    with compiling(HOPPER) as found:
        hopper.attention_hopper(q, k, k, **{**CALL, "causal": causal})
    (compiled,) = found
    assert "wgmma.mma_async" in compiled.assembly
    assert "cp.async.bulk.tensor.5d.shared" in compiled.assembly
    assert "cp.async.bulk.tensor.5d.global" in compiled.assembly
    assert "setmaxnreg" in compiled.assembly
    assert compiled.shared_bytes <= 227 * 1024
    assert compiled.spilled_bytes <= (0 if width == 64 else 256)


def test_polynomials_take_the_place_of_some_exponentials(monkeypatch):
    def exponentials(how: dict[str, Any]) -> int:
        monkeypatch.setattr(hopper, "configuration", lambda *_: SimpleNamespace(options=how))
        q = torch.empty(1, 256, 2, 64, dtype=torch.bfloat16, device="meta")
        with compiling(HOPPER) as found:
            hopper.attention_hopper(q, q, q, **CALL)
        return found[0].assembly.count("ex2.approx")

    how = options(BLOCK=128, maxnreg=168)
    all_of_them = exponentials(how)
    for every in (2, 4, 8):
        less = all_of_them - exponentials({**how, "EVERY": every})
        assert less == 4 * 64 // every  # two blocks of two consumers


def test_a_triton_that_does_not_compile_it_is_refused_with_the_compilers_words(monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("at 3:4: no such thing as a block")

    hopper_probe._compiled.cache_clear()
    monkeypatch.setattr(triton, "compile", fails)
    rejection = hopper_probe.check(64)
    hopper_probe._compiled.cache_clear()
    assert rejection is not None
    assert rejection.code is ReasonCode.PROBE_FAILED
    assert rejection.text == (
        f"Gluon of triton {triton.__version__} does not compile it: RuntimeError: at 3:4: no such thing as a block"
    )


def test_this_triton_compiles_it_and_nobody_interprets_it():
    assert hopper_probe.check(64) is None
    with interpreting():
        rejection = hopper_probe.check(64)
    assert rejection is not None
    assert rejection.code is ReasonCode.DRIVER


def explained(target: str = "nvidia:sm_90", width: int = 64, dtype: str = "bfloat16", **values: Any) -> Any:
    shape = {"q": (1, 256, 8, width), "k": (1, 256, 2, width), "v": (1, 256, 2, width)}
    decision = portakernel.explain("attention", target=target, dtype=dtype, shape=shape, **values)
    return next(one for one in decision.candidates if one.kernel.name == "triton.attention_hopper")


def test_it_is_claimed_for_hopper_alone_and_stands_behind_the_others():
    for width in (64, 128):
        for dtype in ("float16", "bfloat16"):
            assert explained(width=width, dtype=dtype, causal=True, window=(100, -1)).status != "rejected"
    for target in ("nvidia:sm_80", "nvidia:sm_100", "amd:gfx942"):
        assert explained(target).status == "rejected"
    assert explained(width=96).status == "rejected"
    assert explained(dtype="float32").status == "rejected"
    assert explained(softcap=30.0).status != "rejected"
    decision = portakernel.explain("attention", target="nvidia:sm_90", dtype="bfloat16")
    able = [one.kernel.name for one in decision.candidates if one.status != "rejected"]
    assert able.index("triton.attention") < able.index("triton.attention_hopper") < able.index("reference.attention")


@pytest.mark.parametrize(
    ("batch", "length", "key_heads", "phase", "name"),
    [
        (2, 577, 25, "training", "torch.attention_cudnn"),  # 250 tiles of keys: gradients are not the recorded ones
        (2, 577, 25, "backward", "triton.attention_hopper_atomic"),
        (1, 1000, 8, "training", "torch.attention_cudnn_recorded"),  # 64
        (1, 2048, 8, "backward", "torch.attention_cudnn"),  # 128
        (4, 1024, 8, "backward", "triton.attention_hopper_atomic"),  # 256
        (2, 1500, 2, "backward", "torch.attention_cudnn_recorded"),  # 48
    ],
)
def test_gradients_go_to_one_kernel_where_its_tiles_of_keys_fill_the_chip(batch, length, key_heads, phase, name):
    heads = {"q": 2 * key_heads, "k": key_heads, "v": key_heads}
    shape = {tensor: (batch, length, count, 64) for tensor, count in heads.items()}
    asked = {"target": "nvidia:sm_90", "dtype": "bfloat16", "shape": shape, "causal": True}
    assert portakernel.explain("attention", phase=phase, **asked).chosen.name == name


@pytest.mark.parametrize(("width", "name"), [(128, "triton.attention_hopper"), (64, "torch.attention_cudnn")])
def test_short_causal_calls_with_wide_heads_are_its_own(width, name):
    shape = dict.fromkeys("qkv", (4, 321, 32, width))
    decision = portakernel.explain("attention", target="nvidia:sm_90", dtype="bfloat16", shape=shape, causal=True)
    assert decision.chosen.name == name
