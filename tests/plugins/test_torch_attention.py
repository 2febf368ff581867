"""PyTorch's attention operators behind the contract: whose mask begins where, what is padded, cut off and refused.

The operators for GPUs are stood in for by formulas that keep their conventions.
"""

# ruff: noqa: N803, N806 - dimensions have the contract's letters

from __future__ import annotations

import math

import pytest
import torch

import portakernel
from portakernel import ops, runtime
from portakernel.calling.fallback import Fallbacks
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.errors import FallbackWarning
from portakernel.references import attention as reference
from portakernel_plugins.torch.attention import cudnn as attention_cudnn
from portakernel_plugins.torch.attention import efficient as attention_efficient
from portakernel_plugins.torch.attention import flash as attention_flash
from portakernel_plugins.torch.attention import flash_cpu as attention_flash_cpu
from portakernel_plugins.torch.attention import math as attention_math
from portakernel_plugins.torch.attention import mps as attention_mps
from portakernel_plugins.torch.attention import onednn as attention_onednn
from portakernel_plugins.torch.attention.layout import aligned, blind_queries
from portakernel_plugins.torch.attention.scale import above_zero

# queries, keys: as many; more; fewer; one
SIZES = [(5, 5), (9, 4), (3, 8), (1, 7)]


def draw(S, T, H=4, G=2, D=16, E=16, B=2):
    source = torch.Generator().manual_seed(S * 100 + T)
    shapes = ((B, S, H, D), (B, T, G, D), (B, T, G, E))
    return [torch.randn(shape, generator=source) for shape in shapes]


# --- stand-ins -------------------------------------------------------------------------------------------------------


def flash_window(longest, window_size_left=-1, window_size_right=-1):
    """FlashAttention-2's: what reaches as far as the keys is open, and an open end as far away as there are keys."""
    left, right = (-1 if size >= longest else size for size in (window_size_left, window_size_right))
    return (longest if left < 0 <= right else left, longest if right < 0 <= left else right)


def flash_forward(q, k, v, cu_q, cu_k, S, T, dropout, causal, debug, *, scale, **more):
    """FlashAttention-2: the mask ends at the last key, all head dims are one."""
    assert (cu_q, cu_k, S, T, dropout, debug) == (None, None, q.shape[1], k.shape[1], 0.0, False)
    assert scale > 0
    assert q.shape[-1] == k.shape[-1] == v.shape[-1]
    window = flash_window(T, **more)
    asked = {"causal": causal, "scale": scale, "window": window}
    return (*reference.forward(q, k, v, **asked, return_lse=True), None, None, None)


def flash_backward(grad, q, k, v, out, lse, cu_q, cu_k, S, T, dropout, causal, state, unused, *, scale, **more):
    assert lse.is_contiguous()
    assert scale > 0
    assert lse.shape == (q.shape[0], q.shape[2], S)
    assert bool(lse.isfinite().all())
    window = flash_window(T, **more)
    asked = {"causal": causal, "scale": scale, "window": window}
    return reference.backward(grad, q, k, v, None, None, None, out, lse, **asked)[:3]


def top_left(S, T, causal):
    return torch.ones(S, T, dtype=torch.bool).triu(1) if causal else torch.zeros(S, T, dtype=torch.bool)


def cudnn_forward(q, k, v, bias, wants_lse, dropout, causal, debug, *, scale):
    """cuDNN: heads before queries, the mask begins at the first key, lse has a dimension of one more.

    A row that is masked throughout gives zeros, and an lse of -inf.
    """
    assert scale > 0
    repeats = q.shape[1] // k.shape[1]
    scores = scale * q @ k.repeat_interleave(repeats, 1).transpose(-1, -2)
    if bias is not None:
        assert not causal
        assert bias.stride(-1) == 1
        scores = scores + bias
    scores = scores.masked_fill(top_left(*scores.shape[-2:], causal), -math.inf)
    y = scores.softmax(-1).nan_to_num(0.0) @ v.repeat_interleave(repeats, 1)
    return y, scores.logsumexp(-1, keepdim=True) if wants_lse else None, *[None] * 7


