"""Contexts that change what a call means: autocast, inference mode, activation checkpointing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from portakernel_pages.modes.outcome import Outcome, observe, require
from portakernel_pages.modes.subject import Subject


def autocast(op: str) -> Outcome:
    """Under bfloat16 autocast: the dtypes that the contract says, and the results of arguments in them."""

    def run() -> None:
        subject = Subject(op)
        low = torch.bfloat16
        cast = list(subject.tensors)
        if subject.contract.autocast == "promote":
            # all but the first in the narrow dtype; what it holds is exact in the wide one
            given = [t if t is None or place == 0 else t.to(low) for place, t in enumerate(cast)]
            cast = [t if t is None or place == 0 else t.to(low).to(t.dtype) for place, t in enumerate(cast)]
        else:
            given = cast
            if subject.contract.autocast == "cast":
                first, *_ = made = subject.inputs.contract.tensors
                alike = [a is first or a.dtypes == (first.name,) for a in made]
                cast = [t.to(low) if t is not None and same else t for t, same in zip(cast, alike, strict=True)]
        with torch.autocast(subject.device, dtype=low):
            found = subject.call(*given)
        require(Subject.of(subject, cast).wrong_results(found))

    return observe(run)


def inference_mode(op: str) -> Outcome:
    """Inside ``torch.inference_mode``, on tensors made outside and inside."""

    def run() -> None:
        subject = Subject(op)
        with torch.inference_mode():
            outside = subject.call(*subject.tensors)
            inside = subject.call(*(None if t is None else t.clone() for t in subject.tensors))
        for found in (outside, inside):
            require(subject.wrong_results(found))
            results = found if isinstance(found, tuple) else (found,)
            require([] if all(r.is_inference() for r in results) else ["the results are no inference tensors"])

    return observe(run)


def checkpoint_reentrant(op: str) -> Outcome:
    """``torch.utils.checkpoint`` with ``use_reentrant=True``."""
    return _checkpointed(op, reentrant=True)


def checkpoint_nonreentrant(op: str) -> Outcome:
    """``torch.utils.checkpoint`` with ``use_reentrant=False``."""
    return _checkpointed(op, reentrant=False)


def _checkpointed(op: str, *, reentrant: bool) -> Outcome:
    def run() -> None:
        subject = Subject(op)
        leaves = subject.leaves()
        runs = []

        def function(*floats: Tensor) -> Any:
            runs.append(1)
            return subject.of_floats(*floats)

        found = checkpoint(function, *leaves, use_reentrant=reentrant)
        torch.autograd.backward(subject.weighted(found))
        # a gradient that needs nothing from forward recomputes nothing
        needed = reentrant or subject.contract.gradient != "identity"
        require([] if len(runs) == 1 + needed else [f"forward ran {len(runs)} times, not {1 + needed}"])
        require(subject.wrong_gradients([leaf.grad for leaf in leaves]))

    return observe(run)
