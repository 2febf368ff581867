"""The references of quantised ops are the formats' specifications, bit by bit.

Decoding and encoding are written here from the specifications alone, in rational arithmetic: OCP 8-bit Floating Point
1.0 (e4m3fn, e5m2), arXiv 2206.02915 (the FNUZ variants), OCP Microscaling Formats 1.0 (e2m1, e8m0, conversion).
"""

from __future__ import annotations

import itertools
import math
import struct
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest
import torch

from portakernel.references import dequantize, quantize_fp4, quantize_fp8, quantize_mxfp8, scale_formats

# --- the formats, from their specifications ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A sign, ``exponent`` bits and ``mantissa`` bits; ``nan`` and ``infinite`` are codes without their sign."""

    name: str
    exponent: int
    mantissa: int
    bias: int
    nan: tuple[int, ...] = ()
    infinite: tuple[int, ...] = ()
    # no infinities, one NaN in the place of -0
    fnuz: bool = False

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    def decoded(self, code: int) -> Fraction | float:
        """The number; -0.0, NaN and infinities as floats."""
        size, negative = code & self.sign - 1, bool(code & self.sign)
        if self.fnuz and negative and size == 0:
            return math.nan
        if size in self.nan:
            return math.nan
        if size in self.infinite:
            return -math.inf if negative else math.inf
        field, fraction = divmod(size, 1 << self.mantissa)
        significand = Fraction(fraction, 1 << self.mantissa) + (1 if field else 0)
        number = significand * Fraction(2) ** (max(field, 1) - self.bias)
        return -0.0 if negative and number == 0 else -number if negative else number

    @cached_property
    def magnitudes(self) -> list[Fraction]:
        """The finite numbers from 0 up; the codes count them."""
        codes = (code for code in range(self.sign) if code not in (*self.nan, *self.infinite))
        return [Fraction(self.decoded(code)) for code in codes]

    @cached_property
    def ties(self) -> list[float]:
        """What lies halfway between each of them and the next; floats hold it exactly."""
        return [float((below + above) / 2) for below, above in itertools.pairwise(self.magnitudes)]

    def encoded(self, number: Fraction | float) -> int:
        """The code of the nearest number, of the even one where two are as near; beyond the largest, the largest."""
        negative = math.copysign(1.0, number) < 0 if isinstance(number, float) else number < 0
        code = bisect_left(self.ties, abs(number))
        if code < len(self.ties) and abs(number) == self.ties[code]:
            code += code % 2
        return code if self.fnuz and code == 0 else code | (self.sign if negative else 0)


E4M3FN = Format("float8_e4m3fn", 4, 3, bias=7, nan=(0x7F,))
E5M2 = Format("float8_e5m2", 5, 2, bias=15, nan=(0x7D, 0x7E, 0x7F), infinite=(0x7C,))
E4M3FNUZ = Format("float8_e4m3fnuz", 4, 3, bias=8, fnuz=True)
E5M2FNUZ = Format("float8_e5m2fnuz", 5, 2, bias=16, fnuz=True)
E2M1 = Format("float4_e2m1fn_x2", 2, 1, bias=1)
FLOAT8 = {spec.name: spec for spec in (E4M3FN, E5M2, E4M3FNUZ, E5M2FNUZ)}
LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344, "float8_e4m3fnuz": 240, "float8_e5m2fnuz": 57344}


def e8m0(code: int) -> Fraction | float:
    return math.nan if code == 255 else Fraction(2) ** (code - 127)


def float32(number: Fraction | float) -> float:
    """Rounded to float32. A quotient or product of two that was rounded to float64 before is rounded as if once."""
    return struct.unpack("f", struct.pack("f", float(number)))[0]


def same(found: float, wanted: Fraction | float) -> bool:
    """Whether they are one number: NaN is NaN, and -0 is not 0."""
    if math.isnan(wanted):
        return math.isnan(found)
    return found == wanted and math.copysign(1.0, found) == math.copysign(1.0, float(wanted))


def codes(tensor: torch.Tensor) -> list[int]:
    return tensor.flatten().contiguous().view(torch.uint8).tolist()


