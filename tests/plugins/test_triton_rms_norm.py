"""The Triton kernels of ``rms_norm`` compute its formula, in Triton's interpreter, on CPU tensors.

Everything is compared element by element with the formula in float64, in units in the last place (ulp).
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.tensors import rows
from portakernel.triton_launch.interpreter import interpreting
from portakernel.words.dtypes import parse_dtype
from portakernel_plugins.triton.norms import rms_norm

# One rounding, and what float32 adds before it; the interpreter truncates bfloat16, which is one ulp more.
FORWARD_ULP = {torch.float32: 8.0, torch.float16: 0.51, torch.bfloat16: 1.01}
BACKWARD_ULP = {torch.float32: 16.0, torch.float16: 0.51, torch.bfloat16: 1.01}
DTYPES = tuple(FORWARD_ULP)
EPS = 1e-6

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreting():
        yield


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ulps(actual: Tensor, exact: Tensor, magnitude: Tensor | None = None) -> float:
    """The largest distance, in ulp of ``actual``'s dtype at ``magnitude`` (at the exact value where not given)."""
    if actual.numel() == 0:
        return 0.0
    kind = parse_dtype(str(actual.dtype))
    _, exponent = torch.frexp(exact if magnitude is None else magnitude)
    ulp = torch.ldexp(torch.ones_like(exact), (exponent - 1).clamp(min=kind.min_exponent) - kind.mantissa_bits)
    return ((actual.double() - exact).abs() / ulp).max().item()


def formula(x: Tensor, weight: Tensor, eps: float = EPS, weight_offset: float = 0.0) -> tuple[Tensor, Tensor]:
    x, weight = x.double(), weight.double()
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * rstd * (weight + weight_offset), rstd.reshape(-1)


@dtypes
@pytest.mark.parametrize("shape", [(1, 1), (37, 1), (1, 7), (33, 7), (2, 128), (3, 129), (5, 1000), (1, 4096), (65,)])
def test_forward_is_the_formula_rounded_once(dtype, shape):
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=1)
    y = rms_norm.rms_norm(x, weight, eps=EPS)
    assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, dtype, True)
    assert ulps(y, formula(x, weight)[0]) <= FORWARD_ULP[dtype]


@dtypes
def test_weight_may_be_float32_beside_any_x(dtype):
    x, weight = draw(4, 50, dtype=dtype), draw(50, dtype=torch.float32, seed=1)
    y = rms_norm.rms_norm(x, weight, eps=EPS)
    assert y.dtype == dtype
    assert ulps(y, formula(x, weight)[0]) <= FORWARD_ULP[dtype]


@pytest.mark.parametrize(("eps", "weight_offset"), [(1e-6, 1.0), (0.5, 0.0), (1e-3, -0.5), (1, 1)])
def test_parameters_enter_the_formula(eps, weight_offset):
    x, weight = draw(3, 77, dtype=torch.float32), draw(77, dtype=torch.float32, seed=1)
    y = rms_norm.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
    assert ulps(y, formula(x, weight, eps, weight_offset)[0]) <= FORWARD_ULP[torch.float32]


@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (0,), (2, 0, 3)])
def test_saves_rstd_of_every_row_in_float32(leading):
    x, weight = draw(*leading, 40, dtype=torch.float16), draw(40, dtype=torch.float16, seed=1)
    y, rstd = rms_norm.rms_norm(x, weight, eps=EPS, save=True)
    exact_y, exact_rstd = formula(x, weight)
    assert (y.shape, rstd.shape, rstd.dtype) == (x.shape, exact_rstd.shape, torch.float32)
    assert ulps(y, exact_y) <= FORWARD_ULP[torch.float16]
    assert ulps(rstd, exact_rstd) <= 8