def cudnn_backward(grad, q, k, v, out, lse, seed, offset, bias, cu_q, cu_k, S, T, dropout, causal, *, scale):
    """Weights are made again from the scores and lse."""
    assert lse.shape == (*q.shape[:3], 1)
    repeats = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(repeats, 1) for x in (k, v))
    scores = scale * q @ keys.mT + (0.0 if bias is None else bias)
    weights = torch.exp(scores.masked_fill(top_left(S, T, causal), -math.inf) - lse)
    grad_scores = weights * (grad @ values.mT - (grad * out).sum(-1, keepdim=True))
    shared = (x.unflatten(1, (-1, repeats)).sum(2) for x in (scale * grad_scores.mT @ q, weights.mT @ grad))
    return scale * grad_scores @ keys, *shared


def efficient_forward(q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, kind, wants_lse, *, scale):
    """CUTLASS: a head of keys for each head, rows of lse padded to 32.

    A row that is masked throughout gives zeros and an lse of 0.
    """
    (_, S, H, _), T = q.shape, k.shape[1]
    assert k.shape[2] == v.shape[2] == H
    assert scale > 0
    scores = scale * torch.einsum("bshd,bthd->bhst", q, k)
    if bias is not None:
        assert bias.shape == scores.shape
        assert bias.stride(-2) % 16 == 0 or S == 1
        assert bias.stride(-1) == 1
        scores = scores + bias
    shift = T - S if kind == 2 else 0
    if kind:
        scores = scores.masked_fill(torch.ones(S, T, dtype=torch.bool).triu(1 + shift), -math.inf)
    weights, lse = scores.softmax(-1).nan_to_num(0.0), scores.logsumexp(-1)
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    y = torch.einsum("bhst,bthe->bshe", weights, v)
    lse = torch.nn.functional.pad(lse, (0, -S % 32), value=math.nan)
    return y, lse if wants_lse else lse[..., :0], None, None, S, T


def efficient_backward(*arguments, scale):
    """The operator of ``scaled_dot_product_attention``, with heads before queries and a causal mask from the first."""
    grad, q, k, v, bias, out, lse, seed, offset, p, (*_, wants), causal = arguments
    grad, q, k, v, out = (x.transpose(1, 2) for x in (grad, q, k, v, out))
    rest = (bias, out, None, None, q.shape[1], k.shape[1], lse, p, seed, offset, int(causal), wants)
    *grads, grad_bias = efficient_backward_to_last_key(grad, q, k, v, *rest, scale=scale)
    return (*(x.transpose(1, 2) for x in grads), grad_bias)


def efficient_backward_to_last_key(
    grad, q, k, v, bias, out, cu_q, cu_k, max_q, max_k, lse, p, seed, offset, kind, wants, *, scale
):
    """Weights are made again from the scores and lse."""
    assert lse.shape[-1] % 32 == 0
    assert scale > 0
    (_, S, _, _), T = q.shape, k.shape[1]
    scores = scale * torch.einsum("bshd,bthd->bhst", q, k)
    scores = scores if bias is None else scores + bias
    if kind:
        scores = scores.masked_fill(torch.ones(S, T, dtype=torch.bool).triu(1 + (T - S if kind == 2 else 0)), -math.inf)
    weights = torch.exp(scores - lse[:, :, :S, None])
    grad_v = torch.einsum("bhst,bshe->bthe", weights, grad)
    grad_weights = torch.einsum("bshe,bthe->bhst", grad, v)
    grad_scores = weights * (grad_weights - (grad * out).sum(-1).transpose(1, 2).unsqueeze(-1))
    grad_q = scale * torch.einsum("bhst,bthd->bshd", grad_scores, k)
    grad_k = scale * torch.einsum("bhst,bshd->bthd", grad_scores, q)
    return grad_q, grad_k, grad_v, grad_scores if wants else None


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(attention_flash, "_forward", flash_forward)
    monkeypatch.setattr(attention_flash, "_backward", flash_backward)
    monkeypatch.setattr(attention_cudnn, "_forward", cudnn_forward)
    monkeypatch.setattr(attention_cudnn, "_backward", cudnn_backward)
    monkeypatch.setattr(attention_efficient, "_forward", efficient_forward)
    monkeypatch.setattr(attention_efficient, "_backward", efficient_backward)
    monkeypatch.setattr(attention_efficient, "_backward_to_last_key", efficient_backward_to_last_key)


