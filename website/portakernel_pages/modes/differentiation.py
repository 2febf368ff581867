"""Derivatives: of the formulas in float64, of the kernels against them, twice, and forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.tensors.torch_internals import forward_ad
from portakernel_kit.conformance.truth import exact
from portakernel_pages.modes.outcome import Outcome, observe, require
from portakernel_pages.modes.subject import Subject, far

# Central differences in float64: the step's square and the unit's share of it are both beyond float32.
_STEP = 1e-5
# What is left of float32 after a few sums, in the size of the largest element.
_RELATIVE = 2e-4


def gradients_of_op(op: str) -> Outcome:
    """The gradients of a call, from the kernels that serve it."""

    def run() -> None:
        subject = Subject(op)
        leaves = subject.leaves()
        torch.autograd.backward(subject.weighted(subject.of_floats(*leaves)))
        require(subject.wrong_gradients([leaf.grad for leaf in leaves]))

    return observe(run)


def gradcheck(op: str) -> Outcome:
    """``torch.autograd.gradcheck`` of the public op in float64, which the reference serves."""
    if Subject(op).contract.gradient == "none":
        return gradients_of_op(op)

    def run() -> None:
        subject = Subject(op).in_float64()
        torch.autograd.gradcheck(subject.of_floats, subject.leaves(), fast_mode=True)

    return observe(run)


def double_backward(op: str) -> Outcome:
    """Gradients of a function of the gradients, for the arguments and for the results' gradients."""

    def run() -> None:
        subject = Subject(op)
        leaves = subject.leaves()
        grads = [grad.clone().requires_grad_() for grad in subject.cotangents]
        loss = subject.weighted(subject.of_floats(*leaves), grads)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        along = subject.tangents("first")
        total = _dot(first, along)
        found = torch.autograd.grad(total, [*leaves, *grads], allow_unused=True)
        require(_wrong_second(subject, found, along))
        plain, given = subject.plain(), subject.cotangents
        places = tuple(range(len(plain)))

        def slope(*varied: Tensor) -> Tensor:
            floats, weights = varied[: len(plain)], varied[len(plain) :]

            def loss(*varied: Any) -> Tensor:
                return subject.weighted(subject.of_floats(*varied), weights)

            return _dot(torch.func.grad(loss, argnums=places)(*floats), along)

        everything = tuple(range(len(plain) + len(given)))
        require(_wrong_second(subject, torch.func.grad(slope, argnums=everything)(*plain, *given), along))

    return observe(run)


def _wrong_second(subject: Subject, found: Sequence[Tensor | None], along: Sequence[Tensor]) -> list[str]:
    """What is wrong with second derivatives, in two drawn directions each."""
    points = subject.exact_floats()
    grads = [exact(grad) for grad in subject.cotangents]
    slopes = [exact(tensor) for tensor in along]

    def total(floats: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        return _gradient_along(subject, floats, weights, slopes)

    problems: list[str] = []
    for label in ("second", "third"):
        moved = [exact(tensor) for tensor in subject.tangents(label)]
        turned = [exact(grad) for grad in subject.drawn_cotangents(label)]
        for name, directions, function, gradients in (
            ("the second derivative by the arguments", moved, lambda ps: total(ps, grads), found[: len(points)]),
            ("the second derivative by the gradients", turned, lambda ws: total(points, ws), found[len(points) :]),
        ):
            at = points if directions is moved else grads
            want = _quotient(function, at, directions)
            got = sum((exact(g) * d).sum() for g, d in zip(gradients, directions, strict=True) if g is not None)
            problems += far(name, torch.as_tensor(got, dtype=torch.float64), want, _RELATIVE)
    return problems


def _gradient_along(
    subject: Subject, floats: Sequence[Tensor], weights: Sequence[Tensor], slopes: Sequence[Tensor]
) -> Tensor:
    """The product with ``slopes`` of the formula's gradient for ``weights``, by autograd in float64."""
    leaves = [tensor.clone().requires_grad_() for tensor in floats]
    loss = _dot(subject.formula(*leaves), weights)
    return _dot(torch.autograd.grad(loss, leaves), slopes).detach()


def _quotient(
    function: Callable[[Sequence[Tensor]], Tensor], at: Sequence[Tensor], directions: Sequence[Tensor]
) -> Tensor:
    """The central difference quotient of ``function`` at ``at`` along ``directions``."""
    ahead = function([point + _STEP * d for point, d in zip(at, directions, strict=True)])
    behind = function([point - _STEP * d for point, d in zip(at, directions, strict=True)])
    return (ahead - behind) / (2 * _STEP)


def _dot(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """The sum of all products."""
    products = [(tensor * other).sum() for tensor, other in zip(tensors, others, strict=True)]
    return torch.stack([product.double() for product in products]).sum()


def forward_derivative(op: str) -> Outcome:
    """``torch.func.jvp`` and forward-mode duals: the directional derivative of the results."""

    def run() -> None:
        subject = Subject(op)
        along = subject.tangents("jvp")
        pushed: Any = torch.func.jvp(subject.of_floats, tuple(subject.plain()), tuple(along))
        found, tangents = pushed
        require(subject.wrong_results(found))
        require(wrong_tangents(subject, subject.differentiable(tangents), along))
        with forward_ad.dual_level():
            pairs = zip(subject.plain(), along, strict=True)
            duals = [forward_ad.make_dual(tensor, tangent) for tensor, tangent in pairs]
            results = subject.differentiable(subject.of_floats(*duals))
            unpacked = [forward_ad.unpack_dual(result).tangent for result in results]
        require(wrong_tangents(subject, unpacked, along))

    return observe(run)


def forward_over_reverse(op: str) -> Outcome:
    """``torch.func.jvp`` of ``torch.func.grad``, by the arguments."""

    def run() -> None:
        subject = Subject(op)
        plain, along = subject.plain(), subject.tangents("first")
        places = tuple(range(len(plain)))
        gradient = torch.func.grad(subject.loss, argnums=places)
        moved = subject.tangents("second")
        found = torch.func.jvp(gradient, tuple(plain), tuple(moved))[1]
        want = _slope_along(subject, along, moved)
        got = sum((exact(g) * exact(d)).sum() for g, d in zip(found, along, strict=True))
        require(far("the second derivative", torch.as_tensor(got, dtype=torch.float64), want, _RELATIVE))

    return observe(run)


def _slope_along(subject: Subject, along: Sequence[Tensor], moved: Sequence[Tensor]) -> Tensor:
    """How fast the gradient's product with ``along`` grows as the arguments move, in float64."""
    grads, slopes = [exact(grad) for grad in subject.cotangents], [exact(tensor) for tensor in along]
    return _quotient(
        lambda points: _gradient_along(subject, points, grads, slopes),
        subject.exact_floats(),
        [exact(tensor) for tensor in moved],
    )


def wrong_tangents(subject: Subject, found: Sequence[Tensor | None], along: Sequence[Tensor]) -> list[str]:
    """What is wrong with the results' directional derivatives."""
    directions, problems = [exact(tensor) for tensor in along], list[str]()
    for place, tangent in enumerate(found):

        def result(points: Sequence[Tensor], place: int = place) -> Tensor:
            return subject.formula(*points)[place]

        name = f"the directional derivative of {subject.contract.outputs[place].name}"
        if tangent is None:
            problems.append(f"{name} is None")
        else:
            problems += far(name, tangent, _quotient(result, subject.exact_floats(), directions), _RELATIVE)
    return problems
