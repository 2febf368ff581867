"""The contract of ``log_softmax``, an op of this package's own; no torch here, so that decisions need none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.authoring import Case, Contract, Cost, Grid, GridRow, Parameter, Result, TensorArgument, Tolerance


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once; maximum, subtract, divide, exp, sum and subtract each element."""
    elements = dims["M"] * dims["N"]
    return Cost(bytes=2 * elements * itemsizes["x"], flops=6 * elements)


CONTRACT = Contract(
    op="log_softmax",
    summary="Log-probabilities of the last dimension, at a temperature.",
    formula="x / temperature - log(sum(exp(x / temperature), -1))",
    notes=(
        "For sampling, scoring and distillation: what log(softmax(x / temperature)) loses where a probability is too"
        " small for its dtype is kept. Everything is computed in float32 and rounded once, at the end; nothing"
        " overflows. -inf beside a finite number gives -inf; a row with +inf or NaN, and a row of -inf alone, is NaN"
        " throughout. Forward saves top (M,), the largest x or NaN, and rest (M,), the logarithm of"
        " sum(exp((x - top) / temperature)), in float32. Not guaranteed: equal bits from"
        " different kernels; digits of a log-probability below the last place of 1 in float32, which a sum that is"
        " nearly 1 does not have; gradients that are subnormal in float32, which a kernel may flush to zero."
    ),
    tensors=(TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),),
    parameters=(Parameter("temperature", 1.0, least=0.01, summary="what x is divided by"),),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    saved=(Result("top", ("M",), like="x", dtype="float32"), Result("rest", ("M",), like="x", dtype="float32")),
    gradient="kernel",
    inplace=("x",),
    cases=(
        Case("one element", (1,), {"N": 1}),
        Case("one row", (), {"N": 64}),
        Case("block and one", (3,), {"N": 129}),
        Case("prime sizes", (7,), {"N": 1009}),
        Case("three dimensions", (2, 3), {"N": 96}),
        Case("no rows", (0,), {"N": 48}),
        Case("many rows", (131,), {"N": 40}),
        Case("long row", (2,), {"N": 9001}),
        Case("sharper", (5,), {"N": 83}, parameters={"temperature": 0.25}),
        Case("flatter", (5,), {"N": 83}, parameters={"temperature": 3.0}),
        Case("sliced rows", (5,), {"N": 72}, layouts={"x": "sliced"}),
        Case("transposed", (6,), {"N": 33}, layouts={"x": "transposed"}),
        Case("expanded rows", (4,), {"N": 65}, layouts={"x": "expanded"}),
        Case("every second column", (5,), {"N": 50}, layouts={"x": "stepped"}),
        Case("rows with two strides", (3, 4), {"N": 56}, layouts={"x": "split"}),
        Case("offset by one", (3,), {"N": 80}, layouts={"x": "offset"}),
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny"),
        # no slope is defined at an infinity
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False),
        # among them a row of -inf alone
        Case("each special value alone", (6,), {"N": 1}, values="special", backward=False),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # float32: a sum in any order under the logarithm, whose relative error is absolute outside, and a division; what is
    # summed into a gradient is a probability whose exponent was rounded. A gradient that is one number everywhere is
    # summed with the same rounding again and again: the 563 terms of a lane in 16 of the long row lose up to 192 ulp.
    # 16-bit results are one rounding of that.
    tolerance=Tolerance(
        forward={"float32": 16.0, "float16": 0.51, "bfloat16": 0.51},
        saved={"float32": 16.0},
        backward={"float32": 192.0, "float16": 0.51, "bfloat16": 0.51},
    ),
    # a decoder's logits, and rows as long as other ops are measured on
    grid=Grid(
        rows=(GridRow("64×128256", {"x": (64, 128256)}), GridRow("4096×4096", {"x": (4096, 4096)})),
        launch=GridRow("4×256", {"x": (4, 256)}),
    ),
    cost=cost,
    source="Hinton, Vinyals & Dean 2015, Distilling the Knowledge in a Neural Network, arXiv 1503.02531, equation 1",
)
