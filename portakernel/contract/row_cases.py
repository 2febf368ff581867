"""The cases that ops on rows of ``x``, each of ``N`` elements, have in common; each adds its own, and the values."""

from __future__ import annotations

from portakernel.contract.case import Case

# How many rows there are, and how long they are.
SIZES = (
    Case("one element", (1,), {"N": 1}),
    Case("one row", (), {"N": 64}),
    Case("block", (4,), {"N": 128}),
    Case("block and one", (3,), {"N": 129}),
    Case("prime sizes", (7,), {"N": 1009}),
    Case("three dimensions", (2, 3), {"N": 96}),
    Case("no rows", (0,), {"N": 48}),
    Case("many rows", (131,), {"N": 40}),
)

# How they lie in memory, where that is not one after the other; sliced rows are at another size where scales are made.
LAYOUTS = (
    Case("transposed", (6,), {"N": 33}, layouts={"x": "transposed"}),
    Case("expanded rows", (4,), {"N": 65}, layouts={"x": "expanded"}),
    Case("every second column", (5,), {"N": 50}, layouts={"x": "stepped"}),
    Case("rows with two strides", (3, 4), {"N": 56}, layouts={"x": "split"}),
    Case("offset by one", (3,), {"N": 80}, layouts={"x": "offset"}),
)

# The same where ``residual`` is added to ``x``.
RESIDUAL_LAYOUTS = (
    Case("transposed residual", (6,), {"N": 33}, layouts={"residual": "transposed"}),
    Case("transposed x", (6,), {"N": 34}, layouts={"x": "transposed"}),
    Case("expanded residual", (4,), {"N": 65}, layouts={"residual": "expanded"}),
    Case("every second column", (5,), {"N": 50}, layouts={"x": "stepped", "residual": "stepped"}),
    Case("rows with two strides", (3, 4), {"N": 56}, layouts={"x": "split", "residual": "contiguous"}),
    Case("offset by one", (3,), {"N": 80}, layouts={"residual": "offset"}),
)

# What a root mean square norm is told beside its weight.
RMS_PARAMETERS = (
    Case("large eps", (3,), {"N": 77}, parameters={"eps": 0.5}),
    Case("offset weight", (3,), {"N": 100}, parameters={"weight_offset": 1.0}),
    Case("offset weight and eps", (5,), {"N": 31}, parameters={"weight_offset": -0.5, "eps": 1e-3}),
)
