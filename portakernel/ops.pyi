"""The public ops. Generated from the contracts by `make generate`."""

from typing import Any, Literal, Protocol, TypeVar, overload

from torch import Tensor, dtype

class Array(Protocol):
    """An array of NumPy, JAX or CuPy (docs/arrays.md): all of a call are of one of them, and so are its results.

    A type checker gives a result the first argument's type, of which the dtype may be another.
    """

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

_Array = TypeVar("_Array", bound=Array)

@overload
def add(
    x: Tensor,
    y: Tensor,
    *,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The elementwise sum of two tensors of one shape and dtype.

    ``x + y``

    Computed in float32 and rounded once. Broadcasting is refused. Not guaranteed: the bits of a NaN; numbers that are
    subnormal in float32, on devices that take them for zero (Apple GPUs).

    Args:
        x: (...,), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        y: (...,), the dtype of x.
        out: where to write; may be x or y itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: IEEE 754-2019, 5.4.1 (addition).
    """

@overload
def add(
    x: _Array,
    y: Array,
    *,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-05,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu"] = "none",
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """The sum of x and residual, and its layer normalisation over the last dimension with an activation.

    ``summed = x + residual; y = activation((summed - mean(summed, -1)) * rsqrt(var(summed, -1) + eps) * weight +
    bias)``

    summed is added in float32 and rounded once to x's dtype, and y is the norm of that rounded sum: the results are
    those of add and layer_norm one after the other. Everything else, the activation too, is computed in float32 and
    rounded once, at the end. activation: relu (NaN stays NaN), gelu (by erf), gelu_tanh, silu. out=(x, residual)
    writes y over x and summed over residual. Forward saves mean (M,) and rstd (M,) in float32; backward computes what
    the activation was applied to once more, from them. The gradients of x and residual are equal. relu has slope 0 at
    0. A row of summed that holds an infinity is NaN throughout. Not guaranteed: equal bits of y from different
    kernels; finite results where the sum of squares exceeds float32; the saved mean of a row that holds an infinity;
    digits of rstd where the mean is many times the standard deviation, lost in proportion to their ratio; terms of a
    gradient that are subnormal in float32, which a kernel may flush to zero.

    Args:
        x: (..., N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        residual: (..., N), the dtype of x.
        weight: (N,), the dtype of x or float32.
        bias: (N,), the dtype of weight; or None.
        eps: a value; default 1e-05.
        activation: a feature, neutral at 'none'. Accepted: 'none' or 'relu' or 'gelu' or 'gelu_tanh' or 'silu'.
        out: where to write, a tensor for each result; may be x or residual itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        y: (..., N).
        summed: (..., N).

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Ba, Kiros & Hinton 2016, Layer Normalization, arXiv 1607.06450, equation 3, of x + residual; gelu:
    Hendrycks & Gimpel 2016, arXiv 1606.08415; silu: Elfwing et al. 2017, arXiv 1702.03118.
    """

@overload
def add_layer_norm(
    x: _Array,
    residual: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    eps: float = 1e-05,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu"] = "none",
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """The sum of x and residual, and its root mean square layer normalisation over the last dimension.

    ``summed = x + residual; y = summed * rsqrt(mean(summed**2, -1) + eps) * (weight + weight_offset)``

    summed is added in float32 and rounded once to x's dtype, and y is the norm of that rounded sum: the results are
    those of add and rms_norm one after the other. Everything else is computed in float32 and rounded once, at the
    end. weight_offset=1.0 is Gemma's form. out=(x, residual) writes y over x and summed over residual. Forward saves
    rstd (M,), the reciprocal root, in float32; the gradients of x and residual are equal. Not guaranteed: equal bits
    of y from different kernels; finite results where the sum of squares exceeds float32; zeros beside an infinity in
    summed, where a kernel may give NaN for the whole row of y; terms of a gradient that are subnormal in float32,
    which a kernel may flush to zero.

    Args:
        x: (..., N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        residual: (..., N), the dtype of x.
        weight: (N,), the dtype of x or float32.
        eps: a value; default 1e-06.
        weight_offset: a feature, neutral at 0.0.
        out: where to write, a tensor for each result; may be x or residual itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        y: (..., N).
        summed: (..., N).

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4, of x +
    residual.
    """

@overload
def add_rms_norm(
    x: _Array,
    residual: Array,
    weight: Array,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def add_rms_norm_quantize(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    granularity: Literal["row", "block_1x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """The sum of x and residual, and its root mean square layer normalisation in float8 with float32 scales.

    ``summed = x + residual; y = summed * rsqrt(mean(summed**2, -1) + eps) * (weight + weight_offset); scale =
    amax(abs(y)) / max(dtype); q = round(clamp(y / scale, -max(dtype), max(dtype)))``

    summed is added in float32 and rounded once to x's dtype, and q and scale are those of that rounded sum: the
    results are those of add and rms_norm_quantize one after the other, whose notes hold here.

    Args:
        x: (..., N), float32 or float16 or bfloat16.
        residual: (..., N), the dtype of x.
        weight: (N,), the dtype of x or float32.
        eps: a value; default 1e-06.
        weight_offset: a feature, neutral at 0.0.
        granularity: a value; default 'row'. which elements share a scale. Accepted: 'row' or 'block_1x128'.
        dtype: a value; default 'float8_e4m3fn'. dtype of q. Accepted: 'float8_e4m3fn' or 'float8_e4m3fnuz' or
            'float8_e5m2' or 'float8_e5m2fnuz'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        q: (..., N).
        scale: (..., 1) for row, (..., ceil(N/128)) for block_1x128.
        summed: (..., N).

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4, of x +
    residual; fused in vLLM (rms_norm_dynamic_per_token_quant with a residual) and FlashInfer
    (fused_add_rmsnorm_fp8_block_quant, which quantises the norm rounded to x's dtype).
    """

@overload
def add_rms_norm_quantize(
    x: _Array,
    residual: Array,
    weight: Array,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    granularity: Literal["row", "block_1x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    return_lse: bool = False,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Scaled dot product attention with grouped heads, masks, score modifications and sinks.

    ``softmax(mask(softcap * tanh(scale * q @ k.T / softcap) - alibi_slopes * |i + T - S - j| + bias)) @ v, with sinks
    as one more term in the softmax's denominator``

    Query head h reads key head h // (H // G). Query i stands at position i + T - S, so that the last query stands at
    the last key (bottom right aligned): causal hides keys behind that position, window=(left, right) keys more than
    left before or right after it, and ALiBi counts the distance from it; causal and window hold together. Scores are
    changed in the order scale, softcap, ALiBi, bias, mask. scale=None is 1/sqrt(D); a scale may be 0 or less.
    softcap=0 is off. A bias of -inf masks; it is not broadcast, but may be expanded, with strides of 0. A sink is the
    score, after all changes, of a key that every query of its head sees and whose value is zero; it counts in lse,
    the natural logarithm of the denominator. A query that sees no key gives zeros, and lse -inf or its sink. Computed
    in float32 and rounded once, at the end; kernels may round the softmax's weights to the inputs' dtype before the
    product with v, as FlashAttention does. alibi_slopes and lse have no gradient. Forward saves lse. Not guaranteed:
    equal bits from different kernels; outputs of a query that sees a NaN or an infinity, or with a scale that is one;
    that a scale nearer to 0 than 2**-126 differs from 0; whether a query whose scores are all below -2**126 averages
    the values or gives zeros, as if it saw no key, because kernels multiply scores by log2(e); that NaN or infinity
    in a masked key or value does not reach queries that do not see it, because 0 * NaN is NaN.

    Args:
        q: (B, S, H, D), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        k: (B, T, G, D), the dtype of q.
        v: (B, T, G, E), the dtype of q.
        alibi_slopes: (H,), float32; a feature, neutral at None.
        bias: (B, H, S, T), the dtype of q or float32; a feature, neutral at None.
        sinks: (H,), the dtype of q or float32; a feature, neutral at None.
        causal: a value; default False. hide keys behind the query's position.
        scale: a value; default None. what q @ k.T is multiplied by; None: 1/sqrt(D). Accepted: a number or None.
        window: a feature, neutral at (-1, -1). keys seen before and after the position.
        softcap: a feature, neutral at 0.0. bounds scores smoothly to this magnitude; 0: off.
        return_lse: a feature, neutral at False. also return the log-sum-exp of the scores.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (B, S, H, E).
        lse: (B, H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Dao 2023, FlashAttention-2, arXiv 2307.08691; grouped heads: Ainslie et al. 2023, arXiv 2305.13245; ALiBi:
    Press et al. 2021, arXiv 2108.12409; softcap: Gemma 2, arXiv 2408.00118; window: Mistral 7B, arXiv 2310.06825;
    sinks: gpt-oss model card, arXiv 2508.10925.
    """

@overload
def attention(
    q: _Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    return_lse: bool = False,
    alibi_slopes: Array | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention over sequences of different lengths that lie one after the other, without padding.

    ``attention(q[a:b], k[c:d], v[c:d]) for each sequence, with a, b from cu_seqlens_q and c, d from cu_seqlens_k``

    Sequence n has the queries from cu_seqlens_q[n] to before cu_seqlens_q[n + 1] and the keys likewise; both ascend
    from 0, to S and to T at most; kernels that read them on the host (the reference, those on the CPU) raise
    ArgumentValueError where they do not, and for others that is undefined. Everything holds within each sequence as
    it does for attention, with the sequence's own numbers of queries and keys as S and T: alignment at the bottom
    right, ALiBi distances, zeros and lse -inf (or the sink) for queries without keys. A sequence may be empty, on one
    side or on both. max_seqlen_q and max_seqlen_k are upper bounds of those numbers, not necessarily reached; they
    change no result, and spare kernels that need them a wait for the device. Undefined where they are too small. lse
    is (H, S). Forward saves it. Not guaranteed: what attention does not guarantee; what rows hold that belong to no
    sequence.

    Args:
        q: (S, H, D), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        k: (T, G, D), the dtype of q.
        v: (T, G, E), the dtype of q.
        cu_seqlens_q: (B+1,), int32.
        cu_seqlens_k: (B+1,), int32.
        alibi_slopes: (H,), float32; a feature, neutral at None.
        sinks: (H,), the dtype of q or float32; a feature, neutral at None.
        causal: a value; default False. hide keys behind the query's position.
        scale: a value; default None. what q @ k.T is multiplied by; None: 1/sqrt(D). Accepted: a number or None.
        window: a feature, neutral at (-1, -1). keys seen before and after the position.
        softcap: a feature, neutral at 0.0. bounds scores smoothly to this magnitude; 0: off.
        max_seqlen_q: a value; default None. no sequence has more queries. Accepted: an integer or None.
        max_seqlen_k: a value; default None. no sequence has more keys. Accepted: an integer or None.
        return_lse: a feature, neutral at False. also return the log-sum-exp of the scores.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (S, H, E).
        lse: (H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Dao 2023, FlashAttention-2, arXiv 2307.08691; flash_attn_varlen_func for the form; sources of attention.
    """

@overload
def attention_varlen(
    q: _Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None = None,
    full_index: Tensor | None = None,
    *,
    mask: str = "none",
    window: tuple[int | None, int | None] = (-1, -1),
    block: Literal["128x128", "64x64"] = "128x128",
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    query_ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    prefix: Tensor | None = None,
    sinks: Tensor | None = None,
    q_partial_count: Tensor | None = None,
    q_partial_index: Tensor | None = None,
    q_full_count: Tensor | None = None,
    q_full_index: Tensor | None = None,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention over the blocks of keys that lists name for each block of queries, with masks by name.

    ``attention's, of which query i sees key j where the block of j is in the full list of the block of i, or in the
    partial list and mask(b, h, i + T - S, j) holds``

    Lists are as FlexAttention's BlockMask has them: row r of partial_index (B, H, R, C) holds, in any order, the
    blocks of keys that the block r of queries sees in part, of which the first partial_count[b, h, r] are meant;
    full_index those that it sees whole. What is one for all batches or heads may be expanded, with strides of 0;
    portakernel.masks makes lists of bool maps (lists), of masks (lists_of) and of a BlockMask (from_block_mask). A
    block is of 128 or 64 queries and keys; the last one may be shorter. mask is a name: none, causal, document
    (query_ids (B, S) and key_ids (B, T) are equal), prefix (causal, and keys before prefix (B,)), or one that
    portakernel.masks.register was given. window holds together with it, for partial blocks. Queries stand as in
    attention: query i at i + T - S. What the mask reads has to be given, and nothing else of it (ArgumentValueError).
    Blocks in no list of a row are not read, and reach no result of its queries, whatever they hold. A query that sees
    no key gives zeros, and lse -inf or its sink; softcap and sinks are as in attention. q_partial_count (B, H, K),
    q_partial_index (B, H, K, R), q_full_count and q_full_index say the same by blocks of keys
    (portakernel.masks.transposed), for backward, which makes them where they are not given. lse has no gradient.
    Undefined: a block twice in a row's lists, or one that there is not; lists by keys that say something else. Not
    guaranteed: what attention does not guarantee, inside of listed blocks.

    Args:
        q: (B, S, H, D), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        k: (B, T, G, D), the dtype of q.
        v: (B, T, G, E), the dtype of q.
        partial_count: (B, H, ceil(S/128)) for 128x128, (B, H, ceil(S/64)) for 64x64, int32.
        partial_index: (B, H, ceil(S/128), C) for 128x128, (B, H, ceil(S/64), C) for 64x64, int32.
        full_count: (B, H, ceil(S/128)) for 128x128, (B, H, ceil(S/64)) for 64x64, int32; or None.
        full_index: (B, H, ceil(S/128), F) for 128x128, (B, H, ceil(S/64), F) for 64x64, int32; or None.
        query_ids: (B, S), int32; or None.
        key_ids: (B, T), int32; or None.
        prefix: (B,), int32; or None.
        sinks: (H,), the dtype of q or float32; a feature, neutral at None.
        q_partial_count: (B, H, ceil(T/128)) for 128x128, (B, H, ceil(T/64)) for 64x64, int32; or None.
        q_partial_index: (B, H, ceil(T/128), ceil(S/128)) for 128x128, (B, H, ceil(T/64), ceil(S/64)) for 64x64,
            int32; or None.
        q_full_count: (B, H, ceil(T/128)) for 128x128, (B, H, ceil(T/64)) for 64x64, int32; or None.
        q_full_index: (B, H, ceil(T/128), ceil(S/128)) for 128x128, (B, H, ceil(T/64), ceil(S/64)) for 64x64, int32;
            or None.
        mask: a feature, neutral at 'none'. which keys of partial blocks a query sees. Accepted: 'none' or 'causal' or
            'document' or 'prefix', or a name that portakernel.masks.register was given.
        window: a feature, neutral at (-1, -1). keys seen before and after the position.
        block: a value; default '128x128'. queries and keys of a block of the lists. Accepted: '128x128' or '64x64'.
        scale: a value; default None. what q @ k.T is multiplied by; None: 1/sqrt(D). Accepted: a number or None.
        softcap: a feature, neutral at 0.0. bounds scores smoothly to this magnitude; 0: off.
        return_lse: a feature, neutral at False. also return the log-sum-exp of the scores.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (B, S, H, E).
        lse: (B, H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: FlexAttention: Dong et al. 2024, arXiv 2412.05496; torch.nn.attention.flex_attention.BlockMask for the
    lists; Dao 2023, FlashAttention-2, arXiv 2307.08691; sources of attention.
    """

@overload
def block_sparse_attention(
    q: _Array,
    k: Array,
    v: Array,
    partial_count: Array,
    partial_index: Array,
    full_count: Array | None = None,
    full_index: Array | None = None,
    *,
    mask: str = "none",
    window: tuple[int | None, int | None] = (-1, -1),
    block: Literal["128x128", "64x64"] = "128x128",
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    query_ids: Array | None = None,
    key_ids: Array | None = None,
    prefix: Array | None = None,
    sinks: Array | None = None,
    q_partial_count: Array | None = None,
    q_partial_index: Array | None = None,
    q_full_count: Array | None = None,
    q_full_index: Array | None = None,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The cross-entropy between each row's softmax over the last dimension and its target class.

    ``loss = lse - sum(q * logits, -1), 0 where target == ignore_index; lse = log(sum(exp(logits), -1)); q = (1 -
    label_smoothing) * onehot(target) + label_smoothing / V``

    logits: (*M, V); target: (*M,), classes from 0 to V-1 or ignore_index, which may be one of them; loss and, with
    return_lse, lse: (*M,), in float32 whatever the logits are. Everything is computed in float32. There is no
    reduction: torch's mean is loss.sum() / (target != ignore_index).sum(), with label smoothing too. lse is the
    natural logarithm, of every row, the ignored ones too; it has no gradient. The gradient of logits is grad_loss *
    (softmax(logits) - q), rounded once, and zeros for an ignored row, whatever the row holds. Forward saves lse (M,)
    in float32; its last place bounds how exact probabilities in backward can be. A logit of -inf is a class of
    probability 0: the loss is exact where the target is another, inf where it is the target, and inf with label
    smoothing, as in torch. A row that holds NaN or +inf has loss and lse NaN. overwrite_logits=True permits backward
    to write the gradient over logits' memory and return logits: for callers that use them nowhere else, and go
    backward once. Kernels may ignore it. Not guaranteed: any result, or an error, for a target elsewhere
    (portakernel's kernels raise IndexOutOfRangeError on the CPU); lse of a row of nothing but -inf (its loss is NaN);
    finite results where sums of logits exceed float32; equal bits from different kernels; gradients that are
    subnormal in float32, which a kernel may flush to zero.

    Args:
        logits: (..., V), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        target: (...,), int64 or int32.
        ignore_index: a value; default -100. the target of rows that have no loss and no gradient.
        label_smoothing: a feature, neutral at 0.0. the share of the target spread evenly, from 0 to 1.
        overwrite_logits: a value; default False. backward may write over logits.
        return_lse: a feature, neutral at False. return each row's log-sum-exp as well.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        loss: (...,).
        lse: (...,), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, equation 4.108; label smoothing: Szegedy et al.
    2015, Rethinking the Inception Architecture, arXiv 1512.00567, section 7.
    """

@overload
def cross_entropy(
    logits: _Array,
    target: Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def dequantize(
    q: Tensor,
    scale: Tensor,
    global_scale: Tensor | None = None,
    *,
    format: Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"] = "row",
    dtype: str | dtype = "float32",
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Numbers from quantised elements and their scales.

    ``q * scale * global_scale``

    format says which elements share a scale: all (tensor), those of a row (row), 128 of a row (block_1x128), 128
    times 128 of a matrix whose rows are the leading dimensions in order (block_128x128), 32 of a row (mxfp8, mxfp4;
    scales are powers of two) or 16 of a row (nvfp4); a last block may be shorter. K counts elements: a byte of
    float4_e2m1fn_x2 holds two, the even one in its low four bits. Scales multiply. global_scale, that of nvfp4,
    multiplies everything, in whatever format. Computed in float32, the factors in any order, and rounded once more;
    numbers too large for dtype become infinities. A NaN scale makes its block NaN, also where elements are zero. Not
    guaranteed: equal bits from different kernels; results, scales and products of scales that are subnormal in
    float32, which a kernel may flush to zero; finite results where a product of two of the three factors exceeds
    float32.

    Args:
        q: (..., K) for tensor, (..., K) for row, (..., K) for block_1x128, (..., K) for block_128x128, (..., K) for
            mxfp8, (..., K/2) for mxfp4, (..., K/2) for nvfp4, float8_e4m3fn or float8_e4m3fnuz or float8_e5m2 or
            float8_e5m2fnuz or float4_e2m1fn_x2.
        scale: () for tensor, (..., 1) for row, (..., ceil(K/128)) for block_1x128, (ceil(M/128), ceil(K/128)) for
            block_128x128, (..., ceil(K/32)) for mxfp8, (..., ceil(K/32)) for mxfp4, (..., ceil(K/16)) for nvfp4,
            float32 or float8_e8m0fnu or float8_e4m3fn.
        global_scale: (), float32; or None.
        format: a value; default 'row'. which elements share a scale. Accepted: 'tensor' or 'row' or 'block_1x128' or
            'block_128x128' or 'mxfp8' or 'mxfp4' or 'nvfp4'.
        dtype: a value; default 'float32'. dtype of the result. Accepted: 'float32' or 'float16' or 'bfloat16'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: OCP Microscaling Formats 1.0, 5.3 and 5.4; DeepSeek-V3, arXiv 2412.19437, 3.3.2 (blocks of 128).
    """

@overload
def dequantize(
    q: _Array,
    scale: Array,
    global_scale: Array | None = None,
    *,
    format: Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"] = "row",
    dtype: str | dtype = "float32",
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: Literal["sum", "mean"] = "sum",
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The sum or mean of the rows of a table that each bag of indices names.

    ``y[b] = sum(weight[indices[i]] * per_sample_weights[i] for i in bag b), divided by the bag's size for mean``

    weight: (V, N); indices: (I,), from 0 to V-1; offsets: (B,), where each bag begins; y: (B, N). Bag b is
    indices[offsets[b]:offsets[b + 1]], and the last one ends at I. offsets[0] is 0 and offsets never fall; bags may
    be empty, and give zeros in both modes. per_sample_weights: (I,) only with mode='sum' (the reference raises
    ArgumentValueError). Products and sums are in float32 and rounded once. The gradient of weight is dense, zeros
    where no bag looked; it is summed in float32 over indices sorted stably, without atomics. Not guaranteed: any
    result, or an error, for indices or offsets elsewhere (on the CPU portakernel's kernels raise IndexOutOfRangeError
    for indices, ArgumentValueError for offsets); equal bits from different kernels; numbers that are subnormal in
    float32, on devices that take them for zero (Apple GPUs).

    Args:
        weight: (V, N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        indices: (I,), int64 or int32.
        offsets: (B,), the dtype of indices.
        per_sample_weights: (I,), the dtype of weight; or None.
        mode: a value; default 'sum'. what becomes of a bag's rows. Accepted: 'sum' or 'mean'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: torch.nn.EmbeddingBag; Naumov et al. 2019, Deep Learning Recommendation Model, arXiv 1906.00091, section
    2.
    """

@overload
def embedding_bag(
    weight: _Array,
    indices: Array,
    offsets: Array,
    per_sample_weights: Array | None = None,
    *,
    mode: Literal["sum", "mean"] = "sum",
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def gelu_and_mul(
    x: Tensor,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """GELU of the first half of the last dimension, times the second half.

    ``gate, up = x[..., :N], x[..., N:]; gate * (1 + erf(gate / sqrt(2))) / 2 * up, or with approximate='tanh' gate *
    (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3))) / 2 * up``

    Everything is computed in float32 and rounded once, at the end: libraries that round gelu before the product
    differ by up to one unit in the last place. A gate of -inf gives NaN, as the product -inf * 0 does. Not
    guaranteed: equal bits from different kernels; numbers in a row that holds an infinity, where a kernel may give
    NaN; digits where 1 and erf (or tanh) cancel, which is why results are measured at the magnitude of gate * up
    where the gate is negative; results and gradients that are subnormal in float32, which a kernel may flush to zero.

    Args:
        x: (..., 2N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        approximate: a value; default 'none'. Accepted: 'none' or 'tanh'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202 (GEGLU, without its linear layers); both
    forms of gelu: Hendrycks & Gimpel 2016, Gaussian Error Linear Units, arXiv 1606.08415, section 2.
    """

@overload
def gelu_and_mul(
    x: _Array,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def grouped_mm(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    format: Literal["none", "row", "block"] = "none",
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Consecutive pieces of rows, each times a matrix of its own: the linear layers of experts.

    ``y[offsets[e]:offsets[e + 1]] = a[offsets[e]:offsets[e + 1]] @ b[e].T + bias[e] for each expert e; with gather,
    a[gather] stands for a``

    a: (M, K), sorted by expert; b: (E, N, K), each expert's matrix as a linear layer keeps its weight; offsets:
    (E+1,), where each expert's rows begin, from 0 on, never falling, the last one at most M; bias: (E, N); y: (M, N).
    With gather: (R,), the rows that experts have are a's rows of these numbers, from 0 to M-1, any of them several
    times: offsets are theirs, y is (R, N), and a's rows go with their scales; of moe_sort's order it is order // K.
    torch's grouped_mm, whose matrices are (E, K, N) and whose offsets leave the 0 out, is that of b.transpose(1, 2);
    moe_sort gives offsets. An expert may have no rows, and one all of them. Products are summed in float32, bias is
    added to that, and the result is rounded once. format='row' is for float8 a and b, with scale_a: (M, 1) and
    scale_b: (E, N, 1); 'block' has scale_a: (M, ceil(K/128)), one for each 128 of a row, and scale_b: (E,
    ceil(N/128), ceil(K/128)), one for each square: as quantize_fp8 gives them for block_1x128, and of each matrix for
    block_128x128. Scales multiply; of float8 y is bfloat16, and sums are promoted to float32 at least every 128
    terms. Scales that a format has not, or lacks, are refused (ArgumentValueError). Gradients, of a and b for
    format='none' alone, are summed in float32 and rounded once; an expert without rows has zeros, and so have rows of
    no expert. Undefined: rows of y behind offsets[E]; any result for offsets that fall or end beyond y, and for
    gather elsewhere (refused with PORTAKERNEL_CHECKS=1). Not guaranteed: equal bits from different kernels, or for a
    row among other numbers of rows; all 24 bits of float32 products where torch.backends.cuda.matmul allows fewer.

    Args:
        a: (M, K), float32 or float16 or bfloat16 or float8_e4m3fn or float8_e4m3fnuz or float8_e5m2 or
            float8_e5m2fnuz, or float64, which the reference alone serves.
        b: (E, N, K), the dtype of a.
        offsets: (E+1,), int32 or int64.
        bias: (E, N), float32 or float16 or bfloat16 or the dtype of a; a feature, neutral at None.
        scale_a: (M, 1) for none, (M, 1) for row, (M, ceil(K/128)) for block, float32; a feature, neutral at None.
        scale_b: (E, N, 1) for none, (E, N, 1) for row, (E, ceil(N/128), ceil(K/128)) for block, float32; a feature,
            neutral at None.
        gather: (R,), int32 or int64; a feature, neutral at None.
        format: a feature, neutral at 'none'. which elements of float8 a and b share a scale. Accepted: 'none' or
            'row' or 'block'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Gale et al. 2022, MegaBlocks, arXiv 2211.15841; torch.nn.functional.grouped_mm; DeepSeek-V3, arXiv
    2412.19437, 3.3.2 (blocks of 128, promoted sums).
    """

@overload
def grouped_mm(
    a: _Array,
    b: Array,
    offsets: Array,
    *,
    format: Literal["none", "row", "block"] = "none",
    bias: Array | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    gather: Array | None = None,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def int4_mm(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    layout: Literal["gptq", "awq", "ct", "packed_mma", "packed_mfma"] = "gptq",
    group: int = 128,
    zero: Literal["stored", "stored_plus_one", "none"] = "stored",
    bias: Tensor | None = None,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """A linear layer whose weight has four bits an element.

    ``x @ w.T + bias, w[n, k] = (q[n, k] - z[g, n]) * scales[g, n], g = k // group or order[k]``

    x: (*M, K); y: (*M, N); w: (N, K). Words are int32, nibble i bits 4i to 4i + 3. layout says where q is. gptq:
    weight (K/8, N), q[n, k] is nibble k % 8 of word (k // 8, n); zeros (groups, N/8), nibble n % 8. awq: weight (K,
    N/8), nibble (0, 4, 1, 5, 2, 6, 3, 7)[n % 8] of word (k, n // 8); zeros (groups, N/8) in that order too. ct,
    compressed-tensors': weight (N, K/8), nibble k % 8 of word (n, k // 8); scales (N, groups); zeros (N/8, groups),
    nibble n % 8. Elsewhere scales are (groups, N). packed_mma and packed_mfma are what kernels read fastest, on
    NVIDIA's chips and on others, and what pack_int4 makes: weight (ceil(K/128), N, 16), scales (groups, N), zeros
    (groups, N) of uint8, one each. Of k = 128 b + 32 f + 2 j + h, q is nibble f + 4 h of word (b, n, i), with j = 4t
    + c for packed_mma, i = 4c + t, and j = 8t + 2c + e for packed_mfma, i = 4c + 2t + e; what pads K is not used. The
    tables are portakernel.words.int4_layouts. z is zeros for stored (GPTQModel's v2, AWQ) and zeros + 1 for
    stored_plus_one (AutoGPTQ's v1); it is 8 without zeros, and for none, where zeros are not read. Columns come in
    groups of 32, 64 or 128, the last of which may be short, or, for -1, in one of all K. 0: groups of any size, (G,
    N) scales; without order of ceil(K/G) columns each. order, activation ordering: in layouts of checkpoints (K,),
    the group of each column (g_idx), each below the number of groups. In packed ones columns are sorted by group, and
    order says which column of x each is: (K,), groups being k // group in that order; or for group 0 (2, K), below it
    their groups. Weights are dequantised in float32, or rounded once to x's dtype, in which one beyond its range
    overflows whatever the scales' dtype; scales are used as they are, in whatever dtype beside x's, never in one with
    fewer bits or a smaller range than both. Products are summed in float32, bias is added, and the result is rounded
    once. x alone has a gradient. Not guaranteed: equal bits from different kernels; anything where order is out of
    range; which results are NaN and which infinite in a row of x with an infinity.

    Args:
        x: (..., K), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        weight: (K/8, N) for gptq, (K, N/8) for awq, (N, K/8) for ct, (ceil(K/128), N, 16) for packed_mma,
            (ceil(K/128), N, 16) for packed_mfma, int32.
        scales: (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0
            for gptq, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N)
            for 0 for awq, (N, ceil(K/32)) for 32, (N, ceil(K/64)) for 64, (N, ceil(K/128)) for 128, (N, 1) for -1,
            (N, G) for 0 for ct, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for
            -1, (G, N) for 0 for packed_mma, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128,
            (1, N) for -1, (G, N) for 0 for packed_mfma, float32 or float16 or bfloat16.
        zeros: (ceil(K/32), N/8) for 32, (ceil(K/64), N/8) for 64, (ceil(K/128), N/8) for 128, (1, N/8) for -1, (G,
            N/8) for 0 for gptq, (ceil(K/32), N/8) for 32, (ceil(K/64), N/8) for 64, (ceil(K/128), N/8) for 128, (1,
            N/8) for -1, (G, N/8) for 0 for awq, (N/8, ceil(K/32)) for 32, (N/8, ceil(K/64)) for 64, (N/8,
            ceil(K/128)) for 128, (N/8, 1) for -1, (N/8, G) for 0 for ct, (ceil(K/32), N) for 32, (ceil(K/64), N) for
            64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0 for packed_mma, (ceil(K/32), N) for 32,
            (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0 for packed_mfma, int32 or
            uint8; a feature, neutral at None.
        order: (K,) for gptq, (K,) for awq, (K,) for ct, (K,) for 32, (K,) for 64, (K,) for 128, (K,) for -1, (2, K)
            for 0 for packed_mma, (K,) for 32, (K,) for 64, (K,) for 128, (K,) for -1, (2, K) for 0 for packed_mfma,
            int32; a feature, neutral at None.
        bias: (N,), the dtype of x; a feature, neutral at None.
        layout: a value; default 'gptq'. where the nibbles lie. Accepted: 'gptq' or 'awq' or 'ct' or 'packed_mma' or
            'packed_mfma'.
        group: a value; default 128. columns of a scale; -1: all; 0: any number. Accepted: 32 or 64 or 128 or -1 or 0.
        zero: a value; default 'stored'. what zeros hold; none: 8 is subtracted. Accepted: 'stored' or
            'stored_plus_one' or 'none'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Frantar et al. 2022, GPTQ, arXiv 2210.17323, and AutoGPTQ's and GPTQModel's files; Lin et al. 2023, AWQ,
    arXiv 2306.00978, and AutoAWQ's WQLinear_GEMM; vLLM's compressed-tensors, pack_quantized; Frantar et al. 2024,
    MARLIN, arXiv 2408.11743 (weights that lie as tensor cores read them).
    """

@overload
def int4_mm(
    x: _Array,
    weight: Array,
    scales: Array,
    zeros: Array | None = None,
    order: Array | None = None,
    *,
    layout: Literal["gptq", "awq", "ct", "packed_mma", "packed_mfma"] = "gptq",
    group: int = 128,
    zero: Literal["stored", "stored_plus_one", "none"] = "stored",
    bias: Array | None = None,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-05,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Layer normalisation over the last dimension.

    ``(x - mean(x, -1)) * rsqrt(var(x, -1) + eps) * weight + bias``

    var is the mean of the squared deviations from the mean, divided by N. Everything is computed in float32 and
    rounded once, at the end. Without bias nothing is added. Forward saves mean (M,) and rstd (M,), the reciprocal
    root, in float32. A row that holds an infinity is NaN throughout. Not guaranteed: equal bits from different
    kernels; finite results where the sum of squares exceeds float32; the mean itself of a row that holds an infinity,
    which a kernel may give as NaN; digits of rstd where the mean is many times the standard deviation, lost in
    proportion to their ratio; terms of a gradient that are subnormal in float32, which a kernel may flush to zero.

    Args:
        x: (..., N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        weight: (N,), the dtype of x or float32.
        bias: (N,), the dtype of weight; or None.
        eps: a value; default 1e-05.
        out: where to write; may be x itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Ba, Kiros & Hinton 2016, Layer Normalization, arXiv 1607.06450, equation 3.
    """

@overload
def layer_norm(
    x: _Array,
    weight: Array,
    bias: Array | None = None,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu"] = "none",
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """A linear layer followed by an activation.

    ``activation(x @ weight.T + bias)``

    x: (*M, K); weight: (N, K); bias: (N,); y: (*M, N), all of one dtype. Products are summed in float32; bias and
    activation are applied to that, and the result is rounded once. gelu is x/2 * (1 + erf(x / sqrt(2))), gelu_tanh
    x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))), silu x * sigmoid(x). For gelu, gelu_tanh and silu forward
    saves the preactivation x @ weight.T + bias, (*M, N), rounded to x's dtype, from which backward computes in
    float32; for relu y tells all that backward needs. Not guaranteed: equal bits from different kernels; the sign of
    a zero; all 24 bits of float32 products where torch.backends.cuda.matmul allows fewer, which the reference follows
    too; float32 sums from 16 products on: parts of them may be rounded to 16 bits where torch.backends.cuda.matmul
    allows it, and where one overflows y may be NaN; relu's slope where rounding decides about the sign of what it is
    applied to.

    Args:
        x: (..., K), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        weight: (N, K), the dtype of x.
        bias: (N,), the dtype of x; or None.
        activation: a value; default 'none'. what is applied to each element of the linear layer. Accepted: 'none' or
            'relu' or 'gelu' or 'gelu_tanh' or 'silu'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Hendrycks & Gimpel 2016, Gaussian Error Linear Units, arXiv 1606.08415 (gelu, silu); torch.nn.Linear.
    """

@overload
def linear_act(
    x: _Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu"] = "none",
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The cross-entropy between the softmax of a linear layer's outputs and each row's target class.

    ``loss = lse - sum(q * z, -1), 0 where target == ignore_index; z = x @ weight.T; lse = log(sum(exp(z), -1)); q =
    (1 - label_smoothing) * onehot(target) + label_smoothing / V``

    x: (*M, K); weight: (V, K), of x's dtype; target: (*M,), classes from 0 to V-1 or ignore_index, which may be one
    of them; loss: (*M,), float32. It is cross_entropy of the logits z, which take M * V elements and are never in
    memory as a whole: kernels go through them in parts, and again in backward. There is no reduction: torch's mean is
    loss.sum() / (target != ignore_index).sum(). Products are summed in float32, and logits are not rounded to 16
    bits. With d = grad_loss * (softmax(z) - q), zeros in ignored rows, the gradients are d @ weight for x and d.T @ x
    for weight, rounded to their dtype; a kernel may round d once to that dtype's precision, for tensor cores, but not
    to float16's range: probabilities below 2**-14 are what most of a gradient consists of. Forward saves lse (M,) in
    float32, of every row. A logit of -inf is a class of probability 0. A row with a logit that is NaN or +inf has
    loss NaN. Not guaranteed: any result, or an error, for a target elsewhere (the reference raises
    IndexOutOfRangeError on the CPU); finite results where logits exceed float32; equal bits from different kernels;
    gradients that are subnormal in float32; all 24 bits of float32 products where torch.backends.cuda.matmul allows
    fewer, which the reference follows too.

    Args:
        x: (..., K), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        weight: (V, K), the dtype of x.
        target: (...,), int64 or int32.
        ignore_index: a value; default -100. the target of rows that have no loss and no gradient.
        label_smoothing: a feature, neutral at 0.0. the share of the target spread evenly, from 0 to 1.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, equations 4.104 to 4.109; without all logits:
    Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models, arXiv 2411.09009.
    """

@overload
def linear_cross_entropy(
    x: _Array,
    weight: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def merge_attention(
    a: Tensor,
    lse_a: Tensor,
    b: Tensor,
    lse_b: Tensor,
    *,
    return_lse: bool = True,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention over two sets of keys, from attention over each of them and its log-sum-exp.

    ``(exp(lse_a - m) * a + exp(lse_b - m) * b) / (exp(lse_a - m) + exp(lse_b - m)) with m = maximum(lse_a, lse_b);
    lse = m + log(exp(lse_a - m) + exp(lse_b - m))``

    For keys that several programs, calls or devices share: split keys, a prefix that many sequences have in common,
    context parallelism. a and b are what attention over disjoint sets of keys returns for the same queries, lse_a and
    lse_b its lse, natural logarithms (those of FlashInfer are to base 2: multiply them by log(2)). An lse that lies
    as (S, H) is passed transposed, without a copy. Computed in float32, a's product before b's, rounded once. A part
    whose lse is -inf has seen no key and no influence, whatever it holds, NaN too; where both are -inf, the result is
    zeros and -inf, as attention's is for a query without keys. There is no gradient: training over parts gives each
    part's own backward the merged out and lse. Not guaranteed: what lse of +inf or NaN gives; what NaN and infinities
    give in a part whose weight vanishes in float32, its lse being 87 or more below the other; what a part adds whose
    share of the weights is below 2**-126; results that are subnormal in float32, or terms of them, which a kernel may
    flush to zero.

    Args:
        a: (S, H, E), float32 or float16 or bfloat16.
        lse_a: (H, S), float32.
        b: (S, H, E), the dtype of a.
        lse_b: (H, S), float32.
        return_lse: a value; default True. also return the log-sum-exp of all scores.
        out: where to write, a tensor for each result; may be a itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (S, H, E).
        lse: (H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Dao et al. 2023, Flash-Decoding; Juravsky et al. 2024, Hydragen, arXiv 2402.05099, section 3.1; vLLM's
    merge_attn_states and FlashInfer's merge_state for the form.
    """

@overload
def merge_attention(
    a: _Array,
    lse_a: Array,
    b: Array,
    lse_b: Array,
    *,
    return_lse: bool = True,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def merge_attentions(
    outs: Tensor,
    lses: Tensor,
    *,
    return_lse: bool = True,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention over several sets of keys, from attention over each of them and its log-sum-exp.

    ``sum(exp(lses - m) * outs, 0) / sum(exp(lses - m), 0) with m = max(lses, 0); lse = m + log(sum(exp(lses - m),
    0))``

    merge_attention for R parts at once, each read once. outs and lses are what attention over disjoint sets of keys
    returns for the same queries, one part after the other; each may have any strides. Computed in float32, summed in
    the order of the parts, rounded once. A part whose lse is -inf has no influence, whatever it holds, NaN too; where
    all are -inf, or there is no part (R = 0), the result is zeros and -inf. Of one part it is the part itself, zeros
    where its lse is -inf. There is no gradient, as for merge_attention. Not guaranteed: what lse of +inf or NaN
    gives; what NaN and infinities give in a part whose weight vanishes in float32, its lse being 87 or more below the
    largest; what a part adds whose share of the weights is below 2**-126; results that are subnormal in float32, or
    terms of them, which a kernel may flush to zero.

    Args:
        outs: (R, S, H, E), float32 or float16 or bfloat16.
        lses: (R, H, S), float32.
        return_lse: a value; default True. also return the log-sum-exp of all scores.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (S, H, E).
        lse: (H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: sources of merge_attention; FlashInfer's merge_states for the form.
    """

@overload
def merge_attentions(
    outs: _Array,
    lses: Array,
    *,
    return_lse: bool = True,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def mla_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int | None, int | None] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    latent_scale: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Multi-head latent attention (MLA) over a cache in pages: all heads share a key, which is the value too.

    ``softmax(scale * (q_latent[a:b] @ c.T + q_rope[a:b] @ r.T)) @ c for each sequence n, with a, b =
    query_start_loc[n:n + 2] and c, r the first seq_lens[n] rows of latent_cache[block_table[n]] and
    rope_cache[block_table[n]], times latent_scale``

    q_latent: (S, H, C), the queries of all sequences one after the other, multiplied by the keys' up-projection
    already; q_rope: (S, H, R), their rotary part; latent_cache: (NP, P, C) and rope_cache: (NP, P, R), by any
    strides, mostly the two parts of one tensor (NP, P, C+R), as write_latent_cache fills it; block_table: (B, W);
    out: (S, H, C), to be multiplied by the values' up-projection; lse: (H, S). scale is that of the heads before they
    were absorbed, 1/sqrt(192) for DeepSeek's 128 + 64 dims, and neither 1/sqrt(C) nor 1/sqrt(C+R): it has no default.
    latent_scale, (), is one number that both caches are multiplied by, for float8 caches or any. Pages, lengths,
    positions, causal, window, sinks, what is guaranteed and what is not are as in paged_attention. Prefill with keys
    and values of each head, which is faster for many queries, is attention_varlen with D 192 and E 128.

    Args:
        q_latent: (S, H, C), float32 or float16 or bfloat16.
        q_rope: (S, H, R), the dtype of q_latent.
        latent_cache: (NP, P, C), the dtype of q_latent or float8_e4m3fn or float8_e4m3fnuz or float8_e5m2.
        rope_cache: (NP, P, R), the dtype of latent_cache.
        block_table: (B, W), int32.
        seq_lens: (B,), int32.
        query_start_loc: (B+1,), int32.
        latent_scale: (), float32; a feature, neutral at None.
        sinks: (H,), the dtype of q_latent or float32; a feature, neutral at None.
        scale: a value that has to be given. what products of queries and keys are multiplied by, such as 1/sqrt(192).
        causal: a value; default True. hide keys behind the query's position.
        window: a feature, neutral at (-1, -1). keys seen before and after the position.
        max_seqlen_q: a value; default None. no sequence has more queries. Accepted: an integer or None.
        max_seqlen_k: a value; default None. no sequence has more keys. Accepted: an integer or None.
        return_lse: a feature, neutral at False. also return the log-sum-exp of the scores.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (S, H, C).
        lse: (H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv 2405.04434, 2.1; FlashInfer's BatchMLAPagedAttentionWrapper and
    vLLM's flash_mla for the form; sources of paged_attention.
    """

@overload
def mla_decode(
    q_latent: _Array,
    q_rope: Array,
    latent_cache: Array,
    rope_cache: Array,
    block_table: Array,
    seq_lens: Array,
    query_start_loc: Array,
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int | None, int | None] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    latent_scale: Array | None = None,
    sinks: Array | None = None,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def moe_mlp(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"] = "silu",
    halves: Literal["concat", "interleaved"] = "concat",
    format: Literal["none", "row", "block", "mxfp4"] = "none",
    scale_x: Tensor | None = None,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The gated layers of each token's experts, added up with its weights: what follows a router.

    ``y[t] = sum over j of weights[t, j] * ((activation(gate) * up) @ w_out[e].T + bias_out[e]), with e = experts[t,
    j] and gate, up the halves of x[t] @ w_in[e].T + bias_in[e]``

    x: (T, H), a row for each token; w_in: (E, 2I, H) and w_out: (E, H, I), each expert's matrices as linear layers
    keep them; weights and experts: (T, K), as moe_route gives them; y: (T, H). halves says how w_in's rows are gate
    and up: 'concat', I of gate and then I of up; 'interleaved', gate and up in turn. vLLM's
    fused_experts(hidden_states, w1, w2, topk_weights, topk_ids) takes the same in the same order. An expert of -1 is
    on another device: it adds nothing, whatever its weight, and a token of none but these is zeros. A row may have an
    expert twice. Products are summed in float32, and so are a token's results, in the order of its experts; gated
    rows, and each expert's results, may be rounded to x's dtype once in between. Equal calls give equal bits: no sum
    depends on the order in which anything runs. bias_in: (E, 2I), in w_in's order of rows, and bias_out: (E, H) are
    added to the products. activation='swiglu_oai' is gpt-oss' gate: (up + 1) * gate * sigmoid(1.702 * gate) of gates
    of at most 7 and ups from -7 to 7. Gradients go to x, w_in, w_out, weights and biases; an expert without tokens
    has zeros. format='row' and 'block' are for float8 x, w_in and w_out, with scales that multiply: scale_x: (T, 1),
    scale_in: (E, 2I, 1) and scale_out: (E, H, 1), or of blocks of 128 scale_x: (T, ceil(H/128)), scale_in: (E,
    ceil(2I/128), ceil(H/128)) and scale_out: (E, ceil(H/128), ceil(I/128)), as quantize_fp8 gives them for row,
    block_1x128 and, of each matrix, block_128x128. y is bfloat16 then. A kernel quantises gated rows too, by row or
    by 128 numbers of one; the reference leaves them as they are. The tolerance has room for that: for each row of y
    twice the distance, from the float64 formula without it, of layers in bfloat16 whose gated rows are quantised so.
    format='mxfp4' has weights of four bits alone, beside x as it is: w_in (E, 2I, H/2) and w_out (E, H, I/2) of
    float4_e2m1fn_x2, scale_in: (E, 2I, ceil(H/32)) and scale_out: (E, H, ceil(I/32)) of float8_e8m0fnu, as
    quantize_fp4 gives them. Weights times their scales may be rounded to x's dtype. There are gradients for
    format='none' alone. Scales that a format has not, or lacks, are refused (ArgumentValueError), and so is E = 0,
    even without tokens. Not guaranteed: equal bits from different kernels, or for a token among other tokens; all 24
    bits of float32 products where torch.backends.cuda.matmul allows fewer; any result for experts below -1 or from E
    on (refused with PORTAKERNEL_CHECKS=1).

    Args:
        x: (T, H), float32 or float16 or bfloat16 or float8_e4m3fn or float8_e4m3fnuz, or float64, which the reference
            alone serves.
        w_in: (E, 2I, H) for none, (E, 2I, H) for row, (E, 2I, H) for block, (E, 2I, H/2) for mxfp4, the dtype of x or
            float4_e2m1fn_x2.
        w_out: (E, H, I) for none, (E, H, I) for row, (E, H, I) for block, (E, H, I/2) for mxfp4, the dtype of x or
            float4_e2m1fn_x2.
        weights: (T, K), float32 or float16 or bfloat16 or the dtype of x.
        experts: (T, K), int32 or int64.
        scale_x: (T, 1) for none, (T, 1) for row, (T, ceil(H/128)) for block, (T, 1) for mxfp4, float32; a feature,
            neutral at None.
        scale_in: (E, 2I, 1) for none, (E, 2I, 1) for row, (E, ceil(I/64), ceil(H/128)) for block, (E, 2I, ceil(H/32))
            for mxfp4, float32 or float8_e8m0fnu; a feature, neutral at None.
        scale_out: (E, H, 1) for none, (E, H, 1) for row, (E, ceil(H/128), ceil(I/128)) for block, (E, H, ceil(I/32))
            for mxfp4, float32 or float8_e8m0fnu; a feature, neutral at None.
        bias_in: (E, 2I), float32 or float16 or bfloat16 or the dtype of x; a feature, neutral at None.
        bias_out: (E, H), float32 or float16 or bfloat16 or the dtype of x; a feature, neutral at None.
        activation: a value; default 'silu'. what is made of the gate. Accepted: 'silu' or 'gelu' or 'gelu_tanh' or
            'swiglu_oai'.
        halves: a feature, neutral at 'concat'. how w_in's rows are gate and up. Accepted: 'concat' or 'interleaved'.
        format: a feature, neutral at 'none'. which elements of narrow x, w_in and w_out share a scale. Accepted:
            'none' or 'row' or 'block' or 'mxfp4'.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Shazeer et al. 2017, Outrageously Large Neural Networks, arXiv 1701.06538; Mixtral, arXiv 2401.04088, 2.1;
    Gale et al. 2022, MegaBlocks, arXiv 2211.15841; vLLM's fused_experts.
    """

@overload
def moe_mlp(
    x: _Array,
    w_in: Array,
    w_out: Array,
    weights: Array,
    experts: Array,
    *,
    activation: Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"] = "silu",
    halves: Literal["concat", "interleaved"] = "concat",
    format: Literal["none", "row", "block", "mxfp4"] = "none",
    scale_x: Array | None = None,
    scale_in: Array | None = None,
    scale_out: Array | None = None,
    bias_in: Array | None = None,
    bias_out: Array | None = None,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def moe_route(
    logits: Tensor,
    *,
    k: int,
    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax",
    renormalize: bool = True,
    factor: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    bias: Tensor | None = None,
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """The experts that each token of a mixture of experts goes to, and the weights of their results.

    ``experts = the k largest of logits, or of score(logits) + bias; weights = factor * score(logits)[experts], over
    their sum with renormalize``

    logits: (*M, E), a row for each token; bias: (E,); weights: (*M, k) in float32, experts: (*M, k) in int32, in
    descending order of what decides. Scores are softmax over all experts, sigmoid of each, or softmax over the k
    chosen ones alone; with renormalize they are divided by the sum of the chosen ones'. What decides is the logit,
    which orders experts as their scores do, or with a bias score + bias in float32 (logit + bias for
    softmax_of_chosen); the bias decides who is chosen and is no part of weights, as DeepSeek-V3 evens the load of
    experts, and has no gradient. With groups, E experts are as many groups of neighbours, of which the groups_kept
    best are chosen from: by the largest number that decides, or with a bias by the sum of the two largest. Ties go to
    the lower expert and the lower group. NaN counts as -inf, in logits and in what decides. Guaranteed, whatever
    logits and bias are: a row's experts are different, and from 0 to E-1, in kept groups; a row of nothing but -inf
    or NaN has weights 0. With softmax and softmax_of_chosen a logit of inf has all the weight, which several share
    equally; with sigmoid its score is 1. Everything is computed in float32. Gradients of weights go to logits, and
    the choice counts as given. Not guaranteed: the order of experts, and which of them are chosen, where rounding
    decides between score + bias of two; equal bits from different kernels; weights and gradients that are subnormal
    in float32.

    Args:
        logits: (..., E), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        bias: (E,), float32 or the dtype of logits; a feature, neutral at None.
        k: a value that has to be given. how many experts a token goes to.
        scoring: a value; default 'softmax'. what is made of logits. Accepted: 'softmax' or 'sigmoid' or
            'softmax_of_chosen'.
        renormalize: a value; default True. weights are divided by their sum.
        factor: a value; default 1.0. what weights are multiplied by in the end.
        groups: a feature, neutral at 1. groups of neighbouring experts.
        groups_kept: a feature, neutral at 1. groups that are chosen from.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        weights: (..., $k).
        experts: (..., $k).

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Shazeer et al. 2017, Outrageously Large Neural Networks, arXiv 1701.06538; Mixtral, arXiv 2401.04088, 2.1;
    DeepSeek-V2, arXiv 2405.04434, 2.2.2 (groups); DeepSeek-V3, arXiv 2412.19437, 2.1.2 (sigmoid and a bias).
    """

@overload
def moe_route(
    logits: _Array,
    *,
    k: int,
    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax",
    renormalize: bool = True,
    factor: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    bias: Array | None = None,
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def moe_sort(
    experts: Tensor,
    *,
    num_experts: int,
    capacity: int,
    block: int = 0,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The assignments of tokens to experts, sorted by expert, and where each expert's begin.

    ``order = argsort(experts.flatten(), stable=True); offsets[e] = the number of assignments to experts below e;
    order[inverse[t, j]] = t * K + j``

    experts: (T, K), the K experts of each token, as moe_route gives them; assignment t * K + j is that of token t to
    experts[t, j], and order // K are tokens. order: (capacity,), offsets: (num_experts+1,), inverse: (T, K), all
    int32. order[offsets[e]:offsets[e + 1]] are the assignments to expert e, ascending; inverse is where each
    assignment stands in order. An expert of -1 is on another device: its assignments are left out, and their inverse
    is -1. What of order holds no assignment is T * K. With block > 0 the places of each expert are padded to a
    multiple of it, so that no block of order has two experts' assignments; block_experts: (capacity / block rounded
    up,) has the expert of each block, -1 behind the last one, and total: (1,) is offsets[num_experts]: as vLLM's
    moe_align_block_size has them, of which order is sorted_token_ids and total num_tokens_post_pad. capacity, the
    size of order, has to be enough for whatever experts there are, T * K + min(num_experts, T * K) * (block - 1) with
    blocks: shapes never depend on the experts, and a captured graph sorts others. T * K and capacity are 2**30 at
    most, for kernels that number assignments in 32 bits. A row may have an expert twice. Equal bits from all kernels:
    there is one result. Not guaranteed: any result for experts below -1 or from num_experts on (refused with
    PORTAKERNEL_CHECKS=1); kernels of portakernel's leave them out, as -1.

    Args:
        experts: (T, K), int32 or int64.
        num_experts: a value that has to be given. experts, from 0 to below it.
        capacity: a value that has to be given. the size of order, T * K or more.
        block: a feature, neutral at 0. places of an expert are a multiple of it; 0: as many as assignments.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        order: ($capacity,).
        offsets: ($num_experts+1,).
        inverse: (T, K).
        block_experts: ($capacity/$block,), when block is at least 1.
        total: (1,), when block is at least 1.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: vLLM's moe_align_block_size for blocks; Gale et al. 2022, MegaBlocks, arXiv 2211.15841, 4 (sorted rows).
    """

@overload
def moe_sort(
    experts: _Array,
    *,
    num_experts: int,
    capacity: int,
    block: int = 0,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def pack_int4(
    weight: Tensor,
    scales: Tensor,
    order: Tensor,
    zeros: Tensor | None = None,
    *,
    source: Literal["gptq", "awq", "ct", "packed_mma", "packed_mfma"] = "gptq",
    target: Literal["gptq", "awq", "ct", "packed_mma", "packed_mfma"] = "packed_mma",
    group: int = 128,
    zero: Literal["stored", "stored_plus_one", "none"] = "stored",
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """A weight of four bits an element, from one layout of int4_mm into another, which loses no bit.

    ``(weight, scales, order[, zeros]) of target, for which int4_mm gives what it gives for source``

    Layouts, groups and zero are int4_mm's; target's tensors stand for the same w. order is the group of each column,
    (K,): torch.arange(K) // group where columns are in the order of their groups. Of a packed source or target it is
    what int4_mm takes there: where each column, sorted by group, came from, with the groups below it for group 0. A
    packed target's columns are sorted so, and those of one group keep their order. So pack_int4(*packed,
    source=target, target=source) gives every bit back of what a checkpoint holds; where columns were sorted, order
    need not be given to int4_mm. For other groups than 0 each group but the last must have exactly as many columns as
    group says: part of a weight whose columns are in any order, with the whole weight's scales, is of group 0, and so
    are some rows of sorted columns. zeros are kept as they are stored, plus one or not: zero says whether there are
    any. Without zeros they come out as 8 (7 for stored_plus_one); for none there are none, and given ones are not
    read. What pads K is zero in a packed target. The reference reads order on the host. Tensors of the result are
    new, plain and contiguous.

    Args:
        weight: (K/8, N) for gptq, (K, N/8) for awq, (N, K/8) for ct, (ceil(K/128), N, 16) for packed_mma,
            (ceil(K/128), N, 16) for packed_mfma, int32.
        scales: (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0
            for gptq, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N)
            for 0 for awq, (N, ceil(K/32)) for 32, (N, ceil(K/64)) for 64, (N, ceil(K/128)) for 128, (N, 1) for -1,
            (N, G) for 0 for ct, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for
            -1, (G, N) for 0 for packed_mma, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128,
            (1, N) for -1, (G, N) for 0 for packed_mfma, float32 or float16 or bfloat16.
        order: (K,) for gptq, (K,) for awq, (K,) for ct, (K,) for 32, (K,) for 64, (K,) for 128, (K,) for -1, (2, K)
            for 0 for packed_mma, (K,) for 32, (K,) for 64, (K,) for 128, (K,) for -1, (2, K) for 0 for packed_mfma,
            int32.
        zeros: (ceil(K/32), N/8) for 32, (ceil(K/64), N/8) for 64, (ceil(K/128), N/8) for 128, (1, N/8) for -1, (G,
            N/8) for 0 for gptq, (ceil(K/32), N/8) for 32, (ceil(K/64), N/8) for 64, (ceil(K/128), N/8) for 128, (1,
            N/8) for -1, (G, N/8) for 0 for awq, (N/8, ceil(K/32)) for 32, (N/8, ceil(K/64)) for 64, (N/8,
            ceil(K/128)) for 128, (N/8, 1) for -1, (N/8, G) for 0 for ct, (ceil(K/32), N) for 32, (ceil(K/64), N) for
            64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0 for packed_mma, (ceil(K/32), N) for 32,
            (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0 for packed_mfma, int32 or
            uint8; or None.
        source: a value; default 'gptq'. the layout of what is given. Accepted: 'gptq' or 'awq' or 'ct' or
            'packed_mma' or 'packed_mfma'.
        target: a value; default 'packed_mma'. the layout wanted. Accepted: 'gptq' or 'awq' or 'ct' or 'packed_mma' or
            'packed_mfma'.
        group: a value; default 128. columns of a scale; -1: all; 0: any number. Accepted: 32 or 64 or 128 or -1 or 0.
        zero: a value; default 'stored'. what zeros hold; none: there are none. Accepted: 'stored' or
            'stored_plus_one' or 'none'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        packed_weight: (K/8, N) for gptq, (K, N/8) for awq, (N, K/8) for ct, (ceil(K/128), N, 16) for packed_mma,
            (ceil(K/128), N, 16) for packed_mfma.
        packed_scales: (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N)
            for 0 for gptq, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1,
            (G, N) for 0 for awq, (N, ceil(K/32)) for 32, (N, ceil(K/64)) for 64, (N, ceil(K/128)) for 128, (N, 1) for
            -1, (N, G) for 0 for ct, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N)
            for -1, (G, N) for 0 for packed_mma, (ceil(K/32), N) for 32, (ceil(K/64), N) for 64, (ceil(K/128), N) for
            128, (1, N) for -1, (G, N) for 0 for packed_mfma.
        packed_order: (K,) for gptq, (K,) for awq, (K,) for ct, (K,) for 32, (K,) for 64, (K,) for 128, (K,) for -1,
            (2, K) for 0 for packed_mma, (K,) for 32, (K,) for 64, (K,) for 128, (K,) for -1, (2, K) for 0 for
            packed_mfma.
        packed_zeros: (ceil(K/32), N/8) for 32, (ceil(K/64), N/8) for 64, (ceil(K/128), N/8) for 128, (1, N/8) for -1,
            (G, N/8) for 0 for gptq, (ceil(K/32), N/8) for 32, (ceil(K/64), N/8) for 64, (ceil(K/128), N/8) for 128,
            (1, N/8) for -1, (G, N/8) for 0 for awq, (N/8, ceil(K/32)) for 32, (N/8, ceil(K/64)) for 64, (N/8,
            ceil(K/128)) for 128, (N/8, 1) for -1, (N/8, G) for 0 for ct, (ceil(K/32), N) for 32, (ceil(K/64), N) for
            64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0 for packed_mma, (ceil(K/32), N) for 32,
            (ceil(K/64), N) for 64, (ceil(K/128), N) for 128, (1, N) for -1, (G, N) for 0 for packed_mfma, when zero
            is ('stored', 'stored_plus_one').

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: int4_mm's; the layouts' own packers.
    """

@overload
def pack_int4(
    weight: _Array,
    scales: Array,
    order: Array,
    zeros: Array | None = None,
    *,
    source: Literal["gptq", "awq", "ct", "packed_mma", "packed_mfma"] = "gptq",
    target: Literal["gptq", "awq", "ct", "packed_mma", "packed_mfma"] = "packed_mma",
    group: int = 128,
    zero: Literal["stored", "stored_plus_one", "none"] = "stored",
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    kv_scales: Literal["none", "tensor", "head", "token_head"] = "none",
    causal: bool = True,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention over keys and values in pages: decoding, several tokens a sequence and prefill in one call.

    ``attention(q[a:b], keys, values) for each sequence n, with a, b = query_start_loc[n:n + 2] and the first
    seq_lens[n] rows of key_cache[block_table[n]] and value_cache[block_table[n]], times their scales``

    q: (S, H, D), the queries of all sequences one after the other; key_cache: (NP, P, G, D), value_cache: (NP, P, G,
    E), by any strides, which say how the cache lies (tokens or heads first, keys and values joined); block_table: (B,
    W). Token j of sequence n lies in page block_table[n, j // P], row j % P. seq_lens counts all keys, those of the
    call's own queries included; query i of a sequence with s queries stands at position seq_lens[n] - s + i, and
    causal, window, softcap, ALiBi and sinks are as in attention. A sequence may have no queries, no keys, or fewer
    keys than queries: queries that see no key give zeros, and lse -inf or their sink. kv_scales says what keys and
    values are multiplied by: nothing, one number each (tensor), one for each key head (head: (G,)), or one for each
    row of the cache (token_head: (NP, P, G)); k_scale and v_scale are given together (the reference raises
    ArgumentValueError). max_seqlen_q and max_seqlen_k are upper bounds that change no result; lengths are read on the
    device alone, so that a captured graph may be replayed with others within these bounds. lse is (H, S). Guaranteed:
    what no query of the call sees reaches no result, whatever it holds, and entries of block_table behind a
    sequence's last page are not followed. Not guaranteed: what attention does not guarantee; results where a length
    is beyond W*P, a page outside [0, NP), or a bound too small; what rows of out hold that belong to no sequence;
    finite results where a product with a scale is not. portakernel.paging turns tables into FlashInfer's and SGLang's
    forms of them, and those into tables.

    Args:
        q: (S, H, D), float32 or float16 or bfloat16.
        key_cache: (NP, P, G, D), the dtype of q or float8_e4m3fn or float8_e4m3fnuz or float8_e5m2.
        value_cache: (NP, P, G, E), the dtype of key_cache.
        block_table: (B, W), int32.
        seq_lens: (B,), int32.
        query_start_loc: (B+1,), int32.
        k_scale: () for none, () for tensor, (G,) for head, (NP, P, G) for token_head, float32; a feature, neutral at
            None.
        v_scale: () for none, () for tensor, (G,) for head, (NP, P, G) for token_head, float32; a feature, neutral at
            None.
        alibi_slopes: (H,), float32; a feature, neutral at None.
        sinks: (H,), the dtype of q or float32; a feature, neutral at None.
        kv_scales: a feature, neutral at 'none'. which numbers share a scale. Accepted: 'none' or 'tensor' or 'head'
            or 'token_head'.
        causal: a value; default True. hide keys behind the query's position.
        scale: a value; default None. what q @ k.T is multiplied by; None: 1/sqrt(D). Accepted: a number or None.
        window: a feature, neutral at (-1, -1). keys seen before and after the position.
        softcap: a feature, neutral at 0.0. bounds scores smoothly to this magnitude; 0: off.
        max_seqlen_q: a value; default None. no sequence has more queries. Accepted: an integer or None.
        max_seqlen_k: a value; default None. no sequence has more keys. Accepted: an integer or None.
        return_lse: a feature, neutral at False. also return the log-sum-exp of the scores.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        out: (S, H, E).
        lse: (H, S), when return_lse is True.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Kwon et al. 2023, Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv
    2309.06180; flash_attn_varlen_func with a block_table for the form; sources of attention.
    """

@overload
def paged_attention(
    q: _Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Array,
    seq_lens: Array,
    query_start_loc: Array,
    *,
    kv_scales: Literal["none", "tensor", "head", "token_head"] = "none",
    causal: bool = True,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def quantize_fp4(
    x: Tensor,
    *,
    format: Literal["mxfp4", "nvfp4"] = "nvfp4",
    out: Tensor | tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Four-bit elements (e2m1), two to a byte, and the scales that give the numbers back.

    ``mxfp4: scale = 2 ** (floor(log2(amax(abs(x)))) - 2); q = round(clamp(x / scale, -6, 6)). nvfp4: global_scale =
    amax(abs(all of x)) / 2688; scale = e4m3fn(max(amax(abs(x)) / 6 / global_scale, 2**-9)); q = round(clamp(x /
    (scale * global_scale), -6, 6))``

    e2m1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6. The even element of each pair is in the low four bits of
    its byte. mxfp4 is OCP's conversion (Microscaling Formats 1.0, 6.3): a block is 32 elements of a row, scales are
    at least 2**-127, which they are for zeros, and a block's largest numbers may saturate. nvfp4: a block is 16
    elements of a row; 2688 is 6 * 448, the largest product of an element and a scale. Each of its operations is
    rounded to float32 and the divisions are those of IEEE 754, in the order written: amax / 2688; amax / 6, that /
    global_scale; scale * global_scale; x / that. global_scale is 1 where the quotient is below 2**-100, as it is for
    zeros, so that no product of scales is subnormal. A block scale that would round to zero is 2**-9, the smallest
    one, also in a block of zeros. Conversions round to nearest, ties to even. The last block of a row may be shorter.
    A NaN or an infinity makes the scale of its block NaN, and with nvfp4 all scales; elements of such a block are 0,
    as e2m1 has no NaN. Not guaranteed: the sign of a zero; the bits of a NaN; with mxfp4, results for a block without
    a magnitude of 2**-90 or more, where a kernel may flush subnormal numbers to zero.

    Args:
        x: (..., K), float32 or float16 or bfloat16.
        format: a value; default 'nvfp4'. block and scales: 32 and powers of two, or 16 and e4m3fn. Accepted: 'mxfp4'
            or 'nvfp4'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        q: (..., K/2).
        scale: (..., ceil(K/32)) for mxfp4, (..., ceil(K/16)) for nvfp4.
        global_scale: (), when format is 'nvfp4'.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: OCP Microscaling Formats (MX) Specification 1.0, 5.3.3 and 6.3 (mxfp4); NVIDIA 2025, Pretraining Large
    Language Models with NVFP4, arXiv 2509.25149, 2 and appendix B (nvfp4).
    """

@overload
def quantize_fp4(
    x: _Array,
    *,
    format: Literal["mxfp4", "nvfp4"] = "nvfp4",
    out: Array | tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array | tuple[_Array, ...]: ...
@overload
def quantize_fp8(
    x: Tensor,
    *,
    granularity: Literal["tensor", "row", "block_1x128", "block_128x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """Float8 elements and the float32 scales that give the numbers back.

    ``scale = amax(abs(x)) / max(dtype); q = round(clamp(x / scale, -max(dtype), max(dtype)))``

    granularity says which elements share a scale, as formats do in dequantize; block_128x128 counts the leading
    dimensions in order as rows, and a last block may be shorter. max is 448 for float8_e4m3fn, 240 for
    float8_e4m3fnuz and 57344 for float8_e5m2 and float8_e5m2fnuz. Scales multiply on dequantisation. Everything is
    computed in float32: two divisions, not products with a reciprocal, and one rounding to nearest, ties to even.
    Where amax / max is below 2**-100, as it is for zeros, the scale is 1 and q is 0 throughout: no scale is zero or
    subnormal, and no result depends on whether subnormal numbers are flushed. A NaN or an infinity makes its scale
    NaN, and so all elements that share it. Not guaranteed: equal bits from different kernels; the bits of a NaN; the
    sign of a zero.

    Args:
        x: (..., K), float32 or float16 or bfloat16.
        granularity: a value; default 'row'. which elements share a scale. Accepted: 'tensor' or 'row' or
            'block_1x128' or 'block_128x128'.
        dtype: a value; default 'float8_e4m3fn'. dtype of q. Accepted: 'float8_e4m3fn' or 'float8_e4m3fnuz' or
            'float8_e5m2' or 'float8_e5m2fnuz'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        q: (..., K).
        scale: () for tensor, (..., 1) for row, (..., ceil(K/128)) for block_1x128, (ceil(M/128), ceil(K/128)) for
            block_128x128.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Micikevicius et al. 2022, FP8 Formats for Deep Learning, arXiv 2209.05433, 3; OCP 8-bit Floating Point
    Specification 1.0; arXiv 2206.02915 for FNUZ; DeepSeek-V3, arXiv 2412.19437, 3.3.2 (blocks of 128).
    """

@overload
def quantize_fp8(
    x: _Array,
    *,
    granularity: Literal["tensor", "row", "block_1x128", "block_128x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def quantize_mxfp8(
    x: Tensor,
    *,
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """Float8 elements and, for each 32 of a row, the power of two that gives the numbers back.

    ``scale = 2 ** (floor(log2(amax(abs(x)))) - emax); q = round(clamp(x / scale, -max(dtype), max(dtype)))``

    The conversion of OCP Microscaling Formats 1.0, 6.3. emax is the exponent of dtype's largest number: 8 for
    float8_e4m3fn (448), 15 for float8_e5m2 (57344). The scale is rounded down, so that a block's largest numbers may
    saturate. It is at least 2**-127, which it is for zeros. x / scale is exact, and rounded to nearest, ties to even.
    The last block of a row may be shorter. A NaN or an infinity makes the scale of its block NaN (0xFF) and so all
    its elements; the specification leaves that open. Not guaranteed: the bits of a NaN element; the sign of a zero;
    results for a block without a magnitude of 2**-90 or more, where a kernel may flush subnormal numbers to zero.

    Args:
        x: (..., K), float32 or float16 or bfloat16.
        dtype: a value; default 'float8_e4m3fn'. dtype of q. Accepted: 'float8_e4m3fn' or 'float8_e5m2'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        q: (..., K).
        scale: (..., ceil(K/32)).

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: OCP Microscaling Formats (MX) Specification 1.0, 6.3; Rouhani et al. 2023, arXiv 2310.10537, algorithm 1.
    """

@overload
def quantize_mxfp8(
    x: _Array,
    *,
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Root mean square layer normalisation over the last dimension.

    ``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``

    Everything is computed in float32 and rounded once, at the end: libraries that round before the weight differ by
    up to one unit in the last place. weight_offset=1.0 is Gemma's form. Forward saves rstd (M,), the reciprocal root,
    in float32. Not guaranteed: equal bits from different kernels; finite results where the sum of squares exceeds
    float32; zeros beside an infinity, where a kernel may give NaN for the whole row; terms of a gradient that are
    subnormal in float32, which a kernel may flush to zero; any numbers that are, on devices that take them for zero
    (Apple GPUs).

    Args:
        x: (..., N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        weight: (N,), the dtype of x or float32.
        eps: a value; default 1e-06.
        weight_offset: a feature, neutral at 0.0.
        out: where to write; may be x itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4.
    """

@overload
def rms_norm(
    x: _Array,
    weight: Array,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def rms_norm_quantize(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    granularity: Literal["row", "block_1x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """Root mean square layer normalisation over the last dimension, in float8 elements and float32 scales.

    ``y = x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset); scale = amax(abs(y)) / max(dtype); q =
    round(clamp(y / scale, -max(dtype), max(dtype)))``

    y stays in float32 and is not rounded to x's dtype before it is quantised: q has one rounding, and is nearer to
    the norm than what rms_norm and quantize_fp8 give one after the other, from which elements of 16-bit tensors may
    differ by one step and scales by one rounding. granularity, max, the scale of next to nothing and that of NaN are
    as in quantize_fp8, and what it gives scaled_mm takes. weight_offset=1.0 is Gemma's form. Not guaranteed: equal
    bits from different kernels; finite results where the sum of squares or x * weight exceeds float32; digits of x *
    weight that are subnormal there; zeros beside an infinity, where a kernel may give NaN for the whole row; the bits
    of a NaN; the sign of a zero.

    Args:
        x: (..., N), float32 or float16 or bfloat16.
        weight: (N,), the dtype of x or float32.
        eps: a value; default 1e-06.
        weight_offset: a feature, neutral at 0.0.
        granularity: a value; default 'row'. which elements share a scale. Accepted: 'row' or 'block_1x128'.
        dtype: a value; default 'float8_e4m3fn'. dtype of q. Accepted: 'float8_e4m3fn' or 'float8_e4m3fnuz' or
            'float8_e5m2' or 'float8_e5m2fnuz'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        q: (..., N).
        scale: (..., 1) for row, (..., ceil(N/128)) for block_1x128.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4; quantize_fp8
    for what follows it; fused in vLLM (rms_norm_dynamic_per_token_quant, rms_norm_per_block_quant).
    """

@overload
def rms_norm_quantize(
    x: _Array,
    weight: Array,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    granularity: Literal["row", "block_1x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def rotary_embedding(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """Rotary position embedding: pairs of each head's first 2C dimensions turned by their position's angles.

    ``a * cos[position] - b * sin[position], b * cos[position] + a * sin[position] where (a, b) is (x[..., :C], x[...,
    C:2C]) or, interleaved, (x[..., 0:2C:2], x[..., 1:2C:2]), for x = q and x = k; x[..., 2C:] as it is``

    Each result is computed in float32 and rounded once. Halves are GPT-NeoX's pairing, interleaved=True is GPT-J's.
    Without positions, a token's position is its index in the last leading dimension, so that q: (B, S, H, D) needs
    none (and a token without leading dimensions is at 0); the tables must cover it: ArgumentValueError where L is
    less. A position outside 0 ... L - 1 is an IndexOutOfRangeError in the reference on the CPU and undefined on
    accelerators, where positions are not read back. cos and sin are constants: they get no gradient; those of q and k
    are the outputs' gradients turned by the negative angle. out=(q, k) writes over the inputs. Not guaranteed: equal
    bits from different kernels, which may fuse a product with the sum; equal results for a token alone and among
    others without positions, because then its index is its position.

    Args:
        q: (..., H, D), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        k: (..., G, D), the dtype of q.
        cos: (L, C), the dtype of q or float32.
        sin: (L, C), the dtype of cos.
        positions: (...,), int32 or int64; or None.
        interleaved: a feature, neutral at False.
        out: where to write, a tensor for each result; may be q or k itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        rotated_q: (..., H, D).
        rotated_k: (..., G, D).

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Su et al. 2021, RoFormer, arXiv 2104.09864, equation 34 (interleaved); in halves: Black et al. 2022, GPT-
    NeoX-20B, arXiv 2204.06745.
    """

@overload
def rotary_embedding(
    q: _Array,
    k: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    *,
    interleaved: bool = False,
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    format_a: Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"] = "row",
    format_b: Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"] = "row",
    swizzle: Literal["none", "32_4_4"] = "none",
    out_dtype: str | dtype = "bfloat16",
    use_fast_accum: bool = False,
    bias: Tensor | None = None,
    global_scale_a: Tensor | None = None,
    global_scale_b: Tensor | None = None,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The product of two quantised matrices, dequantised on the way.

    ``(a * scale_a * global_scale_a) @ (b * scale_b * global_scale_b).T + bias``

    a: (M, K) and b: (N, K), both row-major in what they are summed over, b as a linear layer keeps its weight. The
    results of quantize_fp8, quantize_mxfp8 and quantize_fp4 are its arguments as they are. Formats are those of
    dequantize, each operand with its own; kernels claim pairs, such as row and row, tensor and tensor, block_1x128
    and block_128x128, mxfp8 and mxfp8, nvfp4 and nvfp4. K counts elements: a is (M, K/2) where two share a byte.
    Scales multiply. A global scale, that of nvfp4, multiplies its operand in whatever format. bias is added before
    rounding. swizzle='32_4_4' is cuBLAS' layout of block scales, for mxfp8, mxfp4 and nvfp4 (float32 scales keep
    theirs): with C scales to a row, the scale of row r and block c is element (r // 128 * ceil(C / 4) + c // 4) * 512
    + r % 32 * 16 + r % 128 // 32 * 4 + c % 4 of a contiguous tensor, whose shape (128*ceil(M/128), 4*ceil(C/4)) says
    how much there is and nothing about where; what pads it is not used. Sums are kept in float32 and rounded once.
    use_fast_accum permits to keep them as the tensor cores do, in fewer bits (14 for float8 on Hopper); without it
    they are promoted to float32 at least every 128 terms. An element times its scale may be rounded to bfloat16 where
    the result has 16 bits or sums may be fast, to no fewer than 13 bits else. Not guaranteed: equal bits from
    different kernels; which results are NaN and which infinite where an element or scale is; finite results where a
    sum, a product of scales or a dequantised element exceeds float32, or is subnormal in it.

    Args:
        a: (M, K) for tensor, (M, K) for row, (M, K) for block_1x128, (M, K) for block_128x128, (M, K) for mxfp8, (M,
            K/2) for mxfp4, (M, K/2) for nvfp4, float8_e4m3fn or float8_e4m3fnuz or float8_e5m2 or float8_e5m2fnuz or
            float4_e2m1fn_x2.
        b: (N, K) for tensor, (N, K) for row, (N, K) for block_1x128, (N, K) for block_128x128, (N, K) for mxfp8, (N,
            K/2) for mxfp4, (N, K/2) for nvfp4, float8_e4m3fn or float8_e4m3fnuz or float8_e5m2 or float8_e5m2fnuz or
            float4_e2m1fn_x2.
        scale_a: () for tensor, (M, 1) for row, (M, ceil(K/128)) for block_1x128, (ceil(M/128), ceil(K/128)) for
            block_128x128, (M, ceil(K/32)) for none, (128*ceil(M/128), 4*ceil(K/128)) for 32_4_4 for mxfp8, (M,
            ceil(K/32)) for none, (128*ceil(M/128), 4*ceil(K/128)) for 32_4_4 for mxfp4, (M, ceil(K/16)) for none,
            (128*ceil(M/128), 4*ceil(K/64)) for 32_4_4 for nvfp4, float32 or float8_e8m0fnu or float8_e4m3fn.
        scale_b: () for tensor, (N, 1) for row, (N, ceil(K/128)) for block_1x128, (ceil(N/128), ceil(K/128)) for
            block_128x128, (N, ceil(K/32)) for none, (128*ceil(N/128), 4*ceil(K/128)) for 32_4_4 for mxfp8, (N,
            ceil(K/32)) for none, (128*ceil(N/128), 4*ceil(K/128)) for 32_4_4 for mxfp4, (N, ceil(K/16)) for none,
            (128*ceil(N/128), 4*ceil(K/64)) for 32_4_4 for nvfp4, float32 or float8_e8m0fnu or float8_e4m3fn.
        bias: (N,), float32 or float16 or bfloat16; a feature, neutral at None.
        global_scale_a: (), float32; or None.
        global_scale_b: (), float32; or None.
        format_a: a value; default 'row'. which of a share a scale. Accepted: 'tensor' or 'row' or 'block_1x128' or
            'block_128x128' or 'mxfp8' or 'mxfp4' or 'nvfp4'.
        format_b: a value; default 'row'. which of b share a scale. Accepted: 'tensor' or 'row' or 'block_1x128' or
            'block_128x128' or 'mxfp8' or 'mxfp4' or 'nvfp4'.
        swizzle: a feature, neutral at 'none'. how block scales lie in memory. Accepted: 'none' or '32_4_4'.
        out_dtype: a value; default 'bfloat16'. dtype of the product. Accepted: 'float32' or 'float16' or 'bfloat16'.
        use_fast_accum: a value; default False. sums may be kept in fewer bits than float32 has.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: OCP Microscaling Formats (MX) Specification 1.0, 6.2 (dot products); NVIDIA cuBLAS, 1D block scaling
    factors layout; DeepSeek-V3, arXiv 2412.19437, 3.3.2 (blocks of 128, promoted sums).
    """

@overload
def scaled_mm(
    a: _Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    *,
    format_a: Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"] = "row",
    format_b: Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"] = "row",
    swizzle: Literal["none", "32_4_4"] = "none",
    out_dtype: str | dtype = "bfloat16",
    use_fast_accum: bool = False,
    bias: Array | None = None,
    global_scale_a: Array | None = None,
    global_scale_b: Array | None = None,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def silu_and_mul(
    x: Tensor,
    *,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """SiLU of the first half of the last dimension, times the second half.

    ``x[..., :N] * sigmoid(x[..., :N]) * x[..., N:]``

    Everything is computed in float32 and rounded once, at the end: libraries that round silu before the product
    differ by up to one unit in the last place. A gate of -inf gives NaN, as the product -inf * 0 does. Not
    guaranteed: equal bits from different kernels; digits lost where the gate is far below zero, about one unit in the
    last place of float32 for each 2 that it is below, and all of them below -87, where exp leaves float32 and a
    kernel may give zero; results and gradients that are subnormal in float32, which a kernel may flush to zero.

    Args:
        x: (..., 2N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        out: where to write; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202 (SwiGLU, without its linear layers).
    """

@overload
def silu_and_mul(
    x: _Array,
    *,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def silu_and_mul_quantize(
    x: Tensor,
    *,
    granularity: Literal["row", "block_1x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Tensor, ...] | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, ...]:
    """SiLU of the first half of the last dimension, times the second half, in float8 with float32 scales.

    ``y = x[..., :N] * sigmoid(x[..., :N]) * x[..., N:]; scale = amax(abs(y)) / max(dtype); q = round(clamp(y / scale,
    -max(dtype), max(dtype)))``

    y stays in float32 and is not rounded to x's dtype before it is quantised: q has one rounding, is nearer to y than
    what silu_and_mul and quantize_fp8 give one after the other, and finite where a float16 would overflow.
    granularity, max, the scale of next to nothing and that of NaN are as in quantize_fp8, and what it gives scaled_mm
    takes. A gate of -inf gives NaN, as the product -inf * 0 does. Not guaranteed: equal bits from different kernels;
    finite results where y exceeds float32; where all gates that share a scale are far below zero, digits of it as in
    silu_and_mul; the bits of a NaN; the sign of a zero.

    Args:
        x: (..., 2N), float32 or float16 or bfloat16.
        granularity: a value; default 'row'. which elements share a scale. Accepted: 'row' or 'block_1x128'.
        dtype: a value; default 'float8_e4m3fn'. dtype of q. Accepted: 'float8_e4m3fn' or 'float8_e4m3fnuz' or
            'float8_e5m2' or 'float8_e5m2fnuz'.
        out: where to write, a tensor for each result; may be no input itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Returns:
        q: (..., N).
        scale: (..., 1) for row, (..., ceil(N/128)) for block_1x128.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202 (SwiGLU, without its linear layers);
    quantize_fp8 for what follows it; fused in vLLM (silu_and_mul_per_block_quant).
    """

@overload
def silu_and_mul_quantize(
    x: _Array,
    *,
    granularity: Literal["row", "block_1x128"] = "row",
    dtype: str | dtype = "float8_e4m3fn",
    out: tuple[Array, ...] | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> tuple[_Array, ...]: ...
@overload
def softmax(
    x: Tensor,
    *,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Softmax over the last dimension.

    ``exp(x - max(x, -1)) / sum(exp(x - max(x, -1)), -1)``

    Everything is computed in float32 and rounded once, at the end; nothing overflows. Infinities are as in torch:
    -inf beside a finite number gives 0; a row with +inf or NaN, and a row of -inf alone, is NaN throughout. Backward
    needs y alone, as forward returned it; libraries that round grad * y before they sum it differ there by up to one
    unit in the last place. Not guaranteed: equal bits from different kernels; digits far below the row's maximum,
    about two units in the last place of float32 lost for each unit of distance; results and gradients that are
    subnormal in float32, which a kernel may flush to zero.

    Args:
        x: (..., N), float32 or float16 or bfloat16, or float64, which the reference alone serves.
        out: where to write; may be x itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Bridle 1990, Probabilistic Interpretation of Feedforward Classification Network Outputs.
    """

@overload
def softmax(
    x: _Array,
    *,
    out: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> _Array: ...
@overload
def write_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scales: Literal["none", "tensor", "head", "token_head"] = "none",
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    kernel: str | None = None,
) -> None:
    """Keys and values of new tokens, put into the pages of a cache.

    ``key_cache[slot // P, slot % P] = key[t] / k_scale, where slot = slot_mapping[t] is not -1; values alike``

    key: (T, G, D) and value: (T, G, E), any strides, such as slices of one qkv; key_cache: (NP, P, G, D) and
    value_cache: (NP, P, G, E), any strides, which say how pages lie (heads before tokens, both caches in one tensor);
    slot_mapping: (T,). A negative slot is a token that is not written; all else in the caches keeps its bytes. A
    cache in the dtype of key has copies of its bits; in float8, numbers are rounded once to nearest, ties to even,
    and what is beyond the largest number (448, 240 for float8_e4m3fnuz, 57344 for float8_e5m2), infinities too,
    becomes that; NaN stays NaN. kv_scales is for float8 caches alone. 'tensor' and 'head' want k_scale and v_scale,
    () or (G,), and store x / scale, a division in float32; 'token_head' wants key_scales and value_scales, (NP, P,
    G), and writes them: amax(abs(x)) / max(dtype) of each token's head as quantize_fp8 computes it, 1 where that is
    below 2**-100, NaN where the head has a NaN or an infinity. Scales multiply on reading. Scales that kv_scales does
    not ask for, or that are missing, are refused (ArgumentValueError). Written tensors lie apart from all others,
    element by element. Not guaranteed: what is in a slot that several tokens have, but that each element is one of
    theirs; anything for slots from NP*P up (on the CPU the reference raises IndexOutOfRangeError).
    PORTAKERNEL_CHECKS=1 refuses both, and negative slots but -1. Nor are the bits of a float8 NaN guaranteed, nor the
    sign of a float8 zero. vLLM's reshape_and_cache_flash has the same order, and may have a longer key: slice it.

    Args:
        key: (T, G, D), float32 or float16 or bfloat16.
        value: (T, G, E), the dtype of key.
        key_cache: (NP, P, G, D), the dtype of key or float8_e4m3fn or float8_e4m3fnuz or float8_e5m2; written, so
            that it shares no memory with another argument.
        value_cache: (NP, P, G, E), the dtype of key_cache; written, so that it shares no memory with another
            argument.
        slot_mapping: (T,), int64 or int32.
        k_scale: () for none, () for tensor, (G,) for head, () for token_head, float32; a feature, neutral at None.
        v_scale: () for none, () for tensor, (G,) for head, () for token_head, float32; a feature, neutral at None.
        key_scales: (NP, P, G), float32; a feature, neutral at None; written, so that it shares no memory with another
            argument.
        value_scales: (NP, P, G), float32; a feature, neutral at None; written, so that it shares no memory with
            another argument.
        kv_scales: a feature, neutral at 'none'. which numbers share a scale. Accepted: 'none' or 'tensor' or 'head'
            or 'token_head'.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Kwon et al. 2023, Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv
    2309.06180, 4.3; vLLM, reshape_and_cache_flash; OCP 8-bit Floating Point Specification 1.0.
    """

@overload
def write_kv_cache(
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    *,
    kv_scales: Literal["none", "tensor", "head", "token_head"] = "none",
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    key_scales: Array | None = None,
    value_scales: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> None: ...
@overload
def write_latent_cache(
    latent: Tensor,
    rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scales: Literal["none", "tensor"] = "none",
    scale: Tensor | None = None,
    kernel: str | None = None,
) -> None:
    """Latent vectors and rotary keys of new tokens (MLA), put into the pages of a cache.

    ``latent_cache[slot // P, slot % P] = latent[t] / scale, where slot = slot_mapping[t] is not -1; rope alike``

    latent: (T, C) and rope: (T, R), what multi-head latent attention keeps of a token, any strides; latent_cache:
    (NP, P, C) and rope_cache: (NP, P, R), any strides, mostly views of one joined tensor (NP, P, C+R): cache[..., :C]
    and cache[..., C:]. Slots, dtypes and rounding are those of write_kv_cache. kv_scales='tensor' is for float8
    caches alone, wants scale, (), and stores x / scale of both, a division in float32. Written tensors lie apart from
    all others, element by element. Not guaranteed: what write_kv_cache does not guarantee. vLLM's
    concat_and_cache_mla takes the joined cache, DeepSeek's layout with C 512, R 64.

    Args:
        latent: (T, C), float32 or float16 or bfloat16.
        rope: (T, R), the dtype of latent.
        latent_cache: (NP, P, C), the dtype of latent or float8_e4m3fn or float8_e4m3fnuz or float8_e5m2; written, so
            that it shares no memory with another argument.
        rope_cache: (NP, P, R), the dtype of latent_cache; written, so that it shares no memory with another argument.
        slot_mapping: (T,), int64 or int32.
        scale: (), float32; a feature, neutral at None.
        kv_scales: a feature, neutral at 'none'. which numbers share a scale. Accepted: 'none' or 'tensor'.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv 2405.04434, 2.1.2 and 2.1.3; vLLM, concat_and_cache_mla; OCP 8-bit
    Floating Point Specification 1.0.
    """

@overload
def write_latent_cache(
    latent: Array,
    rope: Array,
    latent_cache: Array,
    rope_cache: Array,
    slot_mapping: Array,
    *,
    kv_scales: Literal["none", "tensor"] = "none",
    scale: Array | None = None,
    kernel: str | None = None,
    copy: Literal[False] | None = None,
) -> None: ...
