"""The reference of attention against formulas of other forms: query by query, number by number, torch's own."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from portakernel.contracts.attention import CONTRACT, visible_keys, visible_pairs
from portakernel.errors import ArgumentValueError
from portakernel.references import attention

NAMES = ("q", "k", "v", "alibi_slopes", "bias", "sinks")
OPTIONAL = NAMES[3:]

# Every feature alone, then together; (queries, keys), present tensors, parameters.
CALLS: dict[str, tuple[tuple[int, int], tuple[str, ...], dict[str, Any]]] = {
    "nothing": ((5, 7), (), {}),
    "scale": ((5, 7), (), {"scale": 0.9}),
    "causal": ((6, 6), (), {"causal": True}),
    "causal, more keys": ((3, 8), (), {"causal": True}),
    "causal, fewer keys": ((8, 3), (), {"causal": True}),
    "one query": ((1, 9), (), {"causal": True}),
    "window before": ((7, 7), (), {"window": (2, -1)}),
    "window after": ((4, 9), (), {"window": (-1, 1)}),
    "window on both sides": ((9, 4), (), {"window": (1, 2)}),
    "window of itself": ((6, 5), (), {"window": (0, 0)}),
    "window, causal": ((7, 9), (), {"window": (3, 2), "causal": True}),
    "softcap": ((5, 7), (), {"softcap": 0.8, "scale": 1.0}),
    "ALiBi": ((5, 8), ("alibi_slopes",), {}),
    "ALiBi, fewer keys": ((8, 5), ("alibi_slopes",), {}),
    "bias": ((5, 7), ("bias",), {}),
    "sinks": ((5, 7), ("sinks",), {}),
    "sinks, queries without keys": ((8, 3), ("sinks",), {"causal": True}),
    "softcap and bias": ((5, 7), ("bias",), {"softcap": 1.1}),
    "everything": ((8, 6), OPTIONAL, {"causal": True, "scale": 0.4, "window": (3, 1), "softcap": 1.3}),
}
each_call = pytest.mark.parametrize("call", list(CALLS))


@pytest.fixture(autouse=True)
def _numbers_that_the_orders_seed_repeats() -> None:
    torch.manual_seed(random.getrandbits(63))


@dataclass(frozen=True)
class Sizes:
    queries: int = 5
    keys: int = 7
    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    dim: int = 6
    value_dim: int = 3

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "q": (self.batch, self.queries, self.heads, self.dim),
            "k": (self.batch, self.keys, self.key_heads, self.dim),
            "v": (self.batch, self.keys, self.key_heads, self.value_dim),
            "alibi_slopes": (self.heads,),
            "bias": (self.batch, self.heads, self.queries, self.keys),
            "sinks": (self.heads,),
        }


def draw(sizes: Sizes, present: tuple[str, ...] = (), dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Random tensors, those of them that are passed."""
    given = {name: shape for name, shape in sizes.shapes().items() if name not in OPTIONAL or name in present}
    return {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in given.items()}


def drawn(call: str, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], dict[str, Any]]:
    (queries, keys), present, parameters = CALLS[call]
    return draw(Sizes(queries, keys), present, dtype), parameters


def run(tensors: dict[str, Tensor], **more: Any) -> Any:
    return attention.forward(**tensors, **more)


def differentiate(grad: Tensor, tensors: dict[str, Tensor], **more: Any) -> dict[str, Tensor | None]:
    """The reference's gradients by name, as a caller of backward gets them."""
    out, lse = run(tensors, save=True, **more)
    found = attention.backward(grad, *(tensors.get(name) for name in NAMES), out, lse, **more)
    return dict(zip(NAMES, found, strict=True))


def sees(place: int, key: int, causal: bool, window: tuple[int, int]) -> bool:
    left, right = window
    return not ((causal and key > place) or (left >= 0 and key < place - left) or (right >= 0 and key > place + right))


