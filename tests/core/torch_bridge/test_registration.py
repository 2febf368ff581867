"""The ops inside PyTorch: opcheck, compiled graphs, gradients across threads."""

from __future__ import annotations

import threading

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import portakernel
import portakernel.ops
import portakernel.runtime
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.deciding.policies import make_layer
from portakernel.deciding.policy_block import PolicyBlock
from portakernel.errors import DerivativeError

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
    # torch 2.13's own compiler, on importing its parts
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def normal(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=grad)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (0, 4)])
def test_opcheck_of_the_public_ops(ops, shape, grad):
    x, y, weight = normal(*shape, grad=grad), normal(*shape), normal(4, grad=grad)
    opcheck(ops.caller("add").torch_op().default, (x, y))
    opcheck(ops.caller("rms_norm").torch_op().default, (x, weight, 1e-5))


def test_opcheck_of_the_parts(ops):
    x, weight = normal(3, 4, grad=True), normal(4, grad=True)
    caller = ops.caller("rms_norm")
    opcheck(caller.torch_op("_forward").default, (x, weight, 1e-5, 0.0, "", ""))
    opcheck(ops.caller("add").torch_op("_forward").default, (x, x, "", ""))
    arguments = (normal(3, 4), x.detach(), weight.detach(), torch.ones(3), 1e-5, 0.0, [True, True], "", "")
    opcheck(caller.torch_op("_backward").default, arguments)


def compiled(function, *, dynamic: bool | None = None):
    """``function`` compiled, and the graphs that it was compiled to."""
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph, _inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic), graphs


def calls_in(graph: torch.fx.GraphModule, namespace: str) -> list[tuple[str, tuple[object, ...]]]:
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    return [
        (str(node.target).removeprefix(f"{namespace}."), tuple(arg for arg in node.args if isinstance(arg, str)))
        for node in nodes
        if str(node.target).startswith(namespace)
    ]


@pytest.fixture
def calling(ops):
    """Compiled graphs hold calls."""
    ops.dispatcher.set_process_layer(make_layer("set_policy", compiled="call"))


@pytest.mark.usefixtures("calling")
def test_a_compiled_graph_names_its_kernels(ops):
    namespace = ops.caller("add").namespace
    function, graphs = compiled(lambda x, w: ops.add(ops.rms_norm(x, w), x))
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(function(x, weight), norm(x, weight) + x)
    assert calls_in(graphs[0], namespace) == [
        ("rms_norm.default", ("raw_kernels.rms_norm",)),
        ("add.default", ("raw_kernels.add",)),
    ]


@pytest.mark.usefixtures("calling")
def test_a_compiled_graph_names_the_kernels_of_both_directions(ops):
    namespace = ops.caller("add").namespace
    function, graphs = compiled(lambda x, w: ops.rms_norm(x, w).square().sum())
    x, weight = normal(3, 4, grad=True), normal(4, grad=True)
    function(x, weight).backward()
    twin_x, twin_weight = (t.detach().clone().requires_grad_() for t in (x, weight))
    norm(twin_x, twin_weight).square().sum().backward()
    torch.testing.assert_close(x.grad, twin_x.grad)
    torch.testing.assert_close(weight.grad, twin_weight.grad)
    assert [name for graph in graphs for name, _ in calls_in(graph, namespace)] == [
        "rms_norm_forward.default",
        "rms_norm_backward.default",
    ]
    assert "raw_kernels.rms_norm" in calls_in(graphs[1], namespace)[0][1]


@pytest.mark.usefixtures("calling")
def test_inference_mode_compiles_with_the_same_numbers_and_names(ops):
    function, graphs = compiled(ops.rms_norm)
    x, weight = normal(3, 4), normal(4)
    with torch.inference_mode():
        torch.testing.assert_close(function(x, weight), norm(x, weight))
    assert calls_in(graphs[0], ops.caller("add").namespace) == [("rms_norm.default", ("raw_kernels.rms_norm",))]


def test_dynamic_rows_do_not_recompile(ops):
    function, graphs = compiled(ops.rms_norm, dynamic=True)
    weight = normal(4)
    for rows in (3, 5, 9):
        x = normal(rows, 4)
        torch.testing.assert_close(function(x, weight), norm(x, weight))
    assert len(graphs) == 1


def test_out_works_in_a_compiled_graph(ops):
    function, _ = compiled(lambda x, out: ops.add(x, x, out=out))
    x, out = normal(3, 4), torch.empty(3, 4)
    function(x, out)
    torch.testing.assert_close(out, 2 * x)


