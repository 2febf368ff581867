"""Calls over a mesh of two dimensions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from splits import dtypes, on_device
from torch.distributed.tensor import DeviceMesh, Partial, Placement, Replicate, Shard
from trial import compare

from portakernel.contract import Case
from portakernel.contracts import contract
from portakernel_kit.conformance.inputs import draw_inputs, generator

R = Replicate()
# op, case, how each argument is placed over the outer and the inner dimension
CALLS: dict[str, tuple[str, Case, list[list[Placement]]]] = {
    "rows over both": ("rms_norm", Case("", (5, 6), {"N": 8}), [[Shard(0), Shard(1)], [R, R]]),
    "one dimension of rows over both": ("rms_norm", Case("", (7,), {"N": 8}), [[Shard(0), Shard(0)], [R, R]]),
    "rows, and a last dimension to gather": ("layer_norm", Case("", (5,), {"N": 8}), [[Shard(0), Shard(1)], [R, R]]),
    "rows, and partial sums": ("softmax", Case("", (5,), {"N": 8}), [[Shard(0), Partial()]]),
    "batch and heads": (
        "attention",
        Case("", dims={"B": 3, "S": 5, "T": 5, "H": 4, "G": 2, "D": 8, "E": 8}, parameters={"causal": True}),
        [[Shard(0), Shard(2)]] * 3 + [[R, R]] * 3,
    ),
    "more ranks than key heads": (
        "attention",
        Case("", dims={"B": 1, "S": 5, "T": 5, "H": 4, "G": 2, "D": 8, "E": 8}),
        [[Shard(2), Shard(2)]] * 3 + [[R, R]] * 3,
    ),
    "rows and columns": (
        "linear_act",
        Case("", (5,), {"K": 8, "N": 6}, parameters={"activation": "gelu"}, present=("bias",)),
        [[Shard(0), R], [R, Shard(0)], [R, Shard(0)]],
    ),
}


def records(mesh: DeviceMesh) -> dict[str, Any]:
    """What came of each call."""
    found: dict[str, Any] = {}
    for name, (op, case, placements) in CALLS.items():
        inputs = draw_inputs(contract(op), case, dtypes(contract(op), case), "cpu", generator(0, name))
        missing = [[R, R]] * (len(inputs.tensors) - len(placements))
        found[name] = asdict(compare(op, on_device(inputs, mesh), mesh, [*placements, *missing], backward=True))
    return found
