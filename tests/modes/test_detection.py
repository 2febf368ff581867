"""A mode fails where an op does not do what it should: wrong numbers, graph breaks and crashes are no outcomes."""

from __future__ import annotations

import pytest
import torch
from portakernel_pages.modes import compilation, contexts, differentiation, transforms
from portakernel_pages.modes.outcome import ModeError, Refuses, Works, observe

from portakernel import ops, runtime
from portakernel.errors import DerivativeError

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


@pytest.fixture
def replace_op(monkeypatch):
    """Puts another function in the place of ``portakernel.ops.rms_norm``, made from it."""

    def replace(make):
        monkeypatch.setattr(ops, "rms_norm", make(ops.rms_norm), raising=False)

    return replace


@pytest.mark.parametrize(
    "mode",
    [
        compilation.compile_static,
        differentiation.forward_derivative,
        transforms.vmap,
        transforms.func_vjp,
        transforms.functional_call,
        contexts.autocast,
        contexts.inference_mode,
    ],
)
def test_wrong_results_fail(replace_op, mode):
    replace_op(lambda op: lambda x, w, **more: op(x, w, **more) * 1.001)
    with pytest.raises(ModeError, match=r"^y: \d+ of 155 elements differ"):
        mode("rms_norm")


@pytest.mark.parametrize(
    "mode",
    [
        differentiation.gradients_of_op,
        transforms.func_grad,
        transforms.func_vjp,
        compilation.compile_backward,
        contexts.checkpoint_nonreentrant,
    ],
)
def test_wrong_gradients_fail(replace_op, mode):
    replace_op(lambda op: lambda x, w, **more: op(x, w, **more) + 0.001 * (x - x.detach()))
    with pytest.raises(ModeError, match=r"^gradient of x: \d+ of 155 elements differ"):
        mode("rms_norm")


def test_a_wrong_second_derivative_fails(replace_op):
    replace_op(lambda op: lambda x, w, **more: op(x, w, **more) + (x - x.detach()) * (w.detach() - w))
    with pytest.raises(ModeError, match=r"^the second derivative by the arguments is up to "):
        differentiation.double_backward("rms_norm")


def test_a_graph_break_fails(replace_op):
    def breaking(op):
        def function(x, w, **more):
            torch._dynamo.graph_break()
            return op(x, w, **more)

        return function

    replace_op(breaking)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compilation.compile_static("rms_norm")


def test_a_graph_that_names_no_kernel_fails(replace_op):
    replace_op(lambda op: lambda x, w, eps, weight_offset, kernel: torch.rms_norm(x, w.shape, w + weight_offset, eps))
    with pytest.raises(ModeError, match=r"^the graph holds \[\], not \['rms_norm: "):
        compilation.compile_names_kernel("rms_norm")


def test_a_policy_that_compiled_code_does_not_follow_fails(monkeypatch):
    dispatcher = runtime.dispatcher()
    monkeypatch.setattr(dispatcher, "refresh_trace_token", lambda: None)
    with pytest.raises(ModeError, match=r"^compiled for \['softmax: [a-z_.]+, inline', .*\]; the policies were for "):
        compilation.compile_policy_change("softmax")


def test_a_kernel_that_trains_for_nothing_fails_in_vmap(monkeypatch):
    monkeypatch.setattr("portakernel.torch_bridge.derivatives.only_vmap", lambda: False)
    with pytest.raises(ModeError, match=r"^[a-z_]+\.rms_norm(_cpu)? ran for training$"):
        transforms.vmap("rms_norm")


def _refuse():
    raise RuntimeError("wrapped") from DerivativeError("no such thing\nand more")


def _crash():
    raise RuntimeError("a crash")


def test_only_errors_of_portakernel_are_refusals():
    assert observe(lambda: None) == Works()
    assert observe(_refuse) == Refuses("DerivativeError", "no such thing")
    with pytest.raises(RuntimeError, match=r"^a crash$"):
        observe(_crash)