def test_a_changed_policy_recompiles_once_and_is_followed(ops):
    namespace = ops.caller("add").namespace
    function, graphs = compiled(lambda x: ops.add(x, x))
    x = normal(3, 4)
    wishes = {"prefer": "raw_kernels"}, {"use": "torch"}, {"prefer": "raw_kernels"}
    for layer in (make_layer("set_policy", **wish) for wish in wishes):
        ops.dispatcher.set_process_layer(layer)
        for _ in range(2):
            torch.testing.assert_close(function(x), 2 * x)
    assert [calls_in(graph, namespace)[0][1] for graph in graphs] == [("raw_kernels.add",), ("torch.add",)]


@pytest.mark.parametrize("first", ["outside", "inside"])
def test_a_compiled_graph_follows_the_policy_context_that_it_is_called_in(ops, first):
    function, graphs = compiled(lambda x: ops.add(x, x))
    x = normal(3, 4)
    block = PolicyBlock(lambda: (ops.dispatcher, make_layer("context", use="torch")), "")
    if first == "outside":
        function(x)
    for _ in range(2):
        with block:
            torch.testing.assert_close(function(x), 2 * x)
    function(x)
    assert ops.served("add") == {"torch.add": 2}  # outside it is inline, and nobody is called
    forms = [[name for name, _ in calls_in(graph, ops.caller("add").namespace)] for graph in graphs]
    assert forms == ([[], ["add.default"]] if first == "outside" else [["add.default"], []])


def test_the_kernel_argument_reaches_a_compiled_graph(ops):
    function, graphs = compiled(lambda x: ops.add(x, x, kernel="torch"))
    function(normal(3, 4))
    assert calls_in(graphs[0], ops.caller("add").namespace) == [("add.default", ("!torch.add",))]


def test_backward_follows_the_context_of_forward_in_another_thread(ops, calls):
    x, weight = normal(3, 4, grad=True), normal(4)
    token = ops.dispatcher.context_layers.set((make_layer("context", use="reference"),))
    y = ops.rms_norm(x, weight)
    ops.dispatcher.context_layers.reset(token)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
    assert x.grad is not None
    assert calls == []
    assert ops.served("rms_norm", "backward") == {"reference.rms_norm": 1}


def test_an_unwanted_gradient_is_not_computed(ops):
    x, weight = normal(3, 4, grad=True), normal(4)
    ops.rms_norm(x, weight).sum().backward()
    assert weight.grad is None
    assert ops.served("rms_norm", "backward") == {"raw_kernels.rms_norm": 1}


def second_gradients(function, x, weight):
    """Gradients of a function of the gradient of a function of ``function``'s result."""
    x, weight = (t.detach().clone().requires_grad_() for t in (x, weight))
    (first,) = torch.autograd.grad(function(x, weight).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.sin().sum(), (x, weight))


def test_a_second_derivative_is_the_formulas_whichever_kernel_ran(ops):
    x, weight = normal(3, 4), normal(4)
    found, wanted = second_gradients(ops.rms_norm, x, weight), second_gradients(norm, x, weight)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)  # of two roundings of cancelling sums
    assert ops.served("rms_norm", "backward") == {"raw_kernels.rms_norm": 2}


def test_what_cannot_be_computed_again_has_no_second_derivative():
    x, weight = normal(3, 4, grad=True), normal(5, 4, grad=True)
    y = portakernel.ops.linear_act(x, weight, activation="silu", kernel="reference")
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    message = (
        r"^linear_act has a gradient, but no gradient of its gradient where forward saves preactivation, which cannot"
        r" be computed again from what backward is given; portakernel\.references\.linear_act\.forward has one$"
    )
    with pytest.raises(DerivativeError, match=message):
        first.sum().backward()


def test_a_second_derivative_takes_back_the_permission_to_overwrite():
    logits, target = normal(3, 7, grad=True), torch.tensor([1, 0, 6])
    before = logits.detach().clone()
    for overwrite in (False, True):
        loss = portakernel.ops.cross_entropy(logits, target, overwrite_logits=overwrite)
        (first,) = torch.autograd.grad(loss.sum(), logits, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), logits)
        assert torch.equal(logits.detach(), before)
        wanted = torch.func.grad(
            lambda x: (
                torch.func.grad(lambda y: torch.nn.functional.cross_entropy(y, target, reduction="sum"))(x)
                .square()
                .sum()
            )
        )(before)
        torch.testing.assert_close(second, wanted)


def test_an_argument_without_a_gradient_is_named():
    q, k, angles = normal(4, 2, 8, grad=True), normal(4, 2, 8), normal(4, 4, grad=True)
    rotated, _ = portakernel.ops.rotary_embedding(q, k, angles, angles.detach())
    with pytest.raises(DerivativeError, match=r"^rotary_embedding has no gradient for cos; pass cos\.detach\(\)$"):
        rotated.sum().backward()


