"""The kit kills every mutant of a gradient, in every case that the mutant touches."""

from __future__ import annotations

import functools

import pytest
import torch

from portakernel.references import rms_norm as reference
from portakernel_kit.conformance.comparison import distance_ulp, ulp_at


def gradient_mutant(change):
    """A mutant that changes gradients in place; it counts where an element leaves the tolerance."""

    @functools.wraps(change)
    def wrap(mutant, kernel):
        def mutated(grad, x, weight, rstd, *, eps, weight_offset=0.0, needs):
            given = (grad, x, weight, rstd)
            found = kernel(*given, eps=eps, weight_offset=weight_offset, needs=needs)
            scales = reference.magnitudes(*(tensor.double() for tensor in given), eps=eps, weight_offset=weight_offset)
            changed = [None if gradient is None else gradient.clone() for gradient in found]
            change(changed, scales, given, weight_offset, mutant)
            for before, now, scale in zip(found, changed, scales, strict=True):
                if before is not None and now is not None and now.numel():
                    far = distance_ulp(now, before.double(), scale).max()
                    mutant.touched |= float(far) > 2 * mutant.tolerance(now.dtype, "backward")
            return tuple(changed)

        return mutated

    return wrap


def push(gradient, scale, place, mutant):
    """Moves one element just out of the tolerance."""
    steps = 2 * mutant.tolerance(gradient.dtype, "backward") + 1
    index = torch.unravel_index(torch.tensor(place), gradient.shape)
    far = float(gradient[index]) + steps * float(ulp_at(scale, gradient.dtype)[index])
    gradient[index] = far


@gradient_mutant
def gradient_element_wrong(changed, scales, given, weight_offset, mutant):
    for gradient, scale in zip(changed, scales, strict=True):
        if gradient is not None and gradient.numel():
            push(gradient, scale, gradient.numel() // 2, mutant)


@gradient_mutant
def smallest_gradient_element_wrong(changed, scales, given, weight_offset, mutant):
    for gradient, scale in zip(changed, scales, strict=True):
        if gradient is not None and gradient.numel():
            push(gradient, scale, mutant.smallest(gradient), mutant)


@gradient_mutant
def gradient_through_rstd_forgotten(changed, scales, given, weight_offset, mutant):
    grad, x, weight, rstd = (tensor.double() for tensor in given)
    if changed[0] is not None:
        changed[0].copy_(grad * (weight + weight_offset) * rstd.reshape(*x.shape[:-1], 1))


@gradient_mutant
def gradient_ignores_offset(changed, scales, given, weight_offset, mutant):
    if changed[0] is not None:
        changed[0].copy_(reference.backward(*given, eps=0.0, needs=(True, False))[0])


@gradient_mutant
def weight_gradient_of_last_row_only(changed, scales, given, weight_offset, mutant):
    grad, x, _, rstd = (tensor.double() for tensor in given)
    if changed[1] is not None and x.numel():
        changed[1].copy_((grad * x * rstd.reshape(*x.shape[:-1], 1)).reshape(-1, x.shape[-1])[-1])


@gradient_mutant
def gradients_negated(changed, scales, given, weight_offset, mutant):
    for gradient in changed:
        if gradient is not None:
            gradient.neg_()


@gradient_mutant
def weight_gradient_wrong_when_alone(changed, scales, given, weight_offset, mutant):
    if changed[0] is None and changed[1].numel():
        push(changed[1], scales[1], 0, mutant)


@gradient_mutant
def wrong_for_expanded_gradient(changed, scales, given, weight_offset, mutant):
    if changed[0] is not None and changed[0].numel() and not given[0].is_contiguous():
        push(changed[0], scales[0], 0, mutant)


def unneeded_gradient_returned(mutant, kernel):
    def mutated(*tensors, needs, **keywords):
        mutant.touched |= not all(needs)
        return kernel(*tensors, needs=(True, True), **keywords)

    return mutated


def gradient_in_input(mutant, kernel):
    def mutated(grad, *tensors, needs, **keywords):
        grads = kernel(grad, *tensors, needs=needs, **keywords)
        if grads[0] is None or not grad.is_contiguous():
            return grads
        mutant.touched = True
        return grad.copy_(grads[0]), grads[1]

    return mutated


MUTANTS = (
    gradient_element_wrong,
    smallest_gradient_element_wrong,
    gradient_through_rstd_forgotten,
    gradient_ignores_offset,
    weight_gradient_of_last_row_only,
    gradients_negated,
    weight_gradient_wrong_when_alone,
    wrong_for_expanded_gradient,
    unneeded_gradient_returned,
    gradient_in_input,
)
named = {"ids": lambda value: getattr(value, "__name__", value)}


@pytest.mark.parametrize("mutate", MUTANTS, **named)
def test_wrong_gradient_is_killed_in_every_case_that_it_touches(hunt, mutate):
    verdict = hunt("reference.rms_norm", backward=mutate)
    assert verdict.touched > 0
    assert verdict.survived == ()


@pytest.mark.parametrize("mutate", [gradient_element_wrong, gradient_ignores_offset], **named)
def test_wrong_gradient_of_a_triton_kernel_is_killed_in_the_interpreter(hunt, mutate):
    pytest.importorskip("triton")
    verdict = hunt("triton.rms_norm", backward=mutate, only=lambda unit: unit.case.name == "offset weight")
    assert verdict.touched == 5  # combinations of dtypes
    assert verdict.survived == ()