def by_query(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention of one query after the other, over the keys that it sees and no others; no maximum is subtracted."""
    (batch, queries, heads, dim), keys, shared = q.shape, k.shape[1], q.shape[2] // k.shape[2]
    scale = dim**-0.5 if scale is None else scale
    rows, sums = [], []
    for b, i, h in product(range(batch), range(queries), range(heads)):
        place = keys - queries + i
        seen = [j for j in range(keys) if sees(place, j, causal, window)]
        score = (k[b, seen, h // shared] * q[b, i, h]).sum(-1) * scale
        if softcap:
            score = torch.tanh(score / softcap) * softcap
        if alibi_slopes is not None:
            score = score - alibi_slopes[h] * torch.tensor([abs(place - j) for j in seen], dtype=q.dtype)
        if bias is not None:
            score = score + bias[b, h, i, seen]
        terms = score.exp()
        total = terms.sum() if sinks is None else terms.sum() + sinks[h].exp()
        mixed = (terms[:, None] * v[b, seen, h // shared]).sum(0)
        rows.append(mixed / total if seen else mixed)
        sums.append(total.log())
    out = torch.stack(rows).reshape(batch, queries, heads, v.shape[-1])
    return out, torch.stack(sums).reshape(batch, queries, heads).transpose(1, 2)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


# --- forward ----------------------------------------------------------------------------------------------------------


@each_call
def test_forward_is_the_formula_query_by_query(call: str) -> None:
    tensors, parameters = drawn(call)
    out, lse = run(tensors, return_lse=True, **parameters)
    wanted, wanted_lse = by_query(**tensors, **parameters)
    close(out, wanted)
    close(lse, wanted_lse)
    close(run(tensors, **parameters), wanted)


@each_call
def test_the_plain_formula_is_the_formula_query_by_query(call: str) -> None:
    tensors, parameters = drawn(call)
    out, lse = attention.plain(**tensors, return_lse=True, **parameters)
    wanted, wanted_lse = by_query(**tensors, **parameters)
    close(out, wanted)
    close(lse, wanted_lse)
    close(attention.plain(**tensors, **parameters), wanted)


def test_forward_is_the_formula_number_by_number() -> None:
    sizes = Sizes(queries=4, keys=3, batch=1, heads=2, key_heads=1, dim=3, value_dim=2)
    tensors = draw(sizes, OPTIONAL)
    parameters: dict[str, Any] = {"causal": True, "scale": 0.7, "window": (1, -1), "softcap": 1.5}
    out, lse = run(tensors, return_lse=True, **parameters)
    q, k, v, slopes, bias, sinks = (tensors[name].tolist() for name in NAMES)
    for i, h in product(range(4), range(2)):
        total, mixed = math.exp(sinks[h]), [0.0, 0.0]
        for j in range(3):
            if j > i - 1 or j < i - 2:
                continue
            score = 0.7 * sum(a * b for a, b in zip(q[0][i][h], k[0][j][0], strict=True))
            score = 1.5 * math.tanh(score / 1.5) - slopes[h] * abs(i - 1 - j) + bias[0][h][i][j]
            total += math.exp(score)
            mixed = [sofar + math.exp(score) * number for sofar, number in zip(mixed, v[0][j][0], strict=True)]
        assert out[0, i, h].tolist() == pytest.approx([number / total for number in mixed], rel=1e-12, abs=1e-14)
        assert lse[0, h, i].item() == pytest.approx(math.log(total), rel=1e-12)


def torch_attention(tensors: dict[str, Tensor], mask: Tensor | None = None, **more: Any) -> Tensor:
    q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **more).transpose(1, 2)


@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (6, 2), (5, 1)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_heads_are_grouped_as_torch_groups_them(heads: int, key_heads: int, scale: float | None) -> None:
    tensors = draw(Sizes(9, 13, heads=heads, key_heads=key_heads, dim=16, value_dim=8))
    close(run(tensors, scale=scale), torch_attention(tensors, scale=scale))


def test_causal_is_torchs_causal_where_there_are_as_many_keys() -> None:
    tensors = draw(Sizes(17, 17))
    close(run(tensors, causal=True), torch_attention(tensors, is_causal=True))


@pytest.mark.parametrize(("queries", "keys"), [(3, 11), (1, 8), (9, 9)])
def test_causal_is_aligned_at_the_bottom_right(queries: int, keys: int) -> None:
    tensors = draw(Sizes(queries, keys))
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    close(run(tensors, causal=True), torch_attention(tensors, mask))


@pytest.mark.parametrize("window", [(2, -1), (-1, 2), (3, 1), (0, 0)])
@pytest.mark.parametrize(("queries", "keys"), [(10, 10), (6, 10)])
def test_a_window_is_a_band_around_the_diagonal(window: tuple[int, int], queries: int, keys: int) -> None:
    tensors = draw(Sizes(queries, keys))
    mask = torch.ones(queries, keys, dtype=torch.bool)
    if window[0] >= 0:
        mask = mask.triu(keys - queries - window[0])
    if window[1] >= 0:
        mask = mask.tril(keys - queries + window[1])
    close(run(tensors, window=window), torch_attention(tensors, mask))


def test_alibi_and_bias_are_torchs_additive_mask() -> None:
    tensors = draw(Sizes(6, 9), ("alibi_slopes", "bias"))
    distance = (torch.arange(6)[:, None] + 3 - torch.arange(9)).abs()
    mask = tensors["bias"] - tensors["alibi_slopes"][:, None, None] * distance
    close(run(tensors), torch_attention(tensors, mask))


def test_a_sink_is_a_key_whose_value_is_zero() -> None:
    tensors = draw(Sizes(heads=2, key_heads=2), ("sinks",))
    # a key that gives the sink as its score: the query has one more dim, which is 1, and which only that key has
    widened = {name: F.pad(tensors[name], (0, 1)) for name in "qk"}
    widened["q"][..., -1] = 1.0
    sink_key = torch.zeros(2, 1, 2, 7, dtype=torch.float64)
    scale = 6**-0.5
    sink_key[..., -1] = tensors["sinks"] / scale
    keys = torch.cat([widened["k"], sink_key], 1)
    values = torch.cat([tensors["v"], torch.zeros(2, 1, 2, 3, dtype=torch.float64)], 1)
    out, lse = attention.forward(widened["q"], keys, values, scale=scale, return_lse=True)
    found, found_lse = run(tensors, return_lse=True)
    close(found, out)
    close(found_lse, lse)


def test_minus_infinity_in_the_bias_masks() -> None:
    tensors = draw(Sizes(6, 6), ("bias",))
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    tensors["bias"].masked_fill_(hidden, -math.inf)
    grad = torch.randn(2, 6, 4, 3, dtype=torch.float64)
    masked = {**tensors, "bias": tensors["bias"].masked_fill(hidden, 0.0)}
    close(run(tensors), run(masked, causal=True))
    found, wanted = differentiate(grad, tensors), differentiate(grad, masked, causal=True)
    for name in ("q", "k", "v", "bias"):
        close(found[name], wanted[name])


def test_a_sink_of_minus_infinity_is_none() -> None:
    tensors = draw(Sizes(4, 2), ("sinks",))
    tensors["sinks"].fill_(-math.inf)
    without = {name: tensors[name] for name in "qkv"}
    for found, wanted in zip(
        run(tensors, causal=True, return_lse=True), run(without, causal=True, return_lse=True), strict=True
    ):
        close(found, wanted)
    gradients = differentiate(torch.ones(2, 4, 4, 3, dtype=torch.float64), tensors, causal=True)
    assert gradients["sinks"].tolist() == [0.0] * 4


# --- nothing to see, nothing there ------------------------------------------------------------------------------------


def test_a_query_without_keys_gives_zeros_and_has_no_gradient() -> None:
    tensors = draw(Sizes(8, 3), ("bias",))
    tensors["bias"][:, :, 6] = -math.inf
    out, lse = run(tensors, causal=True, return_lse=True)
    blind = [0, 1, 2, 3, 4, 6]
    assert out[:, blind].eq(0.0).all()
    assert lse[:, :, blind].eq(-math.inf).all()
    assert lse[:, :, [5, 7]].isfinite().all()
    for gradients in (
        differentiate(torch.randn_like(out), tensors, causal=True),
        plain_gradients(torch.randn_like(out), tensors, causal=True),
    ):
        assert all(gradient.isfinite().all() for gradient in gradients.values() if gradient is not None)
        assert gradients["q"][:, blind].eq(0.0).all()
        assert gradients["bias"][:, :, blind].eq(0.0).all()


def test_a_query_without_keys_has_its_sink_as_lse() -> None:
    tensors = draw(Sizes(8, 3), ("sinks",))
    out, lse = run(tensors, causal=True, return_lse=True)
    assert out[:, :5].eq(0.0).all()
    assert torch.equal(lse[:, :, :5], tensors["sinks"][:, None].expand(2, 4, 5))


@pytest.mark.parametrize("sizes", [Sizes(keys=0), Sizes(queries=0), Sizes(batch=0), Sizes(queries=0, keys=0)])
@pytest.mark.parametrize("present", [(), OPTIONAL])
def test_without_tokens_results_are_zeros_or_empty(sizes: Sizes, present: tuple[str, ...]) -> None:
    tensors = draw(sizes, present, torch.bfloat16)
    out, lse = run(tensors, causal=True, return_lse=True)
    assert out.shape == (sizes.batch, sizes.queries, 4, 3)
    assert lse.shape == (sizes.batch, 4, sizes.queries)
    assert out.eq(0.0).all()
    if sizes.keys == 0:
        wanted = tensors["sinks"].float()[:, None].expand_as(lse) if present else torch.full_like(lse, -math.inf)
        torch.testing.assert_close(lse, wanted, rtol=1e-6, atol=1e-6)
    grad = torch.ones_like(out)
    for gradients in (differentiate(grad, tensors, causal=True), plain_gradients(grad, tensors, causal=True)):
        for name in ("q", "k", "v", *(name for name in present if name != "alibi_slopes")):
            assert gradients[name].shape == tensors[name].shape
            assert gradients[name].eq(0.0).all()


# --- gradients --------------------------------------------------------------------------------------------------------


def plain_gradients(grad: Tensor, tensors: dict[str, Tensor], **more: Any) -> dict[str, Tensor | None]:
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    out = attention.plain(**leaves, **more)
    return dict(zip(leaves, torch.autograd.grad(out, [*leaves.values()], grad, allow_unused=True), strict=True))


@each_call
def test_gradients_are_those_of_the_formula_query_by_query(call: str) -> None:
    tensors, parameters = drawn(call)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    out, _ = by_query(**leaves, **parameters)
    grad = torch.randn_like(out)
    wanted = dict(zip(leaves, torch.autograd.grad(out, [*leaves.values()], grad, allow_unused=True), strict=True))
    plain = plain_gradients(grad, tensors, **parameters)
    for name, found in differentiate(grad, tensors, **parameters).items():
        if name == "alibi_slopes" or name not in tensors:
            assert found is None
            assert plain.get(name) is None
        else:
            close(found, wanted[name])
            close(plain[name], wanted[name])


@each_call
def test_gradients_are_differences(call: str) -> None:
    (queries, keys), present, parameters = CALLS[call]
    sizes = Sizes(queries, keys, batch=1, heads=2, key_heads=1, dim=2, value_dim=2)
    tensors = draw(sizes, present)
    slopes = tensors.pop("alibi_slopes", None)

    class Reference(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Tensor) -> Tensor:
            ctx.given = dict(zip(tensors, values, strict=True))
            if slopes is not None:
                ctx.given["alibi_slopes"] = slopes
            return run(ctx.given, **parameters)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            found = differentiate(grad, ctx.given, **parameters)
            return tuple(found[name] for name in tensors)

    leaves = tuple(tensor.requires_grad_() for tensor in tensors.values())
    assert torch.autograd.gradcheck(Reference.apply, leaves)


@each_call
def test_torch_differentiates_the_reference_itself(call: str) -> None:
    tensors, parameters = drawn(call)
    leaves = {name: tensor.clone().requires_grad_(name != "alibi_slopes") for name, tensor in tensors.items()}
    out = run(leaves, **parameters)
    grad = torch.randn_like(out)
    wanted = differentiate(grad, tensors, **parameters)
    asked = [name for name, leaf in leaves.items() if leaf.requires_grad]
    for name, found in zip(asked, torch.autograd.grad(out, [leaves[name] for name in asked], grad), strict=True):
        close(found, wanted[name])


# torch's own decompositions for forward mode are scripted when they are first used (torch 2.13)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_the_reference_has_tangents() -> None:
    tensors, parameters = drawn("everything")
    tangents = {name: torch.randn_like(tensor) for name, tensor in tensors.items()}

    def call(given: dict[str, Tensor]) -> Tensor:
        return run(given, **parameters)

    step = 1e-6
    ahead, behind = (
        call({name: tensor + sign * step * tangents[name] for name, tensor in tensors.items()}) for sign in (1, -1)
    )
    wanted = (ahead - behind) / (2 * step)
    _, transformed = torch.func.jvp(call, (tensors,), (tangents,))
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(tensor, tangents[name]) for name, tensor in tensors.items()}
        tangent = forward_ad.unpack_dual(call(duals)).tangent
    for found in (transformed, tangent):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


def test_only_the_gradients_that_are_asked_for_come_back() -> None:
    tensors, parameters = drawn("everything")
    out, lse = run(tensors, save=True, **parameters)
    grad = torch.randn_like(out)
    given = (grad, *(tensors[name] for name in NAMES), out, lse)
    whole = attention.backward(*given, **parameters)
    for place in range(6):
        needs = tuple(other == place for other in range(6))
        found = attention.backward(*given, needs=needs, **parameters)
        for other, gradient in enumerate(found):
            if other == place and NAMES[other] != "alibi_slopes":
                assert torch.equal(gradient, whole[other])
            else:
                assert gradient is None


# --- numbers ----------------------------------------------------------------------------------------------------------


@each_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_once_to_their_dtypes(call: str, dtype: torch.dtype) -> None:
    tensors, parameters = drawn(call, dtype)
    for name in ("alibi_slopes", "sinks"):
        if name in tensors:
            tensors[name] = tensors[name].float()
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    out, lse = run(tensors, return_lse=True, **parameters)
    truth, truth_lse = run(exact, return_lse=True, **parameters)
    # a little more than half a unit in the last place of 16-bit results; a few of float32's
    unit = torch.finfo(dtype).eps
    tolerance = {"rtol": 0.51 * unit, "atol": 1e-6} if dtype is not torch.float32 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(out.double(), truth, **tolerance)
    torch.testing.assert_close(lse.double(), truth_lse, rtol=1e-5, atol=1e-5)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    grad = torch.randn(out.shape).to(dtype)
    wanted = differentiate(grad.double(), exact, **parameters)
    tolerance["atol"] = 5e-6
    for name, gradient in differentiate(grad, tensors, **parameters).items():
        if gradient is not None:
            assert gradient.dtype == tensors[name].dtype
            assert gradient.is_contiguous()
            narrow = tensors[name].dtype != torch.float32
            allowed = tolerance if narrow else {"rtol": 1e-5, "atol": 5e-6}
            torch.testing.assert_close(gradient.double(), wanted[name], **allowed)


def test_lse_is_off_by_few_units_of_what_its_errors_are_in_proportion_to() -> None:
    for _ in range(20):
        tensors = draw(Sizes(33, 40, heads=4, key_heads=2, dim=64), OPTIONAL, torch.float32)
        exact = {name: tensor.double() for name, tensor in tensors.items()}
        parameters: dict[str, Any] = {"causal": True, "scale": 0.4, "window": (20, -1), "softcap": 30.0}
        _, lse = run(tensors, save=True, **parameters)
        _, truth_lse = run(exact, save=True, **parameters)
        (magnitude,) = attention.saved_magnitudes(**exact, **parameters)
        assert ((lse - truth_lse).abs() / magnitude).max() < 2 * torch.finfo(torch.float32).eps
        of_out, returned = attention.output_magnitudes(**exact, return_lse=True, **parameters)
        assert torch.equal(returned, magnitude)
        assert torch.equal(attention.output_magnitudes(**exact, **parameters)[0], of_out)


def test_out_is_off_by_what_its_scores_errors_make_of_it() -> None:
    for _ in range(20):
        tensors = draw(Sizes(9, 7, heads=4, key_heads=2, dim=2048), OPTIONAL, torch.float32)
        exact = {name: tensor.double() for name, tensor in tensors.items()}
        parameters: dict[str, Any] = {"causal": True, "scale": -0.5}
        off = (run(tensors, **parameters) - run(exact, **parameters)).abs()
        (magnitude,) = attention.output_magnitudes(**exact, **parameters)
        eps = torch.finfo(torch.float32).eps
        assert (off <= 2 * eps * magnitude + 8 * eps).all()
        assert (off > 0.02 * eps * magnitude).double().mean() > 0.1


def test_magnitudes_are_finite_for_queries_without_keys() -> None:
    tensors = draw(Sizes(8, 3), ("bias",))
    tensors["bias"][0, 0, 6] = -math.inf
    (magnitude,) = attention.saved_magnitudes(**tensors, causal=True)
    assert magnitude.isfinite().all()
    assert magnitude[:, :, :5].eq(1.0).all()


def test_scores_beyond_what_an_exponential_holds_are_no_infinities() -> None:
    tensors = draw(Sizes(6, 9), ("sinks",), torch.float32)
    tensors["q"] *= 1e4
    tensors["sinks"] *= 1e4
    out, lse = run(tensors, return_lse=True)
    exact, exact_lse = attention.plain(**{name: tensor.double() for name, tensor in tensors.items()}, return_lse=True)
    torch.testing.assert_close(out.double(), exact, rtol=0.02, atol=0.02)
    # what cancels in a score is of the size of the largest
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=1e-6 * float(exact_lse.abs().max()))


def test_nan_and_infinity_stay_with_the_queries_that_see_them() -> None:
    tensors = draw(Sizes(6, 6), ("bias",))
    clean = run(tensors, causal=True)
    for name, place, infected in (
        ("q", (0, 2, 1, 0), [(0, 2, 1)]),
        ("k", (0, 3, 1, 0), [(0, i, h) for i in (3, 4, 5) for h in (2, 3)]),
        ("bias", (1, 0, 4, 1), [(1, 4, 0)]),
    ):
        spoiled = {**tensors, name: tensors[name].clone()}
        spoiled[name][place] = math.nan
        out = run(spoiled, causal=True)
        rows = torch.zeros(2, 6, 4, dtype=torch.bool)
        for row in infected:
            rows[row] = True
        assert torch.equal(out.isnan(), rows[..., None].expand_as(out))
        assert torch.equal(out[~rows], clean[~rows])
    spoiled = {**tensors, "v": tensors["v"].clone()}
    spoiled["v"][1, 0, 0, 2] = math.inf
    out = run(spoiled, causal=True)
    assert out[1, :, :2, 2].eq(math.inf).all()
    assert torch.equal(out[0], clean[0])


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", [1, 20, 100, 1000])
@pytest.mark.parametrize("call", ["causal, more keys", "everything"])
def test_pieces_make_no_difference(scores: int, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, parameters = drawn(call)
    whole = run(tensors, return_lse=True, **parameters)
    grad = torch.randn_like(whole[0])
    gradients = differentiate(grad, tensors, **parameters)
    monkeypatch.setattr(attention, "_SCORES_AT_ONCE", scores)
    for found, wanted in zip(run(tensors, return_lse=True, **parameters), whole, strict=True):
        close(found, wanted)
    for name, found in differentiate(grad, tensors, **parameters).items():
        if found is not None:
            close(found, gradients[name])


@pytest.mark.parametrize(
    ("sizes", "largest"),
    [
        (Sizes(50, 70, batch=3, heads=6, key_heads=3), 10_000),
        (Sizes(50, 70, batch=3, heads=6, key_heads=3), 500),
        # a single query of one key head has more
        (Sizes(4, 300, batch=2, heads=8, key_heads=1), 1000),
    ],
)
def test_no_more_scores_are_held_at_once_than_fit(sizes: Sizes, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SCORES_AT_ONCE", largest)
    seen = []
    exp = torch.exp

    def counting(values: Tensor) -> Tensor:
        seen.append(values.numel())
        return exp(values)

    monkeypatch.setattr(torch, "exp", counting)
    run(draw(sizes))
    one_query = sizes.heads // sizes.key_heads * sizes.keys
    assert sum(seen) == sizes.batch * sizes.heads * sizes.queries * sizes.keys
    assert max(seen) <= max(largest, one_query)


@pytest.mark.parametrize("return_lse", [False, True])
def test_out_is_written_and_returned(return_lse: bool) -> None:
    tensors, parameters = drawn("everything", torch.float16)
    wanted = run(tensors, return_lse=return_lse, **parameters)
    out = torch.full((2, 4, 8, 3), math.nan, dtype=torch.float16).transpose(1, 2)
    lse = torch.full((2, 8, 4), math.nan).transpose(1, 2)
    given = (out, lse) if return_lse else out
    assert run(tensors, return_lse=return_lse, out=given, **parameters) is given
    if return_lse:
        assert torch.equal(lse, wanted[1])
    assert torch.equal(out, wanted[0] if return_lse else wanted)


def test_saved_lse_has_memory_of_its_own() -> None:
    tensors, parameters = drawn("everything", torch.float16)
    out, lse, saved = run(tensors, return_lse=True, save=True, **parameters)
    assert torch.equal(saved, lse)
    assert saved.data_ptr() != lse.data_ptr()
    out_alone, saved_alone = run(tensors, save=True, **parameters)
    assert torch.equal(out, out_alone)
    assert torch.equal(saved, saved_alone)


def strided(tensor: Tensor, how: str) -> Tensor:
    """The same numbers, elsewhere in memory."""
    match how:
        case "sliced":
            return F.pad(tensor, (3, 2))[..., 3:-2]
        case "stepped":
            return tensor.repeat_interleave(2, -1)[..., ::2]
        case "last two swapped":
            return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        case _:
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("how", ["sliced", "stepped", "last two swapped", "heads first"])
def test_strides_make_no_difference(how: str) -> None:
    tensors, parameters = drawn("everything")
    moved = {name: strided(t, how) if t.dim() == 4 else t for name, t in tensors.items()}
    out, lse = run(tensors, return_lse=True, **parameters)
    found, found_lse = run(moved, return_lse=True, **parameters)
    close(found, out)
    close(found_lse, lse)
    assert found.is_contiguous()
    assert found_lse.is_contiguous()
    grad = torch.randn_like(out)
    wanted = differentiate(grad, tensors, **parameters)
    for name, gradient in differentiate(strided(grad, how), moved, **parameters).items():
        if gradient is not None:
            close(gradient, wanted[name])
            assert gradient.is_contiguous()


def test_expanded_tensors_have_a_gradient_for_each_element() -> None:
    tensors = draw(Sizes(batch=3), ("bias",))
    tensors = {name: tensor[:1].expand_as(tensor) for name, tensor in tensors.items()}
    grad = torch.randn(1, 1, 1, 1, dtype=torch.float64).expand(3, 5, 4, 3)
    wanted = differentiate(grad.contiguous(), {name: tensor.contiguous() for name, tensor in tensors.items()})
    for name, gradient in differentiate(grad, tensors).items():
        if gradient is not None:
            close(gradient, wanted[name])
            assert gradient.shape == tensors[name].shape
            assert gradient.is_contiguous()


# --- contract ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causal", "window"), list(product((False, True), ((-1, -1), (0, 0), (2, -1), (-1, 2), (3, 1), (99, 99))))
)
def test_visible_pairs_and_keys_are_those_that_the_mask_leaves(causal: bool, window: tuple[int, int]) -> None:
    for queries, keys in product(range(7), range(7)):
        seen = [[sees(keys - queries + i, j, causal, window) for j in range(keys)] for i in range(queries)]
        assert visible_pairs(queries, keys, causal=causal, window=window) == sum(map(sum, seen))
        used = sum(any(row[j] for row in seen) for j in range(keys))
        if queries:
            assert visible_keys(queries, keys, window=window) == used


def test_the_cost_counts_what_a_mask_leaves() -> None:
    dims = {"B": 2, "S": 10, "T": 100, "H": 8, "G": 2, "D": 64, "E": 32}
    sizes = {"q": 2, "k": 2, "v": 2}
    whole = CONTRACT.cost(dims, sizes, CONTRACT.values())
    assert whole.flops == 2 * (2 * 8 * 10 * 100) * (64 + 32)
    assert whole.bytes == 2 * 2 * 10 * 8 * (64 + 32) + 2 * 2 * 100 * 2 * (64 + 32)
    causal = CONTRACT.cost(dims, sizes, CONTRACT.values({"causal": True}))
    assert causal.flops == 2 * (2 * 8 * (10 * 100 - 45)) * (64 + 32)
    assert causal.bytes == whole.bytes
    near = CONTRACT.cost(dims, sizes, CONTRACT.values({"causal": True, "window": (4, -1)}))
    assert near.flops == 2 * (2 * 8 * 10 * 5) * (64 + 32)
    assert near.bytes == 2 * 2 * 10 * 8 * (64 + 32) + 2 * 2 * 14 * 2 * (64 + 32)
    more = CONTRACT.cost(
        dims, {**sizes, "bias": 2, "alibi_slopes": 4, "sinks": 4}, CONTRACT.values({"return_lse": True})
    )
    assert more.bytes == whole.bytes + 2 * 8 * 10 * 100 * 2 + 8 * (4 + 4) + 4 * 2 * 8 * 10
    assert more.flops == whole.flops


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1, 2, 3, 8), "k": (1, 2, 2, 8)}, "attention: needs H % G == 0; this is G = 2, H = 3"),
        ({"q": (1, 2, 3, 8), "k": (1, 2, 0, 8)}, "attention: needs G > 0; this is G = 0"),
        ({"q": (1, 2, 3, 0), "k": (1, 2, 3, 0)}, "attention: needs D > 0; this is D = 0"),
        (
            {"q": (2, 5, 4, 8), "k": (2, 7, 4, 8), "bias": (1, 4, 5, 7)},
            "attention: bias has shape (1, 4, 5, 7), so B = 1, but q has B = 2",
        ),
    ],
)
def test_shapes_that_make_no_sense_are_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        CONTRACT.bind_shapes(shapes)
    assert str(caught.value) == message
