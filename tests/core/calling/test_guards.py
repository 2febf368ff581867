"""Each guard of the fast path: without it, a kernel that reads memory gives wrong numbers or loses a derivative."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from portakernel import ops as own_ops

# A fallback is told by a warning of its own, which test_call.py asserts.
pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    # torch's own forward-mode rules are scripted when first used
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=5e-5)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture(autouse=True)
def _warm(ops):
    """The key is in the table before each test: what follows is a hit unless a guard sends it elsewhere."""
    ops.add(normal(3, 4), normal(3, 4))
    ops.rms_norm(normal(3, 4), normal(4))


def test_plain_tensors_take_the_fast_path(ops, calls):
    x, y = normal(3, 4), normal(3, 4)
    assert_same(ops.add(x, y), x + y)
    assert calls == ["add"]
    assert ops.served("add") == {"raw_kernels.add": 2}


def test_a_lazily_negated_view_is_read_as_negated(ops, calls):
    negated = torch.complex(normal(3, 4), normal(3, 4)).conj().imag
    x = torch._neg_view(normal(3, 4))
    assert negated.is_neg()
    assert x.is_neg()
    assert_same(ops.add(x, x), x + x)
    assert_same(ops.add(normal(3, 4) * 0, negated.contiguous()), negated)
    assert_same(ops.add(negated, negated), negated.resolve_neg() * 2)


def test_a_conjugated_complex_view_is_refused_with_its_dtype(ops):
    x = torch.complex(normal(3, 4), normal(3, 4)).conj()
    with pytest.raises(TypeError, match=r"^add: x is complex64; it must be float32 or float16 or bfloat16, or"):
        ops.add(x, x)


def test_a_zero_tensor_is_zero_and_not_read(ops):
    zero = torch._efficientzerotensor((3, 4))
    x = normal(3, 4)
    assert_same(ops.add(x, zero), x)


def test_a_parameter_takes_the_fast_path_without_grad_mode(ops, monkeypatch):
    monkeypatch.setattr(ops.caller("rms_norm"), "torch_op", lambda: pytest.fail("went through torch's dispatcher"))
    weight = torch.nn.Parameter(normal(4))
    x = normal(3, 4)
    with torch.no_grad():
        assert_same(ops.rms_norm(x, weight), norm(x, weight))
    assert ops.served("rms_norm") == {"raw_kernels.rms_norm": 2}


def test_a_parameter_gets_its_gradient_in_grad_mode(ops, calls):
    weight = torch.nn.Parameter(normal(4))
    x = normal(3, 4)
    ops.rms_norm(x, weight).square().sum().backward()
    twin = weight.detach().clone().requires_grad_()
    norm(x, twin).square().sum().backward()
    assert weight.grad is not None
    assert twin.grad is not None
    assert_same(weight.grad, twin.grad)
    assert calls == ["rms_norm", "rms_norm_backward"]


def test_a_tensor_that_requires_grad_is_recorded(ops):
    x = normal(3, 4).requires_grad_()
    y = ops.add(x, x)
    y.sum().backward()
    assert x.grad is not None
    assert_same(x.grad, torch.full((3, 4), 2.0))


def test_forward_mode_duals_keep_their_tangents(ops):
    x, tangent, weight = normal(3, 4), normal(3, 4), normal(4)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(ops.rms_norm(forward_ad.make_dual(x, tangent), weight))
        wanted = forward_ad.unpack_dual(norm(forward_ad.make_dual(x, tangent), weight))
        assert found.tangent is not None
        assert wanted.tangent is not None
        assert_same(found.primal, wanted.primal)
        assert_same(found.tangent, wanted.tangent)
    assert ops.served("rms_norm", "forward_ad") == {"reference.rms_norm": 1}


def test_a_named_kernel_without_forward_mode_refuses_duals(ops):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(normal(3, 4), normal(3, 4))
        with pytest.raises(
            NotImplementedError, match=r"raw_kernels\.add +requires_grad +has no forward-mode derivative"
        ):
            ops.add(x, x, kernel="raw_kernels.add")


def test_vmap_sees_one_element_of_the_batch(ops):
    x, y = normal(5, 4), normal(5, 4)
    assert_same(torch.vmap(ops.add)(x, y), x + y)
    assert_same(torch.vmap(ops.add, in_dims=(0, None))(x, y[0]), x + y[0])
    weight = normal(4)
    assert_same(torch.vmap(ops.rms_norm, in_dims=(0, None))(x, weight), norm(x, weight))
    weights = normal(5, 4)
    assert_same(torch.vmap(ops.rms_norm, in_dims=(0, 0))(x, weights), norm(x, weights))


def test_functional_transforms_differentiate(ops):
    x, weight = normal(3, 4), normal(4)
    assert_same(
        torch.func.grad(lambda x: ops.rms_norm(x, weight).square().sum())(x),
        torch.func.grad(lambda x: norm(x, weight).square().sum())(x),
    )
    per_row = torch.func.vmap(
        torch.func.grad(lambda x, w: ops.rms_norm(x, w).square().sum(), argnums=(0, 1)), (0, None)
    )
    wanted_per_row = torch.func.vmap(torch.func.grad(lambda x, w: norm(x, w).square().sum(), argnums=(0, 1)), (0, None))
    for found, wanted in zip(per_row(x, weight), wanted_per_row(x, weight), strict=True):
        assert_same(found, wanted)
    _, found = torch.func.jvp(lambda x: ops.rms_norm(x, weight), (x,), (x,))
    _, wanted = torch.func.jvp(lambda x: norm(x, weight), (x,), (x,))
    assert_same(found, wanted)


def test_inference_mode_gives_inference_tensors_on_the_fast_path(ops, calls, monkeypatch):
    monkeypatch.setattr(ops.caller("add"), "torch_op", lambda: pytest.fail("went through torch's dispatcher"))
    x = normal(3, 4)
    with torch.inference_mode():
        y = ops.add(x, x)
        assert_same(ops.add(y, x), 3 * x)
    assert y.is_inference()
    assert calls == ["add", "add"]


def test_autocast_promotes_what_the_contract_says(ops, calls):
    x, y = normal(3, 4), normal(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ops.add(x, y)
        unchanged = ops.rms_norm(x.bfloat16(), normal(4))
    assert found.dtype is torch.float32
    assert_same(found, x + y.float())
    assert unchanged.dtype is torch.bfloat16
    with pytest.raises(TypeError, match=r"^add: y is bfloat16; it must be float32$"):
        ops.add(x, y)


def test_autocast_casts_what_has_the_first_argument_s_dtype_in_the_format_that_is_asked_for():
    x, w_in, w_out, weights = normal(3, 8), normal(2, 8, 8), normal(2, 8, 4), normal(3, 1)
    experts = torch.tensor([[0], [1], [0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = own_ops.moe_mlp(x, w_in, w_out, weights, experts)
        grad_x = torch.func.grad(lambda x: own_ops.moe_mlp(x, w_in, w_out, weights, experts).float().sum())(x)
    assert found.dtype is torch.bfloat16
    assert grad_x.dtype is torch.float32
    low = (tensor.bfloat16() for tensor in (x, w_in, w_out))
    assert torch.equal(found, own_ops.moe_mlp(*low, weights, experts))


def test_gradients_inside_of_autocast_are_those_outside():
    x, w_in, w_out, weights = (normal(*shape).bfloat16() for shape in ((3, 8), (2, 8, 8), (2, 8, 4), (3, 1)))
    experts = torch.tensor([[0], [1], [0]])
    x.requires_grad_()
    (wanted,) = torch.autograd.grad(own_ops.moe_mlp(x, w_in, w_out, weights, experts).float().sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(own_ops.moe_mlp(x, w_in, w_out, weights, experts).float().sum(), x)
    assert torch.equal(found, wanted)


class Logged(torch.Tensor):
    """A subclass that keeps the names of the functions it sees."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_subclass_sees_the_op(ops, calls):
    x = normal(3, 4).as_subclass(Logged)
    Logged.seen.clear()
    y = ops.add(x, normal(3, 4))
    assert type(y) is Logged
    assert Logged.seen[0] == f"{ops.caller('add').namespace}.add"
    assert calls == ["add"]


