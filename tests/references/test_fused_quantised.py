"""What norms and gates in float8 are: the formula in Python's own arithmetic, quantised without a rounding between.

``test_quantised`` holds the conversions themselves to their specifications, bit by bit.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from portakernel.references import (
    add_rms_norm_quantize,
    quantize_fp8,
    rms_norm,
    rms_norm_quantize,
    silu_and_mul,
    silu_and_mul_quantize,
)

EPS = 1e-6
# Largest number, bits of the fraction, exponent of the smallest normal number.
FLOAT8 = {
    "float8_e4m3fn": (448.0, 3, -6),
    "float8_e4m3fnuz": (240.0, 3, -7),
    "float8_e5m2": (57344.0, 2, -14),
    "float8_e5m2fnuz": (57344.0, 2, -15),
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
GROUPS = {"row": lambda columns: columns, "block_1x128": lambda _: 128}


def drawn(*shape: int, seed: int) -> Tensor:
    source = np.random.default_rng(seed)
    return torch.from_numpy(source.standard_normal(shape) * np.exp2(source.integers(-3, 4, shape)))


def normalised(row: list[float], weight: list[float], eps: float, offset: float) -> list[float]:
    root = math.sqrt(math.fsum(value * value for value in row) / len(row) + eps)
    return [value * (w + offset) / root for value, w in zip(row, weight, strict=True)]


def gated(row: list[float]) -> list[float]:
    half = len(row) // 2
    return [gate * up / (1 + math.exp(-gate)) for gate, up in zip(row[:half], row[half:], strict=True)]


def check(found: tuple[Tensor, ...], rows: list[list[float]], granularity: str, dtype: str) -> None:
    """Each scale is its group's largest number's, and each element one of the nearest to the quotient."""
    largest, fraction, exponent = FLOAT8[dtype]
    q, scale = found[0].double().reshape(len(rows), -1).tolist(), found[1].reshape(len(rows), -1).tolist()
    assert (found[0].dtype, found[1].dtype) == (getattr(torch, dtype), torch.float32)
    group = GROUPS[granularity](len(rows[0]))
    assert len(scale[0]) == -(-len(rows[0]) // group)
    for row, codes, scales in zip(rows, q, scale, strict=True):
        for place, divisor in enumerate(scales):
            wanted = row[place * group : (place + 1) * group]
            assert divisor == pytest.approx(max(map(abs, wanted)) / largest, rel=2e-6)
            for number, code in zip(wanted, codes[place * group : (place + 1) * group], strict=True):
                quotient = number / divisor
                step = 2.0 ** (max(math.frexp(quotient)[1] - 1, exponent) - fraction)
                assert abs(code - quotient) <= step * 0.5001


@pytest.mark.parametrize(("eps", "offset"), [(1e-6, 0.0), (0.5, 1.0), (1e-3, -0.5)])
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("granularity", GROUPS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 130), (2, 3, 300)])
def test_a_norm_in_float8_is_its_definition(shape, granularity, dtype, eps, offset):
    x, weight = drawn(*shape, seed=1).bfloat16(), drawn(shape[-1], seed=2).float()
    how = {"eps": eps, "weight_offset": offset, "granularity": granularity, "dtype": dtype}
    rows = [normalised(row, weight.tolist(), eps, offset) for row in x.double().reshape(-1, shape[-1]).tolist()]
    found = rms_norm_quantize.forward(x, weight, **how)
    assert found[0].shape == shape
    check(found, rows, granularity, dtype)
    true_q, true_scale = rms_norm_quantize.truth(x, weight, **how)
    torch.testing.assert_close(found[1].double(), true_scale, rtol=1e-6, atol=0)
    spread = true_scale.repeat_interleave(GROUPS[granularity](shape[-1]), -1)[..., : shape[-1]]
    torch.testing.assert_close(true_q * spread, torch.tensor(rows).double().reshape(shape), rtol=1e-6, atol=0)


@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("granularity", GROUPS)
@pytest.mark.parametrize("shape", [(1, 2), (3, 260), (2, 3, 600)])
def test_a_gate_in_float8_is_its_definition(shape, granularity, dtype, given):
    x = drawn(*shape, seed=3).to(given)
    rows = [gated(row) for row in x.double().reshape(-1, shape[-1]).tolist()]
    found = silu_and_mul_quantize.forward(x, granularity=granularity, dtype=dtype)
    assert found[0].shape == (*shape[:-1], shape[-1] // 2)
    check(found, rows, granularity, dtype)
    true_scale = silu_and_mul_quantize.truth(x, granularity=granularity, dtype=dtype)[1]
    torch.testing.assert_close(found[1].double(), true_scale, rtol=1e-6, atol=0)


@pytest.mark.parametrize("granularity", GROUPS)
@pytest.mark.parametrize("given", DTYPES)
def test_a_sum_is_rounded_before_it_is_normalised(given, granularity):
    x, residual, weight = drawn(2, 3, 140, seed=4).to(given), drawn(2, 3, 140, seed=5).to(given), drawn(140, seed=6)
    how = {"eps": EPS, "weight_offset": 1.0, "granularity": granularity}
    q, scale, summed = add_rms_norm_quantize.forward(x, residual, weight.to(given), **how)
    assert summed.dtype == given
    assert torch.equal(summed, torch.from_numpy(x.float().numpy() + residual.float().numpy()).to(given))
    wanted = rms_norm_quantize.forward(summed, weight.to(given), **how)
    assert torch.equal(q.view(torch.uint8), wanted[0].view(torch.uint8))
    assert torch.equal(scale, wanted[1])
    truth = add_rms_norm_quantize.truth(x, residual, weight.to(given), **how)
    assert torch.equal(truth[2], summed.double())
    torch.testing.assert_close(truth[1], scale.double(), rtol=1e-6, atol=0)
    assert float((truth[0] - q.double()).abs().max()) <= 16.002  # half a step of the largest


def test_what_is_quantised_was_not_rounded_to_16_bits():
    # 14 * 32 sets a scale of 1; 16.5 * 1.03125 is 17.0156, which a bfloat16 makes 17: a tie, that goes to 16
    x = torch.tensor([[32.0, 16.5, 14.0, 1.03125]], dtype=torch.bfloat16)
    q, scale = silu_and_mul_quantize.forward(x)
    assert scale.item() == pytest.approx(1.0, rel=1e-6)
    assert q.tolist() == [[448.0, 18.0]]
    assert quantize_fp8.forward(silu_and_mul.forward(x))[0].tolist() == [[448.0, 16.0]]


def test_one_rounding_is_nearer_to_the_norm_than_two():
    x, weight = drawn(20, 400, seed=7).bfloat16(), drawn(400, seed=8).bfloat16()
    once = rms_norm_quantize.forward(x, weight, eps=EPS)
    y, _ = rms_norm.forward(x, weight, eps=EPS, save=True)
    exact, _ = rms_norm.forward(x.double(), weight.double(), eps=EPS, save=True)
    off = [(q.double() * scale.double() - exact).abs().sum() for q, scale in (once, quantize_fp8.forward(y))]
    assert off[0] < off[1]


def test_a_gate_that_a_float16_does_not_hold_is_quantised():
    x = torch.full((1, 4), 60000.0, dtype=torch.float16)
    q, scale = silu_and_mul_quantize.forward(x)
    assert q.tolist() == [[448.0, 448.0]]
    assert scale.item() == pytest.approx(float(x[0, 0]) ** 2 / 448, rel=1e-6)
    assert silu_and_mul.forward(x).isinf().all()


@pytest.mark.parametrize("granularity", GROUPS)
def test_zeros_have_scales_of_one(granularity):
    for q, scale in (
        rms_norm_quantize.forward(torch.zeros(3, 200), torch.ones(200), eps=EPS, granularity=granularity),
        silu_and_mul_quantize.forward(torch.zeros(3, 400), granularity=granularity),
    ):
        assert not q.float().any()
        assert bool((scale == 1).all())


def test_a_nan_reaches_what_shares_its_sum_or_its_scale_and_an_infinity_leaves_zeros():
    x = drawn(3, 300, seed=9).float()
    x[0, 140], x[1, 140] = math.nan, math.inf
    q, scale = rms_norm_quantize.forward(x, torch.ones(300), eps=EPS, granularity="block_1x128")
    assert scale.isnan().tolist() == [[True] * 3, [False, True, False], [False] * 3]
    assert scale[1, [0, 2]].tolist() == [1.0, 1.0]
    assert q[0].float().isnan().all()
    assert q[1].float().nan_to_num(7.0).tolist() == [0.0] * 128 + [7.0] * 128 + [0.0] * 44
    q, scale = silu_and_mul_quantize.forward(x.reshape(1, 900)[:, :800], granularity="block_1x128")
    # the NaN is gate 140; the infinity, element 440, is what gate 40 is multiplied with
    assert scale.isnan().tolist() == [[True, True, False, False]]
    assert q.float().isnan().flatten().tolist() == [True] * 256 + [False] * 144


@pytest.mark.parametrize("granularity", GROUPS)
@pytest.mark.parametrize("op", [rms_norm_quantize, add_rms_norm_quantize, silu_and_mul_quantize])
def test_results_are_written_where_they_are_told(op, granularity):
    x, weight = drawn(4, 260, seed=10).bfloat16(), drawn(260, seed=11).bfloat16()
    given = {rms_norm_quantize: (x, weight), add_rms_norm_quantize: (x, x, weight)}.get(op, (x,))
    how = {"granularity": granularity} | ({} if op is silu_and_mul_quantize else {"eps": EPS})
    wanted = op.forward(*given, **how)
    out = tuple(torch.empty(*reversed(result.shape), dtype=result.dtype).t() for result in wanted)
    found = op.forward(*given, **how, out=out)
    assert all(tensor is place for tensor, place in zip(found, out, strict=True))
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(out, wanted, strict=True))


def test_no_rows_and_no_columns():
    assert [t.shape for t in rms_norm_quantize.forward(torch.empty(0, 40), torch.ones(40), eps=EPS)] == [
        (0, 40),
        (0, 1),
    ]
    q, scale = silu_and_mul_quantize.forward(torch.empty(3, 0))
    assert (q.shape, scale.tolist()) == ((3, 0), [[1.0]] * 3)
    assert silu_and_mul_quantize.forward(torch.empty(3, 0), granularity="block_1x128")[1].shape == (3, 0)