# --- numbers ---------------------------------------------------------------------------------------------------------


def compare(kernel, tensors, *, bias=None, **asked):
    """Forward, saved lse and gradients of a module against the reference's."""
    given = {"bias": bias} if bias is not None or kernel is attention_efficient else {}
    y, lse = kernel.attention(*tensors, **given, **asked, return_lse=True)
    want, want_lse = reference.forward(*tensors, bias=bias, **asked, return_lse=True)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(lse, want_lse)
    saved = kernel.attention(*tensors, **given, **asked, return_lse=True, save=True)
    assert len(saved) == 3
    assert len({tensor.data_ptr() for tensor in saved}) == 3
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    extra = (bias,) if kernel is attention_efficient else ()
    needs = (True,) * (3 + len(extra))
    found = kernel.backward(grad, *tensors, *extra, y, lse, **asked, return_lse=False, needs=needs)
    wanted = reference.backward(grad, *tensors, None, bias, None, want, want_lse, **asked)
    for gradient, right in zip(found, (*wanted[:3], wanted[4]), strict=False):
        torch.testing.assert_close(gradient, right)
        assert gradient is None or gradient.is_contiguous()


@pytest.mark.parametrize(("S", "T"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (2, 1), (-1, 0), (1, -1)])
@pytest.mark.parametrize("kernel", [attention_flash, attention_efficient])
def test_masks_end_at_the_last_key(kernel, S, T, causal, window):
    if (kernel, S, T, causal, window) == (attention_flash, 9, 4, False, (1, -1)):
        pytest.skip("flash leaves it to others")
    compare(kernel, draw(S, T), causal=causal, scale=0.3, window=window)


@pytest.mark.parametrize("window", [(1, -1), (0, 4), (3, 2**20)])
def test_flash_leaves_windows_to_others_whose_open_end_it_takes_for_one(window):
    asked = {"scale": None, "window": window, "return_lse": False}
    with pytest.raises(CannotRun) as caught:
        attention_flash.attention(*draw(9, 4), causal=False, **asked)
    assert (caught.value.rejection.code, caught.value.rejection.parameter) == (ReasonCode.LIMIT, "window")
    compare(attention_flash, draw(9, 4), causal=True, scale=None, window=window)
    compare(attention_flash, draw(5, 4), causal=False, scale=None, window=window)


def test_flash_leaves_windows_to_others_whose_far_end_it_takes_for_none():
    asked = {"causal": False, "scale": None, "return_lse": False}
    with pytest.raises(CannotRun, match="needs S <= its end") as caught:
        attention_flash.attention(*draw(9, 2), window=(-1, 7), **asked)
    assert (caught.value.rejection.code, caught.value.rejection.parameter) == (ReasonCode.LIMIT, "window")
    compare(attention_flash, draw(9, 2), causal=False, scale=None, window=(-1, 8))
    compare(attention_flash, draw(9, 2), causal=False, scale=None, window=(-1, 1))


@pytest.mark.parametrize(("S", "T"), [(5, 5), (9, 4), (1, 7)])
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.5, -1e-20, 1e-40, -1e-40])
@pytest.mark.parametrize("kernel", [attention_flash, attention_efficient, attention_cudnn])
def test_operators_are_given_scales_above_zero_alone(kernel, S, T, scale):
    window = {} if kernel is attention_cudnn else {"window": (-1, -1)}
    compare(kernel, draw(S, T), causal=True, scale=scale, **window)


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_biased_cudnn_is_given_scales_above_zero_alone(scale):
    bias = torch.randn(2, 4, 5, 7, generator=torch.Generator().manual_seed(2))
    asked = {"bias": bias, "causal": False, "scale": scale, "return_lse": True}
    found, want = attention_cudnn.biased(*draw(5, 7), **asked), reference.forward(*draw(5, 7), **asked)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("kernel", [attention_mps, attention_onednn])
