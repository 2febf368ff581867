"""Triton kernels that Inductor launches: their numbers, and that they write their results alone."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from portakernel_pages.modes.compilation import kernels_in
from portakernel_pages.modes.subject import Subject, undisturbed
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node

from portakernel.deciding.policies import make_layer
from portakernel.runtime import dispatcher

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton compiles for a GPU, and there is none"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    # torch's own, of the graph whose memory its other graphs share
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
KERNELS = [name for name, one in sorted(dispatcher().registry.kernels.items()) if one.in_graphs.form == "kernel"]


@pytest.fixture(params=KERNELS)
def subject(request) -> Subject:
    return Subject(dispatcher().registry.kernels[request.param].op, device="cuda:0")


@pytest.fixture(autouse=True)
def _launched(subject):
    """Graphs hold this kernel, launched by Inductor."""
    name = next(name for name in KERNELS if name.endswith(f".{subject.contract.op}"))
    torch._dynamo.reset()
    with undisturbed(subject.caller):
        subject.caller.dispatcher.set_process_layer(make_layer("set_policy", prefer=name, compiled="kernel"))
        yield
    torch._dynamo.reset()


def written_inputs(graph: GraphModule) -> list[str]:
    """The graph's own inputs that a launch in it is taken to write."""
    launches = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    found = []
    for node in launches:
        given = node.kwargs["kwargs"]
        for name in node.kwargs.get("tensors_to_clone", given):
            tensor = given[name]
            while isinstance(tensor, Node) and tensor.op == "call_function" and "view" in str(tensor.target):
                tensor = tensor.args[0]
            found += [name] if isinstance(tensor, Node) and tensor.op == "placeholder" else []
    return found


def traced(function, *arguments):
    """The result of ``function`` as AOTAutograd traces it, and the graphs."""
    graphs: list[GraphModule] = []

    def compiler(graph, _inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=False)(*arguments), graphs


def test_a_launch_writes_its_results_alone(subject):
    _, graphs = traced(subject.call, *subject.tensors)
    assert [name.rpartition(", ")[2] for name in kernels_in(graphs)] == ["kernel"]
    assert [written_inputs(graph) for graph in graphs] == [[]]
    if subject.contract.gradient == "none":
        return
    leaves = subject.leaves()
    _ = subject.cotangents
    loss, graphs = traced(subject.loss, *leaves)
    loss.backward()
    assert [written_inputs(graph) for graph in graphs] == [[]] * len(graphs)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_launches_it_with_the_same_numbers(subject, mode):
    function = torch.compile(subject.call, fullgraph=True, dynamic=False, mode=mode)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        assert subject.wrong_results(function(*subject.tensors)) == []
    if subject.contract.gradient == "none":
        return
    leaves = subject.leaves()
    _ = subject.cotangents
    torch.compile(subject.loss, fullgraph=True, dynamic=False)(*leaves).backward()
    assert subject.wrong_gradients([leaf.grad for leaf in leaves]) == []
