"""The support matrix in rows: what one kernel claims on archs of one vendor, and what of it was proven there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from portakernel.claims.float64 import without_tests
from portakernel.matrix.proofs import Proof
from portakernel.matrix.table import Marks, OpSupport, Serving
from portakernel.registry.kernel import Kernel
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on the archs of a vendor where it claims the same and the same was proven; none: any arch.

    ``archs`` are by family, None for those that are in none. A proof's ``target`` is that of the first of them.
    """

    kernel: Kernel
    vendor: str
    archs: tuple[tuple[str | None, tuple[str, ...]], ...]
    serving: Serving
    proofs: tuple[Proof, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every arch."""
        return tuple(arch for _, archs in self.archs for arch in archs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Every dtype that is claimed; where nothing is known of the hardware, as the manifest has them."""
        return self._claimed("dtypes")

    @property
    def formats(self) -> tuple[str, ...]:
        """Every scale format that is claimed."""
        return self._claimed("formats")

    def _claimed(self, what: Literal["dtypes", "formats"]) -> tuple[str, ...]:
        marks: Marks | None = getattr(self.serving, what)
        if marks is not None:
            return (*marks.native, *marks.emulated, *marks.absent)
        variants = (without_tests(self.kernel.op, claim) for _, claim in self.kernel.variants)
        reaching = [claim for claim in variants if claim.selector(self.vendor) is not None]
        claims: list[Mapping[str, tuple[str, ...]]] = [getattr(claim, what) for claim in reaching]
        names = (name for claim in claims for several in claim.values() for name in several)
        return tuple(dict.fromkeys(name for name in names if name in (*DTYPES, *SCALE_FORMATS)))


def rows(support: OpSupport, proofs: Iterable[Proof] = ()) -> tuple[Row, ...]:
    """The rows of an op, by kernel; proofs of what is no longer claimed are left out."""
    by_place: dict[tuple[str, str], list[Proof]] = {}
    for proof in proofs:
        by_place.setdefault((proof.kernel, proof.target), []).append(proof)
    return tuple(row for kernel in support.kernels for row in _rows(kernel, support, by_place))


def _rows(kernel: Kernel, support: OpSupport, proofs: Mapping[tuple[str, str], Sequence[Proof]]) -> Iterator[Row]:
    """A kernel's rows, archs with equal claims and equal proofs together."""
    found: list[Row] = []
    for place in support.places:
        serving = place.servings.get(kernel.name)
        if serving is None:
            continue
        for arch in place.archs or ("",):
            proven = tuple(_claimed(proofs.get((kernel.name, f"{place.vendor}:{arch}"), ()), serving))
            row = Row(kernel, place.vendor, ((place.family, (arch,) if arch else ()),), serving, proven)
            i = next((i for i, known in enumerate(found) if _alike(known, row)), None)
            if i is None:
                found.append(row)
            else:
                found[i] = replace(found[i], archs=_joined(found[i].archs, place.family, arch))
    yield from found


def _alike(one: Row, other: Row) -> bool:
    """Whether two rows differ in their archs alone."""
    proofs = (
        tuple(replace(proof, target=one.proofs[0].target) for proof in other.proofs) if one.proofs else other.proofs
    )
    return (one.vendor, one.serving, one.proofs) == (other.vendor, other.serving, proofs)


def _joined(
    archs: tuple[tuple[str | None, tuple[str, ...]], ...], family: str | None, arch: str
) -> tuple[tuple[str | None, tuple[str, ...]], ...]:
    """``archs`` and one more, which stands with its family."""
    if any(known == family for known, _ in archs):
        return tuple((known, (*several, arch) if known == family else several) for known, several in archs)
    return (*archs, (family, (arch,)))


def _claimed(proofs: Sequence[Proof], serving: Serving) -> Iterator[Proof]:
    """The proofs, less the dtypes and formats that are not claimed; those of which no dtype is left are left out."""
    for proof in proofs:
        dtypes, formats = (
            proven
            if marks is None
            else tuple(n for n in proven if n in (*marks.native, *marks.emulated, *marks.absent))
            for proven, marks in ((proof.dtypes, serving.dtypes), (proof.formats, serving.formats))
        )
        if dtypes:
            yield replace(proof, dtypes=dtypes, formats=formats)
