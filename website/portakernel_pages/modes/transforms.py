"""``torch.func``: vmap, gradients, vector-Jacobian products, Jacobians, and modules called with other parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel_pages.modes.outcome import Outcome, observe, require
from portakernel_pages.modes.subject import Subject


def vmap(op: str) -> Outcome:
    """A batch of calls: of all tensors, and of the first alone; with no kernel asked to train."""

    def run() -> None:
        subjects = [Subject(op, draw=draw) for draw in range(2)]
        first = subjects[0]
        dims = [None if tensor is None else 0 for tensor in first.tensors]
        for only_first in (False, True):
            in_dims = [dim if place == 0 or not only_first else None for place, dim in enumerate(dims)]
            batched: list[Tensor | None] = []
            for dim, *elements in zip(in_dims, *(subject.tensors for subject in subjects), strict=True):
                given = [tensor for tensor in elements if tensor is not None]
                batched.append(torch.stack(given) if dim == 0 else elements[0])
            before = first.caller.table.counts()
            found = torch.vmap(first.call, in_dims=tuple(in_dims))(*batched)
            trained = {use.kernel for use in first.caller.table.counts() - before if use.phase == "training"}
            require([f"{', '.join(sorted(trained))} ran for training"] if trained else [])
            for place, subject in enumerate(subjects):
                drawn = [first.tensors[0] if place == 0 else subject.tensors[0], *first.tensors[1:]]
                single = Subject.of(first, drawn) if only_first else subject
                results = found if isinstance(found, tuple) else (found,)
                require(single.wrong_results(tuple(result[place] for result in results)))

    return observe(run)


def per_sample_gradients(op: str) -> Outcome:
    """``vmap(grad(…))``: each element of the batch has gradients of its own."""

    def run() -> None:
        subjects = [Subject(op, draw=draw) for draw in range(2)]
        first = subjects[0]
        dims = tuple(None if tensor is None else 0 for tensor in first.tensors)
        cotangents = first.cotangents
        columns = zip(*(subject.tensors for subject in subjects), strict=True)
        batched = [None if None in column else torch.stack([t for t in column if t is not None]) for column in columns]

        def loss(*tensors: Tensor | None) -> Tensor:
            return first.weighted(first.call(*tensors), cotangents)

        found = torch.vmap(torch.func.grad(loss, argnums=first.floats), in_dims=dims)(*batched)
        for place, subject in enumerate(subjects):
            require(subject.wrong_gradients([gradient[place] for gradient in found], cotangents))

    return observe(run)


def func_grad(op: str) -> Outcome:
    """``torch.func.grad`` by every argument that has a gradient."""

    def run() -> None:
        subject = Subject(op)
        places = tuple(range(len(subject.floats)))
        found = torch.func.grad(subject.loss, argnums=places)(*subject.plain())
        require(subject.wrong_gradients(found))

    return observe(run)


def func_vjp(op: str) -> Outcome:
    """``torch.func.vjp``: the results, and their gradients pulled back."""

    def run() -> None:
        subject = Subject(op)

        def function(*floats: Tensor) -> Any:
            found = subject.of_floats(*floats)
            return tuple(subject.differentiable(found)), found

        traced: Any = torch.func.vjp(function, *subject.plain(), has_aux=True)
        _, pull, found = traced
        require(subject.wrong_results(found))
        require(subject.wrong_gradients(pull(subject.cotangents)))

    return observe(run)


def func_jacrev(op: str) -> Outcome:
    """``torch.func.jacrev``, which is vmap over backward: of two weighted sums of the results."""

    def run() -> None:
        subject = Subject(op)
        weights = [subject.drawn_cotangents(label) for label in ("one", "two")]
        places = tuple(range(len(subject.floats)))

        def sums(*floats: Tensor) -> Tensor:
            return subject.weighted(subject.of_floats(*floats), *weights)

        found = torch.func.jacrev(sums, argnums=places)(*subject.plain())
        for row, each in enumerate(weights):
            require(subject.wrong_gradients([jacobian[row] for jacobian in found], each))

    return observe(run)


class _Layer(torch.nn.Module):
    """A module whose parameters are the op's arguments that may have gradients."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.arguments = torch.nn.ParameterList(
            [torch.nn.Parameter(tensor.clone(), requires_grad=True) for tensor in subject.plain()]
        )

    def forward(self) -> Any:
        return self.subject.of_floats(*self.arguments)


def functional_call(op: str) -> Outcome:
    """``torch.func.functional_call`` with other parameters: their results and gradients, and no others'."""

    def run() -> None:
        layer, other = _Layer(Subject(op)), Subject(op, draw=1)
        # what is no parameter is the module's own
        other = Subject.of(other, layer.subject.filled(other.plain()))
        leaves = other.leaves()
        found = torch.func.functional_call(layer, {f"arguments.{i}": leaf for i, leaf in enumerate(leaves)}, ())
        require(other.wrong_results(_detached(found)))
        torch.autograd.backward(other.weighted(found))
        require(other.wrong_gradients([leaf.grad for leaf in leaves]))
        require(
            ["the module's own parameters got gradients"] if any(p.grad is not None for p in layer.parameters()) else []
        )

    return observe(run)


def _detached(found: Any) -> Any:
    return tuple(result.detach() for result in found) if isinstance(found, tuple) else found.detach()
