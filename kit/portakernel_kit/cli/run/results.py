"""What a result of one call is, in numbers: its range, and its distance from the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel_kit.conformance.truth import Truth, exact


@dataclass(frozen=True, slots=True)
class Stated:
    """One result. Errors are None where there is no number to compare; ``not_finite`` are elements that are no number.

    ``largest_error`` is the largest distance from float64, ``relative_error`` that divided by the largest value there,
    ``disagreeing`` how many elements are finite in one of the two alone.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None
    mean: float | None
    most: float | None
    not_finite: int
    largest_error: float | None
    relative_error: float | None
    disagreeing: int

    def to_json(self) -> dict[str, Any]:
        """The statement as JSON-ready data; stable."""
        return {**asdict(self), "shape": list(self.shape)}


def stated(results: Sequence[Tensor], truth: Truth) -> list[Stated]:
    """The outputs of a call, and whatever else of its results has a name, in order."""
    named = {**truth.outputs, **truth.saved}
    return [
        _stated(name, found, want, truth.free.get(name))
        for (name, want), found in zip(named.items(), results, strict=False)
    ]


def _stated(name: str, found: Tensor, want: Tensor, free: Tensor | None) -> Stated:
    got, wanted = exact(found).double(), want.double()
    comparable = got.isfinite() & wanted.isfinite()
    differ = got.isfinite() != wanted.isfinite()
    if free is not None:
        said = ~free.reshape(got.shape)
        comparable, differ = comparable & said, differ & said
    finite = got[got.isfinite()]
    distance = (got - wanted)[comparable].abs()
    size = wanted[comparable].abs()
    error = float(distance.max()) if distance.numel() else None
    largest = float(size.max()) if size.numel() else 0.0
    return Stated(
        name, dtype_name(found.dtype), tuple(found.shape),
        float(finite.min()) if finite.numel() else None,
        float(finite.mean()) if finite.numel() else None,
        float(finite.max()) if finite.numel() else None,
        int((~got.isfinite()).sum()),
        error,
        error / largest if error is not None and largest else None,
        int(differ.sum()),
    )  # fmt: skip