LAYOUTS = {
    "rows of a wider matrix": lambda: draw(5, 96, dtype=torch.float32)[:, :72],
    "three dimensions": lambda: draw(2, 3, 72, dtype=torch.float32),
    "expanded rows": lambda: draw(72, dtype=torch.float32).expand(4, 72),
    "expanded rows of three dimensions": lambda: draw(72, dtype=torch.float32).expand(2, 3, 72),
    "one row of a transposed matrix": lambda: draw(72, 1, dtype=torch.float32).t(),
    "every second row": lambda: draw(8, 72, dtype=torch.float32)[::2],
    "not at a 16-byte boundary": lambda: draw(3 * 72 + 1, dtype=torch.float32)[1:].view(3, 72),
    "one column with a stride": lambda: draw(5, 3, dtype=torch.float32)[:, 1:2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_rows_where_they_lie(layout):
    x = LAYOUTS[layout]()
    weight = draw(x.shape[-1], dtype=torch.float32, seed=1)
    assert rows.row_stride(x) is not None
    y = rms_norm.rms_norm(x, weight, eps=EPS)
    assert ulps(y, formula(x, weight)[0]) <= FORWARD_ULP[torch.float32]


@pytest.mark.parametrize("weight", [draw(100, dtype=torch.float32)[::2], draw(1, dtype=torch.float32).expand(50)])
def test_weight_may_have_any_stride(weight):
    x = draw(3, 50, dtype=torch.float32)
    assert ulps(rms_norm.rms_norm(x, weight, eps=EPS), formula(x, weight)[0]) <= FORWARD_ULP[torch.float32]


OUTS = {
    "contiguous": lambda: torch.full((4, 3, 40), -1.0),
    "rows of a wider tensor": lambda: torch.full((4, 3, 64), -1.0)[..., :40],
    "rows with two strides": lambda: torch.full((4, 5, 40), -1.0)[:, :3],
    "every second column": lambda: torch.full((4, 3, 80), -1.0)[..., ::2],
    "transposed": lambda: torch.full((40, 3, 4), -1.0).permute(2, 1, 0),
}


@pytest.mark.parametrize("layout", OUTS)
def test_out_is_filled_and_returned_whatever_its_strides(layout):
    x, weight = draw(4, 3, 40, dtype=torch.float32), draw(40, dtype=torch.float32, seed=1)
    out = OUTS[layout]()
    y, rstd = rms_norm.rms_norm(x, weight, eps=EPS, out=out, save=True)
    assert y is out
    assert ulps(out, formula(x, weight)[0]) <= FORWARD_ULP[torch.float32]
    assert ulps(rstd, formula(x, weight)[1]) <= 8
    if out._base is not None:  # what the view does not cover is as it was
        out.fill_(-1.0)
        assert torch.equal(out._base, torch.full_like(out._base, -1.0))


@pytest.mark.parametrize("width", [40, 64])
def test_out_may_be_x(width):
    x = draw(37, width, dtype=torch.float32)[:, :40]
    weight = draw(40, dtype=torch.float32, seed=1)
    exact, _ = formula(x, weight)
    assert rms_norm.rms_norm(x, weight, eps=EPS, out=x) is x
    assert ulps(x, exact) <= FORWARD_ULP[torch.float32]


def test_special_values_stay_in_their_row():
    x, weight = draw(6, 70, dtype=torch.float32), draw(70, dtype=torch.float32, seed=1)
    clean = rms_norm.rms_norm(x, weight, eps=EPS)
    x[1, 3], x[2, 4], x[4, :] = float("nan"), float("inf"), 0.0
    y = rms_norm.rms_norm(x, weight, eps=EPS)
    assert torch.equal(y[[0, 3, 5]], clean[[0, 3, 5]])
    assert y[1].isnan().all()
    torch.testing.assert_close(y[2], formula(x, weight)[0][2].float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y[4], torch.zeros(70))


@pytest.mark.parametrize("n", [7, 40, 1000])
def test_a_row_has_the_same_bits_in_any_batch(n):
    x, weight = draw(37, n, dtype=torch.float32), draw(n, dtype=torch.float32, seed=1)
    together = rms_norm.rms_norm(x, weight, eps=EPS)
    for some in (slice(0, 1), slice(5, 6), slice(3, 20)):
        assert torch.equal(rms_norm.rms_norm(x[some], weight, eps=EPS), together[some])


def exact_gradients(grad_y: Tensor, x: Tensor, weight: Tensor, weight_offset: float) -> tuple[Tensor, Tensor]:
    """Autograd of the float64 formula."""
    x, weight = x.double().detach().requires_grad_(), weight.double().detach().requires_grad_()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * (weight + weight_offset)
    grad_x, grad_weight = torch.autograd.grad(y, (x, weight), grad_y.double())
    return grad_x, grad_weight


def magnitudes(grad_y: Tensor, x: Tensor, weight: Tensor, weight_offset: float) -> tuple[Tensor, Tensor]:
    """The sums of absolute terms behind each gradient, which bound what rounding can do to it."""
    rstd = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
    g, u = grad_y.double().abs(), (x.double() * rstd).abs()
    gw = g * (weight.double() + weight_offset).abs()
    return rstd * (gw + u * (gw * u).mean(-1, keepdim=True)), (g * u).reshape(-1, x.shape[-1]).sum(0)


def assert_gradients(grad_y: Tensor, x: Tensor, weight: Tensor, weight_offset: float = 0.0) -> None:
    _, rstd = rms_norm.rms_norm(x, weight, eps=EPS, weight_offset=weight_offset, save=True)
    found = rms_norm.backward(grad_y, x, weight, rstd, eps=EPS, weight_offset=weight_offset, needs=(True, True))
    exact = exact_gradients(grad_y, x, weight, weight_offset)
    bounds = magnitudes(grad_y, x, weight, weight_offset)
    for gradient, argument, truth, magnitude in zip(found, (x, weight), exact, bounds, strict=True):
        assert (gradient.shape, gradient.dtype) == (argument.shape, argument.dtype)
        assert ulps(gradient, truth, magnitude) <= BACKWARD_ULP[argument.dtype]


@dtypes
@pytest.mark.parametrize("shape", [(1, 1), (37, 1), (40, 7), (3, 129), (2, 3, 96), (5, 1000), (50,)])
def test_backward_is_the_gradient_of_the_formula(dtype, shape):
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=1)
    assert_gradients(draw(*shape, dtype=dtype, seed=2), x, weight)


@dtypes
def test_backward_with_float32_weight_and_offset(dtype):
    x, weight = draw(19, 100, dtype=dtype), draw(100, dtype=torch.float32, seed=1)
    assert_gradients(draw(19, 100, dtype=dtype, seed=2), x, weight, weight_offset=1.0)


def test_backward_takes_several_steps_per_program():
    # 16 rows a step and four resident programs: the first takes three steps, the others two.
    x, weight = draw(131, 40, dtype=torch.float32), draw(40, dtype=torch.float32, seed=1)
    assert_gradients(draw(131, 40, dtype=torch.float32, seed=2), x, weight)


GRADIENTS = {
    "expanded from one number": lambda: torch.ones(()).expand(4, 6, 40),
    "expanded over rows": lambda: draw(40, dtype=torch.float32).expand(4, 6, 40),
    "rows of a wider tensor": lambda: draw(4, 6, 64, dtype=torch.float32)[..., :40],
    "transposed": lambda: draw(40, 6, 4, dtype=torch.float32).permute(2, 1, 0),
    "rows with two strides": lambda: draw(4, 9, 40, dtype=torch.float32)[:, :6],
}


@pytest.mark.parametrize("layout", GRADIENTS)
def test_backward_takes_any_layout_of_the_incoming_gradient(layout):
    x, weight = draw(4, 6, 40, dtype=torch.float32), draw(80, dtype=torch.float32, seed=1)[::2]
    assert_gradients(GRADIENTS[layout](), x, weight)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
def test_backward_gives_what_is_needed_and_no_more(needs):
    x, weight = draw(9, 40, dtype=torch.float32), draw(40, dtype=torch.float32, seed=1)
    grad_y = draw(9, 40, dtype=torch.float32, seed=2)
    _, rstd = rms_norm.rms_norm(x, weight, eps=EPS, save=True)
    both = rms_norm.backward(grad_y, x, weight, rstd, eps=EPS, needs=(True, True))
    found = rms_norm.backward(grad_y, x, weight, rstd, eps=EPS, needs=needs)
    for gradient, expected, needed in zip(found, both, needs, strict=True):
        assert (gradient is not None) == needed
        assert gradient is None or torch.equal(gradient, expected)


def test_backward_of_no_rows_is_a_zero_weight_gradient():
    x, weight, rstd = torch.empty(0, 3, 40), torch.ones(40), torch.empty(0)
    grad_x, grad_weight = rms_norm.backward(torch.empty(0, 3, 40), x, weight, rstd, eps=EPS, needs=(True, True))
    assert grad_x.shape == (0, 3, 40)
    assert torch.equal(grad_weight, torch.zeros(40))


@pytest.mark.parametrize(
    ("columns", "stride", "copied"), [(4100, 4112, True), (4096, 4112, False), (4100, 4101, True), (4100, 4108, False)]
)
def test_rows_that_lie_otherwise_than_one_alone_are_read_and_written_by_way_of_copies(columns, stride, copied):
    x = torch.zeros(2, stride)[:, :columns]
    found, found_stride = rows.with_row_stride(x)
    assert (found is not x) == copied
    assert found_stride == (columns if copied else stride)
    written, written_stride = rows.row_target(torch.zeros(2, columns), x)
    assert (written is not x) == copied
    assert written_stride == found_stride
