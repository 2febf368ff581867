"""The kit kills every mutant that gives wrong numbers, in every case that the mutant touches.

A mutant wraps a real kernel and notes when it changed something; each case in which it did must fail.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

KERNELS = ("reference.add", "reference.rms_norm", "torch.add", "torch.rms_norm_cpu")
BLOCK = 32


def after(change):
    """A mutant that changes the output of the kernel, wherever it was written."""

    @functools.wraps(change)
    def wrap(mutant, kernel):
        def mutated(*tensors, **keywords):
            results = kernel(*tensors, **keywords)
            if mutant.output(results).numel():
                change(mutant, mutant.output(results), tensors)
            return results

        return mutated

    return wrap


@after
def random_element_wrong(mutant, y, tensors):
    mutant.nudge(y, int(torch.randint(y.numel(), (), generator=torch.Generator().manual_seed(y.numel()))))


@after
def smallest_element_wrong(mutant, y, tensors):
    mutant.nudge(y, mutant.smallest(y))


@after
def largest_element_negated(mutant, y, tensors):
    place = int(torch.where(y.isfinite(), y.double().abs(), -1.0).argmax())
    flat = y.reshape(-1) if y.is_contiguous() else None
    if flat is not None and flat[place].isfinite() and abs(flat[place]) > 20 * torch.finfo(y.dtype).smallest_normal:
        flat[place] = -flat[place]
        mutant.touched = True


@after
def nan_lost(mutant, y, tensors):
    if y.isnan().any():
        y.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)
        mutant.touched = True


@after
def infinity_saturated(mutant, y, tensors):
    if y.isinf().any():
        y.copy_(torch.nan_to_num(y, nan=math.nan))
        mutant.touched = True


@after
def tail_wrong(mutant, y, tensors):
    if y.numel() % BLOCK:
        mutant.nudge(y, y.numel() - 1)


@after
def row_tail_wrong(mutant, y, tensors):
    if y.dim() and y.shape[-1] % BLOCK:
        mutant.nudge(y, y.shape[-1] - 1)


@after
def bfloat16_wrong(mutant, y, tensors):
    if tensors[0].dtype is torch.bfloat16:
        mutant.nudge(y, 0)


def bfloat16_raises(mutant, kernel):
    def mutated(*tensors, **keywords):
        if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
            mutant.touched = True
            raise RuntimeError("no such instruction")
        return kernel(*tensors, **keywords)

    return mutated


def strides_ignored(mutant, kernel):
    def mutated(*tensors, **keywords):
        read = []
        for tensor in tensors:
            if tensor.is_contiguous() or keywords.get("out") is tensor:
                read.append(tensor)
                continue
            strides = torch.empty(tensor.shape, device="meta").stride()
            mutant.touched = True
            read.append(tensor.as_strided(tensor.shape, strides, tensor.storage_offset()))
        return kernel(*read, **keywords)

    return mutated


def element_wrong_where_not_contiguous(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if mutant.output(results).numel() and not all(tensor.is_contiguous() for tensor in tensors):
            mutant.nudge(mutant.output(results), mutant.smallest(mutant.output(results)))
        return results

    return mutated


def computed_wider(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("out") is not None or keywords.get("save") or results.dtype is torch.float32:
            return results
        mutant.touched = True
        return results.float()

    return mutated


def value_dropped(mutant, kernel):
    def mutated(*tensors, **keywords):
        mutant.touched |= keywords["eps"] != 1e-6 and tensors[0].numel() > 0
        return kernel(*tensors, **{**keywords, "eps": 1e-6})

    return mutated


def feature_dropped(mutant, kernel):
    def mutated(*tensors, **keywords):
        mutant.touched |= bool(keywords.get("weight_offset", 0.0)) and tensors[0].numel() > 0
        return kernel(*tensors, **{**keywords, "weight_offset": 0.0})

    return mutated


def saved_element_wrong(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        if keywords.get("save") and results[1].numel():
            mutant.nudge(results[1], results[1].numel() - 1)
        return results

    return mutated


def every_second_call_differs(mutant, kernel):
    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        mutant.calls += 1
        y = mutant.output(results)
        if mutant.calls % 2 == 0 and y.numel() and keywords.get("out") is None:
            mutant.nudge(y, y.numel() // 2, steps=1)
        return results

    return mutated


def row_depends_on_the_others(mutant, kernel):
    """Within the tolerance, and still another number than the row alone gives."""

    def mutated(*tensors, **keywords):
        results = kernel(*tensors, **keywords)
        y = mutant.output(results)
        if y.shape[0] > 2 and keywords.get("out") is None:
            mutant.nudge(y, 0, steps=1)
        return results

    return mutated


MUTANTS = (
    random_element_wrong,
    smallest_element_wrong,
    largest_element_negated,
    nan_lost,
    infinity_saturated,
    tail_wrong,
    row_tail_wrong,
    bfloat16_wrong,
    bfloat16_raises,
    strides_ignored,
    element_wrong_where_not_contiguous,
    computed_wider,
    every_second_call_differs,
)
named = {"ids": lambda value: getattr(value, "__name__", value)}


@pytest.mark.parametrize("mutate", MUTANTS, **named)
@pytest.mark.parametrize("kernel", KERNELS)
def test_mutant_is_killed_in_every_case_that_it_touches(hunt, kernel, mutate):
    # backward is left out: it takes half the time, and these mutants do not touch it
    verdict = hunt(kernel, forward=mutate, has_backward=False)
    assert verdict.touched > 0
    assert verdict.survived == ()


@pytest.mark.parametrize("mutate", [value_dropped, saved_element_wrong], **named)
@pytest.mark.parametrize("kernel", ["reference.rms_norm", "torch.rms_norm_cpu"])
def test_mutant_of_values_or_saved_tensors_is_killed_in_every_case_that_it_touches(hunt, kernel, mutate):
    verdict = hunt(kernel, forward=mutate)
    assert verdict.touched > 0
    assert verdict.survived == ()


def test_kernel_that_drops_a_feature_fails_in_every_case_that_asks_for_it(hunt):
    verdict = hunt("reference.rms_norm", forward=feature_dropped)
    assert verdict.touched == 2  # cases that ask for it
    assert verdict.survived == ()


def test_kernel_whose_results_vary_fails_its_claim_to_be_deterministic(failing_aspects):
    unit = "rms_norm[block and one, x=float32, weight=float32]"
    assert failing_aspects("torch.rms_norm_cpu", unit, every_second_call_differs) == {"determinism"}


def test_row_that_depends_on_other_rows_is_killed_where_batch_invariance_is_claimed(hunt):
    def several_plain_float32_rows(unit):
        return dict(unit.dtypes)["x"] == "float32" and unit.case.values == "normal" and unit.case.leading[:1] > (2,)

    claimed, unclaimed = (
        hunt("reference.rms_norm", forward=row_depends_on_the_others, only=several_plain_float32_rows, properties=claim)
        for claim in (frozenset({"batch_invariant"}), frozenset())
    )
    assert claimed.touched == unclaimed.touched == len(unclaimed.survived) > 10
    assert claimed.survived == ()


INTERPRETED = ("block and one", "sliced rows", "offset weight", "three dimensions")


@pytest.mark.parametrize(
    "mutate",
    [
        random_element_wrong,
        smallest_element_wrong,
        row_tail_wrong,
        strides_ignored,
        feature_dropped,
        saved_element_wrong,
    ],
    **named,
)
def test_mutant_of_a_triton_kernel_is_killed_in_the_interpreter(hunt, mutate):
    pytest.importorskip("triton")
    verdict = hunt(
        "triton.rms_norm",
        forward=mutate,
        only=lambda unit: unit.case.name in INTERPRETED and dict(unit.dtypes)["weight"] in {"float32", "bfloat16"},
    )
    assert verdict.touched > 0
    assert verdict.survived == ()
