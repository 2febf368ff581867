"""What of the ops Inductor cannot compile, or compiles to something that does not conform; each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Dtypes (``float4_e2m1fn_x2``, of one argument ``scale_a.float8_e4m3fn``), scale formats and features of an op.

    Where none is named, the op itself. ``op=""``: of every op; ``vendors``: for these alone.
    """

    op: str
    reason: str
    vendors: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the op is left."""
        return not (self.dtypes or self.formats or self.features)


_E8M0 = "float8_e8m0fnu is no dtype of Inductor's C++ (torch 2.13: missing from DTYPE_TO_CPP), and untried elsewhere"
_FLOAT4 = "float4_e2m1fn_x2 is no dtype of an argument of Inductor's (torch 2.13: KeyError in its C++ codegen)"
_BLOCKS = (
    "on the CPU, `q * scale.repeat_interleave(128, -1)[..., :400]` compiles to wrong numbers in the last 16 columns,"
    " under plain torch.compile too (torch 2.13, x86-64, 2026-11-20)"
)

_SIZES = "the sizes of its results are values of its parameters, of which a graph of the formula knows none"
_WRITES = "it writes into its arguments, and a graph of the formula has results; compiled functions call it"

EXCLUDED: tuple[Exclusion, ...] = (
    Exclusion("", _E8M0, dtypes=("float8_e8m0fnu",), formats=("mxfp8", "mxfp4")),
    Exclusion(
        "",
        "Triton has no FNUZ conversions for NVIDIA (triton 3.6, H200, 2026-11-20)",
        vendors=("nvidia",),
        dtypes=("float8_e4m3fnuz", "float8_e5m2fnuz"),
    ),
    Exclusion("", _BLOCKS, vendors=("cpu",), formats=("block_1x128", "block_128x128")),
    Exclusion("quantize_mxfp8", _E8M0),
    Exclusion("dequantize", _FLOAT4, dtypes=("float4_e2m1fn_x2", "scale.float8_e4m3fn"), formats=("nvfp4",)),
    Exclusion(
        "scaled_mm",
        f"{_FLOAT4}; without narrow scales there is nothing to swizzle",
        dtypes=("float4_e2m1fn_x2", "scale_a.float8_e4m3fn", "scale_b.float8_e4m3fn"),
        formats=("nvfp4",),
        features=("swizzle",),
    ),
    Exclusion("attention_varlen", "the lengths of its sequences are read on the host, which a graph cannot do"),
    Exclusion("mla_decode", "lengths and page tables are read on the host, which a graph cannot do"),
    Exclusion("pack_int4", "the groups of its columns are read on the host, which a graph cannot do"),
    Exclusion("paged_attention", "lengths and page tables are read on the host, which a graph cannot do"),
    Exclusion(
        "block_sparse_attention",
        "its reference goes through the rows of blocks one by one, and a graph fixes their number",
    ),
    Exclusion("grouped_mm", "offsets are read on the host, which a graph cannot do"),
    Exclusion("moe_mlp", "the tokens of each expert are found on the host, which a graph cannot do"),
    Exclusion("moe_route", _SIZES),
    Exclusion("moe_sort", _SIZES),
    Exclusion("write_kv_cache", _WRITES),
    Exclusion("write_latent_cache", _WRITES),
    Exclusion(
        "cross_entropy",
        "on the CPU the reference reads the targets on the host, to refuse those out of range; elsewhere its loop over"
        " rows fixes their number, and lse and logsumexp come out as one tensor (torch 2.11, H200, 2026-11-20)",
    ),
    Exclusion(
        "linear_cross_entropy",
        "its reference goes through cross_entropy's, which reads the targets on the host on the CPU, and its loop over"
        " rows fixes their number",
    ),
    Exclusion(
        "quantize_fp4",
        "on the CPU the last, shorter block of a row compiles to wrong numbers (torch 2.11, x86-64, 2026-11-20)",
        vendors=("cpu",),
    ),
    Exclusion(
        "embedding_bag",
        "on the CPU the reference reads the offsets on the host, to refuse those out of order",
        vendors=("cpu",),
    ),
)
