"""How many bytes a call has to move and how much it has to compute, whichever kernel runs it; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portakernel.claims.request import Request
from portakernel.contract import Contract, Cost
from portakernel.text.printable import exception_text
from portakernel.words.dtypes import DTYPES

# Operations for each byte from which on a call is stated in TFLOP/s: an H200 computes 170 bfloat16 operations while it
# moves a byte (731 TFLOP/s, 4.26 TB/s; 2026-11-20), other accelerators 100 to 300.
COMPUTE_BOUND_FLOPS_PER_BYTE = 100
# Backward's products for each of forward's, where it is not two: attention computes the scores again, and four products
# beside (Dao 2023), and a loss without its logits in memory computes those again.
_BACKWARD_FLOPS: Mapping[str, float] = {"attention": 2.5, "attention_varlen": 2.5, "linear_cross_entropy": 3.0}
# What backward is given and need not read: the rows of the table are needed for the weights' gradient alone.
_UNREAD: Mapping[str, frozenset[str]] = {"embedding_bag": frozenset({"weight"})}


class FaultyOp(Exception):  # noqa: N818 - what is reported is its message, which names what is at fault
    """An op whose contract or reference is at fault, so that nothing of it can be measured."""


def forward_cost(contract: Contract, request: Request, lengths: Mapping[str, Sequence[int]] | None = None) -> Cost:
    """What the op's contract says of a forward call; with the ``lengths`` in integer tensors, by name, of that one.

    Raises:
        FaultyOp: the contract's ``cost`` raises, or returns something else.
    """
    itemsizes = {name: DTYPES[dtype].itemsize for name, dtype in request.dtypes.items() if name in contract.names}
    what = f"the contract of {contract.op} is at fault: its cost"
    try:
        cost: object = contract.cost(request.dims, itemsizes, {**request.values, **(lengths or {})})
    except Exception as error:
        raise FaultyOp(f"{what} raised {exception_text(error)}") from error
    if not isinstance(cost, Cost):
        raise FaultyOp(f"{what} returned {type(cost).__name__}; return a portakernel.authoring.Cost")
    return cost


def backward_cost(contract: Contract, forward: Cost, read: Mapping[str, int], written: Sequence[int]) -> Cost:
    """What backward is given read once, gradients written once: the bytes of each, by name where they are read.

    Contracts have no cost of backward; the products are a multiple of forward's.
    """
    unread = _UNREAD.get(contract.op, frozenset())
    moved = sum(size for name, size in read.items() if name not in unread) + sum(written)
    return Cost(bytes=moved, flops=round(_BACKWARD_FLOPS.get(contract.op, 2.0) * forward.flops))


def is_compute_bound(cost: Cost) -> bool:
    """Whether arithmetic and not memory bounds the call on an accelerator."""
    return cost.flops >= COMPUTE_BOUND_FLOPS_PER_BYTE * max(cost.bytes, 1)


def bytes_per_us_in_tb_per_s(moved: int, latency_us: float) -> float:
    """The rate in 10¹² bytes a second."""
    return moved / latency_us / 1e6


def flops_per_us_in_tflop_per_s(flops: int, latency_us: float) -> float:
    """The rate in 10¹² operations a second."""
    return flops / latency_us / 1e6