def as_codes(values: list[int], shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(shape).view(getattr(torch, dtype))


def nibbles(tensor: torch.Tensor) -> list[int]:
    return [nibble for byte in codes(tensor) for nibble in (byte & 15, byte >> 4)]


def drawn(*shape: int, seed: int, spread: int = 3) -> torch.Tensor:
    """Numbers over many powers of two, among them ones of few bits, whose quotients hit ties."""
    source = np.random.default_rng(seed)
    numbers = source.standard_normal(shape) * np.exp2(source.integers(-spread, spread + 1, shape))
    coarse = np.round(numbers * 8) / 8
    return torch.from_numpy(np.where(source.random(shape) < 0.5, numbers, coarse)).float()


def test_the_formats_are_the_ones_of_their_specifications():
    """Landmarks that the documents' tables give."""
    assert [spec.magnitudes[-1] for spec in FLOAT8.values()] == [448, 57344, 240, 57344]
    assert [spec.magnitudes[1] for spec in FLOAT8.values()] == [Fraction(1, 2**power) for power in (9, 16, 10, 17)]
    assert E2M1.magnitudes == [0, Fraction(1, 2), 1, Fraction(3, 2), 2, 3, 4, 6]
    assert all(math.isnan(spec.decoded(code)) for spec, code in ((E4M3FN, 0xFF), (E5M2, 0xFD), (E5M2FNUZ, 0x80)))
    assert (E5M2.decoded(0xFC), E4M3FNUZ.decoded(0xFF), E4M3FN.decoded(0xFE)) == (-math.inf, -240, -448)
    assert (e8m0(0), e8m0(127), e8m0(254)) == (Fraction(1, 2**127), 1, 2**127)


# --- numbers and codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(FLOAT8))
def test_all_codes_of_float8_decode_as_specified(name, dtype):
    found = scale_formats.numbers(as_codes(list(range(256)), (256,), name), dtype)
    assert found.dtype == dtype
    assert all(same(number, FLOAT8[name].decoded(code)) for code, number in enumerate(found.tolist()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_codes_of_e8m0_decode_as_specified(dtype):
    found = scale_formats.numbers(as_codes(list(range(256)), (16, 16), "float8_e8m0fnu"), dtype)
    assert all(same(number, e8m0(code)) for code, number in enumerate(found.flatten().tolist()))


def test_all_bytes_of_e2m1_decode_as_specified_the_low_half_first():
    found = scale_formats.numbers(as_codes(list(range(256)), (2, 128), "float4_e2m1fn_x2"))
    assert found.shape == (2, 256)
    pairs = zip(found.flatten()[0::2].tolist(), found.flatten()[1::2].tolist(), strict=True)
    for byte, (even, odd) in enumerate(pairs):
        assert same(even, E2M1.decoded(byte & 15))
        assert same(odd, E2M1.decoded(byte >> 4))


def test_numbers_of_any_other_dtype_are_what_they_are():
    x = drawn(3, 5, seed=1)
    assert torch.equal(scale_formats.numbers(x), x.double())


def hard_numbers(spec: Format) -> list[float]:
    """Ties and their float32 neighbours, numbers and theirs, beyond the largest, next to zero, and random ones."""
    sizes = spec.magnitudes
    points = [*sizes, *((a + b) / 2 for a, b in itertools.pairwise(sizes)), sizes[-1] * 2]
    close = np.array([float(point) for point in points], dtype=np.float32)
    some = np.concatenate([close, np.nextafter(close, np.float32(np.inf)), np.nextafter(close, np.float32(-np.inf))])
    random = drawn(2000, seed=2, spread=18).numpy()
    return [float(number) for number in np.concatenate([some, -some, random, np.float32([0.0, -0.0, 3e38, 1e-45])])]


@pytest.mark.parametrize("name", list(FLOAT8))
def test_float8_is_the_nearest_code_ties_to_even_and_saturates(name):
    spec, numbers = FLOAT8[name], hard_numbers(FLOAT8[name])
    found = scale_formats.float8(torch.tensor(numbers), name)
    assert codes(found) == [spec.encoded(number) for number in numbers]
    infinite = codes(scale_formats.float8(torch.tensor([math.inf, -math.inf, math.nan]), name))
    assert infinite[:2] == [spec.encoded(3e38), spec.encoded(-3e38)]
    assert math.isnan(spec.decoded(infinite[2]))


def test_float4_is_the_nearest_code_ties_to_even_and_saturates():
    numbers = hard_numbers(E2M1)
    numbers += [0.0] * (len(numbers) % 2)
    assert nibbles(scale_formats.float4(torch.tensor(numbers))) == [E2M1.encoded(number) for number in numbers]
    special = scale_formats.float4(torch.tensor([[math.inf, -math.inf], [math.nan, -math.nan]]))
    assert nibbles(special) == [7, 15, 0, 0]


def test_a_swizzled_scale_lies_where_cublas_puts_it():
    rows, columns = 300, 10
    scale = torch.arange(rows * columns).remainder(251).to(torch.uint8).reshape(rows, columns)
    found = scale_formats.swizzled(scale.view(torch.float8_e8m0fnu))
    assert (found.shape, found.dtype) == ((384, 12), torch.float8_e8m0fnu)
    memory = codes(found)
    for r, c in itertools.product(range(rows), range(columns)):
        at = (r // 128 * 3 + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
        assert memory[at] == scale[r, c]
    assert sum(memory) == int(scale.sum())  # padded with zeros
    assert codes(scale_formats.unswizzled(found, rows, columns)) == scale.flatten().tolist()
    # nvmath-python documents these two offsets for blocks (5, 2) and (5, 5)
    marked = torch.zeros(128, 8, dtype=torch.uint8)
    marked[5, 2], marked[5, 5] = 1, 2
    memory = codes(scale_formats.swizzled(marked.view(torch.float8_e4m3fn)))
    assert (memory[82], memory[593]) == (1, 2)


# --- quantize_fp8 -----------------------------------------------------------------------------------------------------

GRANULARITIES = ("tensor", "row", "block_1x128", "block_128x128")


def block_of(granularity: str, row: int, column: int) -> tuple[int, ...]:
    """Where the scale of an element is."""
    return {
        "tensor": (),
        "row": (row, 0),
        "block_1x128": (row, column // 128),
        "block_128x128": (row // 128, column // 128),
        "mxfp8": (row, column // 32),
        "mxfp4": (row, column // 32),
        "nvfp4": (row, column // 16),
    }[granularity]


def maxima(x: list[list[float]], granularity: str) -> dict[tuple[int, ...], float]:
    """The largest magnitude of each block, NaN where it holds a NaN or an infinity."""
    found: dict[tuple[int, ...], float] = {}
    for row, line in enumerate(x):
        for column, number in enumerate(line):
            block = block_of(granularity, row, column)
            size = max(found.get(block, 0.0), abs(number))
            found[block] = size if math.isfinite(number) and math.isfinite(found.get(block, 0.0)) else math.nan
    return found


def scale_by_definition(largest_number: float, limit: int) -> float:
    quotient = float32(largest_number / limit)
    return 1.0 if quotient < 2.0**-100 else quotient


def check_fp8(x: torch.Tensor, granularity: str, dtype: str) -> None:
    """Every bit of the reference, against the definition element by element."""
    q, scale = quantize_fp8.forward(x, granularity=granularity, dtype=dtype)
    assert (q.shape, q.dtype, scale.dtype) == (x.shape, getattr(torch, dtype), torch.float32)
    assert q.is_contiguous()
    assert scale.is_contiguous()
    lines = x.double().reshape(-1, x.shape[-1]).tolist()
    scales = {block: scale_by_definition(size, LARGEST[dtype]) for block, size in maxima(lines, granularity).items()}
    flat = scale.reshape(-1, scale.shape[-1]) if scale.dim() else scale
    assert scale.numel() == len(scales)
    assert all(same(float(flat[block]), wanted) for block, wanted in scales.items())
    found = iter(codes(q))
    for row, line in enumerate(lines):
        for column, number in enumerate(line):
            code, divisor = next(found), scales[block_of(granularity, row, column)]
            if math.isnan(divisor):
                assert math.isnan(FLOAT8[dtype].decoded(code))
            else:
                assert code == FLOAT8[dtype].encoded(float32(number / divisor))


@pytest.mark.parametrize("dtype", list(FLOAT8))
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 130), (130, 7), (2, 3, 129), (257,)])
def test_fp8_is_the_definition_bit_by_bit(shape, granularity, dtype):
    check_fp8(drawn(*shape, seed=3, spread=9), granularity, dtype)


@pytest.mark.parametrize("dtype", list(FLOAT8))
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fp8_of_16_bit_floats_is_the_definition_bit_by_bit(granularity, given, dtype):
    check_fp8(drawn(5, 140, seed=4).to(given), granularity, dtype)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fp8_reads_tensors_however_they_lie(granularity):
    x = drawn(14, 150, seed=5)
    for strided in (x.T, x[:, 3:140], x[::3, ::2], x[:1].expand(9, 150), x.reshape(2, 7, 150)[:, :3]):
        check_fp8(strided, granularity, "float8_e4m3fn")


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((0, 48), {"tensor": (), "row": (0, 1), "block_1x128": (0, 1), "block_128x128": (0, 1)}),
        ((3, 0), {"tensor": (), "row": (3, 1), "block_1x128": (3, 0), "block_128x128": (1, 0)}),
        ((2, 0, 5), {"tensor": (), "row": (2, 0, 1), "block_1x128": (2, 0, 1), "block_128x128": (0, 1)}),
    ],
)
def test_fp8_of_nothing_has_scales_of_one(shape, scales, granularity):
    q, scale = quantize_fp8.forward(torch.zeros(shape), granularity=granularity)
    assert (q.shape, scale.shape) == (shape, scales[granularity])
    assert bool((scale == 1).all())


@pytest.mark.parametrize("dtype", list(FLOAT8))
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fp8_of_zeros_and_of_next_to_nothing_has_scales_of_one(granularity, dtype):
    for size in (0.0, 1e-45, 2.0**-126, LARGEST[dtype] * 2.0**-101):
        q, scale = quantize_fp8.forward(torch.full((3, 5), size), granularity=granularity, dtype=dtype)
        assert codes(q) == [0] * 15
        assert bool((scale == 1).all())
    # and from there on it is the quotient
    q, scale = quantize_fp8.forward(
        torch.full((3, 5), LARGEST[dtype] * 2.0**-100), granularity=granularity, dtype=dtype
    )
    assert codes(q) == [FLOAT8[dtype].encoded(LARGEST[dtype])] * 15
    assert bool((scale == 2.0**-100).all())


@pytest.mark.parametrize("dtype", list(FLOAT8))
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fp8_of_the_largest_numbers_is_finite(granularity, dtype):
    check_fp8(torch.tensor([[3.4028234e38, -3.4028234e38, 1e30, 1.0]]), granularity, dtype)


@pytest.mark.parametrize("dtype", list(FLOAT8))
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fp8_of_nan_and_infinities_is_nan_where_the_scale_is_shared(granularity, dtype):
    for special in (math.nan, math.inf, -math.inf):
        x = drawn(130, 140, seed=6)
        x[129, 130] = special
        q, scale = quantize_fp8.forward(x, granularity=granularity, dtype=dtype)
        block = block_of(granularity, 129, 130)
        shared = [[block_of(granularity, row, column) == block for column in range(140)] for row in range(130)]
        assert torch.equal(q.float().isnan(), torch.tensor(shared))
        assert bool(scale[block].isnan())
        assert int(scale.isnan().sum()) == 1
        check_fp8(x[127:, 120:], granularity, dtype)


@pytest.mark.parametrize("dtype", list(FLOAT8))
def test_fp8_divides_so_that_exact_ties_are_ties(dtype):
    """A product with a rounded reciprocal misses some of them."""
    scales = [number * 2.0**-9 for number in range(1025, 1153, 2)]
    points = [*FLOAT8[dtype].ties, float(LARGEST[dtype])]
    check_fp8(torch.tensor([[scale * point for point in points] for scale in scales]), "row", dtype)


def test_fp8_writes_where_it_is_told():
    x = drawn(4, 130, seed=7)
    wanted = quantize_fp8.forward(x, granularity="block_1x128")
    out = torch.empty(130, 4, dtype=torch.float8_e4m3fn).T, torch.empty(4, 4)[:, ::2]
    found = quantize_fp8.forward(x, granularity="block_1x128", out=out)
    assert all(result is given for result, given in zip(found, out, strict=True))
    assert codes(found[0]) == codes(wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("dtype", list(FLOAT8))
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_truth_of_fp8_is_the_exact_quotient_by_the_scale_that_is_stored(granularity, dtype):
    x = drawn(3, 140, seed=8)
    x[1, 7] = 0.0
    q, scale = quantize_fp8.truth(x, granularity=granularity, dtype=dtype)
    assert (q.dtype, scale.dtype) == (torch.float64, torch.float64)
    sizes = maxima(x.tolist(), granularity)
    exact = {block: Fraction(size) / LARGEST[dtype] for block, size in sizes.items()}
    assert all(float(scale[block]) == float(quotient) for block, quotient in exact.items())
    for (row, column), found in zip(itertools.product(range(3), range(140)), q.flatten().tolist(), strict=True):
        stored = Fraction(float32(exact[block_of(granularity, row, column)]))
        wanted = Fraction(float(x[row, column])) / stored
        assert found == float(max(-LARGEST[dtype], min(LARGEST[dtype], wanted)))


# --- quantize_mxfp8 and quantize_fp4 in mxfp4 -------------------------------------------------------------------------

MX = {"float8_e4m3fn": (E4M3FN, 8), "float8_e5m2": (E5M2, 15), "float4_e2m1fn_x2": (E2M1, 2)}


def shared_exponent(size: float, emax: int) -> int:
    """The e8m0 code of a block's scale: the largest power of two that is not above ``size``, over 2**emax."""
    if math.isnan(size):
        return 255
    if size == 0:
        return 0
    power = 0
    while Fraction(2) ** power > Fraction(size):
        power -= 1
    while Fraction(2) ** (power + 1) <= Fraction(size):
        power += 1
    return min(max(power - emax, -127), 127) + 127


def check_mx(x: torch.Tensor, dtype: str) -> None:
    """Every bit, against OCP's conversion of each block."""
    spec, emax = MX[dtype]
    if spec is E2M1:
        q, scale = quantize_fp4.forward(x, format="mxfp4")
        truth = quantize_fp4.truth(x, format="mxfp4")
    else:
        q, scale = quantize_mxfp8.forward(x, dtype=dtype)
        truth = quantize_mxfp8.truth(x, dtype=dtype)
    lines = x.double().reshape(-1, x.shape[-1]).tolist()
    shared = {block: shared_exponent(size, emax) for block, size in maxima(lines, "mxfp8").items()}
    assert (q.dtype, scale.dtype) == (getattr(torch, dtype), torch.float8_e8m0fnu)
    assert scale.shape == (*x.shape[:-1], -(-x.shape[-1] // 32))
    assert codes(scale) == [shared[block] for block in sorted(shared)]
    assert all(same(number, e8m0(code)) for number, code in zip(truth[1].flatten().tolist(), codes(scale), strict=True))
    found = zip(nibbles(q) if spec is E2M1 else codes(q), truth[0].flatten().tolist(), strict=True)
    for row, line in enumerate(lines):
        for column, number in enumerate(line):
            (code, true), power = next(found), shared[block_of("mxfp8", row, column)]
            if power == 255 and spec is E2M1:
                assert code == true == 0
            elif power == 255:
                assert math.isnan(spec.decoded(code))
                assert math.isnan(true)
            else:
                # a fraction has no -0
                quotient = Fraction(number) / e8m0(power) if number else number
                assert code == spec.encoded(quotient)
                assert true == float(max(-spec.magnitudes[-1], min(spec.magnitudes[-1], quotient)))


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", list(MX))
@pytest.mark.parametrize("shape", [(1, 2), (3, 130), (130, 34), (2, 3, 64), (258,)])
def test_mx_is_ocps_conversion_bit_by_bit(shape, dtype, given):
    check_mx(drawn(*shape, seed=9, spread=9).to(given), dtype)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_mxfp8_takes_an_odd_number_of_columns(dtype):
    check_mx(drawn(5, 33, seed=10), dtype)
    check_mx(drawn(2, 1, seed=10), dtype)


@pytest.mark.parametrize("dtype", list(MX))
def test_mx_scales_stay_in_range_for_tiny_and_huge_blocks(dtype):
    powers = [2.0**power for power in range(-149, 128)]
    x = torch.tensor([[sign * factor * power for sign in (1, -1)] for power in powers for factor in (1.0, 1.9999)])
    x = torch.cat([x, torch.zeros(2, 2)])
    check_mx(x[x.isfinite().all(1)], dtype)


@pytest.mark.parametrize("dtype", list(MX))
def test_mx_saturates_what_the_rounded_down_scale_leaves_too_large(dtype):
    spec, emax = MX[dtype]
    x = torch.tensor([[1.9999, -1.9999, 1.0, 0.5]])
    check_mx(x, dtype)
    found = quantize_fp4.forward(x, format="mxfp4") if spec is E2M1 else quantize_mxfp8.forward(x, dtype=dtype)
    largest = float(spec.magnitudes[-1])
    assert scale_formats.numbers(found[0]).tolist() == [[largest, -largest, 2.0**emax, 2.0 ** (emax - 1)]]


@pytest.mark.parametrize("dtype", list(MX))
def test_mx_blocks_with_nan_or_infinities_are_nan_and_no_others(dtype):
    x = drawn(4, 100, seed=11)
    x[0, 3], x[1, 40], x[2, 99], x[3] = math.nan, math.inf, -math.inf, 0.0
    check_mx(x, dtype)
    found = quantize_fp4.forward(x, format="mxfp4") if dtype.startswith("float4") else quantize_mxfp8.forward(x)
    assert [code == 255 for code in codes(found[1])] == [place in (0, 5, 11) for place in range(16)]


@pytest.mark.parametrize("dtype", list(MX))
def test_mx_reads_tensors_however_they_lie(dtype):
    x = drawn(14, 150, seed=12)
    for strided in (x.T, x[:, 4:140], x[::3, ::3], x[:1].expand(9, 150), x.reshape(2, 7, 150)[:, :3]):
        check_mx(strided, dtype)


@pytest.mark.parametrize("shape", [(0, 48), (3, 0), (2, 0, 6)])
def test_mx_and_nvfp4_of_nothing(shape):
    x = torch.zeros(shape)
    rows, half = shape[:-1], (*shape[:-1], shape[-1] // 2)
    q, scale = quantize_mxfp8.forward(x)
    assert (q.shape, scale.shape) == (shape, (*rows, -(-shape[-1] // 32)))
    q, scale = quantize_fp4.forward(x, format="mxfp4")
    assert (q.shape, scale.shape) == (half, (*rows, -(-shape[-1] // 32)))
    q, scale, global_scale = quantize_fp4.forward(x)
    assert (q.shape, scale.shape, float(global_scale)) == (half, (*rows, -(-shape[-1] // 16)), 1.0)


# --- quantize_fp4 in nvfp4 --------------------------------------------------------------------------------------------


def check_nvfp4(x: torch.Tensor) -> None:
    """Every bit, against the definition: each operation rounded to float32."""
    q, scale, global_scale = quantize_fp4.forward(x, format="nvfp4")
    true_q, true_scale, true_global = quantize_fp4.truth(x, format="nvfp4")
    assert (q.dtype, scale.dtype, global_scale.dtype) == (torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float32)
    assert (scale.shape, global_scale.shape) == ((*x.shape[:-1], -(-x.shape[-1] // 16)), ())
    lines = x.double().reshape(-1, x.shape[-1]).tolist()
    largest = maxima(lines, "tensor")[()]
    whole = scale_by_definition(largest, 2688)
    assert same(float(global_scale), whole)
    assert same(float32(float(true_global)), whole)
    blocks = {
        block: 0x7F if math.isnan(whole) else E4M3FN.encoded(max(float32(float32(size / 6) / whole), 2.0**-9))
        for block, size in maxima(lines, "nvfp4").items()
    }
    assert codes(scale) == [blocks[block] for block in sorted(blocks)]
    assert 0 not in blocks.values()
    pairs = zip(true_scale.flatten().tolist(), codes(scale), strict=True)
    assert all(same(number, E4M3FN.decoded(code)) for number, code in pairs)
    found = zip(nibbles(q), true_q.flatten().tolist(), strict=True)
    for row, line in enumerate(lines):
        for column, number in enumerate(line):
            code, true = next(found)
            if math.isnan(whole):
                assert code == true == 0
                continue
            divisor = float32(E4M3FN.decoded(blocks[block_of("nvfp4", row, column)]) * Fraction(whole))
            assert code == E2M1.encoded(float32(number / divisor))
            assert true == float(max(Fraction(-6), min(Fraction(6), Fraction(number) / Fraction(divisor))))


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 2), (3, 130), (130, 18), (2, 3, 64), (258,)])
def test_nvfp4_is_the_definition_bit_by_bit(shape, given):
    check_nvfp4(drawn(*shape, seed=13, spread=5).to(given))


def test_nvfp4_reads_tensors_however_they_lie():
    x = drawn(14, 150, seed=14)
    for strided in (x.T, x[:, 4:140], x[::3, ::3], x[:1].expand(9, 150), x.reshape(2, 7, 150)[:, :3]):
        check_nvfp4(strided)


def test_nvfp4_gives_blocks_that_are_small_beside_the_tensor_the_smallest_scale():
    x = drawn(6, 32, seed=15)
    x[0, 0] = 6.0 * 448.0 * 1024  # so that the tensor's scale is 1024
    x[1] *= 2.0**-10
    x[2] = 0.0
    check_nvfp4(x)
    q, scale, global_scale = quantize_fp4.forward(x)
    assert float(global_scale) == 1024.0
    assert codes(scale)[2:6] == [1, 1, 1, 1]
    assert nibbles(q)[64:96] == [0] * 32
    # what a scale of zero would lose: x / (2**-9 * 1024) is up to 6
    x[3] = 2.0
    assert nibbles(quantize_fp4.forward(x)[0])[96:128] == [E2M1.encoded(1.0)] * 32


def test_nvfp4_divides_so_that_exact_ties_are_ties():
    for number in range(1025, 1089, 2):
        scale = number * 2.0**-9 * 448
        check_nvfp4(torch.tensor([[scale * point for point in (*E2M1.ties, 6.0)]]))


def test_nvfp4_of_zeros_and_of_next_to_nothing_has_a_global_scale_of_one():
    for size in (0.0, 1e-45, 2.0**-126, 2688 * 2.0**-101):
        x = torch.full((3, 18), size)
        check_nvfp4(x)
        q, _, global_scale = quantize_fp4.forward(x)
        assert float(global_scale) == 1.0
        assert nibbles(q) == [0] * 54
    x = torch.full((3, 18), 2688 * 2.0**-100)
    check_nvfp4(x)
    assert float(quantize_fp4.forward(x)[2]) == 2.0**-100


def test_nvfp4_of_the_largest_numbers_is_finite():
    check_nvfp4(torch.tensor([[3.4028234e38, -3.4028234e38, 1e30, 1.0]]))


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_nvfp4_of_nan_and_infinities_is_nan_throughout(special):
    x = drawn(4, 50, seed=16)
    x[2, 20] = special
    check_nvfp4(x)
    found = dequantize.forward(*quantize_fp4.forward(x), format="nvfp4")
    assert bool(found.isnan().all())


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_fp4_writes_where_it_is_told(format):
    x = drawn(4, 34, seed=17)
    wanted = quantize_fp4.forward(x, format=format)
    out = tuple(
        torch.zeros((*result.shape, 2), dtype=torch.uint8).view(result.dtype)[..., 0]
        if result.element_size() == 1
        else torch.empty_like(result)
        for result in wanted
    )
    found = quantize_fp4.forward(x, format=format, out=out)
    assert all(result is given for result, given in zip(found, out, strict=True))
    assert all(codes(a) == codes(b) for a, b in zip(found, wanted, strict=True))


def test_results_of_large_transposed_tensors_are_contiguous():
    """Torch copies transposed tensors another way from some size on, and knows no e2m1 there."""
    x = drawn(130, 300, seed=23).T
    found = [*quantize_fp8.forward(x), *quantize_mxfp8.forward(x), *quantize_fp4.forward(x)]
    y = x.contiguous()
    wanted = [*quantize_fp8.forward(y), *quantize_mxfp8.forward(y), *quantize_fp4.forward(y)]
    assert all(result.is_contiguous() for result in found)
    assert all(codes(a) == codes(b) for a, b in zip(found, wanted, strict=True))


# --- dequantize -------------------------------------------------------------------------------------------------------

SCALE_SHAPES = {
    "tensor": lambda rows, columns: (),
    "row": lambda rows, columns: (*rows, 1),
    "block_1x128": lambda rows, columns: (*rows, -(-columns // 128)),
    "block_128x128": lambda rows, columns: (-(-math.prod(rows) // 128), -(-columns // 128)),
    "mxfp8": lambda rows, columns: (*rows, -(-columns // 32)),
    "mxfp4": lambda rows, columns: (*rows, -(-columns // 32)),
    "nvfp4": lambda rows, columns: (*rows, -(-columns // 16)),
}
ELEMENTS = [
    *itertools.product(GRANULARITIES, FLOAT8),
    *(("mxfp8", dtype) for dtype in ("float8_e4m3fn", "float8_e5m2")),
    ("mxfp4", "float4_e2m1fn_x2"),
    ("nvfp4", "float4_e2m1fn_x2"),
]


def drawn_operand(
    shape: tuple[int, ...], format: str, dtype: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, list[Fraction | float], list[Fraction | float]]:
    """Random codes and scales, and what they are by specification: elements in order, scales in order."""
    source = np.random.default_rng(seed)
    wide = (*shape[:-1], shape[-1] // 2) if dtype.startswith("float4") else shape
    raw = source.integers(0, 256, wide)
    q = as_codes(raw.flatten().tolist(), wide, dtype)
    found = [E2M1.decoded(code) for code in nibbles(q)] if dtype.startswith("float4") else []
    elements = found or [FLOAT8[dtype].decoded(code) for code in codes(q)]
    sizes = SCALE_SHAPES[format](shape[:-1], shape[-1])
    count = math.prod(sizes)
    if format in ("mxfp8", "mxfp4"):
        chosen = source.integers(87, 168, count).tolist()
        scale, scales = as_codes(chosen, sizes, "float8_e8m0fnu"), [e8m0(code) for code in chosen]
    elif format == "nvfp4":
        chosen = source.integers(1, 127, count).tolist()
        scale, scales = as_codes(chosen, sizes, "float8_e4m3fn"), [E4M3FN.decoded(code) for code in chosen]
    else:
        scale = torch.from_numpy(np.exp2(source.uniform(-12, 12, count))).float().reshape(sizes)
        scales = [Fraction(number) for number in scale.flatten().tolist()]
    return q, scale, elements, scales


def products(
    shape: tuple[int, ...], format: str, elements: list[Fraction | float], scales: list[Fraction | float]
) -> list[Fraction | float]:
    """Each element times its scale, exactly; -0.0 and NaN stay what they are."""
    columns = shape[-1]
    across = SCALE_SHAPES[format](shape[:-1], columns)[-1:] or (1,)
    found = []
    for place, element in enumerate(elements):
        block = block_of(format, *divmod(place, columns)) or (0, 0)
        product = element * scales[block[0] * across[0] + block[1]]
        special = isinstance(element, float)
        found.append(float(product) if special else product)
    return found


@pytest.mark.parametrize(("format", "dtype"), ELEMENTS)
@pytest.mark.parametrize("shape", [(1, 2), (3, 260), (130, 18), (2, 65, 4), (34,)])
def test_dequantized_is_element_times_scale_rounded_once(shape, format, dtype):
    q, scale, elements, scales = drawn_operand(shape, format, dtype, seed=18)
    wanted = products(shape, format, elements, scales)
    (truth,) = dequantize.truth(q, scale, format=format)
    assert all(same(*pair) for pair in zip(truth.flatten().tolist(), wanted, strict=True))
    found = dequantize.forward(q, scale, format=format)
    assert (found.shape, found.dtype) == (shape, torch.float32)
    rounded = [float32(number) for number in wanted]
    assert all(same(*pair) for pair in zip(found.flatten().tolist(), rounded, strict=True))
    for narrow in (torch.float16, torch.bfloat16):
        found = dequantize.forward(q, scale, format=format, dtype=str(narrow).removeprefix("torch."))
        pairs = zip(found.flatten().tolist(), torch.tensor(rounded).to(narrow).tolist(), strict=True)
        assert all(same(*pair) for pair in pairs)


@pytest.mark.parametrize(("format", "dtype"), ELEMENTS)
def test_a_global_scale_multiplies_everything(format, dtype):
    shape = (3, 140)
    q, scale, elements, scales = drawn_operand(shape, format, dtype, seed=19)
    wanted = products(shape, format, elements, scales)
    (truth,) = dequantize.truth(q, scale, torch.tensor(0.3), format=format)
    found = dequantize.forward(q, scale, torch.tensor(0.3), format=format)
    for true, number, product in zip(truth.flatten().tolist(), found.flatten().tolist(), wanted, strict=True):
        if isinstance(product, float):
            assert same(true, product)
            assert same(number, product)
        else:
            exact = float(product * Fraction(float32(0.3)))
            assert math.isclose(true, exact, rel_tol=2.0**-52)
            assert math.isclose(number, exact, rel_tol=1.5 * 2.0**-23)


@pytest.mark.parametrize(("format", "dtype"), ELEMENTS)
def test_dequantize_reads_tensors_however_they_lie_and_writes_where_it_is_told(format, dtype):
    q, scale, *_ = drawn_operand((40, 300), format, dtype, seed=20)
    wanted = dequantize.forward(q, scale, format=format)
    strided = torch.stack([q.view(torch.uint8)] * 2, -1)[..., 1].T.contiguous().T.view(q.dtype)
    apart = scale.repeat_interleave(2).reshape(*scale.shape, 2)[..., 0] if scale.dtype == torch.float32 else scale
    out = torch.empty(300, 40).T
    assert dequantize.forward(strided, apart, format=format, out=out) is out
    assert torch.equal(out.nan_to_num(7.0), wanted.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("format", "dtype", "bytes_"), [("mxfp8", "float8_e4m3fn", 64), ("mxfp4", "float4_e2m1fn_x2", 32)]
)
def test_a_scale_that_is_nan_makes_its_block_nan_even_of_zeros(format, dtype, bytes_):
    q, scale = as_codes([0] * bytes_, (1, bytes_), dtype), as_codes([127, 0xFF], (1, 2), "float8_e8m0fnu")
    assert dequantize.forward(q, scale, format=format).isnan().tolist() == [[False] * 32 + [True] * 32]


@pytest.mark.parametrize(("format", "dtype"), ELEMENTS)
def test_dequantized_nothing_is_nothing(format, dtype):
    for shape in ((0, 48), (3, 0)):
        q, scale, *_ = drawn_operand(shape, format, dtype, seed=21)
        assert dequantize.forward(q, scale, format=format).shape == shape


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", list(FLOAT8))
def test_what_was_quantised_comes_back_within_half_a_step(granularity, dtype):
    x = drawn(130, 140, seed=22)
    q, scale = quantize_fp8.forward(x, granularity=granularity, dtype=dtype)
    back = dequantize.forward(q, scale, format=granularity)
    steps = 2.0 ** -(FLOAT8[dtype].mantissa + 1)
    spread = scale_formats.spread(scale, granularity, x.shape)
    smallest = float(FLOAT8[dtype].magnitudes[1]) / 2
    assert bool(((back - x).abs() <= x.abs() * steps * 1.0001 + spread * smallest).all())
