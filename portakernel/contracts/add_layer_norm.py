"""``add_layer_norm``: a residual connection, layer normalisation of what it adds up to, and an activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids

# Operations for each element, transcendental functions counted as one.
_ACTIVATION_FLOPS = {"none": 0, "relu": 1, "gelu": 5, "gelu_tanh": 9, "silu": 4}


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` and ``residual`` read, ``y`` and ``summed`` written once, ``weight`` and ``bias`` read once.

    Add, sum, centre, square, sum, scale, weigh and, with a bias, shift each element, then the activation.
    """
    elements = dims["M"] * dims["N"]
    shared = dims["N"] * (itemsizes["weight"] + itemsizes.get("bias", 0))
    each = (8 if "bias" in itemsizes else 7) + _ACTIVATION_FLOPS[values["activation"]]
    return Cost(bytes=4 * elements * itemsizes["x"] + shared, flops=each * elements)


CONTRACT = Contract(
    op="add_layer_norm",
    summary="The sum of x and residual, and its layer normalisation over the last dimension with an activation.",
    formula=(
        "summed = x + residual;"
        " y = activation((summed - mean(summed, -1)) * rsqrt(var(summed, -1) + eps) * weight + bias)"
    ),
    notes=(
        "summed is added in float32 and rounded once to x's dtype, and y is the norm of that rounded sum: the results"
        " are those of add and layer_norm one after the other. Everything else, the activation too, is computed in"
        " float32 and rounded once, at the end. activation: relu (NaN stays NaN), gelu (by erf), gelu_tanh, silu."
        " out=(x, residual) writes y over x and summed over residual. Forward saves mean (M,) and rstd (M,) in float32;"
        " backward computes what the activation was applied to once more, from them. The gradients of x and residual"
        " are equal. relu has slope 0 at 0. A row of summed that holds an infinity is NaN throughout. Not guaranteed:"
        " equal bits of y from different kernels; finite results where the sum of squares exceeds float32; the saved"
        " mean of a row that holds an infinity; digits of rstd where the mean is many times the standard deviation,"
        " lost in proportion to their ratio; terms of a gradient that are subnormal in float32, which a kernel may"
        " flush to zero."
    ),
    tensors=(
        TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("residual", ("*M", "N"), ("x",)),
        TensorArgument("weight", ("N",), ("x", "float32")),
        TensorArgument("bias", ("N",), ("weight",), optional=True),
    ),
    parameters=(
        Parameter("eps", 1e-5, least=0.0),
        Parameter(
            "activation", "none", feature=True, kind="text", choices=("none", "relu", "gelu", "gelu_tanh", "silu")
        ),
    ),
    outputs=(Result("y", ("*M", "N"), like="x"), Result("summed", ("*M", "N"), like="x")),
    saved=(
        Result("mean", ("M",), like="x", dtype="float32"),
        Result("rstd", ("M",), like="x", dtype="float32"),
    ),
    kept=("weight", "bias", "summed"),
    stands_for={"x": "summed", "residual": "summed"},
    gradient="kernel",
    inplace=("x", "residual"),
    # the saved mean of such a row: infinite by the formula, NaN by Welford's updates
    infinite_rows="may_be_nan",
    cases=(
        Case("one element", (1,), {"N": 1}, present=("bias",)),
        Case("one row", (), {"N": 64}, present=("bias",)),
        Case("block and one", (3,), {"N": 129}, present=("bias",)),
        Case("no bias", (3,), {"N": 130}),
        Case("prime sizes", (7,), {"N": 1009}, present=("bias",)),
        Case("three dimensions", (2, 3), {"N": 96}, present=("bias",)),
        Case("long row", (2,), {"N": 5120}, present=("bias",)),
        Case("no rows", (0,), {"N": 48}, present=("bias",)),
        Case("many rows", (131,), {"N": 40}, present=("bias",)),
        Case("both sliced", (5,), {"N": 72}, layouts={"x": "sliced", "residual": "sliced"}, present=("bias",)),
        Case("transposed residual", (6,), {"N": 33}, layouts={"residual": "transposed"}, present=("bias",)),
        Case("expanded residual", (4,), {"N": 65}, layouts={"residual": "expanded"}, present=("bias",)),
        Case("every second column", (5,), {"N": 50}, layouts={"x": "stepped", "bias": "stepped"}, present=("bias",)),
        Case("rows with two strides", (3, 4), {"N": 56}, layouts={"x": "split"}, present=("bias",)),
        Case("offset by one", (3,), {"N": 80}, layouts={"residual": "offset"}, present=("bias",)),
        Case("large eps", (3,), {"N": 77}, parameters={"eps": 0.5}, present=("bias",)),
        Case("relu", (3,), {"N": 111}, parameters={"activation": "relu"}, present=("bias",)),
        Case("gelu", (3,), {"N": 112}, parameters={"activation": "gelu"}, present=("bias",)),
        Case("gelu by tanh", (3,), {"N": 113}, parameters={"activation": "gelu_tanh"}, present=("bias",)),
        Case("silu", (3,), {"N": 114}, parameters={"activation": "silu"}, present=("bias",)),
        Case("gelu without bias", (2, 3), {"N": 57}, parameters={"activation": "gelu"}),
        # sums that overflow float16 are infinite, and gradients there NaN
        Case("large magnitudes", (3,), {"N": 90}, values="large", backward=False, present=("bias",)),
        # its gradients are sums of subnormal terms, which a kernel may flush
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny", backward=False),
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False, present=("bias",)),
        Case("relu of NaN", (6,), {"N": 71}, parameters={"activation": "relu"}, values="special", backward=False),
    ),
    # summed: one float32 addition rounded once has one right answer. y as layer_norm, and twice that for what the
    # activation (its slope is at most 1.13) makes of it and adds; all at the magnitude of what it is applied to.
    # Gradients as layer_norm's.
    tolerance=Tolerance(
        forward={
            "float32": 16.0,
            "float16": 0.51,
            "bfloat16": 0.51,
            "summed.float32": 0.0,
            "summed.float16": 0.0,
            "summed.bfloat16": 0.0,
        },
        saved={"float32": 8.0},
        backward={"float32": 48.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="gradients",
    ),
    grid=grids.matrix_grid(grids.CORE, grids.MORE, names=("x", "residual"), extra="bias"),
    cost=cost,
    in_graphs="fused",
    source=(
        "Ba, Kiros & Hinton 2016, Layer Normalization, arXiv 1607.06450, equation 3, of x + residual; gelu:"
        " Hendrycks & Gimpel 2016, arXiv 1606.08415; silu: Elfwing et al. 2017, arXiv 1702.03118"
    ),
)
