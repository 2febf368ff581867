"""A recorded call of a kind seen before: one autograd node without torch's dispatcher, and all autograd promises."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import portakernel.runtime
from portakernel.calling.fast.key_layout import CallKind
from portakernel.claims.request import Phase
from portakernel.deciding.policies import make_layer
from portakernel.errors import FallbackWarning, NoKernelError

pytestmark = pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def assert_same(found, wanted) -> None:
    """Equal but for roundings, measured by the largest element: where large terms cancel, a small one has theirs."""
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * (1 + other.abs().max().item()))


def gradients(function, x: torch.Tensor, weight: torch.Tensor, **more) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(function(x, weight).square().sum(), (x, weight), **more)


@pytest.fixture
def arguments(ops):
    """Arguments that need gradients, for calls that were seen before."""
    x, weight = normal(3, 4).requires_grad_(), normal(4).requires_grad_()
    ops.rms_norm(x, weight).sum().backward()
    x.grad = weight.grad = None
    return x, weight


@pytest.fixture
def eager(ops, monkeypatch):
    """From now on calls must not go through torch's dispatcher."""
    refuse = lambda *_: pytest.fail("went through torch's dispatcher")  # noqa: E731 - a stand-in
    monkeypatch.setattr(ops.caller("rms_norm"), "torch_op", refuse)


def test_gradients_are_those_of_the_formula(ops, arguments, eager, calls):
    assert_same(gradients(ops.rms_norm, *arguments), gradients(norm, *arguments))
    assert calls == ["rms_norm", "rms_norm_backward"]
    assert ops.served("rms_norm", "training") == {"raw_kernels.rms_norm": 2}
    assert ops.served("rms_norm", "backward") == {"raw_kernels.rms_norm": 2}


def test_only_what_needs_a_gradient_gets_one(ops, arguments):
    x, weight = arguments
    y = ops.rms_norm(x.detach(), weight)
    y.sum().backward()
    assert x.grad is None
    wanted = torch.autograd.grad(norm(x.detach(), weight).sum(), weight)
    assert_same((weight.grad,), wanted)


def test_without_grad_mode_nothing_is_recorded(ops, arguments, eager):
    with torch.no_grad():
        assert not ops.rms_norm(*arguments).requires_grad
    assert ops.rms_norm(*arguments).requires_grad


def test_an_identity_gradient_is_passed_on(ops):
    x, y = normal(3, 4).requires_grad_(), normal(3, 4).requires_grad_()
    for _ in range(2):
        x.grad = y.grad = None
        (ops.add(x, y) * 3).sum().backward()
        assert_same((x.grad, y.grad), (torch.full((3, 4), 3.0), torch.full((3, 4), 3.0)))


def test_a_kernel_that_saves_in_its_own_way_gets_back_what_it_saved(ops, calls):
    ops.dispatcher.set_process_layer(make_layer("set_policy", use="raw_kernels.own"))
    x, weight = normal(3, 4).requires_grad_(), normal(4).requires_grad_()
    for _ in range(2):
        assert_same(gradients(ops.rms_norm, x, weight), gradients(norm, x, weight))
    assert calls == ["own", "own_backward"] * 2


def test_a_policy_that_changes_before_backward_leaves_it_to_what_can_read_what_was_saved(ops, calls):
    ops.dispatcher.set_process_layer(make_layer("set_policy", use="raw_kernels.own"))
    x, weight = normal(3, 4).requires_grad_(), normal(4).requires_grad_()
    ops.rms_norm(x, weight).sum().backward()
    y = ops.rms_norm(x, weight)
    ops.dispatcher.set_process_layer(make_layer("set_policy", deny="torch"))
    found = torch.autograd.grad(y.square().sum(), (x, weight))
    assert_same(found, gradients(norm, x, weight))
    assert calls[-1] == "own_backward"


