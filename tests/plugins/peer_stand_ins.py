"""Stand-ins for the functions of other libraries that the adapters call: their arguments, their habits, in plain torch.

They read tensors as those kernels do (without gaps, from aligned addresses, and no other way), write over what those
write over, and round where those round; a test holds their arguments to the real functions' where a library is
installed. ``install`` puts them in the libraries' places.
"""
# ruff: noqa: N803
# The arguments' names are the libraries'.

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

# What stands for which function: (module, name) -> function.
STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {}
# Modules that are imported as such.
NAMESPACES: dict[str, dict[str, Any]] = {
    "flashinfer.jit.env": {"FLASHINFER_CSRC_DIR": Path("csrc")},
    "humming.dtypes": {"uint4": "uint4"},
}
ADAPTERS = ("conch", "flash_attn", "flashinfer", "humming", "liger", "quack")


def stands_in(module: str, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lists the function as that one of ``module``."""

    def listed(function: Callable[..., Any]) -> Callable[..., Any]:
        STAND_INS[module, name or function.__name__] = function
        return function

    return listed


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-ins in their places; adapters that were loaded with others are forgotten."""
    libraries = {module.partition(".")[0] for module, _ in STAND_INS}
    adapters = tuple(f"portakernel_plugins.{name}." for name in ADAPTERS)
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in libraries or loaded.startswith(adapters):
            monkeypatch.delitem(sys.modules, loaded)
    for (module, name), function in STAND_INS.items():
        setattr(_module(monkeypatch, module), name, function)
    for module, names in NAMESPACES.items():
        vars(_module(monkeypatch, module)).update(names)


def _module(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    if name not in sys.modules:
        made = ModuleType(name)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(_module(monkeypatch, parent), child, made)
    return sys.modules[name]


def _dense(*tensors: Tensor | None, alignment: int = 1) -> None:
    for tensor in tensors:
        assert tensor is None or (tensor.is_contiguous() and tensor.data_ptr() % alignment == 0)


def _rows(*tensors: Tensor | None, alignment: int = 1) -> None:
    """What a kernel that is told one stride for all, the row's length, can read."""
    _dense(*tensors, alignment=alignment)
    assert all(tensor is None or (tensor.dim() == 2 and tensor.stride() == (tensor.shape[1], 1)) for tensor in tensors)


def _rms(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1) + eps)
    return x * rstd[:, None] * (offset + weight.float()), rstd


def _layer(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(-1)
    rstd = torch.rsqrt((x - mean[:, None]).square().mean(-1) + eps)
    y = (x - mean[:, None]) * rstd[:, None] * weight.float()
    return y if bias is None else y + bias.float(), mean, rstd


def _slopes(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, mean: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a norm for x, weight and bias, all in float32."""
    hat = (x if mean is None else x - mean[:, None]) * rstd[:, None]
    weighed = dy * weight
    shift = 0.0 if mean is None else weighed.mean(-1, keepdim=True)
    dx = (weighed - shift - hat * (hat * weighed).mean(-1, keepdim=True)) * rstd[:, None]
    return dx, (dy * hat).sum(0), dy.sum(0)


# --- liger ----------------------------------------------------------------------------------------------------------


@stands_in("liger_kernel.ops.utils")
def calculate_settings(n):
    return 1 << max(n - 1, 0).bit_length(), 4


@stands_in("liger_kernel.ops.rms_norm")
def rms_norm_forward(X, W, eps, offset, casting_mode, row_mode):
    _dense(X, W)
    assert casting_mode == 1  # "gemma": the others round in between
    y, rstd = _rms(X.view(-1, X.shape[-1]).float(), W, eps, offset)
    return y.to(X.dtype).view(X.shape), X, rstd, *calculate_settings(X.shape[-1]), casting_mode


@stands_in("liger_kernel.ops.rms_norm")
def rms_norm_backward(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode, needs_dw=None):
    _dense(dY, W)
    _rows(X)
    assert casting_mode == 1
    assert (BLOCK_SIZE, num_warps) == calculate_settings(X.shape[-1])
    dx, dw, _ = _slopes(dY.view(X.shape).float(), X.float(), W.float() + offset, RSTD, None)
    dx = dx.to(dY.dtype).view(dY.shape)
    return dY.copy_(dx) if in_place else dx, dw.to(W.dtype) if needs_dw is None or needs_dw else None


@stands_in("liger_kernel.ops.fused_add_rms_norm")
def fused_add_rms_norm_forward(X, R, W, eps, offset, casting_mode):
    _dense(X, R, W)
    assert casting_mode == 1
    summed = X + R
    y, rstd = _rms(summed.view(-1, X.shape[-1]).float(), W, eps, offset)
    return y.to(X.dtype).view(X.shape), summed, rstd, *calculate_settings(X.shape[-1]), 2, casting_mode


@stands_in("liger_kernel.ops.fused_add_rms_norm")
def fused_add_rms_norm_backward(
    dY, dS_out, S, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, num_stages, in_place, needs_dw=None
):
    _dense(dY, dS_out, S, W)
    assert (casting_mode, num_stages) == (1, 2)
    rows = -1, S.shape[-1]
    dx, dw, _ = _slopes(dY.view(rows).float(), S.view(rows).float(), W.float() + offset, RSTD, None)
    dx = (dx + dS_out.view(rows)).to(dY.dtype).view(dY.shape)
    dx = dY.copy_(dx) if in_place else dx
    return dx, dx, dw.to(W.dtype) if needs_dw is None or needs_dw else None


@stands_in("liger_kernel.ops.layer_norm")
def layer_norm_forward(X, W, B, eps):
    _dense(X, W, B)
    y, mean, rstd = _layer(X.view(-1, X.shape[-1]).float(), W, B, eps)
    return y.to(X.dtype).view(X.shape), X, mean, rstd, *calculate_settings(X.shape[-1])


@stands_in("liger_kernel.ops.layer_norm")
def layer_norm_backward(dY, X, W, B, Mean, RSTD, needs_dw=None, needs_db=None):
    _dense(dY, W)
    _rows(X)
    dx, dw, db = _slopes(dY.view(X.shape).float(), X.float(), W.float(), RSTD, Mean)
    return dx.to(X.dtype).view(dY.shape), dw.to(W.dtype) if needs_dw else None, db.to(B.dtype) if needs_db else None


@stands_in("liger_kernel.ops.swiglu")
def swiglu_fused_gate_up_forward(y):
    _dense(y)
    gate, up = y.view(-1, y.shape[-1]).chunk(2, -1)
    c = torch.nn.functional.silu(gate.float()).to(y.dtype) * up
    return y.view(-1, y.shape[-1]), c.view(*y.shape[:-1], y.shape[-1] // 2)


@stands_in("liger_kernel.ops.swiglu")
def swiglu_fused_gate_up_backward(y, dc, in_place=False):
    _dense(y, dc)
    rows = y.view(-1, y.shape[-1])
    gate, up = rows.float().chunk(2, -1)
    sigmoid, dc = gate.sigmoid(), dc.view(-1, y.shape[-1] // 2)
    dy = torch.cat((dc * (gate * sigmoid * (1 - sigmoid) + sigmoid) * up, dc * gate * sigmoid), -1).to(y.dtype)
    return rows.copy_(dy) if in_place else dy


@stands_in("liger_kernel.ops.softmax")
def _softmax_forward(x):
    return x.contiguous().float().softmax(-1).to(x.dtype), *calculate_settings(x.shape[-1]), False


@stands_in("liger_kernel.ops.softmax")
def _softmax_backward(dy, y, BLOCK_SIZE, num_warps, multi_block_launch):
    assert not multi_block_launch
    # the product has their dtype
    return (y * (dy - (dy * y).float().sum(-1, keepdim=True))).to(dy.dtype).contiguous()


def _turn_in_place(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> None:
    """x: (..., heads, D) by token; cos, sin: (..., C), the same for all heads."""
    pairs = cos.shape[-1]
    a, b = (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]) if interleaved else x[..., : 2 * pairs].chunk(2, -1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = a.to(cos.dtype) * cos - b.to(cos.dtype) * sin, b.to(cos.dtype) * cos + a.to(cos.dtype) * sin
    a.copy_(turned[0])
    b.copy_(turned[1])


@stands_in("liger_kernel.ops.rope")
def rope_forward(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    assert cos.dim() == 2
    assert rotary_dim == 2 * cos.shape[-1] <= q.shape[-1]
    for x in (q.transpose(1, 2), k.transpose(1, 2)):
        _dense(x)  # else a copy is turned
        _turn_in_place(x, cos[: x.shape[1]], sin[: x.shape[1]])
    return q, k, cos, sin


@stands_in("liger_kernel.ops.rope")
def rope_backward(dq, dk, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    return rope_forward(dq, dk, cos, -sin, rotary_dim=rotary_dim)[:2]


@stands_in("liger_kernel.ops.fused_linear_cross_entropy")
def fused_linear_cross_entropy_forward(
    _input,
    weight,
    target,
    ce_weight=None,
    bias=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    ce_impl=None,
    ce_mode=None,
    token_grad_output=None,
    compute_gradients=None,
    weight_requires_grad=None,
    chunk_mem_const=1,
):
    assert reduction == "none"
    assert _input.shape[0] > 0 < _input.shape[1]  # it divides by both
    logits = (_input @ weight.t()).float()
    lse, classes, there = logits.logsumexp(-1), logits.shape[-1], target != ignore_index
    hot = target.long().where(there, 0)[:, None]
    loss = (1 - label_smoothing) * (lse - logits.gather(-1, hot)[:, 0])
    if label_smoothing:
        loss = loss + label_smoothing * lse - label_smoothing / classes * logits.sum(-1)
    loss = loss.where(there, 0.0)
    if not compute_gradients:
        return loss, None, None, None, torch.zeros_like(_input), None, None
    slope = (logits - lse[:, None]).exp() - label_smoothing / classes
    slope.scatter_add_(-1, hot, torch.full_like(hot, label_smoothing - 1, dtype=torch.float32))
    slope = (slope * token_grad_output[:, None]).masked_fill(~there[:, None], 0).to(_input.dtype)
    grad_weight = slope.t() @ _input if weight_requires_grad else None
    return loss, None, None, None, slope @ weight, grad_weight, None


# --- conch ----------------------------------------------------------------------------------------------------------


@stands_in("conch.kernels.normalization.rms_norm")
def rms_norm_launcher(output, x, weight, epsilon):
    _rows(output, x)
    _dense(weight)
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    output.copy_((x * rstd).to(x.dtype) * weight)


@stands_in("conch.kernels.normalization.rms_norm")
def fused_add_rms_norm_launcher(x, residual, weight, epsilon):
    _rows(x, residual)
    residual.add_(x)
    rms_norm_launcher(x, residual, weight, epsilon)


@stands_in("conch.kernels.normalization.gemma_rms_norm")
def gemma_rms_norm_inplace_launcher(x, weights, epsilon=1e-6):
    _rows(x)
    _dense(weights)
    x.copy_(_rms(x.float(), weights, epsilon, 1.0)[0])


def _gate(activation: Callable[[Tensor], Tensor], output: Tensor, x: Tensor) -> None:
    _rows(output, x)
    gate, up = x.chunk(2, -1)
    output.copy_(activation(gate) * up)


@stands_in("conch.kernels.activation.silu_and_mul")
def silu_and_mul_launcher(output, x):
    _gate(torch.nn.functional.silu, output, x)


@stands_in("conch.kernels.activation.gelu_tanh_and_mul")
def gelu_tanh_and_mul_launcher(output, projections):
    _gate(lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"), output, projections)


@stands_in("conch.kernels.embedding.rotary_embedding")
def rotary_embedding_launcher(positions, query, key, head_size, cos_sin_cache, *, is_neox=True):
    _rows(query, key, cos_sin_cache)
    assert is_neox
    cos, sin = cos_sin_cache[positions].chunk(2, -1)
    for x in (query, key):
        _turn_in_place(x.view(x.shape[0], x.shape[1] // head_size, head_size), cos, sin)


@stands_in("conch.third_party.vllm.unified_attention")
def unified_attention(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
    softcap,
    q_descale,
    k_descale,
    v_descale,
    alibi_slopes=None,
):
    assert causal
    assert (window_size, softcap, q_descale, k_descale, v_descale) == ((-1, -1), 0.0, None, None, None)
    _dense(q, out, block_table, cu_seqlens_q, seqused_k)
    group, page = q.shape[1] // k.shape[2], k.shape[1]
    assert 16 % group == 0
    assert page & (page - 1) == 0
    out.zero_()
    for n, (a, b) in enumerate(pairwise(cu_seqlens_q.tolist())):
        length = int(seqused_k[n])
        if length and b > a:
            pages = block_table[n, : -(-length // page)].long()
            keys, values = (x[pages].flatten(0, 1)[:length].float().repeat_interleave(group, 1) for x in (k, v))
            scores = torch.einsum("shd,thd->hst", q[a:b].float(), keys) * softmax_scale
            ahead = torch.arange(length) > torch.arange(b - a)[:, None] + length - (b - a)
            weights = scores.masked_fill(ahead, -math.inf).softmax(-1).nan_to_num(0.0)
            out[a:b] = torch.einsum("hst,thd->shd", weights, values).to(out.dtype)


# --- quack ----------------------------------------------------------------------------------------------------------


@stands_in("quack.rmsnorm")
def _rmsnorm_fwd(
    x,
    weight,
    out,
    bias=None,
    rstd=None,
    mean=None,
    residual=None,
    residual_out=None,
    eps=1e-6,
    is_layernorm=False,
    weight_offset=0.0,
):
    _rows(x, out, residual, residual_out, alignment=16)
    _dense(weight, bias, alignment=16)
    given = x.float() if residual is None else x.float() + residual.float()
    if residual_out is not None:
        residual_out.copy_(given)
    if is_layernorm:
        y, found_mean, found = _layer(given, weight, bias, eps)
    else:
        (y, found), found_mean = _rms(given, weight, eps, weight_offset), None
    out.copy_(y)
    if rstd is not None:
        rstd.copy_(found)
    if mean is not None:
        mean.copy_(found_mean)


@stands_in("quack.rmsnorm")
def _rmsnorm_bwd(
    x,
    weight,
    dout,
    rstd,
    dx,
    dw_partial,
    db_partial=None,
    dresidual_out=None,
    dresidual=None,
    sm_count=None,
    mean=None,
    is_layernorm=False,
    weight_offset=0.0,
):
    _rows(x, dout, dx, dresidual_out, alignment=16)
    _dense(weight, alignment=16)
    assert (mean is not None) == is_layernorm
    if x.numel() == 0:
        return
    grad, dw, db = _slopes(dout.float(), x.float(), weight.float() + weight_offset, rstd, mean)
    dx.copy_(grad if dresidual_out is None else grad + dresidual_out.float())
    for partial, total in ((dw_partial, dw), (db_partial, db)):
        if partial is not None:
            partial.zero_()[0] = total


@stands_in("quack.rmsnorm_config")
def get_sm_count(N, device):
    return 3


@stands_in("quack.softmax")
def _softmax_fwd(x, out):
    _rows(x, out, alignment=16)
    out.copy_(x.float().softmax(-1))


@stands_in("quack.softmax", "_softmax_backward")
def _quack_softmax_backward(dy, y, dx):
    _rows(dy, y, dx, alignment=16)
    dx.copy_(y.float() * (dy.float() - (dy.float() * y.float()).sum(-1, keepdim=True)))


@stands_in("quack.cross_entropy")
def cross_entropy_fwd_out(x, target, target_logit, loss, lse, dx, weight, ignore_index=-100):
    _rows(x, alignment=16)
    top = x.float().amax(-1)
    lse.copy_((x.float() - top[:, None]).exp().sum(-1).log() + top)  # NaN beside +inf
    there = target != ignore_index
    picked = x.float().gather(-1, target.long().where(there, 0)[:, None])[:, 0]
    loss.copy_((lse - picked).where(there, 0.0))


@stands_in("quack.cross_entropy")
def _cross_entropy_backward(x, target, dloss, lse, dx, weight=None, ignore_index=-100):
    _rows(x, dx, alignment=16)
    there = target != ignore_index
    slope = (x.float() - lse[:, None]).exp()
    hot = target.long().where(there, 0)[:, None]
    slope.scatter_add_(-1, hot, -torch.ones_like(hot, dtype=torch.float32))
    dx.copy_((slope * dloss[:, None]).masked_fill(~there[:, None], 0))


# --- flashinfer -----------------------------------------------------------------------------------------------------


def _write(out: Tensor, y: Tensor) -> None:
    """``y`` into ``out``, with one kind of NaN: a CPU's vector instructions give another one than its scalar ones."""
    out.copy_(y).masked_fill_(y.isnan(), torch.nan)


@stands_in("flashinfer.utils")
def device_support_pdl(device):
    return False


@stands_in("flashinfer.norm.kernels")
def rmsnorm_cute(input, weight, out, eps=1e-6, weight_bias=0.0, enable_pdl=False):
    assert input.numel()  # a launch of no blocks fails
    _rows(input, out, alignment=16)
    _dense(weight, alignment=16)
    out.copy_(_rms(input.float(), weight, eps, weight_bias)[0])


@stands_in("flashinfer.norm.kernels")
def layernorm_cute(out, input, gamma, beta, eps=1e-6, enable_pdl=False):
    assert input.numel()
    _rows(input, out, alignment=16)
    _dense(gamma, beta, alignment=16)
    out.copy_(_layer(input.float(), gamma, beta, eps)[0])


@stands_in("flashinfer.activation", "silu_and_mul")
def _silu_and_mul(input, out=None, enable_pdl=None):
    assert input.numel()
    _dense(input, out, alignment=16)
    gate, up = input.float().chunk(2, -1)
    _write(out, torch.nn.functional.silu(gate) * up)


@stands_in("flashinfer.activation", "gelu_and_mul")
def _gelu_and_mul(input, out=None, enable_pdl=None):
    assert input.numel()
    _dense(input, out, alignment=16)
    gate, up = input.float().chunk(2, -1)
    # a CPU's vector instructions make erf(inf) NaN, its scalar ones 1
    erf = torch.erf(gate.double() / math.sqrt(2)).where(~gate.isinf(), gate.sign().double())
    _write(out, gate * (1 + erf) / 2 * up)


@stands_in("flashinfer.jit.core")
def gen_jit_spec(
    name,
    sources,
    extra_cflags=None,
    extra_cuda_cflags=None,
    extra_ldflags=None,
    extra_include_paths=None,
    needs_device_linking=False,
    post_load_adapter=None,
    embedded_cubin_factory=None,
    use_fast_math=True,
    extra_cuda_cflags_by_source=None,
):
    assert not use_fast_math
    assert [source.name for source in sources] == ["rope.cu", "flashinfer_rope_binding.cu"]

    def rotate(q, k, q_rope, k_rope, cos_sin_cache, pos_ids, interleave):
        _dense(cos_sin_cache, pos_ids)
        assert cos_sin_cache.dtype == torch.float32
        # a thread of the last row reads behind it
        assert not interleave or int(pos_ids.max()) < cos_sin_cache.shape[0] - 1
        cos, sin = cos_sin_cache[pos_ids].chunk(2, -1)
        for x, turned in ((q, q_rope), (k, k_rope)):
            assert all(tensor.dim() == 3 and tensor.stride(-1) == 1 for tensor in (x, turned))
            assert all(tensor.data_ptr() % 16 == 0 for tensor in (x, turned))
            assert all(
                stride * tensor.element_size() % 16 == 0 for tensor in (x, turned) for stride in tensor.stride()[:2]
            )
            turned.copy_(x)
            _turn_in_place(turned, cos, sin, interleave)

    module = SimpleNamespace(apply_rope_pos_ids_cos_sin_cache=rotate)
    return SimpleNamespace(build_and_load=lambda: module)


@stands_in("flashinfer.cascade")
def merge_state(v_a, s_a, v_b, s_b):
    _dense(v_a, s_a, v_b, s_b)
    return merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


@stands_in("flashinfer.cascade")
def merge_states(v, s):
    assert v.numel()
    assert v.dtype in (torch.float16, torch.bfloat16)
    _dense(v, s)
    top = s.amax(1, keepdim=True)
    weights = torch.exp2(s - top).nan_to_num(0.0)
    total = weights.sum(1)
    merged = torch.einsum("srh,srhd->shd", weights, v.float()) / total.masked_fill(total == 0, 1.0)[..., None]
    return merged.to(v.dtype), total.log2() + top[:, 0]


class _PagedWrapper:
    """Of both: a plan of lengths on the host, and runs over what it was made for."""

    def __init__(self, workspace: Tensor, layout: str) -> None:
        assert layout == "NHD"
        assert workspace.dtype == torch.uint8
        assert workspace.numel() >= 128 << 20

    def _plan(self, starts, indptr, indices, last_page_len, sizes, scale, softcap, q_dtype, cache_dtype, causal):
        assert scale > 0  # what is hidden is -inf before the scale
        assert all(x.dtype == torch.int32 for x in (starts, indptr, indices, last_page_len))
        lengths = (indptr.diff() - 1).clamp(min=0) * sizes[3] + last_page_len
        assert (lengths > 0).all()
        assert not causal or (starts.diff() <= lengths).all()  # tiles are numbered without a sign
        self._starts, self._lengths, self._indptr, self._indices = starts, lengths, indptr, indices
        self._made_for = sizes, q_dtype, cache_dtype
        self._how = scale, softcap, causal

    def _run(self, q, caches, out, return_lse):
        k, v = caches
        (heads, shared, width, page), q_dtype, cache_dtype = self._made_for
        assert (*q.shape[1:], q.dtype) == (heads, width, q_dtype)
        assert (*k.shape[1:], k.dtype) == (page, shared, width, cache_dtype)
        assert len(q) == int(self._starts[-1])
        _cache_rows(k, v)
        _dense(q, out, alignment=16)
        sums = torch.empty(q.shape[:2])
        scale, softcap, causal = self._how
        for n, (a, b) in enumerate(pairwise(self._starts.tolist())):
            pages = self._indices[self._indptr[n] : self._indptr[n + 1]].long()
            keys, values = (x[pages].flatten(0, 1)[: self._lengths[n]].to(q.dtype) for x in (k, v))
            scores = _scored(q[a:b], keys, scale, softcap, causal, None, None)
            sums[a:b] = scores.logsumexp(-1).t()
            weights = (scores - sums[a:b].t()[..., None]).exp()
            values = values.float().repeat_interleave(heads // shared, 1)
            out[a:b] = torch.einsum("hst,the->she", weights, values).to(out.dtype)
        return (out, sums / math.log(2)) if return_lse else out


@stands_in("flashinfer.decode")
class BatchDecodeWithPagedKVCacheWrapper(_PagedWrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
    ):
        super().__init__(float_workspace_buffer, kv_layout)
        assert backend == "fa2"

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *,
        logits_soft_cap,
        q_data_type,
        kv_data_type,
        sm_scale,
    ):
        sizes = num_qo_heads, num_kv_heads, head_dim, page_size
        starts = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        how = sm_scale, logits_soft_cap, q_data_type, kv_data_type
        self._plan(starts, indptr, indices, last_page_len, sizes, *how, False)

    def run(self, q, paged_kv_cache, *, out, return_lse=False):
        return self._run(q, paged_kv_cache, out, return_lse)


@stands_in("flashinfer.prefill")
class BatchPrefillWithPagedKVCacheWrapper(_PagedWrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
    ):
        super().__init__(float_workspace_buffer, kv_layout)
        self._alike = backend == "fa3"
        assert backend in ("fa2", "fa3")

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        *,
        causal,
        sm_scale,
        logits_soft_cap,
        q_data_type,
        kv_data_type,
    ):
        sizes = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        csr = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        self._plan(qo_indptr, *csr, sizes, sm_scale, logits_soft_cap, q_data_type, kv_data_type, causal)

    def run(self, q, paged_kv_cache, *, out, return_lse=False):
        assert not self._alike or paged_kv_cache[0].stride() == paged_kv_cache[1].stride()
        return self._run(q, paged_kv_cache, out, return_lse)


@stands_in("flashinfer.mla")
class MLAPlanMetadata(NamedTuple):
    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_len_arr: Tensor

    @classmethod
    def csr(cls, qo_indptr, kv_indptr, kv_indices, kv_len_arr):
        return cls(qo_indptr, kv_indptr, kv_indices, kv_len_arr)


@stands_in("flashinfer.mla")
class BatchMLAPagedAttentionWrapper(_PagedWrapper):
    """As one key head, of latent and rotary part, whose values are the latent part."""

    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        backend="auto",
    ):
        super().__init__(float_workspace_buffer, "NHD")
        assert backend in ("fa2", "fa3")

    def plan(
        self,
        *,
        metadata,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        query_layout,
        kv_cache_layout,
        lse_mode,
    ):
        assert (head_dim_ckv, head_dim_kpe) == (512, 64)
        assert query_layout == kv_cache_layout == "split"
        self._lse_mode = lse_mode
        starts, indptr, indices, lengths = metadata
        sizes = num_heads, 1, head_dim_ckv + head_dim_kpe, page_size
        last = (lengths - 1) % page_size + 1
        self._plan(starts, indptr, indices, last, sizes, sm_scale, 0.0, q_data_type, kv_data_type, causal)

    def run(self, *, query, kv_cache, out, return_lse=False, return_lse_base_on_e=False):
        assert self._lse_mode == ("basee" if return_lse else "none")
        assert return_lse == return_lse_base_on_e
        _dense(*query, out, alignment=16)
        _cache_rows(*kv_cache)
        keys = torch.cat(kv_cache, -1).unsqueeze(2)
        wide = out.new_empty((*out.shape[:-1], keys.shape[-1]))
        values = torch.nn.functional.pad(kv_cache[0], (0, keys.shape[-1] - out.shape[-1])).unsqueeze(2)
        _, sums = self._run(torch.cat(query, -1), (keys, values), wide, True)
        out.copy_(wide[..., : out.shape[-1]])
        return (out, sums * math.log(2)) if return_lse else out


# --- experts and 4-bit weights --------------------------------------------------------------------------------------


def _pieces_of(A: Tensor, B: Tensor, ends: Tensor, picked: Tensor | None) -> Tensor:
    """Products of ragged rows, in float32; what no matrix has is NaN, as memory may be."""
    assert all(x is None or (x.dtype == torch.int32 and x.is_contiguous()) for x in (ends, picked))
    _dense(A, alignment=16)
    _cache_rows(B.transpose(1, 2))
    assert A.shape[-1] % 8 == B.shape[-1] % 8 == 0
    rows = A if picked is None else A[picked.long()]
    y = torch.full((len(rows), B.shape[-1]), math.nan)
    for matrix, (a, b) in zip(B, pairwise(ends.tolist()), strict=True):
        y[a:b] = rows[a:b].float() @ matrix.float()
    return y


@stands_in("quack.gemm_interface")
def gemm(
    A,
    B,
    out=None,
    bias=None,
    alpha=1.0,
    out_dtype=None,
    out_quant_dim=-1,
    out_transposed=False,
    out_per_tensor_scale=None,
    cu_seqlens_m=None,
    cu_seqlens_k=None,
    A_idx=None,
    batch_idx_permute=None,
    dynamic_scheduler=False,
    tuned=True,
):
    assert not tuned  # tuning takes minutes
    y = _pieces_of(A, B, cu_seqlens_m, A_idx).to(A.dtype)
    if out is None:
        return y
    _dense(out, alignment=16)
    return out.copy_(y)


@stands_in("quack.gemm_interface")
def gemm_gated(
    A,
    B,
    C=None,
    bias=None,
    activation=None,
    alpha=1.0,
    preact_out=None,
    postact_out=None,
    out_dtype=None,
    postact_dtype=None,
    cu_seqlens_m=None,
    A_idx=None,
    store_preact=True,
    dynamic_scheduler=False,
    tuned=True,
    config=None,
    concat_layout=None,
):
    assert activation == "swiglu"
    assert not tuned
    assert not store_preact
    z = _pieces_of(A, B, cu_seqlens_m, A_idx)
    gate, up = z.chunk(2, -1) if concat_layout == ("B",) else (z[:, 0::2], z[:, 1::2])
    return None, (torch.nn.functional.silu(gate) * up).to(A.dtype)


@stands_in("quack.gemm_w4")
def prepare_w4_weight(q, sf=None, wformat="qtip2s"):
    scales, zeros = sf if wformat == "int4awq" else (sf, torch.full(sf.shape, 8, dtype=torch.uint8))
    assert (q.dtype, scales.dtype, zeros.dtype) == (torch.uint8, torch.bfloat16, torch.uint8)
    _dense(q, scales, zeros)
    group = {"int4awq": 128, "int4": 128, "int4_g64": 64, "int4_g32": 32}[wformat]
    assert q.shape[1] * 2 == scales.shape[1] * group
    rows = -len(q) % 128  # whole tiles
    padded = [torch.nn.functional.pad(x, (0, 0, 0, rows)) for x in (q, scales, zeros)]
    return padded[0], torch.stack([padded[1].float(), padded[2].float()])


@stands_in("quack.gemm_w4")
def gemm_w4a16(
    act,
    blob,
    sf=None,
    tensor_scale=1.0,
    out=None,
    n_out=None,
    tile_m=None,
    tile_n=None,
    cluster_n=1,
    max_swizzle_size=8,
    use_pdl=True,
    wformat="qtip2s",
):
    assert act.dtype == torch.bfloat16
    _dense(act, alignment=16)
    q, group = torch.stack([blob & 15, blob >> 4], -1).flatten(1), 2 * blob.shape[1] // sf.shape[2]
    scales, zeros = sf.repeat_interleave(group, 2)
    weight = ((q.float() - zeros) * scales).bfloat16()
    return (act.float() @ weight.float().t()).bfloat16()[:, :n_out]


@stands_in("humming.schema")
class HummingWeightSchema:
    def __init__(
        self,
        quant_method="humming",
        b_dtype=None,
        bs_dtype=None,
        weight_scale_group_size=0,
        weight_scale_group_size_n=0,
        weight_scale_type=None,
        weight_scale_2_type=None,
        has_zero_point=False,
    ):
        assert b_dtype == "uint4"
        self.group, self.has_zero_point = weight_scale_group_size, has_zero_point


@stands_in("humming.transform")
def prepare_and_transform_humming_tensors(
    tensors,
    shape_n,
    shape_k,
    weight_schema,
    input_schema=None,
    num_experts=None,
    pad_n_to_multiple=1,
    pad_k_to_multiple=1,
    has_bias=False,
    torch_dtype=None,
    device=None,
):
    assert shape_n % 64 == shape_k % 64 == 0
    groups = shape_k // weight_schema.group if weight_schema.group else 1
    shapes = {"weight": (shape_n, shape_k // 8), "weight_scale": (shape_n, groups)}
    shapes |= {"zero_point": (shape_n // 8, groups)} if weight_schema.has_zero_point else {}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    assert tensors["weight_scale"].dtype == torch_dtype
    _dense(*tensors.values())
    return "a layer", {name: tensor.clone() for name, tensor in tensors.items()}


def _nibbles(words: Tensor) -> Tensor:
    return (words[..., None] >> torch.arange(0, 32, 4) & 15).flatten(-2)


@stands_in("humming.forward")
def humming_forward(
    config,
    inputs,
    weight,
    weight_scale=None,
    zero_point=None,
    bias=None,
    weight_scale_2=None,
    outputs=None,
    input_scale=None,
    input_scale_2=None,
    sorted_ids=None,
    expert_ids=None,
    num_tokens_padded=None,
    expert_layout=None,
    locks=None,
):
    assert config == "a layer"
    assert not locks.any()
    _dense(inputs, alignment=16)
    q = _nibbles(weight).float()
    group = q.shape[1] // weight_scale.shape[1]
    zeros = torch.tensor(8.0) if zero_point is None else _nibbles(zero_point.t()).t().repeat_interleave(group, 1)
    exact = (q - zeros) * weight_scale.float().repeat_interleave(group, 1)
    return (inputs.float() @ exact.to(inputs.dtype).float().t()).to(inputs.dtype)


@stands_in("flashinfer.fused_moe")
def cutlass_fused_moe(
    input,
    token_selected_experts,
    token_final_scales,
    fc1_expert_weights,
    fc2_expert_weights,
    output_dtype,
    quant_scales,
    fc1_expert_biases=None,
    fc2_expert_biases=None,
    input_sf=None,
    swiglu_alpha=None,
    swiglu_beta=None,
    swiglu_limit=None,
    tp_size=1,
    tp_rank=0,
    ep_size=1,
    ep_rank=0,
    cluster_size=1,
    cluster_rank=0,
    output=None,
    enable_alltoall=False,
    use_deepseek_fp8_block_scale=False,
    use_w4_group_scaling=False,
    use_mxfp8_act_scaling=False,
    min_latency_mode=False,
    use_packed_weights=False,
    use_wfp4afp8_humming=False,
    tune_max_num_tokens=8192,
    enable_pdl=None,
    activation_type=3,
    swizzled_input_sf=True,
    use_fused_finalize=True,
):
    assert (token_selected_experts.dtype, token_final_scales.dtype) == (torch.int32, torch.float32)
    assert not quant_scales
    assert not use_fused_finalize  # it adds up by atomics
    assert output_dtype == input.dtype == output.dtype
    _dense(input, token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights, alignment=16)
    _dense(output, alignment=16)
    total = torch.zeros(input.shape)
    for e, (first, second) in enumerate(zip(fc1_expert_weights, fc2_expert_weights, strict=True)):
        tokens, choices = (token_selected_experts == e).nonzero(as_tuple=True)
        up, gate = (input[tokens].float() @ first.float().t()).chunk(2, -1)
        gated = (torch.nn.functional.silu(gate) * up).to(input.dtype)
        found = (gated.float() @ second.float().t()).to(input.dtype).float()
        total.index_add_(0, tokens, found * token_final_scales[tokens, choices, None])
    return output.copy_(total)


# --- flash_attn -----------------------------------------------------------------------------------------------------


def _one_by_one(q: Tensor, k: Tensor, ends_q: Tensor | None, ends_k: Tensor | None) -> Iterator[tuple[Any, Any, Any]]:
    """Where each sequence lies in tensors of queries, of keys, and of a number for each query of a head."""
    if ends_q is None or ends_k is None:
        yield from ((b, b, b) for b in range(q.shape[0]))
        return
    for ends in (ends_q, ends_k):
        assert ends.dtype == torch.int32
        assert ends.stride(0) == 1
    for (a, b), (c, d) in zip(pairwise(ends_q.tolist()), pairwise(ends_k.tolist()), strict=True):
        yield slice(a, b), slice(c, d), (slice(None), slice(a, b))


def _paged(table: Tensor, lengths: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
    """Keys and values (T, G, D) of all sequences one after the other, and where each ends."""
    assert table.dtype == lengths.dtype == torch.int32
    assert lengths.is_contiguous()
    _cache_rows(*caches)
    page, of_sequence = caches[0].shape[1], lengths.tolist()
    pages = [table[n, : -(-length // page)].long() for n, length in enumerate(of_sequence)]
    rows = (
        torch.cat([cache[reached].flatten(0, 1)[:length] for reached, length in zip(pages, of_sequence, strict=True)])
        for cache in caches
    )
    return *rows, torch.tensor([0, *accumulate(of_sequence)], dtype=torch.int32)


def _cache_rows(*caches: Tensor) -> None:
    """Rows of which 16 bytes are read at once."""
    for cache in caches:
        step = 16 // cache.element_size()
        assert cache.stride(-1) == 1
        assert cache.data_ptr() % 16 == 0
        assert all(
            stride % step == 0 for stride, size in zip(cache.stride()[:-1], cache.shape, strict=False) if size > 1
        )


def _scored(
    q: Tensor, k: Tensor, scale: float, softcap: float, causal: bool, left: int | None, right: int | None
) -> Tensor:
    """Scores (H, S, T) of one sequence, bounded and masked."""
    assert scale > 0  # what is hidden is -inf before the scale
    assert left is None or left >= 0  # else a window that ends before the query
    assert right is None or (right >= 0 and not causal)
    scores = torch.einsum("shd,thd->hst", q.float(), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)) * scale
    bounded = softcap * torch.tanh(scores / softcap) if softcap else scores
    place = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0] - torch.arange(k.shape[0])
    hidden = torch.zeros_like(place, dtype=torch.bool) if left is None else place > left
    if (right := 0 if causal else right) is not None:
        hidden |= -place > right
    return bounded.masked_fill(hidden, -math.inf)


def _sixteen_bit(q: Tensor, k: Tensor, v: Tensor) -> None:
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.dtype == k.dtype == v.dtype
    assert q.shape[-1] % 8 == v.shape[-1] % 8 == 0
    assert q.shape[-2] % k.shape[-2] == 0


@stands_in("flash_attn.cute.interface")
def _flash_attn_fwd(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    softcap=None,
    window_size_left=None,
    window_size_right=None,
    learnable_sink=None,
    tile_mn=None,
    mma_pv_is_rs=None,
    intra_wg_overlap=None,
    num_threads=384,
    num_splits=1,
    pack_gqa=None,
    _arch=None,
    score_mod=None,
    mask_mod=None,
    block_sparse_tensors=None,
    return_lse=False,
    out=None,
    lse=None,
):
    _sixteen_bit(q, k, v)
    *leading, heads, _ = q.shape
    if page_table is not None:
        k, v, cu_seqlens_k = _paged(page_table, seqused_k, k, v)
    if out is None:
        out = q.new_empty((*leading, heads, v.shape[-1]))
    _dense(out, alignment=16)
    if lse is None and return_lse:
        lse = q.new_empty((*leading[:-1], heads, leading[-1]), dtype=torch.float32)
    _dense(lse, alignment=4)
    for of_q, of_k, of_sums in _one_by_one(q, k, cu_seqlens_q, cu_seqlens_k):
        mask = causal, window_size_left, window_size_right
        scores = _scored(q[of_q], k[of_k], softmax_scale, softcap, *mask)
        if learnable_sink is not None:
            column = learnable_sink.float()[:, None, None].expand(*scores.shape[:2], 1)
            scores = torch.cat([scores, column], -1)
        sums = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:2], -math.inf)
        weights = (scores - sums[..., None]).exp().nan_to_num(0.0)[..., : k[of_k].shape[0]]
        values = v[of_k].float().repeat_interleave(heads // v.shape[-2], 1)
        out[of_q] = torch.einsum("hst,the->she", weights, values).to(out.dtype)
        if lse is not None:
            lse[of_sums] = sums
    return out, lse, None, None, None


@stands_in("flash_attn.cute.interface")
def _flash_attn_bwd(
    q,
    k,
    v,
    out,
    dout,
    lse,
    softmax_scale=None,
    causal=False,
    softcap=0.0,
    window_size_left=None,
    window_size_right=None,
    m_block_size=64,
    n_block_size=128,
    num_threads=256,
    pack_gqa=False,
    num_stages_Q=2,
    num_stages_dO=2,
    SdP_swapAB=False,
    dKV_swapAB=False,
    dQ_swapAB=False,
    AtomLayoutMSdP=2,
    AtomLayoutNdKV=2,
    AtomLayoutMdQ=2,
    V_in_regs=False,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    deterministic=False,
    dq=None,
    dk=None,
    dv=None,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    block_sparse_tensors=None,
    dlse=None,
    learnable_sink=None,
):
    _sixteen_bit(q, k, v)
    _dense(dq, dk, dv, alignment=16)
    group = q.shape[-2] // k.shape[-2]
    assert q.shape[-1] == v.shape[-1] or group == 1
    dsink = None if learnable_sink is None else torch.zeros(learnable_sink.shape)
    for of_q, of_k, of_sums in _one_by_one(q, k, cu_seqlens_q, cu_seqlens_k):
        mask = causal, window_size_left, window_size_right
        scores = _scored(q[of_q], k[of_k], softmax_scale, softcap, *mask)
        sums = lse[of_sums].masked_fill(lse[of_sums] == -math.inf, 0.0)
        weights, grad = (scores - sums[..., None]).exp(), dout[of_q].float()
        keys, values = (x[of_k].float().repeat_interleave(group, 1) for x in (k, v))
        of_rows = (out[of_q].float() * grad).sum(-1).t()
        slopes = weights * (torch.einsum("she,the->hst", grad, values) - of_rows[..., None])
        if softcap:
            slopes = slopes * (1 - (scores / softcap).square().masked_fill(scores == -math.inf, 0.0))
        dq[of_q] = (softmax_scale * torch.einsum("hst,thd->shd", slopes, keys)).to(dq.dtype)
        of_keys = softmax_scale * torch.einsum("hst,shd->thd", slopes, q[of_q].float())
        of_values = torch.einsum("hst,she->the", weights, grad)
        for d, found in ((dk, of_keys), (dv, of_values)):
            d[of_k] = found.unflatten(1, (-1, group)).sum(2).to(d.dtype)
        if dsink is not None:
            dsink -= ((learnable_sink.float()[:, None] - lse[of_sums]).exp() * of_rows).sum(-1)
    return (dq, dk, dv) if dsink is None else (dq, dk, dv, dsink.to(learnable_sink.dtype))
