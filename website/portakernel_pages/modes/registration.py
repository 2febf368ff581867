"""``torch.library.opcheck`` of an op's three torch ops: schema, fake, autograd and tracing agree with what runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import opcheck

from portakernel_pages.modes.outcome import Outcome, observe
from portakernel_pages.modes.subject import Subject

# `test_schema` compares inputs in ways that torch does not implement for 8-bit numbers.
_ON_EVERY_CASE = ("test_schema", "test_faketensor")
# Tracing costs a hundred times what the other tests do, and depends on the op's form, not on its numbers.
_ON_FEW_CASES = ("test_autograd_registration", "test_aot_dispatch_dynamic")


def check_registration(op: str) -> Outcome:
    """``opcheck`` of ``<op>``, ``<op>_forward`` and ``<op>_backward`` on every case.

    Traced are the smallest case and, for the parts, the first of those that pass most tensors.
    """

    def run() -> None:
        smallest = Subject(op)
        cases = smallest.contract.cases
        fullest = max(cases, key=lambda case: len(case.present) + len(case.given))
        for case in cases:
            subject = Subject(op, case)
            tests = [*_ON_EVERY_CASE]
            if any(t is not None and t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in subject.tensors):
                tests.remove("test_schema")
            for suffix, arguments in _calls(subject):
                # where PyTorch records the kernel, tracing the op itself traces the kernel's every operator
                traced = case is smallest.case or (suffix and case is fullest)
                more = _ON_FEW_CASES if traced else ()
                opcheck(subject.caller.torch_op(suffix).default, arguments, test_utils=[*tests, *more])

    return observe(run)


def _calls(subject: Subject) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The torch ops' suffixes and arguments, such that autograd has something to record where it can."""
    values = subject.inputs.values
    # torch's test sums what depends on them, which it cannot where the results are 8-bit numbers
    tensors = subject.tensors if subject.contract.gradient == "none" else subject.filled(subject.leaves())
    yield "", (*tensors, *values, "")
    if subject.contract.mutated:
        return
    yield "_forward", (*tensors, *values, "", "")
    # some formats of an op that has a gradient have none
    if subject.contract.gradient == "kernel" and subject.floats:
        yield "_backward", backward_arguments(subject, subject.cotangents)


def backward_arguments(subject: Subject, cotangents: Sequence[Tensor]) -> tuple[Any, ...]:
    """What ``<op>_backward`` is given after ``<op>_forward`` ran."""
    contract, values = subject.contract, subject.inputs.values
    with torch.no_grad():
        returned = subject.caller.torch_op("_forward")(*subject.tensors, *values, "", "")
    results = returned if isinstance(returned, tuple) else (returned,)
    named = dict(zip(contract.names, subject.tensors, strict=True))
    named |= {r.name: t for r, t in zip((*contract.outputs, *contract.saved), results, strict=True)}
    exist = {result.name for result in subject.inputs.contract.saved}
    kept = [named[name] for name in contract.backward_inputs]
    kept += [named[result.name] if result.name in exist else None for result in contract.saved]
    needs = [place in subject.floats for place in range(len(contract.tensors))]
    return (*cotangents, *kept, *values, needs, "", "")
