"""After a call of one kind, calls of another must not be taken for it: states in which memory may not be read."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

import portakernel
from portakernel.calling.bound_kernel import bind_kernel
from portakernel.claims.capability import CannotRun
from portakernel.deciding.policies import make_layer
from portakernel.errors import ArgumentTypeError, ArgumentValueError, DerivativeError, NoKernelError

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture
def leaves(ops):
    x, weight = normal(3, 4).requires_grad_(), normal(4).requires_grad_()
    for _ in range(2):
        torch.autograd.grad(ops.rms_norm(x, weight).sum(), (x, weight))
    return x, weight


NESTED = """
import torch, warnings
warnings.simplefilter("ignore")
import portakernel
from portakernel import ops

x = torch.randn(4, 8)
bound = portakernel.bind("add", x, x)
ops.add(x, x), ops.add(x, x, out=torch.empty(4, 8)), bound(x, x)
nested = torch.nested.nested_tensor([torch.randn(8)] * 4)
for call in (lambda: ops.add(nested, nested), lambda: ops.add(x, x, out=nested), lambda: bound(nested, nested)):
    try:
        call()
    except TypeError as error:
        print(error)
"""


def test_a_nested_tensor_is_refused_and_does_not_end_the_process(python):
    done = python("-c", NESTED, timeout=120)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "add: x is nested; dense (torch.strided) tensors are accepted",
            "add: out is nested; dense (torch.strided) tensors are accepted",
            "add: x is nested; dense (torch.strided) tensors are accepted",
        ],
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_out_of_another_layout_is_refused(ops):
    x = normal(3, 4)
    for out in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(ArgumentTypeError, match=rf"^add: out is {out.layout}; dense \(torch\.strided\) tensors"):
            ops.add(x, x, out=out)


def test_an_out_of_lower_rank_is_refused(ops):
    x, weight = normal(4), normal(4)
    ops.rms_norm(x, weight, out=torch.empty(4))
    with pytest.raises(ArgumentValueError, match=r"^rms_norm: out has shape \(\); the result has \(4,\)$"):
        ops.rms_norm(x, weight, out=torch.empty(()))


def test_a_kernel_that_declines_is_passed_over_with_out_too(ops, calls):
    ops.dispatcher.set_process_layer(make_layer("set_policy", prefer=("raw_kernels.picky", "torch.add")))
    x = normal(4)
    for _ in range(4):
        assert torch.equal(ops.add(x, x, out=torch.empty(4)), 2 * x)
    assert calls == ["picky"]


def test_a_bound_kernel_that_declines_says_so_with_out_too(ops):
    x = normal(4)
    handle = bind_kernel(ops.caller("add"), (x, x), (), "raw_kernels.picky")
    with pytest.raises(CannotRun):
        handle(x, x, out=torch.empty(4))


@pytest.mark.parametrize("unpacked", [lambda t: torch._neg_view(-t), lambda t: TwoTensor(t, t)])
def test_what_hooks_unpack_is_not_read_as_plain_memory(ops, leaves, unpacked):
    x, weight = leaves
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpacked):
        y = ops.rms_norm(x, weight)
    found = torch.autograd.grad(y.square().sum(), (x, weight))
    wanted = torch.autograd.grad(norm(x, weight).square().sum(), (x, weight))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(getattr(one, "a", one), other, rtol=0, atol=1e-5 * (1 + other.abs().max().item()))


def test_a_tangent_of_a_gradient_is_refused_and_not_lost(ops, leaves):
    x, weight = leaves
    y = ops.rms_norm(x, weight)
    with forward_ad.dual_level():
        grad = forward_ad.make_dual(torch.ones(3, 4), torch.ones(3, 4))
        with pytest.raises(DerivativeError, match="no forward-mode derivative at a dual level"):
            torch.autograd.grad(y, x, grad)


# torch's own, while it traces the graph
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Function.* should not be instantiated:DeprecationWarning")
def test_compiled_autograd_takes_calls_seen_before():
    def gradient():
        x, weight = normal(3, 4).requires_grad_(), normal(4).requires_grad_()
        loss = portakernel.ops.rms_norm(x, weight).square().sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            loss.backward()
        wanted = torch.autograd.grad(norm(x, weight).square().sum(), (x, weight))
        torch.testing.assert_close((x.grad, weight.grad), wanted, rtol=1e-4, atol=1e-4)

    torch._dynamo.reset()
    for _ in range(3):
        gradient()


FIRST_IN_INFERENCE_MODE = """
import torch
from portakernel import ops

with torch.inference_mode():
    ops.rms_norm(torch.randn(2, 8), torch.randn(8))
for _ in range(3):
    q = torch.randn(1, 4, 2, 8, requires_grad=True)
    ops.attention(q, q, q).sum().backward()
    assert q.grad is not None
