"""``layer_norm``: layer normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids, row_cases


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once, ``weight`` and ``bias`` read once.

    Sum, centre, square, sum, scale, weigh and, with a bias, shift each element.
    """
    elements = dims["M"] * dims["N"]
    shared = dims["N"] * (itemsizes["weight"] + itemsizes.get("bias", 0))
    return Cost(bytes=2 * elements * itemsizes["x"] + shared, flops=(7 if "bias" in itemsizes else 6) * elements)


CONTRACT = Contract(
    op="layer_norm",
    summary="Layer normalisation over the last dimension.",
    formula="(x - mean(x, -1)) * rsqrt(var(x, -1) + eps) * weight + bias",
    notes=(
        "var is the mean of the squared deviations from the mean, divided by N. Everything is computed in float32 and"
        " rounded once, at the end. Without bias nothing is added. Forward saves mean (M,) and rstd (M,), the"
        " reciprocal root, in float32. A row that holds an infinity is NaN throughout. Not guaranteed: equal bits from"
        " different kernels; finite results where the sum of squares exceeds float32; the mean itself of a row that"
        " holds an infinity, which a kernel may give as NaN; digits of rstd where the mean is many times the standard"
        " deviation, lost in proportion to their ratio; terms of a gradient that are subnormal in float32, which a"
        " kernel may flush to zero."
    ),
    tensors=(
        TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("weight", ("N",), ("x", "float32")),
        TensorArgument("bias", ("N",), ("weight",), optional=True),
    ),
    parameters=(Parameter("eps", 1e-5, least=0.0),),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    saved=(
        Result("mean", ("M",), like="x", dtype="float32"),
        Result("rstd", ("M",), like="x", dtype="float32"),
    ),
    kept=("x", "weight"),
    stands_for={"bias": "weight"},
    gradient="kernel",
    inplace=("x",),
    # the saved mean of such a row: infinite by the formula, NaN by Welford's updates
    infinite_rows="may_be_nan",
    cases=(
        *(replace(case, present=("bias",)) for case in row_cases.SIZES),
        # each deviation is zero, and rstd is 1 / sqrt(eps)
        Case("one column", (5,), {"N": 1}),
        Case("no bias", (3,), {"N": 130}),
        Case("long row", (2,), {"N": 5120}, present=("bias",)),
        Case("sliced rows", (5,), {"N": 72}, layouts={"x": "sliced"}, present=("bias",)),
        *(replace(case, present=("bias",)) for case in row_cases.LAYOUTS),
        Case("stepped weight", (3,), {"N": 52}, layouts={"weight": "stepped"}, present=("bias",)),
        Case("stepped bias", (3,), {"N": 53}, layouts={"bias": "stepped"}, present=("bias",)),
        Case("large eps", (3,), {"N": 77}, parameters={"eps": 0.5}, present=("bias",)),
        Case("large magnitudes", (3,), {"N": 90}, values="large", present=("bias",)),
        # its gradients are sums of subnormal terms, which a kernel may flush
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny", backward=False),
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False, present=("bias",)),
        Case("zeros", (3,), {"N": 60}, values="zeros", present=("bias",)),
    ),
    # float32: two sums over N in any order, a root, products, a sum, at the magnitude of x, its mean and bias; 16-bit
    # results are one rounding of that. Gradients of weight and bias are sums over M too: 131 equal terms, added one by
    # one as torch does on CPUs, come to 32.5 ulp (200000 draws, torch 2.13, 2026-11-20).
    tolerance=Tolerance(
        forward={"float32": 8.0, "float16": 0.51, "bfloat16": 0.51},
        saved={"float32": 8.0},
        backward={"float32": 48.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="gradients",
    ),
    grid=grids.matrix_grid(grids.CORE, grids.MORE, extra="bias"),
    cost=cost,
    in_graphs="fused",
    source="Ba, Kiros & Hinton 2016, Layer Normalization, arXiv 1607.06450, equation 3",
)
