"""PyTorch's linear layers with an activation: which operator serves which, and what training takes."""

from __future__ import annotations

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.contracts import contract
from portakernel.references import linear_act as reference

ACTIVATIONS = contract("linear_act").parameter("activation").choices


@pytest.mark.parametrize(
    ("target", "served"),
    [
        ("nvidia:sm_90", {"relu", "gelu_tanh"}),
        ("amd:gfx942", {"relu", "gelu_tanh"}),
        ("cpu:x86_64", {"relu", "gelu"}),
        ("apple:m3", set()),
        ("intel:pvc", set()),
    ],
)
def test_the_fused_operator_serves_the_activations_that_it_has_there(target, served):
    for activation in ACTIVATIONS:
        decision = portakernel.explain("linear_act", target=target, dtype="bfloat16", activation=activation)
        found = next(c for c in decision.candidates if c.kernel.name == "torch.linear_act")
        assert (found.status != "rejected") == (activation in served)
        assert decision.candidate("torch.linear_act_unfused").status != "rejected"


def test_the_reason_names_the_activations_that_are_served():
    decision = portakernel.explain("linear_act", target="nvidia:sm_90", dtype="bfloat16", activation="silu")
    found = [r for r in decision.candidate("torch.linear_act").rejections if r.parameter == "activation"]
    assert {rejection.code for rejection in found} == {"feature"}
    assert [rejection.text for rejection in found] == [
        "gpu: activation takes relu, gelu_tanh; this is 'silu'",
        "gpu_float32: activation takes relu; this is 'silu'",
    ]


@pytest.mark.parametrize(
    ("dtype", "width", "outputs", "served"),
    [
        *[("bfloat16", 9, 8, False), ("float16", 8, 10, False), ("bfloat16", 16, 24, True)],
        *[("float32", 2, 202548, False), ("float32", 8, 10, False), ("float32", 12, 8, True)],
    ],
)
def test_relu_takes_rows_of_whole_vectors_for_cublas_makes_zero_of_nan_in_others(dtype, width, outputs, served):
    shape = {"x": (4, width), "weight": (outputs, width), "bias": (outputs,)}
    # the epilogue's tanh has fewer digits than float32
    for activation, wanted in (("relu", served), ("gelu_tanh", served and dtype != "float32")):
        decision = portakernel.explain(
            "linear_act", target="nvidia:sm_90", dtype=dtype, shape=shape, activation=activation
        )
        assert (decision.candidate("torch.linear_act").status != "rejected") == wanted


def test_calls_that_differ_in_the_activation_alone_go_to_different_kernels():
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    for activation in (*ACTIVATIONS, *ACTIVATIONS):
        decision = portakernel.explain("linear_act", x, weight, activation=activation)
        fused = activation in ("relu", "gelu")
        assert decision.chosen.name == ("torch.linear_act" if fused else "torch.linear_act_unfused")
        # and in silence: that the fused operator has no silu is nothing to warn of
        found = ops.linear_act(x, weight, activation=activation)
        torch.testing.assert_close(found, reference.forward(x, weight, activation=activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_the_formula(activation):
    tensors = [torch.randn(shape, dtype=torch.float32, requires_grad=True) for shape in ((2, 4, 8), (6, 8), (6,))]
    y = ops.linear_act(*tensors, activation=activation)
    grads = torch.autograd.grad(y, tensors, torch.ones_like(y))
    wanted = torch.autograd.grad(reference.plain(*tensors, activation=activation)[0], tensors, torch.ones_like(y))
    for found, right in zip(grads, wanted, strict=True):
        torch.testing.assert_close(found, right)


def test_nothing_to_sum_is_left_to_the_layer_before_the_activation():
    x, weight, bias = torch.empty(3, 0), torch.empty(2, 0), torch.tensor([-1.0, 1.0])
    decision = portakernel.explain("linear_act", x, weight, bias, activation="relu")
    assert decision.candidate("torch.linear_act").rejections[0].text.endswith("needs K >= 1; this is 0")
    with portakernel.policy(use=["torch.linear_act_unfused"]):
        assert torch.equal(ops.linear_act(x, weight, bias, activation="relu"), torch.tensor([[0.0, 1.0]] * 3))


def test_a_product_beyond_float16_is_brought_back_by_its_bias_whatever_the_strides_of_its_rows():
    x = torch.full((2, 3, 8), 300.0, dtype=torch.float16)[:, :, ::2]
    weight, bias = torch.full((5, 4), 75.0, dtype=torch.float16), torch.full((5,), -50000.0, dtype=torch.float16)
    y = ops.linear_act(x, weight, bias, kernel="torch.linear_act_unfused")
    assert y.eq(40000.0).all()


@pytest.mark.parametrize("kernel", ["torch.linear_act", "torch.linear_act_unfused", "torch.linear_act_saved"])
@pytest.mark.parametrize("terms", [9, 34, 39])
@pytest.mark.parametrize("batch", [(), (1, 3)])
def test_nothing_of_a_neighbour_comes_into_a_row_of_bfloat16(kernel, terms, batch):
    """On AMX oneDNN's products multiply what is behind a row by zero."""
    memory = torch.randn(*batch, 48, terms + 3).bfloat16()
    memory[..., terms:] = torch.nan
    memory[..., 7, :] = torch.nan
    weight = torch.randn(64, terms).bfloat16()
    for x in (memory[..., :terms], memory[..., :terms].contiguous()):
        y = ops.linear_act(x, weight, activation="relu", kernel=kernel)
        assert y.isnan().any(-1).sum() == y[..., 7, 0].numel()
