"""Calls in float64, as ``torch.autograd.gradcheck`` makes them: the references serve them, and nobody else is asked."""

from __future__ import annotations

from dataclasses import replace

from portakernel.claims.capability import Capability
from portakernel.claims.request import Request
from portakernel.contracts import contract
from portakernel.words.dtypes import FLOAT64


def is_test(request: Request) -> bool:
    """Whether the request is for float64 where kernels cannot claim it (``Contract.in_float64``)."""
    return request.dtypes.get(contract(request.op).in_float64) == FLOAT64


def without_tests(op: str, claim: Capability) -> Capability:
    """The claim of a kernel of ``op`` less float64, where that is for tests."""
    name = contract(op).in_float64
    if FLOAT64 not in claim.dtypes.get(name, ()):
        return claim
    others = tuple(dtype for dtype in claim.dtypes[name] if dtype != FLOAT64)
    return replace(claim, dtypes={**claim.dtypes, name: others})
