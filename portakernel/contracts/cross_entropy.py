"""``cross_entropy``: the negative log-likelihood of a target class, from logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import (
    Case,
    Contract,
    Cost,
    Draw,
    Indices,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
    grids,
)

# Of every op that compares rows of logits with a target.
TARGET = TensorArgument(
    "target",
    ("*M",),
    ("int64", "int32"),
    draw=Draw("index", below="V", sometimes="ignore_index"),
    rule=Indices("V", otherwise="ignore_index"),
)
PARAMETERS = (
    Parameter("ignore_index", -100, kind="int", summary="the target of rows that have no loss and no gradient"),
    Parameter(
        "label_smoothing",
        0.0,
        feature=True,
        least=0.0,
        most=1.0,
        summary="the share of the target spread evenly, from 0 to 1",
    ),
)


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``logits`` and ``target`` read once, a float32 or two a row written; subtract, exponentiate, add each element."""
    elements = dims["M"] * dims["V"]
    row = itemsizes["target"] + 4 * (2 if values["return_lse"] else 1)
    flops = 3 * elements if values["label_smoothing"] == 0 else 4 * elements
    return Cost(bytes=elements * itemsizes["logits"] + dims["M"] * row, flops=flops)


CONTRACT = Contract(
    op="cross_entropy",
    summary="The cross-entropy between each row's softmax over the last dimension and its target class.",
    formula=(
        "loss = lse - sum(q * logits, -1), 0 where target == ignore_index; lse = log(sum(exp(logits), -1));"
        " q = (1 - label_smoothing) * onehot(target) + label_smoothing / V"
    ),
    notes=(
        "logits: (*M, V); target: (*M,), classes from 0 to V-1 or ignore_index, which may be one of them; loss and,"
        " with return_lse, lse: (*M,), in float32 whatever the logits are. Everything is computed in float32. There is"
        " no reduction: torch's mean is loss.sum() / (target != ignore_index).sum(), with label smoothing too. lse is"
        " the natural logarithm, of every row, the ignored ones too; it has no gradient. The gradient of logits is"
        " grad_loss * (softmax(logits) - q), rounded once, and zeros for an ignored row, whatever the row holds."
        " Forward saves lse (M,) in float32; its last place bounds how exact probabilities in backward can be. A logit"
        " of -inf is a class of probability 0: the loss is exact where the target is another, inf where it is the"
        " target, and inf with label smoothing, as in torch. A row that holds NaN or +inf has loss and lse NaN."
        " overwrite_logits=True permits backward to write the gradient over logits' memory and return logits: for"
        " callers that use them nowhere else, and go backward once. Kernels may ignore it. Not guaranteed: any result,"
        " or an error, for a target elsewhere (portakernel's kernels raise IndexOutOfRangeError on the CPU); lse of a"
        " row of nothing but -inf (its loss is NaN); finite results where sums of logits exceed float32; equal bits"
        " from different kernels; gradients that are subnormal in float32, which a kernel may flush to zero."
    ),
    tensors=(TensorArgument("logits", ("*M", "V"), ("float32", "float16", "bfloat16")), TARGET),
    parameters=(
        *PARAMETERS,
        Parameter(
            "overwrite_logits", False, kind="bool", summary="backward may write over logits", permission="logits"
        ),
        Parameter("return_lse", False, feature=True, kind="bool", summary="return each row's log-sum-exp as well"),
    ),
    outputs=(
        Result("loss", ("*M",), like="logits", dtype="float32"),
        Result("lse", ("*M",), like="logits", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    saved=(Result("logsumexp", ("M",), like="logits", dtype="float32"),),
    requirements=("V >= 1",),
    gradient="kernel",
    cases=(
        Case("one element", (1,), {"V": 1}),
        Case("one row", (), {"V": 64}),
        Case("block and one, first and last class", (4,), {"V": 129}, given={"target": (0, 128, 127, 1)}),
        Case("three dimensions", (2, 3), {"V": 1009}),
        Case("no rows", (0,), {"V": 48}),
        Case("many rows", (131,), {"V": 40}),
        Case("long row", (2,), {"V": 8209}),
        Case("sliced rows", (5,), {"V": 72}, layouts={"logits": "sliced"}),
        Case("transposed", (6,), {"V": 33}, layouts={"logits": "transposed"}),
        Case("expanded rows", (4,), {"V": 65}, layouts={"logits": "expanded"}),
        Case("every second column", (5,), {"V": 50}, layouts={"logits": "stepped"}),
        Case("rows with two strides", (3, 4), {"V": 56}, layouts={"logits": "split", "target": "transposed"}),
        Case("offset by one", (9,), {"V": 80}, layouts={"logits": "offset", "target": "stepped"}),
        Case("every row ignored", (3,), {"V": 70}, given={"target": (-100, -100, -100)}),
        Case("a class ignored", (4,), {"V": 60}, parameters={"ignore_index": 7}, given={"target": (7, 3, 7, 59)}),
        Case("smoothed", (5,), {"V": 101}, parameters={"label_smoothing": 0.1}),
        Case("with lse", (2, 3), {"V": 90}, parameters={"return_lse": True}),
        Case("smoothed with lse", (5,), {"V": 1030}, parameters={"label_smoothing": 0.25, "return_lse": True}),
        Case("large magnitudes", (3,), {"V": 90}, values="large"),
        Case("large and nothing but smoothing", (3,), {"V": 90}, {}, {"label_smoothing": 1.0}, values="large"),
        Case("tiny magnitudes", (3,), {"V": 90}, values="tiny"),
        Case("NaN, infinities, signed zeros", (12,), {"V": 70}, values="special", backward=False),
        Case("infinities smoothed", (12,), {"V": 70}, {}, {"label_smoothing": 0.1}, values="special", backward=False),
        Case("zeros", (3,), {"V": 60}, values="zeros"),
    ),
    # Measured at the magnitudes that the reference gives. The reference on the CPU comes to 1.7 ulp for the loss, 1.5
    # for lse and 12 for float32 gradients (25 draws of these cases), a Triton kernel to 0.9, 1.0 and 19, its gradients
    # over 262144 classes to 48 (H200, Triton 3.6, 2026-11-20). Loss and lse have room for other orders of summation and
    # approximate logarithms (2**-22 on NVIDIA). In a gradient's exponent lse, its difference from x and that times
    # log2(e) are rounded: that moves p by up to 3 * 2**-24 * p * (|x| + |lse|). A 16-bit gradient is rounded once more.
    tolerance=Tolerance(
        forward={"float32": 8.0},
        saved={"float32": 8.0},
        backward={"float32": 96.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="gradients",
    ),
    grid=grids.matrix_grid(
        ((8192, 131072),), ((8192, 32000), (4096, 151936), (2048, 262144)), grids.logit_rows, names=("logits",)
    ),
    cost=cost,
    in_graphs="call",
    source=(
        "Bishop 2006, Pattern Recognition and Machine Learning, equation 4.108; label smoothing: Szegedy et al. 2015,"
        " Rethinking the Inception Architecture, arXiv 1512.00567, section 7"
    ),
)
