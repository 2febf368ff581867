"""What the records of a store decide: for calls of each kind, between which sizes which kernel was the fastest."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from portakernel.claims.request import PLAIN_FACTS, Phase, Request, asked_features
from portakernel.contract import Contract
from portakernel.contract.sizes import names_in, parse_size
from portakernel.contracts import contracts
from portakernel.host.distributions import installed_version
from portakernel.registry.kernel import Kernel
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind, Regime
from portakernel.tuning.nearest import Known, nearest
from portakernel.tuning.pieces import Piece, Point, gaps, pieces
from portakernel.tuning.ranking import Bounds, Outcome, decide
from portakernel.tuning.record import Record
from portakernel.tuning.served import any_phase, wrong_ones
from portakernel.tuning.silences import Silence, Silences
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.tuning.store import folder_of, folders, read
from portakernel.words.arch import ArchSpace
from portakernel.words.target import Target

_FOLDER = re.compile(r"([a-z][a-z0-9_]*)\.(\w+)-(\d{1,9})")
# First-party kernels go before the reference, which goes before third parties'.
_FIRST_PARTY, _REFERENCE, _THIRD_PARTY = range(3)


def measured_choices(
    roots: Sequence[Path],
    op: str,
    target: str,
    units: int,
    regime: Regime,
    kernels: Sequence[Kernel],
    spaces: Mapping[str, ArchSpace],
) -> Choices:
    """The choices by what was measured of ``op`` on one kind of device: by stores, of which the first goes first.

    ``kernels`` are all of the op's; whoever came after a record, and goes before its default, is to be measured first.
    Where the vendor's calls are captured in no graphs, the eager regime answers.
    """
    return Measured(roots, op, target, units, regime, kernels, spaces).choices


def places(roots: Sequence[Path]) -> tuple[tuple[str, int], ...]:
    """The kinds of devices of which stores have records: targets, as text, and their units."""
    names = (_FOLDER.fullmatch(folder.name) for root in roots for folder in folders(root))
    return tuple(dict.fromkeys((f"{found[1]}:{found[2]}", int(found[3])) for found in names if found is not None))


@dataclass(slots=True)
class _Group:
    """What is known of one kind of call, over the same dimensions; ``unused`` are points that count for nothing."""

    kind: Kind
    points: list[Point] = field(default_factory=list[Point])
    unused: list[Point] = field(default_factory=list[Point])
    records: list[Record] = field(default_factory=list[Record])
    pieces: tuple[Piece, ...] = ()


class Measured:
    """What was measured of one op on one kind of device, and what follows; see ``measured_choices``."""

    def __init__(
        self,
        roots: Sequence[Path],
        op: str,
        target: str,
        units: int,
        regime: Regime,
        kernels: Sequence[Kernel],
        spaces: Mapping[str, ArchSpace],
    ) -> None:
        self._roots, self._op, self._units = tuple(roots), op, units
        self._target = Target.parse(target)
        self._regime = regime.on(self._target.vendor)
        self._kernels, self._spaces = {kernel.name: kernel for kernel in kernels}, spaces
        self._newcomers = [kernel for kernel in kernels if self._may_come(kernel)]
        self._requests: dict[str, Request] = {}
        self._groups: dict[tuple[str, tuple[str, ...]], _Group] = {}
        # How many calls that were measured decide nothing, by reason.
        self.undecided: Counter[str] = Counter()
        self._silences = Silences()
        # By kind, whatever the phase and sizes, kernels that were wrong while they served.
        self.wrong: dict[str, dict[str, str]] = {}
        stores = [read(folder_of(root, target, units), op).records for root in self._roots]
        for text in dict.fromkeys(text for records in stores for text in records):
            there = [records[text] for records in stores if text in records]
            several = [record for record in there if not self._is_other(record)]
            for record in several:
                self._add_wrong(record)
            if several:
                self._add(several)
            else:
                self.undecided[self._is_other(there[0])] += 1
                key = there[0].key
                self._silences.add_kind(key.kind.text, "regime" if key.regime != self._regime else "stale")
        widths = _widths(contracts()[op]) if self._groups else ()
        for group in self._groups.values():
            group.pieces = pieces(group.points, widths)
        self.choices = Choices(choice for group in self._groups.values() for choice in _choices(group))

    def notes(self, kind: Kind, dims: Mapping[str, int], *, driver: str = "", torch: str = "") -> tuple[str, ...]:
        """What there is to say of a call beside its choice: why there is none, and whether what decides is stale."""
        group = self._groups.get((kind.text, tuple(sorted(dims))))
        if group is None:
            return tuple(self._elsewhere(kind)) or tuple(self._otherwise(kind, dims))
        covering = [piece for piece in group.pieces if piece.covers(dims)]
        if not any(piece.winner for piece in covering):
            silent = [point.why for piece in covering for point in piece.points]
            silent += [point.why for point in group.unused if dict(point.dims) == dict(dims)]
            return tuple([f"measured, and not used: {why}" for why in silent] or gaps(group.pieces, dims)) or (
                self._with_nearest("no sizes near it were measured", [group], kind, dims),
            )
        used = [point.dims for piece in covering for point in piece.points]
        records = [record for record in group.records if record.key.dims in used]
        return tuple(_stale(records, driver=driver, torch=torch))

    def silence(self, kind: Kind, dims: Mapping[str, int]) -> Silence:
        """Why there is no choice for a call, in a word; empty where there is one."""
        group = self._groups.get((kind.text, tuple(sorted(dims))))
        if group is None:
            return "near" if kind.text in self._kinds_elsewhere else self._silences.of_kind(kind.text)
        covering = [piece for piece in group.pieces if piece.covers(dims)]
        if any(piece.winner for piece in covering):
            return ""
        return self._silences.among(kind.text, [dims, *(p.dims for piece in covering for p in piece.points)])

    def _add_wrong(self, record: Record) -> None:
        """Takes note of kernels that were wrong while they served, and are what they were then."""
        for name, source, detail in wrong_ones(record):
            if name in self._kernels and source_digest(self._kernels[name]) == source:
                self.wrong.setdefault(any_phase(record.key.kind), {})[name] = detail

    @functools.cached_property
    def _kinds_elsewhere(self) -> frozenset[str]:
        """The kinds of calls that were measured on devices of this architecture with other units."""
        target = str(self._target)
        near = [place for place in places(self._roots) if place[0] == target and place[1] != self._units]
        found = (read(folder_of(root, *place), self._op).records for root in self._roots for place in near)
        return frozenset(record.key.kind.text for records in found for record in records.values())

    # --- records ----------------------------------------------------------------------------------------------------

    @property
    def decided(self) -> int:
        """How many calls that were measured decide something."""
        return sum(bool(point.winner) for group in self._groups.values() for point in group.points)

    def _is_other(self, record: Record) -> str:
        """Why a record is not of such devices and of the op as it is now; empty where it is."""
        key, known = record.key, contracts().get(self._op)
        if (key.target, key.units) != (str(self._target), self._units):
            return f"it is of {key.target} with {key.units} units, whatever its folder says"
        if key.regime != self._regime:
            return f"measured in {key.regime}, and {self._regime} decides"
        if known is None or record.contract != contract_digest(known):
            return f"the contract of {self._op} has changed since it was measured"
        return ""

    def _add(self, several: Sequence[Record]) -> None:
        """The point of a key: by the first store whose record decides."""
        judged = [(one, sources, decide(one, sources, self._order(one))) for one, sources in map(self._now, several)]
        record, valid, outcome = next((one for one in judged if one[2].kernel is not None), judged[0])
        key = record.key
        group = self._groups.setdefault((key.kind.text, tuple(sorted(key.dims))), _Group(key.kind))
        group.records.append(record)
        is_void = all(valid.get(name) != entry.source for name, entry in record.kernels.items())
        if outcome.kernel is None:
            self.undecided[outcome.why] += 1
            is_stale = any(valid.get(name) != entry.source for name, entry in record.kernels.items())
            is_stale |= not record.kernels.keys() >= set(self._order(record))
            silence: Silence = "busy" if record.busy else "stale" if is_stale else "open"
            self._silences.add(key.kind.text, key.dims, silence)
        if outcome.kernel is not None or not (record.busy or is_void):  # else it is as if nobody had measured there
            ready = self._ready(record, valid, outcome)
            group.points.append(Point(key.dims, outcome.kernel or "", outcome.why, outcome.ratio, ready))
        else:
            group.unused.append(Point(key.dims, "", outcome.why))

    def _ready(self, record: Record, valid: Mapping[str, str], outcome: Outcome) -> str:
        """Who wins among those that need not be built, where the winner has to be."""
        if outcome.kernel is None or not self._kernels[outcome.kernel].needs_build:
            return ""
        order = [name for name in self._order(record) if not self._kernels[name].needs_build]
        return decide(record, valid, order).kernel or ""

    def _now(self, record: Record) -> tuple[Record, Mapping[str, str]]:
        """A record, and the sources of its kernels as they are now; not of those that are not here."""
        here = (name for name in record.kernels if name in self._kernels)
        return record, {name: source_digest(self._kernels[name]) for name in here}

    def _order(self, record: Record) -> list[str]:
        """The kernels that serve the record's call, as priorities have them."""
        kind = record.key.kind
        if (request := self._requests.get(kind.text)) is None:
            request = self._requests[kind.text] = _request(kind, self._target)
        request = replace(request, dims=record.key.dims)
        known = [kernel for name, kernel in self._kernels.items() if name in record.kernels]
        numbers = {kernel.name: kernel.priority.of(request) for kernel in known}
        first = max((numbers[kernel.name] for kernel in known if _tier(kernel) == _FIRST_PARTY), default=-1)
        for kernel in self._newcomers:
            if kernel.name not in record.kernels and _goes_first(kernel, request, first, self._spaces):
                known.append(kernel)
                numbers[kernel.name] = kernel.priority.of(request)
        known.sort(key=lambda kernel: (_tier(kernel), -numbers[kernel.name], kernel.name))
        return [kernel.name for kernel in known]

    def _may_come(self, kernel: Kernel) -> bool:
        """Whether priorities may pick a kernel on such devices here, though no record has it."""
        if _tier(kernel) != _FIRST_PARTY or kernel.disabled is not None:
            return False
        anything = Request(self._op, self._target)
        served = any(one.serving_target(anything, self._spaces) is not None for _, one in kernel.variants)
        wanted = ((module, kernel.distributions.get(module, "")) for module in kernel.requires)
        return served and all(installed_version(*one) is not None for one in wanted)

    def _otherwise(self, kind: Kind, dims: Mapping[str, int]) -> Iterator[str]:
        """What there is in place of measurements of this kind: those of another regime, or of the nearest kind."""
        place = (str(self._target), self._units)
        found = (read(folder_of(root, *place), self._op).records.values() for root in self._roots)
        others = {str(r.key.regime) for records in found for r in records if r.key.kind.text == kind.text}
        if others := others - {str(self._regime)}:
            yield f"regime: it was measured in {' and '.join(sorted(others))} alone, and {self._regime} decides"
        else:
            nothing = "no call of this kind was measured on such a device"
            yield self._with_nearest(nothing, self._groups.values(), kind, dims)

    def _with_nearest(self, text: str, groups: Iterable[_Group], kind: Kind, dims: Mapping[str, int]) -> str:
        """``text``, and the nearest of what was measured, where something was."""
        known = [
            Known(group.kind, {name: (size, size) for name, size in point.dims.items()}, _named(point, unused=unused))
            for group in groups
            for points, unused in ((group.points, False), (group.unused, True))
            for point in points
        ]
        near = nearest(known, kind, dims)
        return f"{text}; {near}" if near else text

    def _elsewhere(self, kind: Kind) -> Iterator[str]:
        """Where calls of this kind were measured: on devices of this architecture with more units, or fewer."""
        target = str(self._target)
        of_a_cpu = " (processors that torch's threads use at once)" if self._target.vendor == "cpu" else ""
        near = [units for place, units in places(self._roots) if place == target and units != self._units]
        for units in sorted(near):
            found = [read(folder_of(root, target, units), self._op).records.values() for root in self._roots]
            if any(record.key.kind.text == kind.text for records in found for record in records):
                yield f"measured on {target} with {units} units{of_a_cpu}, not {self._units}: not used"


