"""Calls that once went wrong: each gives the right numbers, or says why not."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import portakernel
from portakernel.calling.bound_kernel import bind_kernel
from portakernel.calling.caller import OpCaller
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import make_layer
from portakernel.errors import ArgumentTypeError, ArgumentValueError, FallbackWarning
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder
from portakernel.registry.registry import Registry
from portakernel.torch_bridge.registration import Bridge

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    # torch's own tracer, when first used
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@pytest.fixture
def picky_first(ops):
    token = ops.dispatcher.context_layers.set((make_layer("context", prefer=("raw_kernels.picky", "torch.add")),))
    yield
    ops.dispatcher.context_layers.reset(token)


def test_a_thousand_declined_sizes_are_not_a_thousand_wrappers(ops, picky_first):
    for size in range(1, 1200):
        ops.add(normal(size), normal(size))
    assert ops.served("add") == {"torch.add": 1199}


def test_an_empty_slice_does_not_decide_for_others(ops, calls):
    empty = torch.empty(0, 8)[:, ::2]
    ops.rms_norm(empty, normal(4))
    ops.rms_norm(normal(3, 4), normal(4))
    assert ops.served("rms_norm") == {"raw_kernels.rms_norm": 2}


def test_a_row_of_nothing_has_a_gradient_of_nothing(ops):
    x, weight = torch.empty(3, 0, requires_grad=True), torch.empty(0, requires_grad=True)
    ops.rms_norm(x, weight, kernel="reference").sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.shape, weight.grad.shape) == ((3, 0), (0,))


def test_jit_trace_records_the_op(ops):
    ops.add(normal(3, 4), normal(3, 4))
    traced = torch.jit.trace(lambda x: ops.add(x, x), (normal(3, 4),))
    x = normal(3, 4)
    torch.testing.assert_close(traced(x), 2 * x)


def test_sparse_tensors_are_refused_after_dense_ones_too(ops):
    ops.add(normal(3, 4), normal(3, 4), kernel="torch")
    token = ops.dispatcher.context_layers.set((make_layer("context", use="torch"),))
    ops.add(normal(3, 4), normal(3, 4))
    with pytest.raises(ArgumentTypeError, match=r"^add: x is torch\.sparse_coo; dense "):
        ops.add(normal(3, 4).to_sparse(), normal(3, 4).to_sparse())
    ops.dispatcher.context_layers.reset(token)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_jagged_tensors_are_refused(ops):
    jagged = torch.nested.nested_tensor([normal(2, 4), normal(3, 4)], layout=torch.jagged)
    with pytest.raises(ArgumentTypeError) as caught:
        ops.rms_norm(jagged, normal(4))
    text = "rms_norm: x is torch.jagged; dense (torch.strided) tensors are accepted, as its values() are"
    assert str(caught.value) == text
    assert ops.rms_norm(jagged.values(), normal(4)).shape == (5, 4)


def test_a_default_device_leaves_the_fast_path_and_handles_as_they_are(ops, monkeypatch):
    x, weight = normal(3, 4), normal(4)
    ops.rms_norm(x, weight)
    handle = bind_kernel(ops.caller("rms_norm"), (x, weight), (1e-6, 0.0), None)
    monkeypatch.setattr(ops.caller("rms_norm"), "torch_op", lambda: pytest.fail("went through torch's dispatcher"))
    with torch.device("cpu"):
        torch.testing.assert_close(ops.rms_norm(x, weight), handle(x, weight))


@pytest.mark.parametrize("kernel", [5, ("torch",), b"torch"])
def test_a_kernel_that_is_no_name_is_refused(ops, kernel):
    with pytest.raises(ArgumentTypeError, match=r"^kernel must be the name of a kernel or plugin; this is "):
        ops.add(normal(3), normal(3), kernel=kernel)


@pytest.mark.parametrize("kernel", ["@typo", "!torch"])
def test_the_marks_of_graphs_are_no_names(ops, kernel):
    with pytest.raises(ValueError, match="unknown kernel or plugin"):
        ops.add(normal(3), normal(3), kernel=kernel)


def test_an_integer_parameter_does_not_loosen_what_out_may_be(ops):
    x, weight = normal(1, 4), normal(4)
    with pytest.raises(ArgumentValueError, match=r"^rms_norm: out shares memory with weight"):
        ops.rms_norm(x, weight, eps=1, out=weight.view(1, 4))


def test_numbers_of_other_kinds_are_converted(ops):
    numpy = pytest.importorskip("numpy")
    x, weight = normal(3, 4), normal(4)
    torch.testing.assert_close(ops.rms_norm(x, weight, eps=numpy.float32(0.5)), ops.rms_norm(x, weight, eps=0.5))
    with pytest.raises(ArgumentValueError, match=r"^rms_norm: eps is beyond what a float holds$"):
        ops.rms_norm(x, weight, eps=10**400)


def test_a_bound_handle_refuses_an_out_that_it_cannot_read_back(ops):
    handle = bind_kernel(ops.caller("add"), (normal(3), normal(3)), (), None)
    with pytest.raises(ArgumentTypeError, match=r"out is a subclass or lazily negated$"):
        handle(normal(3), normal(3), out=torch._neg_view(normal(3)))


def test_a_bound_handle_keeps_no_example_alive(ops):
    import gc
    import weakref

    x = normal(3)
    alive = weakref.ref(x)
    handle = bind_kernel(ops.caller("add"), (x, x), (), None)
    del x
    gc.collect()
    assert alive() is None
    assert handle.kernel == "raw_kernels.add"


def test_a_vmap_over_nothing_is_empty(ops):
    found = torch.vmap(ops.rms_norm)(torch.empty(0, 5, 4), torch.empty(0, 4))
    assert found.shape == (0, 5, 4)


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
def test_a_vmap_may_leave_the_last_optional_tensors_out():
    x, weight, angles = normal(5, 3, 8), normal(8), normal(9, 4)
    layer_norm, rotary = portakernel.ops.layer_norm, portakernel.ops.rotary_embedding
    torch.testing.assert_close(torch.vmap(layer_norm, in_dims=(0, None))(x, weight), layer_norm(x, weight))
    q = normal(4, 3, 2, 8)
    found = torch.vmap(lambda q: rotary(q, q, angles, angles))(q)
    torch.testing.assert_close(found, rotary(q, q, angles, angles))


def test_autocast_promotes_in_transforms_too(ops):
    y = normal(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.func.grad(lambda x: ops.add(x, y).sum())(normal(3, 4))
        assert torch.vmap(ops.add)(normal(3, 4), y).dtype is torch.float32
    torch.testing.assert_close(found, torch.ones(3, 4))


def test_a_warning_points_at_the_line_of_the_call(ops):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ops.add(normal(5000), normal(5000))
    (warning,) = [w for w in told if w.category is FallbackWarning]
    assert Path(warning.filename) == Path(__file__)


def test_a_compiled_graph_falls_back_as_eager_calls_do(ops):
    ops.dispatcher.set_process_layer(make_layer("set_policy", prefer="raw_kernels.picky"))
    torch._dynamo.reset()
    function = torch.compile(lambda x: ops.add(x, x), fullgraph=True, backend="aot_eager")
    x = normal(8)
    torch.testing.assert_close(function(x), 2 * x)
    assert ops.served("add") == {"raw_kernels.add": 1}


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda: torch.empty(2, 3, 4), "the result has"),
        (lambda: torch.empty(3, 4, dtype=torch.int32), "the result has"),
        (lambda: torch.empty(3, 4, requires_grad=True), "does not record gradients"),
    ],
)
def test_out_is_checked_in_a_compiled_graph_too(ops, out, message):
    torch._dynamo.reset()
    function = torch.compile(lambda x, out: ops.add(x, x, out=out), backend="aot_eager")
    with pytest.raises(Exception, match=message):
        function(normal(3, 4), out())


def test_a_policy_context_costs_no_decision_for_each_training_call(ops):
    decided = []
    decide = ops.dispatcher.decide
    ops.dispatcher.decide = lambda *arguments: decided.append(1) or decide(*arguments)
    x, weight = normal(3, 4).requires_grad_(), normal(4)
    token = ops.dispatcher.context_layers.set((make_layer("context", deny="torch.add"),))
    for _ in range(5):
        ops.rms_norm(x, weight).sum().backward()
    ops.dispatcher.context_layers.reset(token)
    assert len(decided) <= 4  # forward and backward, each as chosen and as named, however many calls


def test_the_trace_token_follows_what_is_disabled(ops):
    manager = ops.dispatcher.registry.manager
    tokens = set()
    for disabled in ((), ("torch",)):
        dispatcher = Dispatcher(Registry(manager), Config(disable=disabled))
        dispatcher.refresh_trace_token()
        tokens.add(dispatcher.trace_token)
    assert len(tokens) == 2


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@pytest.mark.parametrize("how", ["argument", "preferred", "transform", "compiled"])
def test_what_a_kernel_saves_in_its_own_way_its_own_backward_reads(ops, calls, how):
    x, weight = normal(3, 4), normal(4)
    wanted = torch.func.grad(lambda x: norm(x, weight).square().sum())(x)
    if how == "argument":
        leaf = x.clone().requires_grad_()
        ops.rms_norm(leaf, weight, kernel="raw_kernels.own").square().sum().backward()
        found = leaf.grad
    else:
        ops.dispatcher.set_process_layer(make_layer("set_policy", prefer="raw_kernels.own"))
        if how == "transform":
            found = torch.func.grad(lambda x: ops.rms_norm(x, weight).square().sum())(x)
        else:
            torch._dynamo.reset()
            function = torch.compile(ops.rms_norm, fullgraph=True, backend="aot_eager")
            leaf = x.clone().requires_grad_()
            (function if how == "compiled" else ops.rms_norm)(leaf, weight).square().sum().backward()
            found = leaf.grad
    torch.testing.assert_close(found, wanted)
    assert calls == ["own", "own_backward"]


@pytest.mark.parametrize(("traced_for", "called_in"), [("raw_kernels.own", "torch"), ("torch", "raw_kernels.own")])
def test_a_context_around_a_compiled_graph_does_not_part_what_forward_saves_from_its_backward(
    ops, traced_for, called_in
):
    ops.dispatcher.set_process_layer(make_layer("set_policy", prefer=traced_for))
    torch._dynamo.reset()
    function = torch.compile(ops.rms_norm, fullgraph=True, backend="aot_eager")
    x, weight = normal(3, 4), normal(4)
    function(x.clone().requires_grad_(), weight)
    leaf = x.clone().requires_grad_()
    token = ops.dispatcher.context_layers.set((make_layer("context", use=called_in),))
    y = function(leaf, weight)
    ops.dispatcher.context_layers.reset(token)
    y.square().sum().backward()
    torch.testing.assert_close(leaf.grad, torch.func.grad(lambda x: norm(x, weight).square().sum())(x))


SIDE_BACKEND = """
schema_version: 1
backend: side
vendor: side
torch_device: cpu
attach: true
open_ended: true
"""
SIDE_PLUGIN = """
schema_version: 1
plugin: side
kernels:
  - op: add
    entry: side.kernels:add
    targets: {side: any}
    dtypes: {x: [float32], y: [x]}
    limits: {x.contiguous: {in: [true]}, y.contiguous: {in: [true]}, M: {max: 100}}
