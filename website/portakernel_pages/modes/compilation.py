"""Compiled graphs: ``torch.compile(fullgraph=True)`` and ``torch.export`` of an op."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from portakernel.claims.request import Phase
from portakernel.contract.case import Case
from portakernel.contract.sizes import DIMENSION
from portakernel.deciding.policies import make_layer
from portakernel_pages.modes.outcome import Outcome, observe, require
from portakernel_pages.modes.subject import Subject, undisturbed

# Any bound that a limit would make is smaller.
_FINITE = 2**62


def _dynamo() -> Any:
    """The compiler's own module: what it offers here is documented, and its name begins with an underscore."""
    return importlib.import_module("torch._dynamo")


@contextmanager
def _compiled(function: Callable[..., Any], **options: Any) -> Iterator[tuple[Callable[..., Any], list[GraphModule]]]:
    """``function`` compiled without a break, and the graphs that it has been compiled to so far."""
    graphs: list[GraphModule] = []

    def compiler(graph: GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    _dynamo().reset()
    try:
        backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
        yield torch.compile(function, fullgraph=True, backend=backend, **options), graphs
    finally:
        _dynamo().reset()


def make_boxed_func(forward: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """``forward`` as AOTAutograd calls what a compiler returns."""

    def boxed(arguments: list[Any]) -> Any:
        return forward(*arguments)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def kernels_in(graph: GraphModule, namespace: str) -> list[tuple[str, list[str]]]:
    """Portakernel's torch ops in a graph, each with the texts among its arguments."""
    prefix = f"{namespace}."
    nodes = [node for node in graph.graph.nodes if node.op == "call_function" and str(node.target).startswith(prefix)]
    return [(str(n.target).split(".")[1], [a for a in n.args if isinstance(a, str)]) for n in nodes]


def compile_static(op: str) -> Outcome:
    """One graph, the eager call's kernel and numbers."""

    def run() -> None:
        subject = Subject(op)
        with _compiled(subject.call, dynamic=False) as (function, graphs):
            require(subject.wrong_results(function(*subject.tensors)))
            require([] if len(graphs) == 1 else [f"{len(graphs)} graphs, not 1"])

    return observe(run)


def compile_names_kernel(op: str) -> Outcome:
    """The graph holds the op with the full name of the kernel that an eager call would run."""

    def run() -> None:
        subject = Subject(op)
        with _compiled(subject.call, dynamic=False) as (function, graphs):
            function(*subject.tensors)
            found = [call for graph in graphs for call in kernels_in(graph, subject.caller.namespace)]
        want = (op, subject.chosen(Phase.INFERENCE))
        named = [(name, texts[-1]) for name, texts in found if texts]
        require([] if named == [want] else [f"the graph calls {named}, not {[want]}"])

    return observe(run)


def compile_dynamic(op: str) -> Outcome:
    """Further sizes run in the graph of the first: with sizes dynamic throughout, and with marked ones alone."""

    def run() -> None:
        subjects = [Subject(op, case) for case in _resized(Subject(op))]
        shape_config: Any = importlib.import_module("torch.fx.experimental._config")
        for mark in (False, True):
            # sizes that happen to be equal stay so otherwise
            with (
                shape_config.patch(use_duck_shape=False),
                _compiled(subjects[0].call, dynamic=None if mark else True) as (function, graphs),
            ):
                for subject in subjects:
                    tensors = [t if t is None else t.clone() for t in subject.tensors]
                    for tensor, other in zip(tensors, subjects[1].tensors, strict=True):
                        if mark and subject is subjects[0] and tensor is not None and other is not None:
                            _mark(tensor, other)
                    require(subject.wrong_results(function(*tensors)))
                require([] if len(graphs) == 1 else [f"{len(graphs)} graphs for {len(subjects)} sizes, not 1"])

    return observe(run)


def _mark(tensor: Tensor, resized: Tensor) -> None:
    for place, (size, other) in enumerate(zip(tensor.shape, resized.shape, strict=True)):
        if size != other:
            _dynamo().mark_dynamic(tensor, place)


def _resized(subject: Subject) -> Sequence[Case]:
    """The subject's case in three larger sizes, 32 apart: what claims ask of one, they ask of all.

    Resized are the leading dimensions or, where there are none, the first tensor's but for its last, on which claims
    depend; and the rows of further matrices. What the op's requirements bind stays.
    """
    case, made = subject.case, subject.inputs.contract
    rows = [tensor.sizes[0] for tensor in made.tensors[1:] if len(tensor.sizes) > 1]
    bound = set(DIMENSION.findall(" ".join(made.requirements)))
    names = {*made.tensors[0].sizes[:-1], *rows} - bound

    def resized(more: int) -> Case:
        leading = (case.leading[0] + more, *case.leading[1:]) if case.leading else ()
        return replace(case, leading=leading, dims={n: s + more * (n in names) for n, s in case.dims.items()})

    return [resized(more) for more in (32, 64, 96)]


def compile_policy_change(op: str) -> Outcome:
    """Another process policy compiles once more and is followed; the first one's graph is kept."""

    def run() -> None:
        subject = Subject(op)
        followed = []
        with undisturbed(subject.caller), _compiled(subject.call, dynamic=False) as (function, graphs):
            for layer in (None, make_layer("set_policy", use="reference"), None):
                subject.caller.dispatcher.set_process_layer(layer)
                for _ in range(2):
                    require(subject.wrong_results(function(*subject.tensors)))
                followed.append(subject.chosen(Phase.INFERENCE))
            named = [texts[-1] for graph in graphs for _, texts in kernels_in(graph, subject.caller.namespace)]
        require([] if named == followed[:2] else [f"compiled for {named}; the policies were for {followed}"])

    return observe(run)


def compile_backward(op: str) -> Outcome:
    """Forward and backward in compiled graphs: the eager gradients."""

    def run() -> None:
        subject = Subject(op)
        leaves = subject.leaves()
        _ = subject.cotangents  # drawn outside of the graph
        with _compiled(subject.loss, dynamic=False) as (function, _):
            function(*leaves).backward()
        require(subject.wrong_gradients([leaf.grad for leaf in leaves]))

    return observe(run)


def compile_func_grad(op: str) -> Outcome:
    """A compiled ``torch.func.grad``: the transform is part of the graph."""

    def run() -> None:
        subject = Subject(op)
        plain, places = subject.plain(), tuple(range(len(subject.floats)))
        _ = subject.cotangents  # drawn outside of the graph
        with _compiled(torch.func.grad(subject.loss, argnums=places), dynamic=False) as (function, _):
            found = function(*plain)
        require(subject.wrong_gradients(found))

    return observe(run)


class _Module(torch.nn.Module):
    """A function of tensors, of which some may be None, as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor | None) -> Any:
        return self.function(*tensors)


def export(op: str) -> Outcome:
    """``torch.export``, strict and not, and the exported program's numbers."""

    def run() -> None:
        subject = Subject(op)
        for strict in (False, True):
            _dynamo().reset()
            program = torch.export.export(_Module(subject.of_floats), tuple(subject.plain()), strict=strict)
            require(subject.wrong_results(program.module()(*subject.plain())))
        _dynamo().reset()

    return observe(run)


def export_open(op: str) -> Outcome:
    """``torch.export`` with sizes that nothing bounds; the program serves others than its first."""

    def run() -> None:
        first, second, *_, last = (Subject(op, case) for case in _resized(Subject(op)))
        sizes = (_open_sizes(first, second),)
        _dynamo().reset()
        program = torch.export.export(_Module(first.call), first.tensors, dynamic_shapes=sizes)
        ranges = program.range_constraints.items()
        require([f"{size} has to be in {bounds}" for size, bounds in ranges if bounds.upper < _FINITE])
        require([] if ranges else ["no size is open"])
        for subject in (first, last):
            require(subject.wrong_results(program.module()(*subject.tensors)))

    return observe(run)


def _open_sizes(subject: Subject, other: Subject) -> tuple[dict[int, Any] | None, ...]:
    """For each tensor the dimensions in which the two subjects differ: one name, one ``Dim``."""
    dims: dict[str, Any] = {}
    open_sizes: list[dict[int, Any] | None] = []
    for argument, tensor, resized in zip(subject.inputs.contract.tensors, subject.tensors, other.tensors, strict=True):
        if tensor is None or resized is None:
            open_sizes.append(None)
            continue
        leading = tensor.dim() - len(argument.sizes)
        names = (*(f"row{place}" for place in range(leading)), *argument.sizes)
        pairs = enumerate(zip(names, tensor.shape, resized.shape, strict=True))
        changed = {place: name.strip("*") for place, (name, size, more) in pairs if size != more}
        open_sizes.append({place: dims.setdefault(name, torch.export.Dim(name)) for place, name in changed.items()})
    return tuple(open_sizes)