def test_a_second_derivative_is_that_of_the_formula(ops, arguments):
    x, weight = arguments

    def twice(function):
        first = gradients(function, x, weight, create_graph=True)
        return torch.autograd.grad(first[0].square().sum() + first[1].sum(), (x, weight))

    for derivative, wanted in zip(twice(ops.rms_norm), twice(norm), strict=True):
        # float32's sums of large terms that cancel: of 6,000 drawn the worst was off by 2e-6 of the largest
        torch.testing.assert_close(derivative, wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("levels", [2, 3])
def test_derivatives_of_derivatives_agree_under_saved_tensor_hooks(ops, arguments, levels):
    x, weight = arguments

    def derived(function):
        found = function(x, weight).pow(3).sum()
        for _ in range(levels - 1):
            found = sum(g.square().sum() for g in torch.autograd.grad(found, (x, weight), create_graph=True))
        return torch.autograd.grad(found, (x, weight))

    with torch.autograd.graph.save_on_cpu():
        found = derived(ops.rms_norm)
    for one, wanted in zip(found, derived(norm), strict=True):
        # float32's sums of large terms that cancel
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def test_checkpointing_computes_again_and_agrees(ops, arguments, calls):
    x, weight = arguments
    found = gradients(lambda x, w: checkpoint(ops.rms_norm, x, w, use_reentrant=False), x, weight)
    assert_same(found, gradients(norm, x, weight))
    assert calls == ["rms_norm", "rms_norm", "rms_norm_backward"]


def test_saved_tensors_go_through_their_hooks(ops, arguments):
    packed: list[torch.Size] = []
    x, weight = arguments
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t.shape), t.clone())[1], lambda t: t):
        y = ops.rms_norm(x, weight)
    assert torch.Size((3,)) in packed  # rstd
    assert_same(torch.autograd.grad(y.sum(), (x, weight)), torch.autograd.grad(norm(x, weight).sum(), (x, weight)))


def test_an_input_that_is_overwritten_before_backward_is_noticed(ops, arguments):
    x, weight = arguments
    y = ops.rms_norm(x, weight)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_batched_gradients_are_those_of_each(ops, arguments):
    x, weight = arguments
    y = ops.rms_norm(x, weight)
    many = normal(5, 3, 4)
    found = torch.autograd.grad(y, x, many, is_grads_batched=True, retain_graph=True)[0]
    wanted = torch.stack([torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in many])
    torch.testing.assert_close(found, wanted)


def test_lazily_negated_and_expanded_gradients_are_read_as_they_are(ops, arguments):
    x, weight = arguments
    wanted = torch.autograd.grad(norm(x, weight), (x, weight), torch.full((3, 4), -2.0))
    for grad in (torch._neg_view(torch.full((3, 4), 2.0)), torch.tensor(-2.0).expand(3, 4)):
        y = ops.rms_norm(x, weight)
        assert_same(torch.autograd.grad(y, (x, weight), grad), wanted)


def test_a_kernel_that_declines_leaves_the_call_to_the_next(ops):
    from raw_kernels import kernels

    ops.dispatcher.set_process_layer(make_layer("set_policy", prefer=("raw_kernels.picky", "torch.add")))
    x, before = normal(3, 4).requires_grad_(), kernels.CALLS.count("picky")
    for _ in range(3):
        x.grad = None
        ops.add(x, x).sum().backward()
        assert_same((x.grad,), (torch.full((3, 4), 2.0),))
    assert kernels.CALLS.count("picky") == before + 1
    assert ops.served("add", "training") == {"torch.add": 3}
    # where it declines below autograd it is too late for PyTorch to record a kernel's gradient
    ops.caller("add").torch_op()(x, x).sum().backward()
    assert ops.served("add", "training") == {"torch.add": 3, "raw_kernels.add": 1}


@contextmanager
def block(ops, **wishes):
    token = ops.dispatcher.context_layers.set((make_layer("context", **wishes),))
    try:
        yield
    finally:
        ops.dispatcher.context_layers.reset(token)


def test_a_policy_block_moves_a_recorded_call_too(ops, arguments, eager):
    with block(ops, prefer="torch"):
        assert_same(gradients(ops.rms_norm, *arguments), gradients(norm, *arguments))
    assert ops.served("rms_norm", "training")["torch.rms_norm_cpu"] == 1


@pytest.mark.parametrize("kernel", ["reference", "raw_kernels.own"])
def test_a_strict_kernel_is_recorded_without_torch_s_dispatcher_and_backward_is_its_own(ops, arguments, eager, kernel):
    strict = functools.partial(ops.rms_norm, kernel=kernel)
    for number in (1, 2):
        assert_same(gradients(strict, *arguments), gradients(norm, *arguments))
        for phase in ("training", "backward"):
            assert ops.served("rms_norm", phase)[f"{kernel}.rms_norm" if kernel == "reference" else kernel] == number


