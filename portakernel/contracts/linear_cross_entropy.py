"""``linear_cross_entropy``: a linear layer's cross-entropy, of logits that are never whole in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Grid, GridRow, Result, TensorArgument, Tolerance
from portakernel.contract.production import Production
from portakernel.contracts.cross_entropy import PARAMETERS, TARGET


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x``, ``weight`` and ``target`` read once, a float32 a row written; the products, and what follows for each."""
    m, v, k = dims["M"], dims["V"], dims["K"]
    elements = m * k * itemsizes["x"] + v * k * itemsizes["weight"]
    each = 3 if values["label_smoothing"] == 0 else 4
    return Cost(bytes=elements + m * (itemsizes["target"] + 4), flops=m * v * (2 * k + each))


def _row(M: int, V: int, K: int) -> GridRow:
    return GridRow(f"{M}×{V}×{K}", {"x": (M, K), "weight": (V, K)})


def _drawn(production: Production) -> GridRow:
    return _row(production.tokens(), production.vocabulary(), production.model.hidden)


CONTRACT = Contract(
    op="linear_cross_entropy",
    summary="The cross-entropy between the softmax of a linear layer's outputs and each row's target class.",
    formula=(
        "loss = lse - sum(q * z, -1), 0 where target == ignore_index; z = x @ weight.T; lse = log(sum(exp(z), -1));"
        " q = (1 - label_smoothing) * onehot(target) + label_smoothing / V"
    ),
    notes=(
        "x: (*M, K); weight: (V, K), of x's dtype; target: (*M,), classes from 0 to V-1 or ignore_index, which may be"
        " one of them; loss: (*M,), float32. It is cross_entropy of the logits z, which take M * V elements and are"
        " never in memory as a whole: kernels go through them in parts, and again in backward. There is no reduction:"
        " torch's mean is loss.sum() / (target != ignore_index).sum(). Products are summed in float32, and logits are"
        " not rounded to 16 bits. With d = grad_loss * (softmax(z) - q), zeros in ignored rows, the gradients are d @"
        " weight for x and d.T @ x for weight, rounded to their dtype; a kernel may round d once to that dtype's"
        " precision, for tensor cores, but not to float16's range: probabilities below 2**-14 are what most of a"
        " gradient consists of. Forward saves lse (M,) in float32, of every row. A logit of -inf is a class of"
        " probability 0. A row with a logit that is NaN or +inf has loss NaN. Not guaranteed: any result, or an error,"
        " for a target elsewhere (the reference raises IndexOutOfRangeError on the CPU); finite results where logits"
        " exceed float32; equal bits from different kernels; gradients that are subnormal in float32; all 24 bits of"
        " float32 products where torch.backends.cuda.matmul allows fewer, which the reference follows too."
    ),
    tensors=(
        TensorArgument("x", ("*M", "K"), ("float32", "float16", "bfloat16")),
        TensorArgument("weight", ("V", "K"), ("x",)),
        TARGET,
    ),
    parameters=PARAMETERS,
    outputs=(Result("loss", ("*M",), like="x", dtype="float32"),),
    saved=(Result("logsumexp", ("M",), like="x", dtype="float32"),),
    requirements=("V >= 1",),
    gradient="kernel",
    autocast="cast",
    cases=(
        Case("one element", (1,), {"K": 1, "V": 1}),
        Case("one row", (), {"K": 64, "V": 48}),
        Case("blocks", (16,), {"K": 64, "V": 64}),
        Case("block and one, first and last class", (4,), {"K": 33, "V": 129}, given={"target": (0, 128, 127, 1)}),
        Case("prime sizes", (37,), {"K": 61, "V": 53}),
        Case("three dimensions", (2, 3), {"K": 40, "V": 101}),
        Case("no rows", (0,), {"K": 32, "V": 24}),
        Case("nothing to sum", (5,), {"K": 0, "V": 24}),
        Case("many rows", (131,), {"K": 24, "V": 40}),
        Case("many classes", (3,), {"K": 16, "V": 2053}),
        Case("long sum", (4,), {"K": 225, "V": 64}),
        Case("sliced rows", (18,), {"K": 48, "V": 40}, layouts={"x": "sliced", "target": "stepped"}),
        Case("transposed", (18,), {"K": 33, "V": 40}, layouts={"x": "transposed"}),
        Case("expanded rows", (18,), {"K": 40, "V": 24}, layouts={"x": "expanded"}),
        Case("every second column", (18,), {"K": 50, "V": 24}, layouts={"x": "stepped"}),
        Case("rows with two strides", (3, 6), {"K": 56, "V": 24}, layouts={"x": "split", "target": "transposed"}),
        Case("offset by one", (18,), {"K": 64, "V": 32}, layouts={"x": "offset", "weight": "offset"}),
        Case("transposed weight", (18,), {"K": 48, "V": 40}, layouts={"weight": "transposed"}),
        Case("sliced weight", (18,), {"K": 48, "V": 40}, layouts={"weight": "sliced"}),
        Case("every row ignored", (3,), {"K": 32, "V": 70}, given={"target": (-100, -100, -100)}),
        Case("a class ignored", (4,), {"K": 32, "V": 60}, {}, {"ignore_index": 7}, given={"target": (7, 3, 7, 59)}),
        Case("smoothed", (5,), {"K": 40, "V": 101}, parameters={"label_smoothing": 0.1}),
        Case("nothing but smoothing", (5,), {"K": 40, "V": 101}, parameters={"label_smoothing": 1.0}),
        Case("tiny magnitudes", (6,), {"K": 40, "V": 24}, values="tiny", backward=False),
        Case("NaN, infinities, signed zeros", (12,), {"K": 40, "V": 24}, values="special", backward=False),
        Case("zeros", (6,), {"K": 40, "V": 24}, values="zeros"),
    ),
    # Measured at the magnitudes that the reference gives. On the CPU it comes to 1.8 ulp for the loss, 3.1 for lse and
    # 60 for float32 gradients (1024 products in a logit, lse of 300: rounding it moves every probability). With d
    # rounded to 16 bits gradients come to 1.4: 1 from d, where all terms round alike, and half from the result. Logits
    # rounded to 16 bits put the loss thousands of ulp off.
    tolerance=Tolerance(
        forward={"float32": 16.0},
        saved={"float32": 16.0},
        backward={"float32": 96.0, "float16": 1.51, "bfloat16": 1.51},
        flushed="gradients",
    ),
    grid=Grid((_row(8192, 128256, 4096), _row(16384, 32000, 2048), _row(4096, 262144, 2304)), _row(16, 64, 64), _drawn),
    cost=cost,
    in_graphs="call",
    source=(
        "Bishop 2006, Pattern Recognition and Machine Learning, equations 4.104 to 4.109; without all logits:"
        " Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models, arXiv 2411.09009"
    ),
)
