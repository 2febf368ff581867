"""Generated code names nothing that an argument of somebody's op could be called."""

from __future__ import annotations

import ast
import builtins
import linecache
import re
from collections.abc import Iterator

import pytest
import torch
from portakernel_pages.modes.subject import Subject

import portakernel
from portakernel import runtime
from portakernel.calling.fast.generated import MARK
from portakernel.contract.soundness import RESERVED
from portakernel.contracts import contract as contract_of
from portakernel.contracts import own_contracts

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]


def exercise(op: str) -> None:
    """Has all code generated that calls of ``op`` run: public, as a torch op, bound, into memory, trained."""
    subject = Subject(op)
    positional, keywords = subject.inputs.keywords(subject.tensors)
    with torch.no_grad():
        result = subject.call(*subject.tensors)
        bound = portakernel.bind(op, *positional, **keywords)
        bound(*positional, **keywords)
        if subject.contract.outputs:
            for function in (getattr(portakernel.ops, op), bound):
                function(*positional, **keywords, out=result)
    assert subject.caller.inference_hit
    if subject.contract.gradient == "kernel":
        assert subject.caller.training_hit
        results = subject.differentiable(subject.call(*subject.filled(subject.leaves())))
        torch.autograd.backward(results, subject.cotangents)


def functions() -> Iterator[ast.FunctionDef]:
    """What was generated for ops of portakernel and their kernels; other tests define ops of their own."""
    kernels = [kernel for kernel in runtime.dispatcher().registry.kernels.values() if kernel.first_party]
    ours = {*own_contracts(), *(kernel.name.partition(".")[2] for kernel in kernels if kernel.op in own_contracts())}
    for file, entry in linecache.cache.copy().items():  # sources go with their functions, at any moment
        if file.startswith(MARK) and len(entry) > 1 and not ours.isdisjoint(re.split(r"[ .>]", file)):
            yield from (node for node in ast.parse("".join(entry[2])).body if isinstance(node, ast.FunctionDef))


def names_given(op: str) -> set[str]:
    """What the op's contract names: arguments, results, gradients."""
    contract = contract_of(op)
    results = {result.name for result in (*contract.outputs, *contract.saved)}
    parameters = {parameter.name for parameter in contract.parameters}
    return {*contract.names, *parameters, *results, *(f"grad_{output.name}" for output in contract.outputs)}


def test_what_generated_code_names_itself_begins_with_an_underscore():
    for op in own_contracts():
        exercise(op)
    given, names, looked_at = set().union(*map(names_given, own_contracts())), set[str](), 0
    for function in functions():
        arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        if not arguments.isdisjoint(given):
            looked_at += 1
            names |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} - arguments
    assert looked_at >= 5 * len(own_contracts())
    free = {name for name in names - given - RESERVED if not name.startswith("_")}
    # no argument is called so
    assert {name for name in free if not issubclass(getattr(builtins, name, object), BaseException)} == set()