def test_backward_goes_by_forward_s_block_wherever_it_runs_unless_that_is_in_a_block_of_its_own(ops, arguments):
    with block(ops, use="reference"):
        y, z = ops.rms_norm(*arguments), ops.rms_norm(*arguments)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(torch.autograd.grad, y.square().sum(), arguments).result()
    assert_same(found, gradients(norm, *arguments))
    assert ops.served("rms_norm", "backward")["reference.rms_norm"] == 1
    with block(ops, prefer="raw_kernels.rms_norm"):
        torch.autograd.grad(z.sum(), arguments)
    assert ops.served("rms_norm", "backward") == {"raw_kernels.rms_norm": 2, "reference.rms_norm": 1}


def test_a_strict_kernel_in_a_block_keeps_its_backward_there(ops, arguments):
    with block(ops, prefer="torch"):
        for backward in (False, True):
            y = ops.rms_norm(*arguments, kernel="raw_kernels.own" if backward else "reference")
            torch.autograd.grad(y.sum(), arguments)
    assert ops.served("rms_norm", "backward") == {
        "raw_kernels.rms_norm": 1, "reference.rms_norm": 1, "raw_kernels.own": 1
    }  # fmt: skip


def test_second_derivatives_of_a_strict_kernel_are_those_of_the_formula(ops, arguments):
    strict = functools.partial(ops.rms_norm, kernel="raw_kernels.own")
    first = [gradients(function, *arguments, create_graph=True) for function in (strict, norm)]
    ours, wanted = (torch.autograd.grad(sum(g.square().sum() for g in grads), arguments) for grads in first)
    assert_same(ours, wanted)


def test_a_block_that_leaves_backward_no_kernel_is_refused_in_forward(ops, arguments, monkeypatch):
    decide = ops.dispatcher.decide

    def without_backward(request, *more):
        decision = decide(request, *more)
        return replace(decision, chosen=None) if request.phase is Phase.BACKWARD else decision

    monkeypatch.setattr(ops.dispatcher, "decide", without_backward)
    for _ in range(2):
        with block(ops, use="reference"), pytest.raises(NoKernelError):
            ops.rms_norm(*arguments)


@pytest.mark.parametrize("below_autograd", [False, True])
def test_nobody_misses_a_kernel_whose_gradient_pytorch_records(below_autograd, recwarn):
    asked = portakernel.runtime.caller("layer_norm")
    # of 16 bits it is not claimed here
    tensors = tuple(t if below_autograd else t.bfloat16() for t in (normal(3, 4), normal(4), normal(4)))
    request = asked.request(CallKind(Phase.TRAINING, below_autograd=below_autograd), tensors, (1e-5,))
    decision = asked.place(request, asked.dispatcher.policy()).decision
    assert (decision.chosen.name, decision.passed_over[0]) == ("torch.layer_norm_cpu", "torch.layer_norm_recorded")
    assert [warning for warning in recwarn if issubclass(warning.category, FallbackWarning)] == []


DECLINING = """\
import torch, portakernel_plugins.torch.softmax as module
from portakernel.authoring import CannotRun, ReasonCode, Rejection

def declining(function):
    def run(x, **more):
        if x.shape[-1] == 13:
            raise CannotRun(Rejection(ReasonCode.LIMIT, "too odd", "N"))
        return function(x, **more)
    return run

module.recorded, module.softmax = declining(module.recorded), declining(module.softmax)
import portakernel
for n in (8, 13, 13, 8, 13):
    x = torch.randn(3, n, requires_grad=True)
    y = portakernel.ops.softmax(x)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    y.square().sum().backward()
served = {one.kernel: one.calls for one in portakernel.stats() if one.phase == "training"}
assert served == {"torch.softmax_recorded": 2, "reference.softmax": 3}, served
"""


def test_kernels_that_decline_for_one_reason_leave_the_call_to_the_one_after_them(python):
    done = python("-c", DECLINING)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "first",
    [
        "torch.func.grad(loss)(x.detach())",
        "torch.vmap(loss)(torch.stack([x.detach()] * 2))",
        "with FakeTensorMode(allow_non_fake_inputs=True) as mode: loss(mode.from_tensor(x.detach()))",
    ],
    ids=["grad", "vmap", "fake"],
)
def test_an_op_that_is_first_used_where_tensors_are_not_real_is_trained_thereafter(python, first):
    code = f"""\
import warnings, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from portakernel import ops
warnings.simplefilter("ignore")
x = torch.randn(2, 5, 2, 8, requires_grad=True)
k = torch.randn(2, 300, 2, 8)  # so many keys that no kernel is recorded
def loss(q): return ops.attention(q, k, k).sum()
{first}
loss(x).backward()
assert x.grad.shape == x.shape
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
