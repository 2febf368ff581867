"""The torch plugin's chains of operators on CPUs, at sizes that take several blocks of rows."""

from __future__ import annotations

import pytest
import torch

from portakernel import ops
from portakernel.references import gelu_and_mul, rms_norm, rotary_embedding, silu_and_mul
from portakernel_plugins.torch.norms.row_blocks import BLOCK_ELEMENTS, row_blocks


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(20261123)


def near(ours, wanted, dtype):
    """Within a rounding to ``dtype`` of the float64 result, and a few of float32."""
    step = torch.finfo(dtype).eps if dtype is not torch.float32 else 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours.double(), wanted, rtol=step, atol=step * float(wanted.abs().max()) / 16)


@pytest.mark.parametrize(
    ("leading", "width"),
    [((7,), 3), ((1000,), 1000), ((3, 500, 2), 900), ((), 5), ((2, 1), BLOCK_ELEMENTS + 1), ((0, 4), 8), ((5, 0), 8)],
)
def test_blocks_cover_every_row_once(leading, width):
    counted = torch.zeros(leading, dtype=torch.int64)
    for rows in row_blocks(leading, width):
        counted[rows] += 1
    assert bool((counted == 1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "reference"), [(ops.silu_and_mul, silu_and_mul), (ops.gelu_and_mul, gelu_and_mul)])
def test_gated_activations_of_many_rows(op, reference, dtype):
    x = torch.randn(3, 700, 1026).to(dtype)[:, 1:, 2:].requires_grad_()
    grad = torch.randn(3, 699, 512).to(dtype)
    values = {"approximate": "none"} if reference is gelu_and_mul else {}
    y = op(x, kernel=f"torch.{op.__name__}_cpu")
    y.backward(grad)
    near(y, reference.forward(x.detach().double(), **values), dtype)
    (wanted,) = reference.backward(grad.double(), x.detach().double(), **values)
    near(x.grad, wanted, dtype)


def test_an_out_with_steps_between_its_elements_is_written_whole():
    # PyTorch's gelu leaves some of them as they are (2.13)
    x, out = torch.randn(128), torch.full((128,), float("nan"))[::2]
    assert ops.gelu_and_mul(x, out=out, kernel="torch.gelu_and_mul_cpu") is out
    near(out, gelu_and_mul.forward(x.double(), approximate="none"), torch.float32)


def _views(rows, width, dtype):
    """Rows without gaps, with gaps, and side by side."""
    whole = torch.randn(rows, width + 6).to(dtype)
    return whole[:, :width].contiguous(), whole[:, 3:-3], torch.randn(width, rows).to(dtype).t()


def _same_bits_alone(call, rows, width, dtype):
    """Whether each of some rows has in a call of its own the bits that it has among all, in every layout."""
    for x in _views(rows, width, dtype):
        among = call(x)
        for row in (0, rows // 2, rows - 1):
            alone = call(x[row : row + 1])
            if not all(one[0].equal(all_rows[row]) for one, all_rows in zip(alone, among, strict=True)):
                return False
    return True


SIZES = [(3, 130), (900, 334), (300, 4096)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_a_norm_of_a_row_does_not_depend_on_its_neighbours(rows, width, dtype):
    weight, values = torch.randn(width, dtype=dtype), {"eps": 1e-6, "weight_offset": 1.0}

    def norm(x):
        return (ops.rms_norm(x, weight, **values, kernel="torch.rms_norm_cpu"),)

    def norm_of_sum(x):
        return ops.add_rms_norm(x, x, weight, **values, kernel="torch.add_rms_norm_cpu")

    assert _same_bits_alone(norm, rows, width, dtype)
    assert _same_bits_alone(norm_of_sum, rows, width, dtype)


@pytest.fixture
def _one_thread():
    # Several divide rows where it happens, and PyTorch computes the last few elements of a part by other functions
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("op", [ops.silu_and_mul, ops.gelu_and_mul])
def test_a_gated_activation_of_a_row_does_not_depend_on_its_neighbours(op, rows, width, dtype):
    assert _same_bits_alone(lambda x: (op(x, kernel=f"torch.{op.__name__}_cpu"),), rows, width, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [5, 1500])
def test_add_rms_norm_may_write_over_what_it_reads(rows, dtype):
    x, residual, weight = torch.randn(rows, 512).to(dtype), torch.randn(rows, 512).to(dtype), torch.randn(512)
    y, summed = ops.add_rms_norm(x, residual, weight, eps=1e-6, kernel="torch.add_rms_norm_cpu")
    near(y, rms_norm.forward((x + residual).double(), weight.double(), eps=1e-6), dtype)
    ops.add_rms_norm(x, residual, weight, eps=1e-6, out=(x, residual), kernel="torch.add_rms_norm_cpu")
    assert x.equal(y)
    assert residual.equal(summed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_gradients_of_rms_norm_of_many_rows(dtype, offset):
    x = torch.randn(1500, 520).to(dtype)[:, 4:516].requires_grad_()
    weight, grad = torch.randn(512, dtype=dtype, requires_grad=True), torch.randn(1500, 512).to(dtype)
    y = ops.rms_norm(x, weight, eps=1e-6, weight_offset=offset, kernel="torch.rms_norm_cpu")
    y.backward(grad)
    wide, w = x.detach().double(), weight.detach().double()
    values = {"eps": 1e-6, "weight_offset": offset}
    wanted, rstd = rms_norm.forward(wide, w, **values, save=True)
    near(y, wanted, dtype)
    for ours, exact in zip(
        (x.grad, weight.grad), rms_norm.backward(grad.double(), wide, w, rstd, **values), strict=True
    ):
        near(ours, exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_positions", [False, True])
def test_rotary_positions_of_many_tokens(dtype, interleaved, with_positions):
    q = torch.randn(2, 700, 6, 65).to(dtype)[..., :64].requires_grad_()
    k = torch.randn(2, 700, 2, 64).to(dtype).requires_grad_()
    angles = torch.randn(900, 24)
    tables = angles.cos().to(dtype), angles.sin().to(dtype)
    positions = torch.randint(0, 900, (2, 700)) if with_positions else None
    given = {"interleaved": interleaved}
    turned = ops.rotary_embedding(q, k, *tables, positions, **given, kernel="torch.rotary_embedding_cpu")
    grads = [torch.randn_like(x) for x in turned]
    torch.autograd.backward(turned, grads)
    exact = [tensor.double() for tensor in tables]
    wanted = rotary_embedding.forward(q.detach().double(), k.detach().double(), *exact, positions, **given)
    back = rotary_embedding.backward(*(grad.double() for grad in grads), *exact, positions, **given)
    for ours, right in zip((*turned, q.grad, k.grad), (*wanted, *back[:2]), strict=True):
        near(ours, right, dtype)
