"""Reading a plan: its form first, the whole file's; then, of the parts that a machine follows, names and sources.

A plan is refused whole, with all that is wrong: half of one would be a plan that nobody has reviewed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from portakernel.contracts import contracts
from portakernel.errors import ArgumentValueError, ManifestError, PlanError, nearest
from portakernel.host.regular_file import read_regular
from portakernel.manifest.loading import load_manifest, problem
from portakernel.manifest.yaml_file import MAX_BYTES, Document
from portakernel.plan.boxes import overlapping
from portakernel.plan.document import EntryPart, PlanDocument
from portakernel.plan.judging import Problem, judged, notes_on, targets_here
from portakernel.plan.pins import SourceOf
from portakernel.plan.plan import Entry, MadeWith, Pin, Place, Plan
from portakernel.registry.registry import Registry
from portakernel.text.printable import one_line
from portakernel.tuning.key import Regime
from portakernel.tuning.sources import source_digest

_COMMENT = re.compile(r"\}\s+#\s*(.*)$")
_LONGEST_COMMENT = 200


def read_plan(
    path: str | Path,
    registry: Registry,
    *,
    named_by: str = "",
    here: Collection[str] | None = None,
    source_of: SourceOf = source_digest,
) -> Plan:
    """The plan at ``path``; of the parts for targets ``here`` names and sources are held against ``registry``.

    ``here`` are targets without units, by default those of this machine's devices; ``named_by`` is who asked for the
    plan. Other targets' parts are read for their form alone.

    Raises:
        PlanError: it is refused; holds every place that is not as it has to be.
    """
    plan, document = _read(path, named_by)
    here = targets_here(registry) if here is None else here
    places = [place for place in plan.parts if place.target in here]
    if problems := _told(document, judged(plan, places, registry, source_of)):
        raise PlanError(str(path), problems, named_by=named_by)
    return replace(plan, notes=tuple(notes_on(plan, places, registry, source_of)))


def read_form(path: str | Path, *, named_by: str = "") -> Plan:
    """The plan at ``path``, whatever is installed here.

    Raises:
        PlanError: it has not the form of a plan, contradicts itself, or has another digest than it says.
    """
    return _read(path, named_by)[0]


def problems_of(
    path: str | Path, places: Collection[Place], registry: Registry, source_of: SourceOf = source_digest
) -> list[str]:
    """What is wrong with names and sources in a plan's parts for these places, with file and line.

    What is installed where hardware is that is not here is taken to be as in the plan.

    Raises:
        PlanError: it has not the form of a plan.
    """
    plan, document = _read(path, "")
    return _told(document, judged(plan, places, registry, source_of, granted=True))


def _told(document: Document, problems: Iterator[Problem] | Sequence[Problem]) -> list[str]:
    """The problems as sentences, from the top of the file down."""
    ordered = sorted(problems, key=lambda found: document.line(found[0]))
    return [problem(document, where, text) for where, text in ordered]


def _read(path: str | Path, named_by: str) -> tuple[Plan, Document]:
    file = Path(path).expanduser()
    try:
        loaded = load_manifest(PlanDocument, file, strict=True)
    except ManifestError as error:
        raise PlanError(str(path), error.problems, named_by=named_by) from error
    document, found = loaded.document, list[Problem]()
    plan = _plan(loaded.manifest, document, found, _comments(file))
    found += _contradictions(plan)
    said = loaded.manifest.digest
    if said is not None and not found and said != plan.digest:
        text = f"is {said}, and what stands above has {plan.digest}: a decision, or a source, was changed since"
        found.append((("digest",), f"{text}. Review it, then write that one here, or leave the line out"))
    if found:
        raise PlanError(str(path), _told(document, found), named_by=named_by)
    return plan, document


def _comments(file: Path) -> list[str]:
    """What stands behind the entry in each line; empty where nothing does, or it has several lines."""
    try:
        lines = read_regular(file, limit=MAX_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:  # gone since it was read: comments decide nothing
        return []
    found = (_COMMENT.search(line) for line in lines)
    return [one_line(match[1].strip())[:_LONGEST_COMMENT] if match else "" for match in found]


def _plan(read: PlanDocument, document: Document, found: list[Problem], comments: Sequence[str]) -> Plan:
    parts: dict[Place, dict[str, tuple[Entry, ...]]] = {}
    by_line = dict(enumerate(comments, 1))
    made_with: dict[Place, MadeWith] = {}
    for text, ops in read.targets.items():
        try:
            place = Place.parse(text)
        except ArgumentValueError as error:
            found.append((("targets", text), str(error)))
            continue
        parts[place] = {}
        for op, entries in ops.items():
            lines = [document.line(("targets", text, op, i)) for i in range(len(entries))]
            several = zip(entries, lines, strict=True)
            parts[place][op] = tuple(_entry(entry, line, by_line.get(line, "")) for entry, line in several)
    for text, made in read.made_with.items():
        try:
            made_with[Place.parse(text)] = MadeWith(made.driver, made.torch)
        except ArgumentValueError as error:
            found.append((("made_with", text), str(error)))
    pins = {name: Pin(pinned.source, dict(pinned.requires)) for name, pinned in read.kernels.items()}
    name, first = one_line(Path(document.path).name), {at: document.line(("targets", str(at))) for at in parts}
    return Plan(parts, pins, read.lock, Regime(read.regime), made_with, name=name, lines=first)


def _entry(read: EntryPart, line: int, comment: str) -> Entry:
    return Entry(
        read.use,
        read.dtype or dict(read.dtypes or {}),
        read.phase,
        dict(read.formats),
        dict(read.features),
        tuple(read.layout),
        dict(read.__pydantic_extra__ or {}),
        comment,
        line,
    )


def _contradictions(plan: Plan) -> Iterator[Problem]:
    """Kernels that are not pinned, and sizes that two entries of one kind leave to two kernels."""
    for place, ops in plan.parts.items():
        for op, entries in ops.items():
            kinds: dict[str, list[int]] = {}
            for i, entry in enumerate(entries):
                kinds.setdefault(entry.kind_text(op), []).append(i)
                if entry.kernel not in plan.pins:
                    where = ("targets", str(place), op, i, "use")
                    text = f"{entry.kernel} has no source under `kernels`: write `{entry.kernel}: {{source: …}}` there"
                    yield where, f"{text} if it is meant; {nearest(entry.kernel, plan.pins)}"
            for places in kinds.values():
                several = [entries[i] for i in places]
                boxes, kernels = [entry.bounds for entry in several], [entry.kernel for entry in several]
                for first, second in overlapping(boxes, kernels):
                    text = f"line {several[first].line} has {kernels[first]} for some of these sizes"
                    text += f", and this {kernels[second]}{_misspelled(op, (*boxes[first], *boxes[second]))}"
                    yield ("targets", str(place), op, places[second]), text


def _misspelled(op: str, dims: Iterable[str]) -> str:
    """Which of the dimensions the op has not, where it is known here: such a one keeps no two entries apart."""
    known = contracts()[op].dims if op in contracts() else tuple(dims)
    unknown = [name for name in dict.fromkeys(dims) if name not in known]
    return "".join(f"; {op} has no dimension {name!r}: {nearest(name, known)}" for name in unknown)