@pytest.mark.parametrize("scale", [0.0, -0.5, 0.5])
def test_operators_without_a_gradient_are_given_scales_above_zero_alone(kernel, scale, monkeypatch):
    def forward(q, k, v, mask, dropout, causal, unused, *, scale):
        assert scale > 0
        return cudnn_forward(q, k, v, None, False, dropout, causal, False, scale=scale)[:2]

    monkeypatch.setattr(kernel, "_forward", forward)
    asked = {"causal": True, "scale": scale, "window": (-1, -1)}
    torch.testing.assert_close(kernel.attention(*draw(5, 5), **asked), reference.forward(*draw(5, 5), **asked))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_no_number_hides_in_no_query(scale):
    q = torch.randn(1, 2, 1, 4)
    found, above = above_zero(q, scale)
    assert (found * above).isnan().equal((q * scale).isnan())
    assert (found * above).isinf().equal((q * scale).isinf())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.5, -1e-30, 1e-45])
@pytest.mark.parametrize(("S", "T"), [(5, 5), (70, 40), (3, 8)])
def test_flash_for_cpus_hides_keys_whatever_the_scale(dtype, scale, S, T):
    tensors = [tensor.to(dtype).requires_grad_() for tensor in draw(S, T)]
    found = ops.attention(*tensors, causal=True, scale=scale, kernel="torch.attention_flash_cpu")
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    want = reference.plain(*wide, causal=True, scale=scale)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad(found, tensors, grad.to(dtype))
    wanted = torch.autograd.grad(want, wide, grad.to(dtype).double())
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for mine, right in zip((found, *gradients), (want, *wanted), strict=True):
        torch.testing.assert_close(mine.double(), right, **close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flash_for_cpus_rounds_gradients_of_shared_keys_once(dtype):
    q, k, v = (tensor.to(dtype) for tensor in draw(40, 24, H=64, G=1))
    grad = torch.randn(2, 40, 64, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    asked = {"alibi_slopes": None, "bias": None, "causal": False, "scale": None, "window": (-1, -1)}
    y, lse = attention_flash_cpu.attention(q, k, v, **asked, return_lse=False, save=True)
    needs = (True, True, True, False, False)
    kept = [q, k, v, None, None, y, lse]
    asked = {"causal": False, "scale": None, "window": (-1, -1), "return_lse": False, "needs": needs}
    found = attention_flash_cpu.backward(grad, *kept, **asked)
    wide = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    wanted = torch.autograd.grad(reference.plain(*wide), wide, grad.double())
    for mine, right in zip(found[:3], wanted, strict=True):
        assert mine.dtype is dtype
        assert float((mine.double() - right).norm() / right.norm()) < torch.finfo(dtype).eps / 2


@pytest.mark.parametrize(("S", "T"), [(5, 5), (9, 4), (1, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_cudnn_serves_masks_that_begin_and_end_alike(S, T, causal):
    compare(attention_cudnn, draw(S, T), causal=causal, scale=None)


def test_cudnn_says_before_it_launches_which_causal_masks_it_has_not():
    for call in (
        attention_cudnn.attention,
        lambda *tensors, **asked: attention_cudnn.backward(
            tensors[0], *tensors, tensors[0], torch.zeros(2, 4, 3), needs=(True,) * 3, **asked
        ),
    ):
        with pytest.raises(CannotRun) as caught:
            call(*draw(3, 8), causal=True, scale=None, return_lse=False)
        rejection = caught.value.rejection
        assert (rejection.code, rejection.parameter) == (ReasonCode.LIMIT, "S")
        text = "its causal mask begins at the first key, and so needs S = 1 or S >= T; this is S = 3, T = 8"
        assert rejection.text == text
    assert attention_cudnn.attention(*draw(3, 8), causal=False, scale=None, return_lse=False).shape == (2, 3, 4, 16)


@pytest.mark.parametrize("kernel", [attention_flash, attention_efficient])
def test_on_amd_causal_masks_begin_at_the_first_key(kernel, monkeypatch):
    monkeypatch.setattr(kernel, "HIP", True)
    extra = {"bias": None} if kernel is attention_efficient else {}
    asked = {"scale": None, "window": (-1, -1), "return_lse": False, **extra}
    with pytest.raises(CannotRun, match="begins at the first key on AMD"):
        kernel.attention(*draw(3, 8), causal=True, **asked)
    assert kernel.attention(*draw(3, 8), causal=False, **asked).shape == (2, 3, 4, 16)


@pytest.mark.parametrize(("D", "E"), [(16, 32), (32, 16), (200, 200)])
def test_flash_is_given_one_head_dim_that_its_backward_takes_everywhere(D, E):
    tensors = draw(6, 6, D=D, E=E)
    compare(attention_flash, tensors, causal=True, scale=None, window=(-1, -1))
    assert attention_flash._width(tensors[0], tensors[2]) == (256 if D == 200 else 32)


@pytest.mark.parametrize(("S", "T"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_may_hide_every_key(S, T, causal):
    bias = torch.randn(2, 4, S, T, generator=torch.Generator().manual_seed(2))
    bias[0, 1, -1] = -math.inf
    bias[1, :, :, 0] = -math.inf
    compare(attention_efficient, draw(S, T), bias=bias, causal=causal, scale=None, window=(-1, -1))


@pytest.mark.parametrize(("S", "T"), SIZES)
@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min])
def test_cudnn_has_gradients_beside_a_bias_and_of_it(S, T, hidden):
    tensors, asked = draw(S, T), {"causal": False, "scale": -0.5}
    bias = torch.randn(2, 4, S, T, generator=torch.Generator().manual_seed(2))
    bias[0, 1, -1] = hidden
    bias[1, :, :, 0] = hidden
    y, lse = attention_cudnn.biased(*tensors, bias=bias, **asked, return_lse=False, save=True)
    want, want_lse = reference.forward(*tensors, bias=bias, **asked, window=(-1, -1), return_lse=True)
    torch.testing.assert_close((y, lse), (want, want_lse))
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    given = {**asked, "return_lse": False, "needs": (True,) * 4}
    found = attention_cudnn.biased_backward(grad, *tensors, bias, y, lse, **given)
    wanted = reference.backward(grad, *tensors, None, bias, None, want, want_lse, **asked, window=(-1, -1))
    torch.testing.assert_close(found, (*wanted[:3], wanted[4]))


def layouts_of_a_bias(B, H, S, T):
    """Biases that hide some keys, and all of one query: of their own, shared, sliced, with columns apart."""
    source = torch.Generator().manual_seed(4)
    for shape in ((B, H, S, T), (1, H, S, T), (B, 1, S, T), (1, 1, S, T), (B, H, S, T + 3), (B, H, 1, T)):
        bias = torch.randn(shape, generator=source)
        bias = bias.masked_fill(torch.rand(shape, generator=source) < 0.3, -math.inf)
        bias[-1, -1, -1] = -math.inf
        yield bias[..., :T].expand(B, H, S, T)
    yield torch.randn(B, H, T, S, generator=source).transpose(2, 3)


@pytest.mark.parametrize(("B", "S", "T"), [(1, 1, 16), (2, 1, 7), (2, 5, 16), (1, 5, 9), (2, 17, 32)])
@pytest.mark.parametrize("D", [16, 32])
@pytest.mark.parametrize("return_lse", [False, True])
def test_biases_are_read_where_they_lie(B, S, T, D, return_lse):
    tensors = draw(S, T, B=B, D=D)
    for bias in layouts_of_a_bias(B, 4, S, T):
        asked = {"bias": bias, "causal": False, "scale": None, "return_lse": return_lse}
        want = reference.forward(*tensors, **asked, window=(-1, -1))
        torch.testing.assert_close(attention_efficient.attention(*tensors, **asked, window=(-1, -1)), want)
        torch.testing.assert_close(attention_cudnn.biased(*tensors, **asked), want)


def test_a_bias_that_another_form_takes_is_no_fallback_to_warn_of():
    shapes = {"q": (1, 256, 8, 64), "k": (1, 256, 2, 64), "v": (1, 256, 2, 64), "bias": (1, 8, 256, 256)}
    decision = portakernel.explain("attention", target="nvidia:sm_90", dtype="bfloat16", shape=shapes)
    assert decision.chosen.name == "torch.attention_cudnn_biased"
    assert decision.passed_over == ("torch.attention_cudnn",)
    used = runtime.dispatcher()
    assert Fallbacks(used).reasons(decision, used.process_policy) == []


def test_a_fallback_is_told_of_the_variant_for_its_dtype():
    asked = {"target": "cpu:x86_64", "dtype": "float32", "softcap": 5.0}
    decision = portakernel.explain("attention", shape=dict.fromkeys("qkv", (1, 8, 2, 16)), **asked)
    used = runtime.dispatcher()
    told = Fallbacks(used).reasons(decision, used.process_policy)
    assert {rejection.code for name, rejection in told if name == "torch.attention_flash_cpu"} == {ReasonCode.FEATURE}


def test_cudnn_takes_calls_without_a_bias_too():
    tensors, asked = draw(5, 5), {"causal": True, "scale": None, "return_lse": True}
    torch.testing.assert_close(
        attention_cudnn.biased(*tensors, bias=None, **asked), reference.forward(*tensors, **asked)
    )


@pytest.mark.parametrize(("S", "T"), SIZES)
@pytest.mark.parametrize("window", [(-1, -1), (2, 1)])
@pytest.mark.parametrize("kernel", [attention_onednn, attention_mps])
def test_operators_that_take_a_flag_or_a_mask_are_given_one(kernel, S, T, window, monkeypatch):
    def forward(q, k, v, mask, dropout, causal, *more, scale):
        assert mask is None or not causal
        repeats = q.shape[1] // k.shape[1]
        scores = scale * q @ k.repeat_interleave(repeats, 1).transpose(-1, -2)
        scores = scores.masked_fill(top_left(S if T >= S else T, T, causal), -math.inf) if causal else scores
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return weights @ v.repeat_interleave(repeats, 1), None

    monkeypatch.setattr(kernel, "_forward", forward)
    tensors = draw(S, T)
    for causal in (False, True):
        asked = {"causal": causal, "scale": None, "window": window}
        torch.testing.assert_close(kernel.attention(*tensors, **asked), reference.forward(*tensors, **asked))


def test_flash_for_cpus_gives_zeros_and_no_gradient_to_what_a_bias_hides():
    q, k, v = draw(5, 6)
    bias = torch.zeros(2, 4, 5, 6)
    bias[:, :, 2] = -math.inf
    asked = {"causal": True, "scale": None, "window": (-1, -1)}
    y, lse = attention_flash_cpu.attention(q, k, v, alibi_slopes=None, bias=bias, return_lse=True, **asked)
    assert torch.equal(y[:, 2], torch.zeros_like(y[:, 2]))
    assert bool((lse[:, :, 2] == -math.inf).all())
    grads = attention_flash_cpu.backward(
        torch.ones_like(y), q, k, v, None, bias, y, lse, return_lse=True, needs=(True,) * 5, **asked
    )
    wanted = reference.backward(torch.ones_like(y), q, k, v, None, bias, None, y, lse, **asked)
    for found, right in zip(grads, wanted[:5], strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("kernel", [attention_flash_cpu, attention_efficient])
@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -1e9])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_a_finite_number_hides_share_their_gradient_among_their_keys(kernel, least, causal):
    q, k, v = draw(5, 9)
    bias = torch.zeros(2, 4, 5, 9)
    bias[:, :, 1], bias[1, 2, 3] = least, least
    bias[:, :, 2, :4] = least
    asked = {"causal": causal, "scale": None, "window": (-1, -1)}
    slopes = {"alibi_slopes": None} if kernel is attention_flash_cpu else {}
    y, lse = kernel.attention(q, k, v, **slopes, bias=bias, return_lse=True, **asked)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    kept = (q, k, v, *slopes.values(), bias, y, lse)
    found = kernel.backward(grad, *kept, return_lse=True, needs=(True,) * (4 + len(slopes)), **asked)
    wanted = reference.backward(grad, q, k, v, None, bias, None, y, lse, **asked)
    for gradient, right in zip((*found[:3], found[-1]), (*wanted[:3], wanted[4]), strict=True):
        torch.testing.assert_close(gradient, right)


# --- layout ----------------------------------------------------------------------------------------------------------


def test_cudnn_reads_heads_before_queries_where_they_lie(monkeypatch):
    given = []

    def forward(*arguments, **more):
        given.extend(tensor.data_ptr() for tensor in arguments[:3])
        return cudnn_forward(*arguments, **more)

    monkeypatch.setattr(attention_cudnn, "_forward", forward)
    tensors = draw(5, 5)
    heads_first = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    asked = {"causal": True, "scale": None, "return_lse": False}
    y = attention_cudnn.attention(*heads_first, **asked)
    assert given == [tensor.data_ptr() for tensor in heads_first]
    assert y.is_contiguous()
    torch.testing.assert_close(y, attention_cudnn.attention(*tensors, **asked))
    compare(attention_cudnn, heads_first, causal=True, scale=None)
    packed = torch.cat(tensors, 2).split([tensor.shape[2] for tensor in tensors], 2)  # as one product makes them
    torch.testing.assert_close(attention_cudnn.attention(*packed, **asked), y)
    assert given[-3:] == [tensor.data_ptr() for tensor in packed]
    compare(attention_cudnn, packed, causal=True, scale=None)
    strange = [torch.cat([tensor, tensor[..., :1]], -1)[..., :-1] for tensor in tensors]
    torch.testing.assert_close(attention_cudnn.attention(*strange, **asked), y)
    assert not set(given[-3:]) & {tensor.data_ptr() for tensor in strange}


def test_rows_that_vector_loads_cannot_read_are_copied():
    base = torch.randn(2, 8, 4, 32)
    assert aligned(base) is base
    assert aligned(base.expand(2, 8, 4, 32)[:1]).data_ptr() == base.data_ptr()
    for unfit in (base[..., ::2], base[..., 1:17], base.transpose(1, 3), base.flatten()[1:257].view(1, 2, 4, 32)):
        copied = aligned(unfit)
        assert copied.data_ptr() != unfit.data_ptr()
        assert copied.is_contiguous()
        assert torch.equal(copied, unfit)
    assert aligned(base[..., 4:20]).data_ptr() == base[..., 4:20].data_ptr()


@pytest.mark.parametrize(
    ("S", "T", "causal", "window", "blind"),
    [(9, 4, True, (-1, -1), 5), (9, 4, False, (-1, -1), 0), (9, 4, False, (-1, 2), 3), (9, 4, True, (3, 2), 5),
     (4, 9, True, (-1, -1), 0), (9, 4, False, (0, 7), 0)],
)  # fmt: skip
def test_blind_queries_are_those_before_what_any_key_can_be_seen_from(S, T, causal, window, blind):
    assert blind_queries(S, T, causal=causal, window=window) == blind
    lse = reference.forward(*draw(S, T), causal=causal, window=window, return_lse=True)[1]
    assert int((lse[0, 0] == -math.inf).sum()) == blind


def test_math_leaves_scores_that_no_memory_holds_to_others():
    q = torch.empty(1, 1, 1, 1).expand(4, 1 << 16, 8, 8)
    with pytest.raises(CannotRun) as caught:
        attention_math.attention(
            q, q, q, alibi_slopes=None, bias=None, sinks=None, causal=False, scale=None, window=(-1, -1), softcap=0.0,
            return_lse=False,
        )  # fmt: skip
    rejection = caught.value.rejection
    assert (rejection.code, rejection.parameter) == (ReasonCode.WORKSPACE, "S")
    assert rejection.text == "holds all scores at once: 137438953472 of them, more than 2147483648"


# --- choosing --------------------------------------------------------------------------------------------------------


def serves(target, dtype="bfloat16", S=1024, T=1024, D=128, E=128, **asked):
    shapes = {"q": (4, S, 32, D), "k": (4, T, 8, D), "v": (4, T, 8, E)}
    return portakernel.explain("attention", target=target, dtype=dtype, shape=shapes, **asked)


@pytest.mark.parametrize(
    ("target", "asked", "kernel"),
    [
        ("nvidia:sm_90", {}, "torch.attention_cudnn"),
        ("nvidia:sm_90", {"S": 1}, "torch.attention_flash"),
        ("nvidia:sm_90", {"D": 192, "E": 128}, "torch.attention_cudnn"),
        ("nvidia:sm_100", {"D": 192, "E": 128}, "torch.attention_flash"),
        ("nvidia:sm_90", {"window": (128, -1)}, "torch.attention_flash"),
        ("nvidia:sm_80", {}, "torch.attention_flash"),
        ("nvidia:sm_120", {"phase": "training"}, "torch.attention_flash_recorded"),
        ("nvidia:sm_90", {"phase": "training", "causal": True}, "torch.attention_cudnn"),
        # whose gradients are another kernel's, which has tiles enough
        ("nvidia:sm_90", {"phase": "training"}, "torch.attention_cudnn"),
        ("nvidia:sm_90", {"phase": "training", "S": 1023, "T": 1023}, "torch.attention_cudnn"),
        ("nvidia:sm_90", {"phase": "training", "D": 96, "E": 96}, "torch.attention_cudnn_recorded"),
        # of fewer tokens it is the host that takes long
        ("nvidia:sm_90", {"phase": "training", "S": 511, "T": 511}, "torch.attention_cudnn_recorded"),
        ("nvidia:sm_90", {"phase": "training", "S": 64, "T": 64}, "torch.attention_flash_recorded"),
        ("nvidia:sm_75", {"dtype": "float16"}, "torch.attention_efficient"),
        ("nvidia:sm_90", {"dtype": "float32"}, "torch.attention_efficient"),
        ("nvidia:sm_90", {"D": 80, "E": 44}, "torch.attention_math"),
        ("nvidia:sm_90", {"softcap": 30.0}, "torch.attention_math"),
        ("amd:gfx942", {}, "torch.attention_flash"),
        ("amd:gfx942", {"window": (128, -1)}, "torch.attention_efficient"),
        ("amd:gfx1100", {}, "torch.attention_math"),
        ("intel:pvc", {}, "torch.attention_onednn"),
        ("apple:m3", {}, "torch.attention_mps"),
        ("cpu:x86_64", {}, "torch.attention_flash_cpu"),
        ("cpu:x86_64", {"return_lse": True}, "torch.attention_math"),
    ],
)
def test_which_operator_serves_where(target, asked, kernel):
    candidates = serves(target, **asked).candidates
    eligible = [c.kernel.name for c in candidates if c.status != "rejected" and c.kernel.plugin == "torch"]
    assert eligible[0] == kernel


def test_cudnn_is_refused_where_it_is_one_whose_results_are_wrong(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    rejection = attention_cudnn.check(causal=True)
    assert (rejection.code, rejection.text) == (
        ReasonCode.MISSING_LIBRARY,
        "needs cuDNN 9.15.1 or later; this is 9.10.2",
    )
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91501)
    assert attention_cudnn.check(causal=True) is None


def test_on_the_cpu_a_16_bit_call_that_wants_lse_goes_elsewhere(monkeypatch):
    # it is warned of once in a process, and another test may have had the warning
    monkeypatch.setattr(runtime.caller("attention")._fallbacks, "_warned", set())
    q, k, v = (tensor.bfloat16() for tensor in draw(5, 5))
    with portakernel.policy(use="torch"):
        assert portakernel.explain("attention", q, k, v).chosen.name == "torch.attention_flash_cpu"
        assert portakernel.explain("attention", q, k, v, return_lse=True).chosen.name == "torch.attention_math"
        with pytest.warns(FallbackWarning, match="torch.attention_flash_cpu cannot serve"):
            _, lse = ops.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(lse, reference.forward(q, k, v, return_lse=True)[1])
