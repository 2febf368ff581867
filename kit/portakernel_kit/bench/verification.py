"""Whether a kernel's results are near enough to the reference's for its time to mean anything.

Not a proof: that is the conformance kit's (``portakernel check``), which compares with float64 and counts units in the
last place. This finds a kernel that computes something else, on the very sizes that are measured, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel.references.scale_formats import numbers

# Rounding a few thousand terms differently moves a row by a few units in the last place: these are tens of them. Of
# attention's gradients for queries that see two keys little is left but what rounding `out` makes: in bfloat16 every
# library is off by up to 0.067 in one of some hundred thousand rows.
_TOLERANCE: Mapping[str, float] = {"float64": 1e-3, "float32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}
# An element on the border between two codes is off by the step between them.
_NARROW_TOLERANCE = 0.25
# Rows are compared as many at a time as have this many elements, since the largest results fill a device.
_PIECE = 1 << 25


def differences(got: Sequence[object], want: Sequence[object], names: Sequence[str]) -> str:
    """What is wrong with a call's results; empty where they agree."""
    if len(got) != len(want):
        return f"returned {len(got)} results, not {len(want)}"
    texts = [difference(a, b, name) for a, b, name in zip(got, want, names, strict=False)]
    return "; ".join(text for text in texts if text)


def difference(got: object, want: object, name: str) -> str:
    """What is wrong with one result; empty where it agrees."""
    if want is None or got is None:
        return "" if want is got else f"{name} is {'missing' if got is None else 'there, and none is wanted'}"
    if not isinstance(got, Tensor) or not isinstance(want, Tensor):
        return f"{name} is {type(got).__name__}, not a tensor"
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        forms = [f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}" for tensor in (got, want)]
        return f"{name} is {forms[0]}, not {forms[1]}"
    if got.numel() == 0:
        return ""
    tolerance = _TOLERANCE.get(dtype_name(got.dtype), _NARROW_TOLERANCE)
    worst, row = _worst_row(got.detach(), want.detach())
    if worst <= tolerance:
        return ""
    far = f"by {worst:.2g} of its size" if math.isfinite(worst) else "where one of them is not a finite number"
    return f"{name} differs from the reference's in row {row}, {far} (at most {tolerance:g})"


def _worst_row(got: Tensor, want: Tensor) -> tuple[float, int]:
    """The largest distance of a row relative to its length, or to that of rows on average where that is more."""
    found, wanted = _as_rows(got), _as_rows(want)
    rows = max(_PIECE // max(found.shape[-1], 1), 1)
    lengths, distances = [], []
    for a, b in zip(torch.split(found, rows), torch.split(wanted, rows), strict=True):
        apart, exact = numbers(a, torch.float32), numbers(b, torch.float32)
        # what is not finite has to be equal; it counts for no length
        same = (apart == exact) | (apart.isnan() & exact.isnan())
        finite = apart.isfinite() & exact.isfinite()
        off = torch.where(finite, apart - exact, torch.where(same, 0.0, math.inf))
        distances.append(torch.linalg.vector_norm(off, dim=-1))
        lengths.append(torch.linalg.vector_norm(torch.where(finite, exact, 0.0), dim=-1))
    length, distance = torch.cat(lengths), torch.cat(distances)
    typical = length.square().mean().sqrt()
    relative = distance / length.maximum(typical)
    # of two zeros neither is far from the other
    relative = torch.where(distance == 0, 0.0, relative)
    row = int(relative.argmax())
    return float(relative[row]), row


def _as_rows(tensor: Tensor) -> Tensor:
    """Rows of the last dimension; of a vector each element is one."""
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.reshape(-1, 1)
