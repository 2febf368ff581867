"""``embedding_bag``: sums or means of looked-up rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import (
    Case,
    Contract,
    Cost,
    Draw,
    Ends,
    Grid,
    GridRow,
    Indices,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.production import TABLES


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Each row that is looked up read once (all are different, as far as ``V`` allows), each bag written once."""
    del values
    indices, bags, columns = dims["I"], dims["B"], dims["N"]
    rows = min(indices, dims["V"]) + bags
    integers = indices * itemsizes["indices"] + bags * itemsizes["offsets"]
    samples = itemsizes.get("per_sample_weights", 0)
    flops = indices * columns * (2 if samples else 1)
    return Cost(bytes=rows * columns * itemsizes["weight"] + integers + indices * samples, flops=flops)


def _row(bags: int, each: int, V: int, N: int, *, core: bool = False) -> GridRow:
    shapes = {"weight": (V, N), "indices": (bags * each,), "offsets": (bags,)}
    return GridRow(f"{bags} bags of {each} V{V} D{N}", shapes, core=core)


CONTRACT = Contract(
    op="embedding_bag",
    summary="The sum or mean of the rows of a table that each bag of indices names.",
    formula="y[b] = sum(weight[indices[i]] * per_sample_weights[i] for i in bag b), divided by the bag's size for mean",
    notes=(
        "weight: (V, N); indices: (I,), from 0 to V-1; offsets: (B,), where each bag begins; y: (B, N). Bag b is"
        " indices[offsets[b]:offsets[b + 1]], and the last one ends at I. offsets[0] is 0 and offsets never fall; bags"
        " may be empty, and give zeros in both modes. per_sample_weights: (I,) only with mode='sum' (the reference"
        " raises ArgumentValueError). Products and sums are in float32 and rounded once. The gradient of weight is"
        " dense, zeros where no bag looked; it is summed in float32 over indices sorted stably, without atomics. Not"
        " guaranteed: any result, or an error, for indices or offsets elsewhere (on the CPU portakernel's kernels raise"
        " IndexOutOfRangeError for indices, ArgumentValueError for offsets); equal bits from different kernels; numbers"
        " that are subnormal in float32, on devices that take them for zero (Apple GPUs)."
    ),
    tensors=(
        TensorArgument("weight", ("V", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("indices", ("I",), ("int64", "int32"), draw=Draw("index", below="V"), rule=Indices("V")),
        TensorArgument("offsets", ("B",), ("indices",), draw=Draw("offsets", below="I"), rule=Ends("I")),
        TensorArgument("per_sample_weights", ("I",), ("weight",), optional=True),
    ),
    parameters=(
        Parameter("mode", "sum", kind="text", choices=("sum", "mean"), summary="what becomes of a bag's rows"),
    ),
    outputs=(Result("y", ("B", "N"), like="weight"),),
    requirements=("B >= 1 or I == 0",),
    gradient="kernel",
    cases=(
        Case("one element", dims={"V": 1, "N": 1, "I": 1, "B": 1}),
        Case("blocks", dims={"V": 32, "N": 128, "I": 40, "B": 8}),
        Case("odd sizes", dims={"V": 37, "N": 67, "I": 101, "B": 13}),
        Case("long rows", dims={"V": 9, "N": 1031, "I": 14, "B": 3}),
        Case("more bags than indices", dims={"V": 50, "N": 24, "I": 90, "B": 150}),
        Case("one long bag's mean", dims={"V": 17, "N": 33, "I": 300, "B": 1}, parameters={"mode": "mean"}),
        Case("nothing but empty bags", dims={"V": 6, "N": 20, "I": 0, "B": 5}, given={"offsets": (0, 0, 0, 0, 0)}),
        Case("no bags", dims={"V": 6, "N": 20, "I": 0, "B": 0}),
        Case("no columns", dims={"V": 6, "N": 0, "I": 9, "B": 3}),
        Case(
            "empty ends, first and last row",
            dims={"V": 11, "N": 40, "I": 7, "B": 6},
            given={"indices": (10, 0, 0, 10, 5, 10, 0), "offsets": (0, 0, 3, 3, 7, 7)},
        ),
        Case(
            "means of empty ends",
            dims={"V": 11, "N": 40, "I": 7, "B": 6},
            parameters={"mode": "mean"},
            given={"offsets": (0, 0, 3, 3, 7, 7)},
        ),
        Case("one row everywhere", dims={"V": 8, "N": 48, "I": 60, "B": 7}, given={"indices": (5,) * 60}),
        Case("means", dims={"V": 37, "N": 67, "I": 101, "B": 13}, parameters={"mode": "mean"}),
        # More indices than a kernel may look through for each row: runs of whole pieces, and runs far apart.
        Case("many indices, long runs", dims={"V": 9, "N": 20, "I": 1301, "B": 40}, parameters={"mode": "mean"}),
        Case(
            "many indices, more rows",
            dims={"V": 2003, "N": 11, "I": 1301, "B": 40},
            present=("per_sample_weights",),
        ),
        Case("weighted", dims={"V": 37, "N": 67, "I": 101, "B": 13}, present=("per_sample_weights",)),
        Case("sliced table", dims={"V": 21, "N": 72, "I": 45, "B": 9}, layouts={"weight": "sliced"}),
        Case("transposed table", dims={"V": 21, "N": 36, "I": 45, "B": 9}, layouts={"weight": "transposed"}),
        Case("every second column", dims={"V": 21, "N": 50, "I": 45, "B": 9}, layouts={"weight": "stepped"}),
        Case("expanded table", dims={"V": 21, "N": 30, "I": 45, "B": 9}, layouts={"weight": "expanded"}),
        Case("offset by one", dims={"V": 21, "N": 64, "I": 45, "B": 9}, layouts={"weight": "offset"}),
        Case(
            "stepped vectors",
            dims={"V": 21, "N": 44, "I": 45, "B": 9},
            layouts={"indices": "stepped", "offsets": "stepped", "per_sample_weights": "stepped"},
            present=("per_sample_weights",),
        ),
        # not weighted: products beyond float16 whose sum is not are no test of the last place of that sum
        Case("large magnitudes", dims={"V": 15, "N": 40, "I": 33, "B": 6}, values="large"),
        Case("tiny magnitudes", dims={"V": 15, "N": 40, "I": 33, "B": 6}, values="tiny"),
        Case("NaN, infinities, signed zeros", dims={"V": 15, "N": 40, "I": 33, "B": 6}, values="special"),
        Case(
            "specials weighted",
            dims={"V": 15, "N": 40, "I": 33, "B": 6},
            values="special",
            present=("per_sample_weights",),
        ),
        Case("zeros", dims={"V": 15, "N": 40, "I": 33, "B": 6}, values="zeros"),
    ),
    # Measured at the sums of absolute terms. A bag of 300 and an index that comes 60 times, added one after the other
    # in float32, come to 17 ulp (30 draws of these cases), which grows with their number. 16-bit results are one
    # rounding of that.
    tolerance=Tolerance(
        forward={"float32": 32.0, "float16": 0.51, "bfloat16": 0.51},
        backward={"float32": 32.0, "float16": 0.51, "bfloat16": 0.51},
    ),
    grid=Grid(
        (
            _row(8192, 32, 1_000_000, 128, core=True),
            _row(8192, 1, 1_000_000, 128),
            _row(65536, 8, 1_000_000, 64),
            _row(4096, 128, 200_000, 256),
        ),
        _row(4, 4, 64, 64),
        lambda production: _row(
            production.between(1, 65536), production.one_of((1, 1, 4, 10, 32, 100)), *production.one_of(TABLES)
        ),
    ),
    cost=cost,
    in_graphs="call",
    source="torch.nn.EmbeddingBag; Naumov et al. 2019, Deep Learning Recommendation Model, arXiv 1906.00091, section 2",
)