def test_a_gradient_that_nothing_kept_tells_the_form_of_is_traced_in_its_form():
    x, weight, bias = (normal(*shape, grad=True) for shape in ((3, 4), (5, 4), (5,)))
    function, _ = compiled(lambda *given: portakernel.ops.linear_act(*given, kernel="reference").square().sum())
    function(x, weight, bias).backward()
    twins = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    torch.nn.functional.linear(*twins).square().sum().backward()
    torch.testing.assert_close([t.grad for t in (x, weight, bias)], [t.grad for t in twins])


def test_a_transform_reaches_the_torch_op_itself(ops):
    x, weight = normal(3, 4), normal(4)
    op = ops.caller("rms_norm").torch_op().default
    found = torch.func.grad(lambda x: op(x, weight).square().sum())(x)
    wanted = torch.func.grad(lambda x: norm(x, weight).square().sum())(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_functionalize_alone_and_among_others_reaches_the_op(ops):
    x, weight = normal(3, 4), normal(4)
    functional = torch.func.functionalize(ops.rms_norm)
    torch.testing.assert_close(functional(x, weight), norm(x, weight))
    found = torch.func.grad(lambda x: functional(x, weight).square().sum())(x)
    torch.testing.assert_close(found, torch.func.grad(lambda x: norm(x, weight).square().sum())(x))
    found = torch.func.functionalize(torch.func.grad(lambda x: ops.rms_norm(x, weight).square().sum()))(x)
    torch.testing.assert_close(found, torch.func.grad(lambda x: norm(x, weight).square().sum())(x))
    torch.testing.assert_close(torch.vmap(functional, in_dims=(0, None))(x, weight), norm(x, weight))


def test_a_compiled_jvp_is_that_of_the_formula_and_leaves_no_level_behind(ops):
    x, tangent, weight = normal(3, 4), normal(3, 4), normal(4)

    def tangents(function):
        return lambda x, tangent: torch.func.jvp(lambda x: function(x, weight), (x,), (tangent,))

    for backend in ("eager", "aot_eager"):
        found = torch.compile(tangents(ops.rms_norm), fullgraph=True, backend=backend)(x, tangent)
        torch.testing.assert_close(found, tangents(norm)(x, tangent))
    torch.testing.assert_close(tangents(ops.rms_norm)(x, tangent), tangents(norm)(x, tangent))


def test_a_compiled_hessian_is_that_of_the_formula(ops):
    x, weight = normal(2, 4), normal(4)

    def hessian(function):
        return torch.func.hessian(lambda x: function(x, weight).pow(3).sum())

    found = torch.compile(hessian(ops.rms_norm), fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, hessian(norm)(x))


def test_a_batch_without_gradients_trains_nothing(ops):
    x, weight = normal(2, 3, 4), normal(4)
    torch.testing.assert_close(torch.vmap(ops.rms_norm, in_dims=(0, None))(x, weight), norm(x, weight))
    assert ops.served("rms_norm", "training") == {}
    leaf = x.clone().requires_grad_()
    torch.vmap(ops.rms_norm, in_dims=(0, None))(leaf, weight).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.func.grad(lambda x: norm(x, weight).sum())(x))


def test_a_second_forward_by_another_kernel_that_saves_in_its_own_way_is_refused(ops):
    x, weight = normal(3, 4, grad=True), normal(4, grad=True)
    token = ops.dispatcher.context_layers.set((make_layer("context", use="raw_kernels.own"),))
    y = checkpoint(ops.rms_norm, x, weight, use_reentrant=False, determinism_check="none")
    ops.dispatcher.context_layers.reset(token)
    message = (
        r"^rms_norm ran as raw_kernels\.own, and in activation checkpointing's second forward as raw_kernels\.rms_norm,"
        r" under another policy; what they save differs\. Put the policy's `with` block inside the checkpointed"
        r" function, or use portakernel\.set_policy$"
    )
    with pytest.raises(DerivativeError, match=message):
        y.sum().backward()


def test_a_recorded_kernel_that_declines_is_asked_once(monkeypatch):
    caller = portakernel.runtime.caller("linear_act")
    x, weight = normal(3, 4, grad=True), normal(5, 4)
    rejection, asked = Rejection(ReasonCode.CANNOT_RUN, "not today"), []

    def declining(*arguments):
        asked.append(arguments)
        raise CannotRun(rejection)

    def place(request, policy, cannot=None):
        placement = original(request, policy, cannot)
        if placement.kernel.name == "torch.linear_act_unfused":
            placement.run = declining
        return placement

    original = caller.place
    monkeypatch.setattr(caller, "place", place)
    caller.table.clear()
    for _ in range(3):
        y = portakernel.ops.linear_act(x, weight)
        torch.testing.assert_close(y, torch.nn.functional.linear(x, weight))
    caller.table.clear()
    assert len(asked) == 1


def test_an_input_changed_after_forward_is_noticed(ops):
    x, weight = normal(3, 4, grad=True), normal(4, grad=True)
    inner = x * 1
    y = ops.rms_norm(inner, weight)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
