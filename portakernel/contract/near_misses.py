"""Arguments by the names that other libraries have for them: what each is called here, or what to do instead.

The names are those of ``torch.nn.functional``, Liger, FlashInfer, flash-attn, vLLM and transformers. To add one, put it
into ``_NAMES`` (other name, and what it may be called here: the first that the op has is meant) or, where no argument
stands for it, into ``_ADVICE``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portakernel.errors import nearest


class _NotGiven:
    """Stands for a tensor that a call lacks."""


NOT_GIVEN = _NotGiven()

_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("input", "inp", "inputs", "hidden_states", "hidden", "X", "_input", "input_tensor"), ("x", "q")),
    **dict.fromkeys(("logit", "predictions", "scores"), ("logits", "x")),
    **dict.fromkeys(("targets", "label", "labels", "tgt"), ("target",)),
    **dict.fromkeys(("weights", "gamma", "w", "W", "kernel_weight", "lin_weight"), ("weight",)),
    **dict.fromkeys(("beta", "biases", "b"), ("bias",)),
    **dict.fromkeys(("res", "residual_in", "add", "other"), ("residual", "y")),
    **dict.fromkeys(("epsilon", "norm_eps", "variance_epsilon", "rms_norm_eps", "layer_norm_eps", "ln_eps"), ("eps",)),
    **dict.fromkeys(("offset", "zero_centered_gamma", "weight_bias", "add_unit_offset"), ("weight_offset",)),
    **dict.fromkeys(("query", "queries", "xq", "query_states"), ("q",)),
    **dict.fromkeys(("key", "keys", "xk", "key_states"), ("k",)),
    **dict.fromkeys(("value", "values", "xv", "value_states"), ("v",)),
    **dict.fromkeys(("is_causal", "causal_mask"), ("causal",)),
    **dict.fromkeys(("attn_mask", "attention_mask", "mask", "attn_bias", "score_bias"), ("bias",)),
    **dict.fromkeys(("softmax_scale", "sm_scale", "scale_factor", "scaling", "attn_scale", "qk_scale"), ("scale",)),
    **dict.fromkeys(("logits_soft_cap", "soft_cap", "logit_softcap", "attn_logit_softcapping"), ("softcap",)),
    **dict.fromkeys(("window_size", "sliding_window", "window_left", "local_window_size"), ("window",)),
    **dict.fromkeys(("return_softmax_lse", "return_attn_probs", "return_logsumexp", "need_lse"), ("return_lse",)),
    **dict.fromkeys(("s_aux", "sink", "attn_sink", "attention_sinks", "learnable_sink"), ("sinks",)),
    **dict.fromkeys(("alibi", "slopes"), ("alibi_slopes",)),
    **dict.fromkeys(("cu_seqlens", "cu_seqlens_q_", "cu_seq_q", "qo_indptr"), ("cu_seqlens_q",)),
    **dict.fromkeys(("cu_seq_k", "cu_seqlens_kv", "kv_indptr"), ("cu_seqlens_k",)),
    **dict.fromkeys(("max_q", "max_seqlen", "max_seq_len"), ("max_seqlen_q",)),
    **dict.fromkeys(("max_k", "max_seqlen_kv"), ("max_seqlen_k",)),
    **dict.fromkeys(("smoothing", "label_smooth"), ("label_smoothing",)),
    **dict.fromkeys(("ignore_idx", "ignore_label", "ignored_index"), ("ignore_index",)),
    **dict.fromkeys(("inplace_backward",), ("overwrite_logits",)),
    **dict.fromkeys(("position_ids", "pos_ids", "input_pos", "offsets_"), ("positions",)),
    **dict.fromkeys(("cos_cached", "cos_cache", "freqs_cos"), ("cos",)),
    **dict.fromkeys(("sin_cached", "sin_cache", "freqs_sin"), ("sin",)),
    **dict.fromkeys(("rotary_interleaved", "interleave"), ("interleaved",)),
    **dict.fromkeys(("act", "act_fn", "act_type", "activation_type", "hidden_act"), ("activation",)),
    **dict.fromkeys(("approx", "gelu_type"), ("approximate",)),
    **dict.fromkeys(("output_dtype", "result_dtype", "odtype", "out_type"), ("out_dtype", "dtype")),
    **dict.fromkeys(("quant_dtype", "fp8_dtype", "out_dtype", "dst_type"), ("dtype",)),
    **dict.fromkeys(("dtype",), ("out_dtype",)),
    **dict.fromkeys(("mat1", "A", "lhs"), ("a",)),
    **dict.fromkeys(("mat2", "B", "rhs"), ("b",)),
    **dict.fromkeys(("a_scale", "scales_a", "scale_x", "input_scale", "x_scale"), ("scale_a", "scale")),
    **dict.fromkeys(("b_scale", "scales_b", "weight_scale", "w_scale"), ("scale_b", "scale")),
    **dict.fromkeys(("block_size", "group_size", "scale_format", "quant_mode"), ("granularity", "format", "format_a")),
    **dict.fromkeys(("format",), ("granularity", "format_a")),
    **dict.fromkeys(("scales", "x_scales"), ("scale",)),
    **dict.fromkeys(("input_ids", "ids", "index", "idx"), ("indices",)),
    **dict.fromkeys(("output", "dst", "o", "y"), ("out",)),
    **dict.fromkeys(("backend", "impl", "implementation", "provider", "use_kernel"), ("kernel",)),
}

NORMALISED = "the last dimension is normalised"
_LAST = "the op works over the last dimension: move another there with x.movedim(dim, -1)"
_ROWS = "each row's loss is returned: reduce them with .sum() or .mean(), over the targets that are not ignored"
_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("dim", "axis", "normalized_shape", "normalize_dim", "begin_norm_axis"), _LAST),
    **dict.fromkeys(("reduction", "reduce", "size_average"), _ROWS),
    **dict.fromkeys(
        ("dropout_p", "dropout", "attention_dropout", "p_dropout"),
        "the op drops nothing: call torch.nn.functional.dropout where the model does",
    ),
    "block_mask": "pass **portakernel.masks.from_block_mask(block_mask, batch=B, heads=H), and mask= by name",
    "enable_gqa": "heads are grouped wherever k and v have fewer heads than q; leave it out",
    **dict.fromkeys(
        ("is_neox", "is_neox_style"), "is_neox=True is interleaved=False here, and is_neox=False interleaved=True"
    ),
    **dict.fromkeys(("cos_sin_cache", "freqs_cis"), "cos and sin are two tensors here, (L, C) each"),
    "inplace": "pass the tensor to write over as out=",
    **dict.fromkeys(("gate", "up", "gate_up"), "one tensor holds both halves: torch.cat((gate, up), dim=-1)"),
    **dict.fromkeys(
        ("class_weight", "z_loss", "lse_square_scale", "z_loss_multiplier"),
        "the loss has no such term; return_lse=True gives each row's log-sum-exp to make one of",
    ),
    "include_last_offset": "offsets are the bags' begins alone: leave the last one out",
    "max_norm": "rows are taken as they are: renormalise the weight before the call",
    "stream": "a call runs on torch's current stream: use `with torch.cuda.stream(stream):`",
    **dict.fromkeys(
        ("requires_grad", "training"),
        "gradients are recorded where a tensor requires them, as after {first}.requires_grad_()",
    ),
}
# Checkpoints' names of four-bit weights.
_FOUR_BITS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("qweight", "weight_packed"), ("weight",)),
    **dict.fromkeys(("qzeros", "weight_zero_point"), ("zeros",)),
    **dict.fromkeys(("weight_scale",), ("scales",)),
    **dict.fromkeys(("g_idx", "weight_g_idx"), ("order",)),
    **dict.fromkeys(("group_size",), ("group",)),
}
# Where a name means something else than elsewhere.
_OF_OP: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding_bag": {**dict.fromkeys(("input", "x"), ("indices",)), "embeddings": ("weight",)},
    "cross_entropy": dict.fromkeys(("input", "x", "_input", "inp", "hidden_states"), ("logits",)),
    "scaled_mm": {"input": ("a",), "x": ("a",), "weight": ("b",)},
    "dequantize": dict.fromkeys(("input", "x", "inp", "data"), ("q",)),
    "rotary_embedding": {"scale_factor": (), "input": ("q",)},
    "add": {"input": ("x",), "b": ("y",)},
    "block_sparse_attention": {
        **dict.fromkeys(("kv_num_blocks", "mask_block_cnt"), ("partial_count",)),
        **dict.fromkeys(("kv_indices", "mask_block_idx"), ("partial_index",)),
        **dict.fromkeys(("full_kv_num_blocks", "full_block_cnt"), ("full_count",)),
        **dict.fromkeys(("full_kv_indices", "full_block_idx"), ("full_index",)),
        **dict.fromkeys(("q_num_blocks",), ("q_partial_count",)),
        **dict.fromkeys(("q_indices",), ("q_partial_index",)),
        **dict.fromkeys(("full_q_num_blocks",), ("q_full_count",)),
        **dict.fromkeys(("full_q_indices",), ("q_full_index",)),
        **dict.fromkeys(("mask_mod", "mask_name"), ("mask",)),
        **dict.fromkeys(("block_size", "BLOCK_SIZE"), ("block",)),
    },
    "grouped_mm": {
        **dict.fromkeys(("x", "input", "mat_a", "lhs"), ("a",)),
        **dict.fromkeys(("weight", "mat_b", "rhs", "w"), ("b",)),
        **dict.fromkeys(("offs", "m_indptr", "group_sizes", "cu_seqlens_m"), ("offsets",)),
    },
    "moe_mlp": {
        **dict.fromkeys(("hidden_states", "hidden", "input"), ("x",)),
        **dict.fromkeys(("w1", "w13", "gate_up_proj", "fc1_expert_weights"), ("w_in",)),
        **dict.fromkeys(("w2", "down_proj", "fc2_expert_weights"), ("w_out",)),
        **dict.fromkeys(("topk_weights", "routing_weights", "top_k_weights", "token_final_scales"), ("weights",)),
        **dict.fromkeys(("topk_ids", "selected_experts", "top_k_index", "token_selected_experts"), ("experts",)),
        **dict.fromkeys(("act", "act_fn", "hidden_act"), ("activation",)),
    },
    "moe_route": {
        **dict.fromkeys(("gating_output", "router_logits", "scores"), ("logits",)),
        **dict.fromkeys(("topk", "top_k", "num_experts_per_tok"), ("k",)),
        **dict.fromkeys(("e_score_correction_bias", "correction_bias", "expert_bias"), ("bias",)),
        **dict.fromkeys(("scoring_func", "score_func", "score_function"), ("scoring",)),
        **dict.fromkeys(("norm_topk_prob", "normalize"), ("renormalize",)),
        **dict.fromkeys(("routed_scaling_factor", "scaling_factor", "route_scale"), ("factor",)),
        **dict.fromkeys(("num_expert_group", "n_group", "num_groups"), ("groups",)),
        **dict.fromkeys(("topk_group", "limited_groups"), ("groups_kept",)),
    },
    "moe_sort": {
        **dict.fromkeys(("topk_ids", "expert_ids", "indices"), ("experts",)),
        **dict.fromkeys(("block_size", "alignment"), ("block",)),
        **dict.fromkeys(("n_experts", "num_local_experts"), ("num_experts",)),
    },
    "int4_mm": _FOUR_BITS,
    "pack_int4": _FOUR_BITS,
    "merge_attention": {
        **dict.fromkeys(("v_a", "prefix_output", "out_a"), ("a",)),
        **dict.fromkeys(("s_a", "prefix_lse"), ("lse_a",)),
        **dict.fromkeys(("v_b", "v_other", "suffix_output", "out_b"), ("b",)),
        **dict.fromkeys(("s_b", "s_other", "suffix_lse"), ("lse_b",)),
    },
    "merge_attentions": {"v": ("outs",), "s": ("lses",)},
    "mla_decode": {
        **dict.fromkeys(("q", "query", "q_nope", "ql_nope"), ("q_latent",)),
        **dict.fromkeys(("q_pe", "q_rot"), ("q_rope",)),
        **dict.fromkeys(("ckv_cache", "ckv", "kv_c", "k_cache", "kv_cache"), ("latent_cache",)),
        **dict.fromkeys(("kpe_cache", "kpe", "k_pe", "k_pe_cache"), ("rope_cache",)),
        **dict.fromkeys(("page_table", "block_tables"), ("block_table",)),
        **dict.fromkeys(("cache_seqlens", "kv_len", "kv_len_arr", "seqused_k"), ("seq_lens",)),
        **dict.fromkeys(("qo_indptr", "q_indptr", "cu_seqlens_q"), ("query_start_loc",)),
        **dict.fromkeys(("k_scale", "kv_scale"), ("latent_scale",)),
    },
}


# More heads than any model has; a layout with the heads before the sequence shows its length in their place.
_MOST_HEADS = 256
BY_HEAD = "pass x.transpose(1, 2) of each, which copies nothing"


def heads_come_first(dims: Mapping[str, int]) -> bool:
    """Whether attention over these dimensions looks like (B, H, S, D) taken for (B, S, H, D).

    Either there are more heads than any model has, and more than positions; or, for grouped heads, a query and a key
    have as many heads as the sequence is long, and key "positions" divide those of queries.
    """
    queries, keys, heads, key_heads = (dims.get(name, 0) for name in "STHG")
    if queries < 1 or keys < 1 or heads <= 2 * queries:
        return False
    return heads > _MOST_HEADS or (heads == key_heads and keys < queries and queries % keys == 0)


# What has to be said beside the name, where the values differ too.
_MEANING: Mapping[tuple[str, str], str] = {
    **dict.fromkeys(
        [(name, "bias") for name in ("attn_mask", "attention_mask", "mask")],
        ": numbers added to the scores, -inf where a key is hidden, of shape (B, H, S, T) without broadcasting",
    ),
    **dict.fromkeys(
        [(name, "weight_offset") for name in ("zero_centered_gamma", "add_unit_offset")], ": weight_offset=1.0"
    ),
    **dict.fromkeys(
        [(name, meant) for name, meant in (("s_a", "lse_a"), ("s_b", "lse_b"), ("s_other", "lse_b"))],
        ": natural logarithms (H, S), of FlashInfer's math.log(2) * s.T",
    ),
    **dict.fromkeys(
        [(name, "q_latent") for name in ("q", "query", "q_nope", "ql_nope")],
        ": multiplied by the keys' up-projection already, with q_rope, the rotary part, apart",
    ),
    **dict.fromkeys(
        [(name, "latent_cache") for name in ("k_cache", "kv_cache")],
        ": one part of a joined cache (NP, P, C+R), as in cache[..., :C], and rope_cache is the other, cache[..., C:]",
    ),
    **dict.fromkeys(
        [(name, "offsets") for name in ("offs", "cu_seqlens_m")], ": where each piece begins, from 0 on, and the end"
    ),
    ("group_sizes", "offsets"): ": where each piece begins, from 0 on, as in torch.cumsum of a 0 and the sizes",
    ("v", "outs"): ": the parts come first, (R, S, H, E), as in v.transpose(0, 1), which copies nothing",
    ("s", "lses"): ": natural logarithms (R, H, S), of FlashInfer's math.log(2) * s.permute(1, 2, 0)",
    **dict.fromkeys(
        [(name, "window") for name in ("window_size", "sliding_window", "window_left", "local_window_size")],
        ": a pair, positions seen before and after a query's own, -1 for all",
    ),
}


def answer(op: str, name: str, known: Sequence[str]) -> str:
    """A clause on ``name``, which is not among the arguments ``known`` of ``op``: what is meant, or what to do."""
    return sure_answer(op, name, known) or nearest(name, known)


def sure_answer(op: str, name: str, known: Sequence[str]) -> str:
    """The same where it is listed here; else empty. The first of ``known`` is the op's first tensor."""
    meant = next((one for one in _OF_OP.get(op, {}).get(name, _NAMES.get(name, ())) if one in known), None)
    if meant is not None:
        return f"here it is called {meant!r}{_MEANING.get((name, meant), '')}"
    return _ADVICE.get(name, "").format(first=known[0])
