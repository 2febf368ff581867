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

import portakernel
from portakernel.claims.request import Phase
from portakernel.contract.case import Case
from portakernel.contract.shape_binding import unfit
from portakernel.contract.sizes import DIMENSION, parse_size
from portakernel.deciding.policies import make_layer
from portakernel.torch_bridge.in_graph import CUSTOM_META
from portakernel.words.graph_forms import GraphForm
from portakernel_pages.modes.outcome import NothingToDo, Outcome, observe, require
from portakernel_pages.modes.subject import Subject, undisturbed

# By how much sizes are larger.
_MORE = (32, 64, 96)
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


def kernels_in(graphs: Sequence[GraphModule]) -> list[str]:
    """The kernels that graphs name, in order, each with its op and its form: ``rms_norm: triton.rms_norm, call``."""
    nodes = (node for graph in graphs for node in graph.graph.nodes if node.op == "call_function")
    said = ((node.meta.get("custom") or {}).get(CUSTOM_META) for node in nodes)
    return list(dict.fromkeys(text for text in said if text is not None))


def compile_static(op: str) -> Outcome:
    """One graph, the eager call's kernel and numbers."""

    def run() -> None:
        subject = Subject(op)
        with _compiled(subject.call, dynamic=False) as (function, graphs):
            require(subject.wrong_results(function(*subject.tensors)))
            require([] if len(graphs) == 1 else [f"{len(graphs)} graphs, not 1"])

    return observe(run)


def compile_names_kernel(op: str) -> Outcome:
    """The graph names the kernel that ``explain`` says, in the form that it says."""

    def run() -> None:
        subject = Subject(op)
        with _compiled(subject.call, dynamic=False) as (function, graphs):
            function(*subject.tensors)
        _require_named(subject, graphs)

    return observe(run)


def _require_named(subject: Subject, graphs: Sequence[GraphModule], phase: Phase = Phase.INFERENCE) -> None:
    decision, named = subject.explain_compiled(phase), [name.partition(";")[0] for name in kernels_in(graphs)]
    want = f"{subject.contract.op}: {decision.chosen.name if decision.chosen else 'none'}, {decision.form}"
    require([] if {*named} == {want} else [f"the graph holds {named}, not {[want]}"])


def compile_inline(op: str) -> Outcome:
    """Forward and backward where policy wants torch operators for Inductor to fuse."""
    return observe(lambda: _in_form(op, "inline"))


def compile_calls(op: str) -> Outcome:
    """Forward and backward where policy wants every op as one node."""
    return observe(lambda: _in_form(op, "call"))


def _in_form(op: str, form: GraphForm) -> None:
    """Results, gradients and the names in the graph, where the process's policy wants ``form``."""
    subject = Subject(op)
    with undisturbed(subject.caller):
        subject.caller.dispatcher.set_process_layer(make_layer("set_policy", compiled=form))
        with _compiled(subject.call, dynamic=False) as (function, graphs):
            require(subject.wrong_results(function(*subject.tensors)))
            _require_named(subject, graphs)
        if subject.contract.gradient == "none":
            return
        leaves = subject.leaves()
        _ = subject.cotangents  # drawn outside of the graph
        with _compiled(subject.loss, dynamic=False) as (function, graphs):
            function(*leaves).backward()
        require(subject.wrong_gradients([leaf.grad for leaf in leaves]))
        _require_named(subject, graphs, Phase.TRAINING)


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
    depend; and the rows of further matrices. What the op's requirements bind to another size, or to a value, stays.
    """
    case, made = subject.case, subject.inputs.contract
    rows = [tensor.sizes[0] for tensor in made.tensors[1:] if len(tensor.sizes) > 1]
    values = dict(zip((parameter.name for parameter in made.parameters), subject.inputs.values, strict=True))
    largest = {name: size + _MORE[-1] for name, size in case.dims.items()}
    bound = {
        name
        for condition in made.requirements
        if "%" in condition or "==" in condition or unfit(condition, largest, values)
        for name in DIMENSION.findall(condition)
    }
    names = {*made.tensors[0].sizes[:-1], *rows} - bound

    def resized(more: int) -> Case:
        leading = (case.leading[0] + more, *case.leading[1:]) if case.leading else ()
        return replace(case, leading=leading, dims={n: s + more * (n in names) for n, s in case.dims.items()})

    return [resized(more) for more in _MORE]


def compile_policy_change(op: str) -> Outcome:
    """Another policy compiles once more and is followed, and so is a block; the first one's graph is kept."""

    def run() -> None:
        subject = Subject(op)
        followed = []
        with undisturbed(subject.caller), _compiled(subject.call, dynamic=False) as (function, graphs):
            for layer in (None, make_layer("set_policy", use="reference"), None):
                subject.caller.dispatcher.set_process_layer(layer)
                for _ in range(2):
                    require(subject.wrong_results(function(*subject.tensors)))
                decision = subject.explain_compiled()
                followed.append(f"{op}: {decision.chosen.name if decision.chosen else 'none'}, {decision.form}")
            for _ in range(2):
                with portakernel.policy(use="reference"):
                    require(subject.wrong_results(function(*subject.tensors)))
            followed[2] = f"{op}: {subject.chosen(Phase.INFERENCE)}, call"
            named = [name for graph in graphs for name in kernels_in([graph])]
        require([] if named == followed else [f"compiled for {named}; the policies were for {followed}"])

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
    first, second, *_, last = (Subject(op, case) for case in _resized(Subject(op)))
    sizes = (_open_sizes(first, second),)
    if not any(sizes[0]):
        return NothingToDo()

    def run() -> None:
        _dynamo().reset()
        program = torch.export.export(_Module(first.call), first.tensors, dynamic_shapes=sizes)
        ranges = program.range_constraints.items()
        require([f"{size} has to be in {bounds}" for size, bounds in ranges if bounds.upper < _FINITE])
        require([] if ranges else ["no size is open"])
        for subject in (first, last):
            require(subject.wrong_results(program.module()(*subject.tensors)))

    return observe(run)


def _dim(text: str, dims: dict[str, Any], divided: set[str | None]) -> Any:
    """The ``Dim`` of a size, ``B`` or ``B+1``; ``dims`` holds one for each name.

    Export finds out what is rounded, and sizes of which others are parts.
    """
    size = parse_size(text)
    if size.rounded or size.name in divided:
        return torch.export.Dim.AUTO
    name = size.name or text
    dim = dims.setdefault(name, torch.export.Dim(name))
    return dim + size.more if size.more else dim


def _open_sizes(subject: Subject, other: Subject) -> tuple[dict[int, Any] | None, ...]:
    """For each tensor the dimensions in which the two subjects differ: one name, one ``Dim``."""
    dims: dict[str, Any] = {}
    open_sizes: list[dict[int, Any] | None] = []
    sizes = [parse_size(text.strip("*")) for argument in subject.inputs.contract.tensors for text in argument.sizes]
    divided = {size.name for size in sizes if size.divisor > 1 and not size.rounded}
    for argument, tensor, resized in zip(subject.inputs.contract.tensors, subject.tensors, other.tensors, strict=True):
        if tensor is None or resized is None:
            open_sizes.append(None)
            continue
        leading = tensor.dim() - len(argument.sizes)
        names = (*(f"row{place}" for place in range(leading)), *argument.sizes)
        pairs = enumerate(zip(names, tensor.shape, resized.shape, strict=True))
        changed = {place: name.strip("*") for place, (name, size, more) in pairs if size != more}
        open_sizes.append({place: _dim(name, dims, divided) for place, name in changed.items()})
    return tuple(open_sizes)
