"""``linear_act``: a linear layer and its activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Grid, GridRow, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.grids import adapted_products


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x``, ``weight`` and ``bias`` read once, ``y`` written once; a multiplication and an addition each product."""
    del values
    m, n, k = dims["M"], dims["N"], dims["K"]
    elements = (m * k + m * n) * itemsizes["x"] + n * k * itemsizes["weight"] + n * itemsizes.get("bias", 0)
    return Cost(bytes=elements, flops=2 * m * n * k)


def _row(M: int, N: int, K: int, activation: str, *, core: bool = False) -> GridRow:
    shapes = {"x": (M, K), "weight": (N, K), "bias": (N,)}
    return GridRow(f"{M}×{N}×{K} {activation}", shapes, {"activation": activation}, core)


CONTRACT = Contract(
    op="linear_act",
    summary="A linear layer followed by an activation.",
    formula="activation(x @ weight.T + bias)",
    notes=(
        "x: (*M, K); weight: (N, K); bias: (N,); y: (*M, N), all of one dtype. Products are summed in float32; bias and"
        " activation are applied to that, and the result is rounded once. gelu is x/2 * (1 + erf(x / sqrt(2))),"
        " gelu_tanh x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))), silu x * sigmoid(x). For gelu, gelu_tanh and"
        " silu forward saves the preactivation x @ weight.T + bias, (*M, N), rounded to x's dtype, from which backward"
        " computes in float32; for relu y tells all that backward needs. Not guaranteed: equal bits from different"
        " kernels; the sign of a zero; all 24 bits of float32 products where torch.backends.cuda.matmul allows fewer,"
        " which the reference follows too; float32 sums from 16 products on: parts of them may be rounded to 16 bits"
        " where torch.backends.cuda.matmul allows it, and where one overflows y may be NaN; relu's slope where rounding"
        " decides about the sign of what it is applied to."
    ),
    tensors=(
        TensorArgument("x", ("*M", "K"), ("float32", "float16", "bfloat16")),
        TensorArgument("weight", ("N", "K"), ("x",)),
        TensorArgument("bias", ("N",), ("x",), optional=True),
    ),
    parameters=(
        Parameter(
            "activation",
            "none",
            kind="text",
            choices=("none", "relu", "gelu", "gelu_tanh", "silu"),
            summary="what is applied to each element of the linear layer",
        ),
    ),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    saved=(Result("preactivation", ("*M", "N"), like="x", when=("activation", ("gelu", "gelu_tanh", "silu"))),),
    kept=("x", "weight", "y"),
    gradient="kernel",
    autocast="cast",
    cases=(
        Case("one element", (1,), {"K": 1, "N": 1}, present=("bias",)),
        Case("one row", (), {"K": 64, "N": 48}),
        Case("blocks", (16,), {"K": 64, "N": 64}),
        Case("prime sizes", (37,), {"K": 61, "N": 53}, present=("bias",)),
        Case("no rows", (0,), {"K": 32, "N": 24}, present=("bias",)),
        Case("nothing to sum", (5,), {"K": 0, "N": 24}, present=("bias",)),
        Case("no columns", (5,), {"K": 16, "N": 0}, present=("bias",)),
        # not longer: one by one in float32, 500 products are further off than twice a sum in the blocks of a CPU
        Case("long sum", (4,), {"K": 225, "N": 64}),
        Case("relu", (131,), {"K": 40, "N": 24}, parameters={"activation": "relu"}),
        Case("gelu with bias", (7,), {"K": 129, "N": 71}, parameters={"activation": "gelu"}, present=("bias",)),
        Case(
            "gelu by tanh with bias", (2, 3, 4), {"K": 36, "N": 9}, {}, {"activation": "gelu_tanh"}, present=("bias",)
        ),
        # rows of whole vectors, which fused epilogues ask for
        Case("relu with bias", (34,), {"K": 64, "N": 72}, parameters={"activation": "relu"}, present=("bias",)),
        Case("gelu by tanh, vectors", (21,), {"K": 48, "N": 40}, {}, {"activation": "gelu_tanh"}, present=("bias",)),
        Case("silu", (17,), {"K": 48, "N": 40}, parameters={"activation": "silu"}),
        Case("sliced rows", (18,), {"K": 48, "N": 40}, layouts={"x": "sliced"}, present=("bias",)),
        Case("transposed", (18,), {"K": 33, "N": 40}, layouts={"x": "transposed"}),
        Case("expanded rows", (18,), {"K": 40, "N": 24}, layouts={"x": "expanded"}),
        Case("every second column", (18,), {"K": 50, "N": 24}, layouts={"x": "stepped"}),
        Case("rows with two strides", (3, 6), {"K": 56, "N": 24}, layouts={"x": "split"}),
        Case("offset by one", (18,), {"K": 64, "N": 32}, layouts={"x": "offset", "weight": "offset"}),
        Case("transposed weight", (18,), {"K": 48, "N": 40}, layouts={"weight": "transposed"}),
        Case(
            "sliced weight, stepped bias",
            (18,),
            {"K": 48, "N": 40},
            layouts={"weight": "sliced", "bias": "stepped"},
            present=("bias",),
        ),
        Case("large magnitudes", (6,), {"K": 40, "N": 24}, values="large", present=("bias",), backward=False),
        Case("tiny magnitudes", (6,), {"K": 40, "N": 24}, values="tiny", backward=False),
        Case("NaN, infinities, signed zeros", (12,), {"K": 40, "N": 24}, values="special", backward=False),
        Case("specials through relu", (12,), {"K": 40, "N": 24}, {}, {"activation": "relu"}, "special", backward=False),
        # where no vector is read matrix products are others
        Case("NaN through relu, odd", (12,), {"K": 33, "N": 10}, {}, {"activation": "relu"}, "special", backward=False),
        # products that a bias brings back into the dtype, in rows that no view makes a matrix
        Case("large, stepped", (2, 3), {"K": 2, "N": 9}, {"x": "stepped"}, {}, "large", False, ("bias",)),
        Case("zeros", (6,), {"K": 40, "N": 24}, {}, {"activation": "gelu"}, values="zeros", present=("bias",)),
    ),
    # The plain formula rounds after the layer and after the activation: twice its distance leaves room for other orders
    # of summation, and none for sums in 16 bits.
    tolerance=Tolerance(rule="plain"),
    grid=Grid(
        (
            _row(8192, 14336, 4096, "gelu", core=True),
            _row(64, 14336, 4096, "gelu", core=True),
            _row(8192, 4096, 14336, "none"),
            _row(4096, 8192, 8192, "silu"),
            _row(1, 14336, 4096, "none"),
            # what int4_mm's rows of as many numbers are beside
            *(_row(M, 4096, 14336, "none") for M in (1, 16, 256, 4096)),
        ),
        _row(16, 64, 64, "gelu"),
        lambda production: _row(
            *adapted_products(production), production.one_of(("none", "none", "gelu", "silu", "relu"))
        ),
    ),
    cost=cost,
    source="Hendrycks & Gimpel 2016, Gaussian Error Linear Units, arXiv 1606.08415 (gelu, silu); torch.nn.Linear",
)
