"""``linear_act``'s reference against sums of Python's floats, against torch's own layers, and by differences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from portakernel.references import linear_act

INF, NAN = math.inf, math.nan
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh", "silu"]
# leading dimensions, N, K
SHAPES = [
    ((1,), 1, 1),
    ((), 3, 5),
    ((7,), 9, 13),
    ((2, 3), 5, 4),
    ((0,), 3, 4),
    ((3,), 0, 4),
    ((3,), 5, 0),
    ((2, 0), 0, 0),
]

TORCHS = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}
BY_HAND = {
    "none": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "gelu": lambda z: z / 2 * (1 + math.erf(z / math.sqrt(2))),
    "gelu_tanh": lambda z: z / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "silu": lambda z: z / (1 + math.exp(-z)),
}


def drawn(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def arguments(leading, n, k, *, seed, bias=True, dtype=torch.float64):
    x, weight = drawn(*leading, k, seed=seed, dtype=dtype), drawn(n, k, seed=seed + 1, dtype=dtype)
    return x, weight, drawn(n, seed=seed + 2, dtype=dtype) if bias else None


def trained(x, weight, bias, activation):
    """The output, and what backward is given."""
    y, *saved = linear_act.forward(x, weight, bias, activation=activation, save=True)
    assert len(saved) == (0 if activation in ("none", "relu") else 1)
    return y, (x, weight, y, *saved)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_an_output_is_its_definition(activation, bias):
    x, weight, b = arguments((6,), 5, 9, seed=1, bias=bias)
    added = [0.0] * 5 if b is None else b.tolist()
    want = [
        [
            BY_HAND[activation](math.fsum([p * q for p, q in zip(row, column, strict=True)] + [shift]))
            for column, shift in zip(weight.tolist(), added, strict=True)
        ]
        for row in x.tolist()
    ]
    found = linear_act.forward(x, weight, b, activation=activation)
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("leading", "n", "k"), SHAPES)
def test_output_preactivation_and_gradients_are_torchs(leading, n, k, bias, activation):
    tensors = arguments(leading, n, k, seed=4, bias=bias)
    given = [t.requires_grad_() for t in tensors if t is not None]
    preactivation = F.linear(*tensors)
    want = TORCHS[activation](preactivation)
    grad = drawn(*leading, n, seed=7)
    gradients = torch.autograd.grad(want, given, grad)
    with torch.no_grad():
        y, kept = trained(*tensors, activation)
        found = linear_act.backward(grad, *kept, activation=activation, needs=(True, True, bias))
    torch.testing.assert_close(y, want.detach(), rtol=1e-12, atol=1e-14)
    for saved in kept[3:]:
        torch.testing.assert_close(saved, preactivation.detach(), rtol=1e-13, atol=1e-14)
        assert saved.is_contiguous()
    assert (found[2] is not None) == bias
    for mine, theirs in zip(found, gradients, strict=False):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13)
        assert mine.is_contiguous()


class _LinearAct(torch.autograd.Function):
    """The reference's forward with the reference's backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation):
        y, kept = trained(x, weight, bias, activation)
        ctx.save_for_backward(*kept)
        ctx.activation = activation
        return y

    @staticmethod
    def backward(ctx, grad):
        needs = ctx.needs_input_grad[:3]
        return *linear_act.backward(grad, *ctx.saved_tensors, activation=ctx.activation, needs=needs), None


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_pass_gradcheck(activation, bias):
    tensors = [t if t is None else t.requires_grad_() for t in arguments((2, 3), 4, 5, seed=8, bias=bias)]
    assert torch.autograd.gradcheck(_LinearAct.apply, (*tensors, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sums_are_float32_and_rounded_once_after_the_activation(dtype, activation):
    x, weight, bias = arguments((40,), 30, 65, seed=11, dtype=dtype)
    y, kept = trained(x, weight, bias, activation)
    z = F.linear(x.double(), weight.double(), bias.double())
    sizes = F.linear(x.double().abs(), weight.double().abs(), bias.double().abs())
    half_ulp = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    subnormal = 2.0**-25 if dtype is torch.float16 else 0.0
    pairs = [(y, TORCHS[activation](z))] + [(saved, z) for saved in kept[3:]]
    for found, exact in pairs:
        assert found.dtype is dtype
        allowed = half_ulp * exact.abs() + 8 * 2.0**-24 * (sizes + 1) + subnormal
        assert bool(((found.double() - exact).abs() <= allowed * 1.0001).all())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_are_float32_inside_and_rounded_once(dtype, activation):
    x, weight, bias = arguments((40,), 30, 65, seed=14, dtype=dtype)
    grad = drawn(40, 30, seed=17, dtype=dtype)
    _, kept = trained(x, weight, bias, activation)
    found = linear_act.backward(grad, *kept, activation=activation)
    exact = linear_act.backward(grad.double(), *(t.double() for t in kept), activation=activation)
    sizes = linear_act.backward(grad.double().abs() * 1.2, *(t.double().abs() for t in kept[:3]))
    half_ulp = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    for mine, truth, size in zip(found, exact, sizes, strict=True):
        assert mine.dtype is dtype
        allowed = half_ulp * truth.abs() + 16 * 2.0**-24 * size
        assert bool(((mine.double() - truth).abs() <= allowed * 1.0001).all())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_plain_is_the_formula_in_the_inputs_own_dtype(activation):
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x, weight, bias = arguments((5,), 7, 11, seed=18, dtype=dtype)
        found, *saved = linear_act.plain(x, weight, bias, activation=activation)
        z = F.linear(x, weight, bias)
        assert found.dtype is dtype
        assert torch.equal(found, TORCHS[activation](z))
        assert len(saved) == (0 if activation in ("none", "relu") else 1)
        assert all(torch.equal(preactivation, z) for preactivation in saved)
    tensors = [t.requires_grad_() for t in arguments((5,), 7, 11, seed=18)]
    assert torch.autograd.gradcheck(lambda *given: linear_act.plain(*given, activation=activation)[0], tensors)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_reference_is_no_further_off_than_twice_the_plain_formula(dtype, activation):
    tensors = arguments((64,), 48, 96, seed=21, dtype=dtype)
    wide = [t.double().requires_grad_() for t in tensors]
    truth = linear_act.plain(*wide, activation=activation)[0]
    given = [t.clone().requires_grad_() for t in tensors]
    plain = linear_act.plain(*given, activation=activation)[0]
    grad = drawn(64, 48, seed=24, dtype=dtype)
    y, kept = trained(*tensors, activation)
    found = (y, *linear_act.backward(grad, *kept, activation=activation))
    plains = (plain, *torch.autograd.grad(plain, given, grad))
    truths = (truth, *torch.autograd.grad(truth, wide, grad.double()))
    for mine, other, exact in zip(found, plains, truths, strict=True):
        distance, theirs = ((t.detach().double() - exact.detach()).abs().max() for t in (mine, other))
        assert float(distance) <= 2 * float(theirs)


def gated(z, exponent):
    """``z * sigmoid(exponent)``, where an exponential beyond all floats divides to zero."""
    return z / (1 + math.exp(-exponent)) if exponent > -700 else 0.0


FAR_OUT = {
    "none": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "gelu": lambda z: z / 2 * math.erfc(-z / math.sqrt(2)),
    "gelu_tanh": lambda z: gated(z, math.sqrt(8 / math.pi) * (z + 0.044715 * z**3)),
    "silu": lambda z: gated(z, z),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_derivatives_keep_their_digits_far_out(activation):
    z = torch.tensor([-1e38, -1e13, -200.0, -30.0, -9.0, -5.0, -1.0, -1e-3, 1e-3, 1.0, 9.0, 200.0, 1e13, 1e38])
    x, one = z.unsqueeze(-1), torch.ones(1, 1)
    y = linear_act.forward(x, one, activation=activation)
    want = torch.tensor([[FAR_OUT[activation](v)] for v in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(y.double(), want, rtol=2e-5, atol=1e-44)
    slope = linear_act.backward(torch.ones_like(y), x, one, y, x, activation=activation)[0]
    wide = x.double().clamp(-1e4, 1e4).requires_grad_()
    (theirs,) = torch.autograd.grad(TORCHS[activation](wide).sum(), wide)
    torch.testing.assert_close(slope.double(), theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_a_preactivation_that_overflowed_passes_the_gradient_as_far_out(activation):
    z = torch.tensor([[INF], [-INF], [NAN]], dtype=torch.float16)
    one = torch.ones(1, 1, dtype=torch.float16)
    slope = linear_act.backward(torch.ones_like(z), z, one, z, z, activation=activation)[0]
    torch.testing.assert_close(slope, torch.tensor([[1.0], [0.0], [NAN]], dtype=torch.float16), equal_nan=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities_and_nan_come_out_as_from_torch(activation):
    x, weight = torch.tensor([[INF], [-INF], [NAN], [0.0], [-0.0]]), torch.tensor([[1.0], [-2.0]])
    found = linear_act.forward(x, weight, activation=activation)
    # in float64: torch's float32 gelu of +inf is NaN on some CPUs (torch 2.13)
    want = TORCHS[activation](F.linear(x, weight).double()).float()
    torch.testing.assert_close(found, want, equal_nan=True)


def test_relu_passes_the_gradient_where_torch_does():
    x = torch.tensor([[1.0], [0.0], [-0.0], [-2.0], [NAN], [INF], [-INF]], requires_grad=True)
    one = torch.ones(1, 1)
    y = linear_act.forward(x.detach(), one, activation="relu")
    for number in (1.0, INF, NAN):
        grad = torch.full_like(y, number)
        (want,) = torch.autograd.grad(F.relu(x), x, grad)
        found = linear_act.backward(grad, x.detach(), one, y, None, activation="relu")[0]
        torch.testing.assert_close(found, want, equal_nan=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_arguments_may_lie_anyhow(activation):
    base, table = drawn(4, 6, 20, seed=25), drawn(20, 20, seed=28)
    bias = drawn(18, seed=29)[::2]
    for x in (base[:, 1:5, 3:13], base[..., ::2], base.transpose(0, 1)[..., :10], base[:1, :, :10].expand(4, 6, 10)):
        for weight in (table[:9, :10], table.T[:9, :10], table[:9, ::2], table[:1, :10].expand(9, 10)):
            y, kept = trained(x, weight, bias, activation)
            near, copied = trained(x.contiguous(), weight.contiguous(), bias.contiguous(), activation)
            assert y.is_contiguous()
            torch.testing.assert_close(y, near, rtol=1e-13, atol=1e-14)
            grad = drawn(9, *x.shape[:-1], seed=30).movedim(0, -1)
            found = linear_act.backward(grad, *kept, activation=activation)
            want = linear_act.backward(grad.contiguous(), *copied, activation=activation)
            assert all(gradient.is_contiguous() for gradient in found)
            torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)


def test_the_result_is_written_into_out_wherever_it_lies():
    tensors = arguments((3,), 4, 5, seed=31, dtype=torch.bfloat16)
    want = linear_act.forward(*tensors, activation="silu", save=True)
    out = torch.full((4, 3), NAN, dtype=torch.bfloat16).T
    assert linear_act.forward(*tensors, activation="silu", out=out) is out
    assert torch.equal(out, want[0])
    y, preactivation = linear_act.forward(*tensors, activation="silu", out=out, save=True)
    assert y is out
    assert torch.equal(preactivation, want[1])


def test_only_what_is_needed_is_given():
    y, kept = trained(*arguments((3,), 4, 5, seed=34), "gelu")
    for needs in itertools.product((True, False), repeat=3):
        found = linear_act.backward(torch.ones_like(y), *kept, activation="gelu", needs=needs)
        assert tuple(gradient is not None for gradient in found) == needs