def _widths(contract: Contract) -> frozenset[str]:
    """The last dimensions of tensors with several that every call has, or returns: how wide rows are."""
    made = contract.at()
    needed = [tensor.sizes for tensor in made.tensors if not tensor.optional]
    needed += [result.shape for result in made.outputs if isinstance(result.shape, tuple)]
    last = (parse_size(sizes[-1]) for sizes in needed if len(sizes) > 1 and names_in(sizes[-1]) is None)
    return frozenset(size.name for size in last if size.name is not None)


def _goes_first(kernel: Kernel, request: Request, first: int, spaces: Mapping[str, ArchSpace]) -> bool:
    """Whether a kernel that was not there when it was measured would be picked before those that were.

    For backward nobody is who reads what its own forward saves: that is chosen with the forward.
    """
    if request.phase is Phase.BACKWARD and kernel.is_paired:
        return False
    if kernel.priority.of(request) < first or not kernel.serves(request.phase):
        return False
    return any(not capability.rejections(request, spaces) for _, capability in kernel.variants)


def _tier(kernel: Kernel) -> int:
    return _REFERENCE if kernel.is_reference else _FIRST_PARTY if kernel.first_party else _THIRD_PARTY


def _request(kind: Kind, target: Target) -> Request:
    """A request of this kind, without sizes. Of memory it says nothing where the kind's is not plain."""
    contract = contracts()[kind.op]
    placed = {p.name: kind.formats.get(p.of or p.name) for p in contract.parameters if p.kind == "format"}
    placed |= {p.name: kind.dtypes.get(p.name) for p in contract.parameters if p.kind == "dtype"}
    given = {name: value for name, value in (placed | dict(kind.features)).items() if value is not None}
    known = {parameter.name: given.get(parameter.name, parameter.default) for parameter in contract.parameters}
    values = {n: tuple(value) if isinstance(value, list) else value for n, value in known.items()}
    present = [tensor.name for tensor in contract.tensors if tensor.name in kind.dtypes]
    plain = {f"{name}.{fact}": value for name in present for fact, value in PLAIN_FACTS.items()}
    return Request(
        op=kind.op,
        target=target,
        dtypes=kind.dtypes,
        facts={} if kind.layout else plain,
        features=asked_features(contract, values, present),
        formats=kind.formats,
        values=values,
        absent=frozenset(contract.names).difference(present),
        phase=Phase(kind.phase),
    )


