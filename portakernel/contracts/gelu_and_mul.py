"""``gelu_and_mul``: the gate of GEGLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids, row_cases


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once.

    Scale, erf, add, halve and two products for each pair; tanh takes a polynomial of 4 operations more.
    """
    elements = dims["M"] * dims["N"]
    return Cost(bytes=3 * elements * itemsizes["x"], flops=(10 if values["approximate"] == "tanh" else 6) * elements)


CONTRACT = Contract(
    op="gelu_and_mul",
    summary="GELU of the first half of the last dimension, times the second half.",
    formula=(
        "gate, up = x[..., :N], x[..., N:]; gate * (1 + erf(gate / sqrt(2))) / 2 * up, or with approximate='tanh'"
        " gate * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3))) / 2 * up"
    ),
    notes=(
        "Everything is computed in float32 and rounded once, at the end: libraries that round gelu before the product"
        " differ by up to one unit in the last place. A gate of -inf gives NaN, as the product -inf * 0 does. Not"
        " guaranteed: equal bits from different kernels; numbers in a row that holds an infinity, where a kernel may"
        " give NaN; digits where 1 and erf (or tanh) cancel, which is why results"
        " are measured at the magnitude of gate * up where the gate is negative; results and gradients that are"
        " subnormal in float32, which a kernel may flush to zero."
    ),
    tensors=(TensorArgument("x", ("*M", "2N"), ("float32", "float16", "bfloat16")),),
    parameters=(Parameter("approximate", "none", kind="text", choices=("none", "tanh")),),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    gradient="kernel",
    # torch's vectorised erf on the CPU makes gelu(+inf) NaN (torch 2.13, x86-64, 2026-11-20)
    infinite_rows="may_be_nan",
    cases=(
        *row_cases.SIZES,
        Case("one element, tanh", (1,), {"N": 1}, parameters={"approximate": "tanh"}),
        Case("block and one, tanh", (3,), {"N": 129}, parameters={"approximate": "tanh"}),
        Case("prime sizes, tanh", (7,), {"N": 1009}, parameters={"approximate": "tanh"}),
        Case("long row, tanh", (2,), {"N": 5120}, parameters={"approximate": "tanh"}),
        Case("sliced rows", (5,), {"N": 72}, layouts={"x": "sliced"}),
        *row_cases.LAYOUTS,
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        Case("large magnitudes, tanh", (3,), {"N": 90}, values="large", parameters={"approximate": "tanh"}),
        # its gradients are subnormal, and a kernel may flush them
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny", backward=False),
        # the halves' special values meet in other pairs at each of these sizes; no slope is defined at an infinity
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False),
        Case("specials, other pairs, tanh", (6,), {"N": 68}, {}, {"approximate": "tanh"}, "special", backward=False),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # float32: erf or tanh of a rounded argument, a sum, three products; 16-bit results are one rounding of that.
    # Gradients: 1 - tanh**2 is off by a unit of 1 and multiplied by up to 9, near a gate of 5, before it vanishes.
    tolerance=Tolerance(
        forward={"float32": 16.0, "float16": 0.51, "bfloat16": 0.51},
        backward={"float32": 32.0, "float16": 0.51, "bfloat16": 0.51},
        signed_zeros=True,
        flushed="all",
    ),
    grid=grids.gated_grid(approximate="tanh"),
    cost=cost,
    in_graphs="fused",
    source=(
        "Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202 (GEGLU, without its linear layers); both"
        " forms of gelu: Hendrycks & Gimpel 2016, Gaussian Error Linear Units, arXiv 1606.08415, section 2"
    ),
)
