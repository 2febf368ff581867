"""What OpenCL makes difficult about ops over rows; their numbers are the conformance kit's to prove."""

from __future__ import annotations

import opencl_backend.launch
import pytest
import torch
from opencl_backend.add_rms_norm import add_rms_norm
from opencl_backend.quantize_fp8 import quantize_fp8
from opencl_backend.rms_norm import grad_weight, rms_norm
from opencl_backend.rotary_embedding import rotary_embedding
from opencl_backend.softmax import softmax
from torch import Tensor

import portakernel
from portakernel.authoring import ArgumentValueError

FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in parts of a few, as a device with small buffers has them."""
    monkeypatch.setattr(opencl_backend.launch, "_PART_BYTES", 1024)


def test_rows_in_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(300, 40), torch.randn(40)
    wanted = rms_norm(x, weight, eps=1e-6)
    monkeypatch.setattr(opencl_backend.launch, "_PART_BYTES", 1024)
    found = rms_norm(x, weight, eps=1e-6)
    assert isinstance(wanted, Tensor)
    assert isinstance(found, Tensor)
    assert torch.equal(found, wanted)


@pytest.mark.usefixtures("small_parts")
def test_a_weights_gradient_is_the_sum_over_all_parts() -> None:
    x, grad, weight = torch.randn(1000, 24), torch.randn(1000, 24), torch.ones(24)
    rstd = torch.rand(1000) + 0.5
    wanted = (grad.double() * x.double() * rstd.double()[:, None]).sum(0)
    torch.testing.assert_close(grad_weight(grad, x, weight, rstd).double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("granularity", ["tensor", "row", "block_1x128", "block_128x128"])
def test_scales_are_those_of_the_reference_whatever_the_parts(granularity: str) -> None:
    x = torch.randn(300, 200)
    q, scale = quantize_fp8(x, granularity=granularity, dtype="float8_e4m3fn")
    with portakernel.use("reference"):
        wanted, wanted_scale = portakernel.ops.quantize_fp8(x, granularity=granularity, dtype="float8_e4m3fn")
    assert torch.equal(scale, wanted_scale)
    assert torch.equal(q.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8_and_every_tie_between_two_is_rounded_as_torch_does(dtype: str) -> None:
    kind = getattr(torch, dtype)
    every = torch.arange(256, dtype=torch.uint8).view(kind).float()
    every = every[every.isfinite()].unique()
    ties = (every[1:] + every[:-1]) / 2
    # the largest number is among them, so that the scale is 1 and each element is rounded as it is
    x = torch.cat([every, ties, torch.nextafter(ties, torch.tensor(-1e9)), torch.nextafter(ties, torch.tensor(1e9))])
    q, scale = quantize_fp8(x[None], granularity="row", dtype=dtype)
    assert scale.tolist() == [[1.0]]
    assert torch.equal(q.float(), x[None].to(kind).float())


def test_out_may_be_both_inputs_of_add_rms_norm() -> None:
    x, residual, weight = torch.randn(7, 33), torch.randn(7, 33), torch.randn(33)
    wanted = add_rms_norm(x, residual, weight, eps=1e-6)
    found = add_rms_norm(x, residual, weight, eps=1e-6, out=(x, residual))
    assert found[0] is x
    assert found[1] is residual
    assert torch.equal(x, wanted[0])
    assert torch.equal(residual, wanted[1])


def test_a_weight_that_lies_in_the_output_is_read_before_it_is_overwritten() -> None:
    memory = torch.randn(6, 16)
    x, weight = torch.randn(6, 16), memory[3]
    wanted = rms_norm(x, weight.clone(), eps=1e-6)
    assert isinstance(wanted, Tensor)
    rms_norm(x, weight, eps=1e-6, out=memory)
    assert torch.equal(memory, wanted)


def test_a_row_with_a_nan_or_an_infinity_is_nan_throughout_and_no_other() -> None:
    x = torch.zeros(4, 20)
    x[0, 19], x[1, 3], x[2, 5] = float("nan"), float("inf"), float("-inf")
    found = softmax(x)
    assert found.isnan().any(1).tolist() == [True, True, False, False]
    assert found.isnan().all(1).tolist() == [True, True, False, False]


@pytest.mark.parametrize("position", [-1, 4])
def test_a_position_outside_the_tables_is_refused_before_memory_is_read(position: int) -> None:
    q, tables = torch.randn(1, 2, 8), torch.randn(4, 4)
    with pytest.raises(IndexError, match=r"positions must lie in 0 \.\.\. 3, the rows of cos and sin"):
        rotary_embedding(q, q, tables, tables, torch.tensor([position]))


def test_tables_that_are_too_short_are_refused_as_the_reference_does() -> None:
    q, tables = torch.randn(5, 2, 8), torch.randn(4, 4)
    with pytest.raises(ArgumentValueError, match=r"cos and sin have 4 positions \(L\), but the last leading dim"):
        rotary_embedding(q, q, tables, tables)
