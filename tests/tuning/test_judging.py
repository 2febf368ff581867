"""Numerics before and after timing: what is wrong never counts as right, on whole results, rows, gradients, writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments
from portakernel.claims.request import Phase
from portakernel.contract import Cost
from portakernel.contracts import contract
from portakernel.runtime import caller, dispatcher
from portakernel.tuning.record import Verdict
from portakernel_kit.bench.contenders import Contender, contender, prepare_backward
from portakernel_kit.bench.operands import Operands, draw
from portakernel_kit.tune import judging, parts
from portakernel_kit.tune.job import Job
from portakernel_kit.tune.judging import Numerics

NOW = dispatcher()
DEVICE = NOW.registry.device("cpu")
SMALL = Cost(bytes=1 << 10, flops=1 << 10)
NORM = Job(
    "rms_norm", "inference", {"x": (40, 256), "weight": (256,)}, {"x": "bfloat16", "weight": "bfloat16"}, "eager/cold"
)
SOFTMAX = Job("softmax", "inference", {"x": (40, 256)}, {"x": "float32"}, "eager/cold")
FP4 = Job("quantize_fp4", "inference", {"x": (40, 256)}, {"x": "bfloat16"}, "eager/cold", values={"format": "mxfp4"})
CACHE = Job(
    "write_kv_cache", "inference",
    {
        "key": (6, 2, 16), "value": (6, 2, 16), "slot_mapping": (6,),
        "key_cache": (4, 8, 2, 16), "value_cache": (4, 8, 2, 16),
    },
    dict.fromkeys(("key", "value", "key_cache", "value_cache"), "float32") | {"slot_mapping": "int64"}, "eager/cold",
)  # fmt: skip


def operands(job: Job, count: int = 2) -> list[Operands]:
    found = [
        draw(job.question(DEVICE.target), Arguments(contract(job.op), NOW.registry), torch.device("cpu"), n)
        for n in range(count)
    ]
    if job.phase == "backward":
        prepare_backward(NOW, found, 0)
    return found


def judged(
    job: Job,
    change: Callable[[Any], Any] | None = None,
    *,
    cost: Cost = SMALL,
    last: Callable[[str], Any] | None = None,
    after: bool = False,
) -> Any:
    """The judgement of the reference, whose results ``change`` makes others."""
    sets, phase = operands(job), Phase(job.phase)
    kernel = NOW.registry.kernels[f"reference.{job.op}"]
    real = contender(NOW, sets[0], kernel, phase).launch
    assert real is not None
    launch = (lambda given: change(real(given))) if change is not None else real
    one = {kernel.name: Contender(kernel, launch)}
    numerics = Numerics(caller(job.op), DEVICE, phase, cost, sets, one, last or (lambda _: launch(sets[0])))
    return numerics.after(kernel.name) if after else numerics.before(kernel.name)


def spoilt(tensor: Tensor) -> Tensor:
    """A result of which one element is off by a tenth."""
    found = tensor.clone()
    found.view(-1)[tensor.numel() // 2] += 0.1
    return found


def test_packed_numbers_are_compared_too_of_some_rows_as_well(monkeypatch):
    """Two numbers a byte: what is compared has twice as many columns as the result."""

    def other(results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (results[0].view(torch.uint8).bitwise_xor(0x44).view(results[0].dtype), *results[1:])

    for few in (judging._FEW_ELEMENTS, 1 << 10):
        monkeypatch.setattr(judging, "_FEW_ELEMENTS", few)
        assert judged(FP4).verdict is Verdict.RIGHT
        assert judged(FP4, other).verdict is Verdict.WRONG


@pytest.mark.parametrize("job", [NORM, SOFTMAX], ids=lambda job: job.op)
def test_a_right_kernel_takes_a_part_of_the_tolerance_and_one_wrong_element_is_found(job):
    right = judged(job)
    assert (right.verdict, right.detail) == (Verdict.RIGHT, "")
    assert 0.0 <= right.error <= 1.0
    wrong = judged(job, spoilt)
    assert wrong.verdict is Verdict.WRONG
    assert wrong.detail.startswith("y: 1 of 10240 elements differ")
    assert wrong.error > 1.0


def test_a_result_of_another_form_and_too_few_results_are_wrong():
    assert judged(SOFTMAX, lambda y: y.double()).detail == "y has dtype torch.float64, not torch.float32"
    assert judged(SOFTMAX, lambda y: (y, y)).detail == "returned 2 results, not 1"


def test_a_kernel_that_writes_nothing_is_wrong_though_right_numbers_lay_there_before():
    job, sets = CACHE, operands(CACHE)
    kernel = NOW.registry.kernels["reference.write_kv_cache"]
    real = contender(NOW, sets[0], kernel, Phase.INFERENCE).launch
    assert real is not None
    lazy = NOW.registry.kernels[next(k.name for k in NOW.registry.for_op("write_kv_cache") if k is not kernel)]
    both = {kernel.name: Contender(kernel, real), lazy.name: Contender(lazy, lambda _: None)}
    numerics = Numerics(
        caller(job.op), DEVICE, Phase.INFERENCE, SMALL, sets, both, lambda name: both[name].launch(sets[0])
    )  # type: ignore[misc]
    assert numerics.before(kernel.name).verdict is Verdict.RIGHT
    assert numerics.before(lazy.name).verdict is Verdict.WRONG
    assert numerics.after(kernel.name).verdict is Verdict.RIGHT
    assert numerics.after(lazy.name).verdict is Verdict.WRONG


def test_the_last_launch_is_looked_at_again():
    assert judged(NORM, after=True).verdict is Verdict.RIGHT
    stale = judged(NORM, after=True, last=lambda _: torch.zeros(40, 256, dtype=torch.bfloat16))
    assert stale.verdict is Verdict.WRONG


def test_of_large_calls_whose_rows_lie_apart_some_rows_are_looked_at(monkeypatch):
    monkeypatch.setattr(judging, "_FEW_ELEMENTS", 1 << 10)
    assert judged(NORM).verdict is Verdict.RIGHT
    assert judged(NORM, lambda y: y * 1.1).verdict is Verdict.WRONG
    ends = judged(NORM, lambda y: torch.cat([y[:-1], y[-1:] * 2]))  # the last row is among them
    assert ends.verdict is Verdict.WRONG


def attention(batch: int = 4, heads: int = 6, key_heads: int = 2) -> Job:
    shapes = {"q": (batch, 40, heads, 16), "k": (batch, 40, key_heads, 16), "v": (batch, 40, key_heads, 16)}
    values = {"causal": True, "return_lse": True}
    return Job("attention", "inference", shapes, dict.fromkeys("qkv", "float32"), "eager/cold", values=values)


@pytest.mark.parametrize(("heads", "key_heads"), [(6, 2), (5, 1), (7, 7), (16, 8)])
def test_of_large_attention_some_heads_are_looked_at(monkeypatch, heads, key_heads):
    monkeypatch.setattr(judging, "_FEW_FLOPS", 0)
    job = attention(heads=heads, key_heads=key_heads)
    assert judged(job).verdict is Verdict.RIGHT

    def wrong(found: Any) -> Any:  # the heads of the last sequence's last key head, of which one is looked at
        out = found[0].clone()
        out[-1, :, -heads // key_heads :] *= 1.01
        return out, found[1]

    assert judged(job, wrong).verdict is Verdict.WRONG
    assert judged(job, lambda found: (found[0], found[1] + 0.01)).verdict is Verdict.WRONG


RAGGED = {"q": (90, 8, 16), "k": (90, 4, 16), "v": (90, 4, 16), "cu_seqlens_q": (4,), "cu_seqlens_k": (4,)}
PAGES = {"key_cache": (9, 16, 4, 16), "value_cache": (9, 16, 4, 16), "block_table": (3, 3), "seq_lens": (3,)}


@pytest.mark.parametrize(
    ("op", "sizes"), [("attention_varlen", RAGGED), ("paged_attention", {"q": (3, 8, 16), **PAGES})]
)
def test_a_part_of_heads_is_a_call_of_its_own(monkeypatch, op, sizes):
    monkeypatch.setattr(judging, "_FEW_FLOPS", 0)
    dtypes = {name: "float32" if len(shape) > 2 else "int32" for name, shape in sizes.items()}
    job = Job(op, "inference", sizes, dtypes, "eager/cold")
    found = operands(job, 1)[0]
    part = parts.some(judging.inputs_of(found))
    assert part is not None
    assert part.share == 3 / 8
    assert part.inputs(judging.inputs_of(found)).dims["H"] == 3
    assert judged(job).verdict is Verdict.RIGHT
    assert judged(job, lambda out: out * 1.01).verdict is Verdict.WRONG


def test_work_that_is_too_much_for_all_heads_is_judged_by_some():
    job = attention(batch=16, heads=8, key_heads=8)
    assert judged(job, cost=Cost(bytes=1, flops=5 * judging.MOST_FLOPS)).verdict is Verdict.RIGHT
    none = judged(attention(batch=2, heads=1, key_heads=1), cost=Cost(bytes=1, flops=5 * judging.MOST_FLOPS))
    assert none.verdict is Verdict.UNJUDGED  # one head of two sequences is all that there is


def test_what_is_too_much_for_the_reference_is_unjudged():
    ran = list[int]()
    found = judged(NORM, lambda y: ran.append(1) or y, cost=Cost(bytes=1, flops=1 << 50))
    assert (found.verdict, ran) == (Verdict.UNJUDGED, [])
    assert found.detail == "1.13e+06 GFLOP are too many for the reference in float64"


def test_of_large_results_rows_are_compared(monkeypatch):
    monkeypatch.setattr(judging, "_COMPARED", 1 << 10)
    assert judged(SOFTMAX).verdict is Verdict.RIGHT
    assert judged(SOFTMAX, lambda y: y + 0.01).verdict is Verdict.WRONG


def test_gradients_and_saved_tensors_are_held_too():
    backward = replace(NORM, phase="backward")
    assert judged(backward).verdict is Verdict.RIGHT
    wrong = judged(backward, lambda grads: (grads[0] * 1.1, grads[1]))
    assert wrong.verdict is Verdict.WRONG
    assert wrong.detail.startswith("gradient of x: ")
    training = replace(NORM, phase="training")
    assert judged(training).verdict is Verdict.RIGHT
    assert judged(training, lambda found: (found[0], found[1] * 1.1)).verdict is Verdict.WRONG
