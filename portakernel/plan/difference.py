"""What two plans decide in different ways: kinds of calls with the sizes whose kernel differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from portakernel.plan.boxes import Box, common, plain, without
from portakernel.plan.plan import Entry, Place, Plan
from portakernel.plan.writing import call_text


@dataclass(frozen=True, slots=True)
class Changed:
    """Calls of one kind and sizes with the kernel that each plan has; None where it has none for them."""

    place: Place
    op: str
    entry: Entry
    box: Box
    old: Entry | None
    new: Entry | None

    @property
    def _call(self) -> Entry:
        return replace(self.entry, kernel="", bounds=self.box, comment="")

    def call(self) -> str:
        """The kind of call and its sizes, as an entry has them."""
        return call_text(self._call)

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON-ready data; stable."""
        data = self._call.to_data()
        del data["use"]
        sides = {side: _side(found) for side, found in (("old", self.old), ("new", self.new))}
        return {"target": str(self.place), "op": self.op, "call": data, **sides}


def _side(entry: Entry | None) -> dict[str, str] | None:
    return None if entry is None else {"kernel": entry.kernel, "comment": entry.comment}


def differences(old: Plan, new: Plan) -> Iterator[Changed]:
    """The calls for which the plans have other kernels, or one of them has none; by target and op."""
    for place in sorted({*old.parts, *new.parts}):
        before, after = old.parts.get(place, {}), new.parts.get(place, {})
        for op in sorted({*before, *after}):
            yield from _of_op(place, op, before.get(op, ()), after.get(op, ()))


def _of_op(place: Place, op: str, before: Sequence[Entry], after: Sequence[Entry]) -> Iterator[Changed]:
    for was, now in _by_kind(op, before, after):
        for one in was:
            for other in now:
                box = common(one.bounds, other.bounds)
                if box is not None and one.kernel != other.kernel:
                    yield Changed(place, op, other, plain(box), one, other)
        for entries, others, is_old in ((was, now, True), (now, was, False)):
            for entry in entries:
                for box in without(entry.bounds, (other.bounds for other in others)):
                    yield Changed(place, op, entry, box, entry if is_old else None, None if is_old else entry)


def _by_kind(op: str, *several: Sequence[Entry]) -> Iterator[tuple[list[Entry], list[Entry]]]:
    kinds: dict[str, tuple[list[Entry], list[Entry]]] = {}
    for i, entries in enumerate(several):
        for entry in entries:
            kinds.setdefault(entry.kind_text(op), ([], []))[i].append(entry)
    yield from kinds.values()
