"""What was planned or measured for a call's sizes, as a number; part of what shapes decide of a key."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from portakernel.calling.fast.generated import define
from portakernel.contract import Contract
from portakernel.tuning.choices import Choice, Choices

# Boxes between choices' bounds whose number is remembered; what more of them there are is worked out anew.
_MOST_BOXES = 4096
# Bounds of a dimension that are compared one by one sooner than looked up.
_FEW_CUTS = 3
# Never the same one twice: a call that was under way when choices were renewed meets none that is made from then on.
_number = itertools.count(1)


class Cells:
    """Of an op's sizes a number, which is the same where choices name the same kernels for calls of each kind.

    ``number(*sizes)`` stands in every key's source, so that choices may come later: without any it is 0, asked for
    once for each shape.
    """

    def __init__(self, contract: Contract, choices: Iterable[Choices] = ()) -> None:
        self._op, self.dims = contract.op, contract.dims
        self.number: Callable[..., int] = _nothing
        self._forget: list[Callable[[], None]] = []
        self.renew(choices)

    def renew(self, choices: Iterable[Choices]) -> None:
        """Puts other choices in the place of those before; what shapes decided is asked anew."""
        choices = tuple(choices)
        cuts: dict[str, set[int]] = {}
        for one in choices:
            for name, found in one.cuts.items():
                cuts.setdefault(name, set()).update(found)
        kinds = [of_kind for one in choices for of_kind in one.kinds]
        self.number = _numbering(self._op, self.dims, cuts, kinds) if kinds else _nothing
        for forget in self._forget:
            forget()

    def when_renewed(self, forget: Callable[[], None]) -> None:
        """Has ``forget`` called each time."""
        self._forget.append(forget)


def _nothing(*_: int) -> int:
    return 0


def _numbering(op: str, dims: Sequence[str], cuts: Mapping[str, set[int]], kinds: Sequence[Sequence[Choice]]) -> Any:
    """The number of sizes, looked up by the box between bounds that they lie in; generated, as a call waits for it."""
    boxes: dict[int, int] = {}
    numbers: dict[tuple[tuple[str, ...], ...], int] = {}

    def worked_out(box: int, *sizes: int) -> int:
        named = dict(zip(dims, sizes, strict=True))
        kernels = tuple(next((choice.kernels for choice in of_kind if choice.covers(named)), ()) for of_kind in kinds)
        if len(boxes) >= _MOST_BOXES:
            boxes.clear()
        # atomic: of two threads that come first together, both get the same
        boxes[box] = found = numbers.setdefault(kernels, next(_number))
        return found

    names: dict[str, Any] = {"_bisect": bisect_right, "_boxes": boxes, "_worked_out": worked_out}
    box = ""
    for name in (name for name in dims if name in cuts):
        names[f"_cuts_{name}"] = ordered = tuple(sorted(cuts[name]))
        few = len(ordered) <= _FEW_CUTS
        place = " + ".join(f"({name} >= {cut})" for cut in ordered) if few else f"_bisect(_cuts_{name}, {name})"
        box = f"({box}) * {len(ordered) + 1} + {place}" if box else place
    given = ", ".join(dims)
    source = f"""\
def number({given}):
    _box = {box or 0}
    try:
        return _boxes[_box]
    except KeyError:
        return _worked_out(_box, {given})
"""
    return define(source, "number", f"{op} cells", names)