"""


def test_a_first_use_in_inference_mode_leaves_training_whole(python):
    done = python("-c", FIRST_IN_INFERENCE_MODE, timeout=120)
    assert done.returncode == 0, done.stderr


def test_where_autograd_is_passed_by_nothing_is_recorded(ops, leaves):
    x, weight = leaves
    with torch.inference_mode(), torch.enable_grad():
        assert not ops.rms_norm(x, weight).requires_grad
    with torch._C._AutoDispatchBelowAutograd():
        assert not ops.rms_norm(x, weight).requires_grad
    assert ops.rms_norm(x, weight).requires_grad


class Doubled(torch.autograd.Function):
    """A backward that calls an op, on whatever gradients it is given."""

    @staticmethod
    def forward(ctx, x, add):
        ctx.add = add
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return ctx.add(grad, grad), None


def test_an_op_inside_a_batched_gradient_sees_one_at_a_time(ops):
    ops.add(normal(4), normal(4))
    x, many = normal(4).requires_grad_(), normal(5, 4)
    (found,) = torch.autograd.grad(Doubled.apply(x, ops.add), x, many, is_grads_batched=True)
    torch.testing.assert_close(found, 2 * many)


def test_a_functional_wrapper_is_no_plain_memory(ops):
    x = normal(3, 4)
    ops.add(x, x)
    wrapped = torch._to_functional_tensor(x.clone())
    torch._sync(wrapped)
    found = ops.add(wrapped, wrapped)
    torch._sync(found)
    torch.testing.assert_close(torch._from_functional_tensor(found), 2 * x)


def test_a_policy_that_changes_while_a_kernel_is_named_leaves_no_wrong_choice(ops):
    caller, x = ops.caller("add"), normal(4)
    denying, finished = make_layer("set_policy", deny="torch.add"), threading.Event()

    def change():
        for turn in range(300):
            ops.dispatcher.set_process_layer(denying if turn % 2 else None)
        finished.set()

    other = threading.Thread(target=change)
    other.start()
    while not finished.is_set():
        caller.policies.pinned.clear()
        caller.policies.named.clear()
        with contextlib.suppress(NoKernelError):  # where it is denied just now
            ops.add(x, x, kernel="torch.add")
        for (_, above), pinned in list(caller.policies.pinned.items()):
            assert pinned.layers[1:] == above.layers
    other.join()


def test_counts_are_right_when_the_table_overflows_in_the_middle(ops, monkeypatch):
    monkeypatch.setattr("portakernel.calling.key_table.MAX_KEYS", 1)
    ops.dispatcher.set_process_layer(make_layer("set_policy", prefer=("raw_kernels.picky", "torch.add")))
    for size in (5000, 5001, 5002):  # declined for all sizes: the placement is replaced
        ops.add(normal(size), normal(size))
    assert sum(ops.served("add").values()) == 3


def test_warmup_of_a_function_with_a_bound_handle_runs_it():
    x, weight = normal(3, 8), normal(8)
    handle = portakernel.bind("rms_norm", x, weight)
    found = portakernel.warmup(lambda: portakernel.ops.softmax(handle(x, weight)))
    assert found.settled
    assert [call.request.op for call in found.calls] == ["softmax"]


def test_warmup_of_what_would_not_run_is_refused():
    async def later():
        return portakernel.ops.softmax(normal(2, 3))

    with pytest.raises(ArgumentTypeError, match="only makes what runs later; wrap it"):
        portakernel.warmup(later)
    with pytest.raises(ArgumentValueError, match=r"^softmax: on meta tensors nothing runs"):
        portakernel.warmup("softmax", normal(2, 3).to("meta"))
    with pytest.raises(ArgumentValueError, match=r"^softmax: device 'tpu:0' cannot be used here; known: "):
        portakernel.warmup("softmax", dtype="float32", shape={"x": (2, 3)}, device="tpu:0")


def test_required_tensors_may_be_named():
    x, weight = normal(3, 8), normal(8)
    assert portakernel.bind("rms_norm", x, weight=weight).kernel
    assert portakernel.explain("rms_norm", x, weight=weight).chosen
    with pytest.raises(ArgumentTypeError, match=r"^rms_norm: weight is not given$"):
        portakernel.bind("rms_norm", x)


def test_an_unknown_keyword_of_a_handle_is_told_with_the_ops_name(ops):
    handle = bind_kernel(ops.caller("rms_norm"), (normal(3, 4), normal(4)), (1e-6, 0.0), None)
    with pytest.raises(
        TypeError,
        match=r"^bound rms_norm \[raw_kernels\.rms_norm on .*\]\(\) got an unexpected keyword argument 'foo'$",
    ):
        handle(normal(3, 4), normal(4), foo=1)


def test_a_handle_takes_parameters_by_keyword_alone(ops):
    handle = bind_kernel(ops.caller("rms_norm"), (normal(3, 4), normal(4)), (1e-6, 0.0), None)
    with pytest.raises(TypeError, match=r"^rms_norm\(\) takes 2 positional arguments but 3 were given$"):
        handle(normal(3, 4), normal(4), 0.5)