"""
SIDE_HOOK = """
from portakernel.hookspecs import hookimpl
from portakernel.words.target import Device, Target

@hookimpl
def portakernel_targets():
    return [Device(Target("side", "s1"), "Side", "cpu")]
"""


def test_a_bound_attached_kernel_is_held_to_its_own_limits(tmp_path, monkeypatch):
    folder = tmp_path / "side"
    folder.mkdir()
    (folder / "__init__.py").write_text(SIDE_HOOK, encoding="utf-8")
    (folder / "kernels.py").write_text("from portakernel_plugins.torch.add import add\n", encoding="utf-8")
    (folder / "plugin.yaml").write_text(SIDE_PLUGIN, encoding="utf-8")
    (folder / "backend.yaml").write_text(SIDE_BACKEND, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    packages = [
        Package(name, module, "portakernel", "1.0", find_folder(module), first_party=True)
        for name, module in (("side", "side"), ("cpu", "portakernel_backends.cpu"))
    ]
    dispatcher = Dispatcher(Registry(PluginManager(packages)), Config())
    bridge = Bridge(OpCaller(contract("add"), dispatcher, "portakernel_side"))
    caller, x = bridge.caller, normal(4, 4)
    handle = bind_kernel(caller, (x, x), (), "side")
    assert (handle.kernel, str(handle.decision.target)) == ("side.add", "side:s1")
    torch.testing.assert_close(handle(x, x), 2 * x)
    for other in (x.t(), normal(200, 1)):
        with pytest.raises(ArgumentValueError, match="is not the example's; bind again"):
            handle(other, other)


def test_a_kernel_of_another_op_is_an_error_and_not_ignored(ops):
    message = r"^rms_norm: 'torch\.add' has kernels of add, not of rms_norm; those are raw_kernels\.rms_norm, "
    with pytest.raises(ArgumentValueError, match=message):
        ops.rms_norm(normal(3, 4), normal(4), kernel="torch.add")
    with pytest.raises(ArgumentValueError, match=message):
        bind_kernel(ops.caller("rms_norm"), (normal(3, 4), normal(4)), (1e-6, 0.0), "torch.add")
    torch._dynamo.reset()
    function = torch.compile(lambda x, w: ops.rms_norm(x, w, kernel="torch.add"), backend="aot_eager")
    with pytest.raises(Exception, match=r"'torch\.add' has kernels of add, not of rms_norm"):
        function(normal(3, 4), normal(4))
