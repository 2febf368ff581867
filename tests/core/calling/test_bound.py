"""A bound handle: fixed, checked, not moved by later policy."""

from __future__ import annotations

import inspect

import pytest
import torch

import portakernel
from portakernel.calling.bound_kernel import bind_kernel
from portakernel.deciding.policies import make_layer
from portakernel.errors import ArgumentTypeError, ArgumentValueError, NoKernelError


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@pytest.fixture
def norm(ops):
    return bind_kernel(ops.caller("rms_norm"), (normal(3, 4), normal(4)), (1e-6, 0.0), None)


def test_a_handle_names_its_kernel_and_the_decision(norm):
    assert norm.kernel == "raw_kernels.rms_norm"
    assert norm.decision.chosen.name == "raw_kernels.rms_norm"


def test_rows_and_values_may_change(norm):
    x, weight = normal(7, 2, 4), normal(4)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.5) * weight
    torch.testing.assert_close(norm(x, weight, eps=0.5), expected)


def test_parameters_that_a_call_leaves_out_are_the_examples(ops):
    x, weight = normal(3, 4), normal(4)
    handle = bind_kernel(ops.caller("rms_norm"), (x, weight), (0.5, 0.0), None)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.5) * weight
    torch.testing.assert_close(handle(x, weight), expected)
    torch.testing.assert_close(handle(x, weight, weight_offset=0), expected)
    assert str(inspect.signature(handle)) == "(x, weight, *, eps=0.5, weight_offset=0.0, out=None)"
    with pytest.raises(TypeError, match="positional"):
        handle(x, weight, 0.5)


def test_a_features_value_is_the_examples_too():
    x, weight = normal(3, 4), normal(4)
    handle = portakernel.bind("rms_norm", x, weight, weight_offset=1.0)
    torch.testing.assert_close(handle(x, weight), portakernel.ops.rms_norm(x, weight, weight_offset=1.0))
    with pytest.raises(ArgumentValueError, match="a feature of this call is not the example's"):
        handle(x, weight, weight_offset=0.0)


def test_in_a_compiled_graph_a_handle_is_the_op_with_its_kernel_named(norm):
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph, _inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    x, weight = normal(3, 4), normal(4)
    found = torch.compile(lambda x, weight: norm(x, weight) + 1, backend=keep, fullgraph=True)(x, weight)
    torch.testing.assert_close(found, norm(x, weight) + 1)
    assert "!raw_kernels.rms_norm" in str(graphs[0].graph)


def test_inference_mode_and_parameters_are_served(norm, calls):
    x, weight = normal(3, 4), torch.nn.Parameter(normal(4))
    with torch.no_grad():
        wanted = norm(x, weight.detach())
        torch.testing.assert_close(norm(x, weight), wanted)
    with torch.inference_mode():
        torch.testing.assert_close(norm(x, weight), wanted)
    with pytest.raises(ArgumentTypeError, match="does not go through autograd"):
        norm(x, weight)
    assert calls == ["rms_norm"] * 3


def test_later_policy_does_not_move_it(ops, norm, calls):
    ops.dispatcher.set_process_layer(make_layer("set_policy", use="torch"))
    norm(normal(3, 4), normal(4))
    assert calls == ["rms_norm"]


def test_out_is_written(norm):
    x, weight, out = normal(3, 4), normal(4), torch.empty(3, 4)
    assert norm(x, weight, out=out) is out
    torch.testing.assert_close(out, norm(x, weight))
    with pytest.raises(ArgumentValueError, match=r"^rms_norm: out shares memory with weight; it may be x itself"):
        norm(weight.expand(1, 4), weight, out=weight.unsqueeze(0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda norm: norm(normal(3, 5), normal(5)),
            ArgumentValueError,
            "rms_norm: bound for N = 4; this call has N = 5; bind again",
        ),
        (
            lambda norm: norm(normal(3, 4).bfloat16(), normal(4)),
            ArgumentTypeError,
            r"rms_norm: bound for x of torch.float32 on cpu; this call has torch.bfloat16 on cpu; bind again",
        ),
        (
            lambda norm: norm(normal(4, 3).t(), normal(4)),
            ArgumentValueError,
            "rms_norm: the layout, a limit or a feature of this call is not the example's; bind again, or call .*",
        ),
        (
            lambda norm: norm(normal(3, 4), normal(4), weight_offset=1.0),
            ArgumentValueError,
            "rms_norm: the layout, a limit or a feature of this call is not the example's; .*",
        ),
        (
            lambda norm: norm(normal(3, 4).requires_grad_(), normal(4)),
            ArgumentTypeError,
            "rms_norm: a bound kernel does not go through autograd, modes, transforms, autocast or subclasses, .*",
        ),
        (lambda norm: norm(normal(3, 4), normal(5)), ArgumentValueError, "rms_norm: weight has shape .*"),
        (
            lambda norm: norm(normal(3, 4), None),
            ArgumentTypeError,
            "rms_norm: weight must be a tensor; this is None",
        ),
    ],
)
def test_a_call_unlike_the_example_is_refused(norm, call, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        call(norm)


def test_a_lazily_negated_view_is_refused(norm):
    with pytest.raises(ArgumentTypeError, match="does not go through"):
        norm(torch._neg_view(normal(3, 4)), normal(4))


def test_binding_a_kernel_that_cannot_serve_is_an_error(ops):
    with pytest.raises(NoKernelError, match=r"raw_kernels\.rms_norm +dtype +x needs float32; this is float16"):
        bind_kernel(
            ops.caller("rms_norm"), (normal(3, 4).half(), normal(4).half()), (1e-6, 0.0), "raw_kernels.rms_norm"
        )
