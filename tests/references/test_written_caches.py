"""The references of ``write_kv_cache`` and ``write_latent_cache`` against loops over tokens and float8's codes."""

from __future__ import annotations

import bisect
import math
import re

import pytest
import torch

from portakernel import ops
from portakernel.errors import ArgumentTypeError, ArgumentValueError, IndexOutOfRangeError
from portakernel.references import write_kv_cache, write_latent_cache

pytestmark = pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning")

INF, NAN = math.inf, math.nan
# Of each float8: bits of the fraction, bias of the exponent, the code of its largest number, and one of its NaNs.
FORMATS = {
    "float8_e4m3fn": (3, 7, 0x7E, 0x7F),
    "float8_e4m3fnuz": (3, 8, 0x7F, 0x80),
    "float8_e5m2": (2, 15, 0x7B, 0x7F),
}
LARGEST = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0}


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def decoded(code, dtype):
    """The number of a positive code, from its fields."""
    kept, bias, *_ = FORMATS[dtype]
    exponent, fraction = code >> kept, code & ((1 << kept) - 1)
    if exponent == 0:
        return math.ldexp(fraction, 1 - bias - kept)
    return math.ldexp((1 << kept) + fraction, exponent - bias - kept)


def nearest(x, dtype):
    """The number that ``x`` becomes: the nearest one, of two equally near that with the even code."""
    *_, last, _ = FORMATS[dtype]
    numbers = [decoded(code, dtype) for code in range(last + 1)]
    if math.isnan(x):
        return NAN
    size = min(abs(x), numbers[-1])
    above = min(bisect.bisect_left(numbers, size), last)
    below = max(above - 1, 0)
    apart = (size - numbers[below], numbers[above] - size)
    code = min((apart[0], below % 2, below), (apart[1], above % 2, above))[2]
    return math.copysign(numbers[code], x)


def quotient(x, divisor):
    """``x / divisor`` in float32."""
    return float(torch.tensor(x, dtype=torch.float32) / torch.tensor(divisor, dtype=torch.float32))


def same(found, want):
    """Whether numbers are equal, NaN being NaN; zeros of either sign are alike."""
    return torch.equal(torch.nan_to_num(found, 1e9, 2e9, 3e9), torch.nan_to_num(want, 1e9, 2e9, 3e9))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("slots", [torch.int32, torch.int64])