def _choices(group: _Group) -> Iterator[Choice]:
    for piece in group.pieces:
        if piece.winner:
            sizes = ", ".join(f"{name} {_range(*bounds)}" for name, bounds in piece.bounds.items())
            where = f"what was measured at {sizes}" if sizes else "what was measured"
            yield Choice(piece.winner, group.kind, piece.bounds, where, _why(piece), piece.ready)


def _named(point: Point, *, unused: bool) -> str:
    """How a reason names a record: by its sizes, and why nothing is decided by it, where it counts for nothing."""
    sizes = ", ".join(f"{name} {size}" for name, size in point.dims.items())
    return "the record" + f" of {sizes}" * bool(sizes) + f" (not used: {point.why})" * unused


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _why(piece: Piece) -> str:
    """What speaks for a piece's kernel: the ratios of times at its points, and the greatest of their bounds."""
    ratios: list[Bounds] = [point.ratio for point in piece.points if point.ratio is not None]
    if len(ratios) < len(piece.points):
        return "no other is faster by more than 2 %"
    least, most = min(ratio[1] for ratio in ratios), max(ratio[1] for ratio in ratios)
    span = f"{least:.2f}" if f"{least:.2f}" == f"{most:.2f}" else f"{least:.2f} to {most:.2f}"
    return f"{span} of the time of what priorities pick, at most {max(ratio[2] for ratio in ratios):.2f}"


def _stale(records: Sequence[Record], *, driver: str, torch: str) -> Iterator[str]:
    for what, now, then in (
        ("driver", driver, {record.driver for record in records}),
        ("torch", torch, {record.torch for record in records}),
    ):
        others = sorted(then - {now, ""})
        if now and others:
            yield f"measured with {what} {' and '.join(others)}, not {now}: `portakernel tune --stale` repeats it"
