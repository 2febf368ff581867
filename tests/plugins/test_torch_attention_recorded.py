"""Attention whose gradient PyTorch records itself: the derivatives that its operators have not, and what it takes."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch.func import grad, jacrev
from torch.utils.checkpoint import checkpoint

import portakernel
from portakernel import ops
from portakernel_plugins.torch.attention.recorded import check_flash, check_flash_cpu

KERNEL = "torch.attention_flash_cpu_recorded"


def draw(S, T, *, needs="qkv", D=16):  # noqa: N803 - the contract's letters
    shapes = {"q": (2, S, 4, D), "k": (2, T, 2, D), "v": (2, T, 2, D)}
    return [torch.randn(shape).requires_grad_(name in needs) for name, shape in shapes.items()]


def derivatives(kernel, tensors, **options):
    """First gradients, and those of the sum of their squares."""
    asked = [tensor for tensor in tensors if tensor.requires_grad]
    y = ops.attention(*tensors, **options, kernel=kernel)
    first = torch.autograd.grad(y.square().sum(), asked, create_graph=True)
    return (*first, *torch.autograd.grad(sum(grad.square().sum() for grad in first), asked))


@pytest.mark.parametrize("scale", [None, 0.5, -0.5, 0.0])
@pytest.mark.parametrize(
    ("sizes", "causal", "needs"),
    [((5, 5), True, "qkv"), ((3, 7), False, "kv"), ((1, 6), True, "q"), ((4, 4), True, "v")],
)
def test_gradients_and_their_gradients_are_those_of_the_formula(sizes, causal, needs, scale):
    tensors, options = draw(*sizes, needs=needs), {"causal": causal, "scale": scale}
    for found, wanted in zip(
        *(derivatives(kernel, tensors, **options) for kernel in (KERNEL, "reference")), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


def nested_jacobians(loss):
    return jacrev(jacrev(loss))


def third_gradient(loss):
    once = lambda f: grad(lambda q: f(q).square().sum())  # noqa: E731 - one step of three
    return once(once(grad(loss)))


@pytest.mark.parametrize("of", [nested_jacobians, third_gradient])
def test_transforms_find_all_derivatives_though_it_goes_first_outside(of):
    (q, *_) = draw(3, 3, needs="")
    losses = (partial(ops.attention, kernel=kernel) for kernel in (None, "reference"))
    found = [of(lambda q, by=by: by(q, q, q).square().sum())(q) for by in losses]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3 * found[1].abs().max().item())


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_second_derivatives_of_one_gradient(asked):
    tensors = draw(4, 4)

    def second(kernel):
        y = ops.attention(*tensors, kernel=kernel)
        (first,) = torch.autograd.grad(y.square().sum(), [tensors[asked]], create_graph=True)
        return torch.autograd.grad(first.square().sum(), tensors)

    for found, wanted in zip(second(KERNEL), second("reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


def test_what_backward_used_is_freed_with_it():
    q, k, v = (tensor * 1 for tensor in draw(4, 4))
    memory = weakref.ref(q.untyped_storage())
    y = ops.attention(q, k, v, kernel=KERNEL)
    del q
    gc.disable()  # no cycle is to be found first
    try:
        assert memory() is not None
        y.sum().backward()
        assert memory() is None
    finally:
        gc.enable()


def test_a_graph_that_goes_takes_what_it_saved_with_it():
    q, k, v = (tensor * 1 for tensor in draw(4, 4))
    memory = weakref.ref(q.untyped_storage())
    y = ops.attention(q, k, v, kernel=KERNEL)
    del q
    gc.disable()
    try:
        (first,) = torch.autograd.grad(y.square().sum(), [v], create_graph=True)
        assert memory() is not None
        del y, first
        assert memory() is None
    finally:
        gc.enable()


def test_a_change_of_what_it_saved_is_seen():
    q, k, v = (tensor * 1 for tensor in draw(4, 4))
    y = ops.attention(q, k, v, kernel=KERNEL)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward(create_graph=True)


def checkpointed(run):
    return lambda *tensors: checkpoint(run, *tensors, use_reentrant=False)


def on_cpu(run):
    def hooked(*tensors):
        with torch.autograd.graph.save_on_cpu():
            return run(*tensors)

    return hooked


@pytest.mark.parametrize("within", [checkpointed, on_cpu])
def test_second_derivatives_where_hooks_keep_what_is_saved(within):
    tensors = draw(4, 4)

    def second(kernel, within=within):
        y = within(partial(ops.attention, kernel=kernel))(*tensors)
        (first,) = torch.autograd.grad(y.square().sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(first.square().sum(), tensors)

    for found, wanted in zip(second(KERNEL), second("reference", lambda run: run), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


def test_it_goes_first_where_few_rows_are_trained_and_nowhere_else():
    tensors = draw(8, 8)
    assert portakernel.explain("attention", *tensors, phase="training").chosen.name == KERNEL
    assert portakernel.explain("attention", *draw(8, 8, needs="")).chosen.name != KERNEL
    assert portakernel.explain("attention", *tensors, phase="training", compiled=True).chosen.name != KERNEL
    many = draw(300, 300)
    assert portakernel.explain("attention", *many, phase="training").chosen.name != KERNEL


@pytest.mark.parametrize(
    ("check", "sizes", "text"),
    [
        (check_flash_cpu, {"causal": True, "S": 3, "T": 5, "D": 8, "E": 8}, "this is S = 3, T = 5"),
        (check_flash_cpu, {"causal": True, "S": 5, "T": 3, "D": 8, "E": 8}, "this is S = 5, T = 3"),
        (check_flash_cpu, {"causal": False, "S": 5, "T": 3, "D": 8, "E": 16}, "this is D = 8, E = 16"),
        (check_flash, {"causal": True, "S": 5, "T": 3, "D": 8, "E": 8}, "this is S = 5, T = 3"),
        (check_flash, {"causal": False, "S": 5, "T": 3, "D": 8, "E": 16}, "this is D = 8, E = 16"),
    ],
)
def test_what_it_does_not_take(check, sizes, text):
    rejection = check(**sizes)
    assert rejection is not None
    assert text in rejection.text
    assert check(**{**sizes, "T": sizes["S"], "E": sizes["D"]}) is None