def test_a_wrapper_subclass_has_no_memory_of_its_own(ops, calls):
    a, b = normal(3, 4), normal(3, 4)
    y = ops.add(TwoTensor(a, b), TwoTensor(b, b))
    assert type(y) is TwoTensor
    assert_same(y.a, a + b)
    assert_same(y.b, b + b)


def test_a_dispatch_mode_sees_the_op(ops, calls):
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        ops.add(normal(3, 4), normal(3, 4))
    assert f"{ops.caller('add').namespace}.add.default" in seen
    assert calls == ["add"]


def test_a_function_mode_sees_the_op(ops, calls):
    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = normal(3, 4)
    with Mode():
        ops.add(x, x)
    assert any(name.startswith(ops.caller("add").namespace) for name in seen)
    assert calls == ["add"]


def test_meta_tensors_get_shapes_alone(ops, calls):
    y = ops.rms_norm(torch.empty(3, 4, device="meta"), torch.empty(4, device="meta"))
    assert (y.device.type, y.shape) == ("meta", (3, 4))
    assert calls == []


def test_a_number_that_is_no_float_takes_the_slow_path_with_the_same_result(ops):
    x, weight = normal(3, 4), normal(4)
    assert_same(ops.rms_norm(x, weight, eps=0), ops.rms_norm(x, weight, eps=0.0))


@pytest.mark.parametrize("eps", [True, "1e-6", None, torch.tensor(1e-6)])
def test_a_parameter_that_is_no_number_is_refused(ops, eps):
    with pytest.raises(TypeError, match=rf"^rms_norm: eps must be a number from 0 up; this is {type(eps).__name__} "):
        ops.rms_norm(normal(3, 4), normal(4), eps=eps)