def test_rows_are_copied_bit_by_bit_and_nothing_else_is_touched(dtype, slots):
    key, value = drawn(5, 2, 4, dtype=dtype), drawn(5, 2, 3, seed=1, dtype=dtype)
    key[0, 0] = torch.tensor([NAN, -INF, -0.0, 0.0], dtype=dtype)
    key.view(torch.int32 if dtype is torch.float32 else torch.int16)[1, 1, 1] |= 0x7FC3  # a NaN of its own, or so
    key_cache, value_cache = drawn(4, 3, 2, 4, seed=2, dtype=dtype), drawn(4, 3, 2, 3, seed=3, dtype=dtype)
    before = key_cache.clone(), value_cache.clone()
    places = [11, -1, 0, 7, -5]
    write_kv_cache.forward(key, value, key_cache, value_cache, torch.tensor(places, dtype=slots))
    for cache, old, rows in ((key_cache, before[0], key), (value_cache, before[1], value)):
        for slot in range(12):
            want = rows[places.index(slot)] if slot in places else old[slot // 3, slot % 3]
            assert torch.equal(bits(cache[slot // 3, slot % 3]), bits(want))


NUMBERS = [0.0, -0.0, 1.0, -1.0625, 17.0, 18.0, 19.0, 247.9, 448.0, 464.0, -1e6, 1e-9, 2.0**-10, 3 * 2.0**-10, 0.3]
NUMBERS += [INF, -INF, NAN, 57344.0, 61440.0, 2.0**-17, -3 * 2.0**-18]


@pytest.mark.parametrize("narrow", FORMATS)
@pytest.mark.parametrize("kind", ["none", "tensor", "head"])
def test_numbers_become_the_nearest_float8_and_no_larger_than_the_largest(narrow, kind):
    heads = 2
    key = torch.stack([torch.tensor(NUMBERS), drawn(len(NUMBERS)) * 100]).unsqueeze(0)
    value = key.flip(-1).clone()
    caches = [torch.zeros(2, 1, heads, len(NUMBERS)).to(getattr(torch, narrow)) for _ in range(2)]
    scales = {"none": [], "tensor": [torch.tensor(0.37), torch.tensor(3.0)]}
    scales["head"] = [torch.tensor([0.7, 1.0]), torch.tensor([11.0, 1e-3])]
    given = dict(zip(("k_scale", "v_scale"), scales[kind], strict=False))
    write_kv_cache.forward(key, value, *caches, torch.tensor([1]), kv_scales=kind, **given)
    for place, (x, cache) in enumerate(zip((key, value), caches, strict=True)):
        for head in range(heads):
            divisors = [1.0] * heads if kind == "none" else scales[kind][place].expand(heads).tolist()
            want = [nearest(quotient(number, divisors[head]), narrow) for number in x[0, head].tolist()]
            assert same(cache[1, 0, head].float(), torch.tensor(want))
        assert not bits(cache[0]).any()


@pytest.mark.parametrize("narrow", FORMATS)
def test_scales_are_computed_for_each_head_of_a_token_and_written(narrow):
    key, value = drawn(4, 2, 7), drawn(4, 2, 5, seed=1) * 1e4
    key[0, 0], key[0, 1] = 0.0, 2.0**-110
    key[1, 0, 3], value[1, 1, 2] = NAN, -INF
    caches = [torch.zeros(2, 3, 2, n).to(getattr(torch, narrow)) for n in (7, 5)]
    scales = [torch.full((2, 3, 2), 99.0) for _ in range(2)]
    places = [4, 0, -1, 5]
    write_kv_cache.forward(
        key,
        value,
        *caches,
        torch.tensor(places),
        key_scales=scales[0],
        value_scales=scales[1],
        kv_scales="token_head",
    )
    for x, cache, written in zip((key, value), caches, scales, strict=True):
        for slot in range(6):
            page, row = slot // 3, slot % 3
            if slot not in places:
                assert written[page, row].tolist() == [99.0, 99.0]
                assert not bits(cache[page, row]).any()
                continue
            for head in range(2):
                numbers = x[places.index(slot), head].tolist()
                largest = max(map(abs, numbers)) if all(map(math.isfinite, numbers)) else NAN
                scale = quotient(largest, LARGEST[narrow])
                scale = 1.0 if scale < 2.0**-100 else scale
                assert same(written[page, row, head], torch.tensor(scale))
                want = [nearest(quotient(number, scale), narrow) for number in numbers]
                assert same(cache[page, row, head].float(), torch.tensor(want))


def test_of_tokens_with_one_slot_whole_rows_are_written():
    key, value = drawn(3, 2, 8), drawn(3, 2, 8, seed=1)
    key_cache, value_cache = torch.zeros(1, 2, 2, 8), torch.zeros(1, 2, 2, 8)
    write_kv_cache.forward(key, value, key_cache, value_cache, torch.tensor([1, 1, 1]))
    (token,) = [t for t in range(3) if torch.equal(key_cache[0, 1], key[t])]
    assert torch.equal(value_cache[0, 1], value[token])


@pytest.mark.parametrize("narrow", [None, *FORMATS])
def test_latents_and_rotary_keys_go_to_their_slots(narrow):
    latent, rope = drawn(4, 6) * 50, drawn(4, 3, seed=1)
    joined = torch.zeros(2, 3, 9).to(getattr(torch, narrow or "float32"))
    places = [5, -1, 0, 2]
    scale = torch.tensor(0.3)
    more = {} if narrow is None else {"scale": scale, "kv_scales": "tensor"}
    write_latent_cache.forward(latent, rope, joined[..., :6], joined[..., 6:], torch.tensor(places), **more)
    for slot in range(6):
        want = torch.zeros(9)
        if slot in places:
            numbers = [*latent[places.index(slot)].tolist(), *rope[places.index(slot)].tolist()]
            divided = [quotient(x, float(scale)) for x in numbers]
            want = torch.tensor(numbers if narrow is None else [nearest(x, narrow) for x in divided])
        assert same(joined[slot // 3, slot % 3].float(), want)


def arguments(narrow=torch.float8_e4m3fn, tokens=2):
    key, value = drawn(tokens, 2, 4), drawn(tokens, 2, 4, seed=1)
    return key, value, torch.zeros(2, 3, 2, 4).to(narrow), torch.zeros(2, 3, 2, 4).to(narrow), torch.tensor([0, 4])


ONE, HEADS, TABLE = torch.tensor(2.0), torch.ones(2), torch.ones(2, 3, 2)
UNUSED = "Say which scales are meant, or leave {} away"
WRONG = [
    ({"k_scale": ONE}, "k_scale goes with kv_scales='tensor' or kv_scales='head'; this is 'none'. " + UNUSED),
    ({"kv_scales": "tensor"}, "kv_scales='tensor' needs k_scale and v_scale; k_scale is missing"),
    ({"kv_scales": "tensor", "k_scale": ONE}, "kv_scales='tensor' needs k_scale and v_scale; v_scale is missing"),
    ({"kv_scales": "head"}, "kv_scales='head' needs k_scale and v_scale; k_scale is missing"),
    (
        {"kv_scales": "token_head", "key_scales": TABLE},
        "kv_scales='token_head' needs key_scales and value_scales; value_scales is missing",
    ),
    (
        {"kv_scales": "head", "k_scale": HEADS, "v_scale": HEADS, "value_scales": TABLE},
        "value_scales goes with kv_scales='token_head'; this is 'head'. " + UNUSED,
    ),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=[text for _, text in WRONG])
def test_scales_that_do_not_go_with_their_kind_are_refused(given, text):
    name = text.partition(" ")[0]
    whole = f"write_kv_cache: {text.format(name)}"
    with pytest.raises(ArgumentValueError, match=f"^{re.escape(whole)}$"):
        ops.write_kv_cache(*arguments(), **given, kernel="reference")


def test_scales_of_a_cache_that_is_not_float8_are_refused_before_any_kernel():
    text = "write_kv_cache: key_cache is float32; it must be float8_e4m3fn or float8_e4m3fnuz or float8_e5m2"
    with pytest.raises(ArgumentTypeError, match=f"^{text}"):
        ops.write_kv_cache(*arguments(torch.float32), k_scale=ONE, v_scale=ONE, kv_scales="tensor")


def test_a_latent_cache_asks_for_its_scale_or_has_no_use_for_it():
    latent, rope = drawn(2, 4), drawn(2, 2)
    caches = torch.zeros(1, 2, 4).to(torch.float8_e5m2), torch.zeros(1, 2, 2).to(torch.float8_e5m2)
    with pytest.raises(ArgumentValueError, match=r"^write_latent_cache: kv_scales='tensor' needs scale; scale is miss"):
        ops.write_latent_cache(latent, rope, *caches, torch.tensor([0, 1]), kv_scales="tensor", kernel="reference")
    with pytest.raises(
        ArgumentValueError, match=r"^write_latent_cache: scale goes with kv_scales='tensor'; this is 'n"
    ):
        ops.write_latent_cache(latent, rope, *caches, torch.tensor([0, 1]), scale=ONE, kernel="reference")


def test_a_slot_that_there_is_not_is_named():
    key, value, key_cache, value_cache, _ = arguments(torch.float32)
    text = "write_kv_cache: slot_mapping holds 6, which is not in [0, NP*P) with NP*P = 6"
    with pytest.raises(IndexOutOfRangeError, match=f"^{re.escape(text)}$"):
        write_kv_cache.forward(key, value, key_cache, value_cache, torch.tensor([-1, 6]))
