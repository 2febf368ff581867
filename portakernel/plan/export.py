"""A plan from choices: those that measurements made, or anybody else's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from portakernel.errors import ArgumentValueError
from portakernel.plan.boxes import overlapping, without
from portakernel.plan.pins import SourceOf, pin
from portakernel.plan.plan import WORDS, Entry, Lock, MadeWith, Pin, Place, Plan
from portakernel.registry.registry import Registry
from portakernel.tuning.choices import Choice
from portakernel.tuning.key import Regime
from portakernel.tuning.sources import source_digest


def make_plan(
    choices: Mapping[Place, Iterable[Choice]],
    registry: Registry,
    *,
    regime: Regime = Regime.GRAPH_COLD,
    lock: Lock = "listed",
    made_with: Mapping[Place, MadeWith] | None = None,
    beside: Plan | None = None,
    source_of: SourceOf = source_digest,
) -> Plan:
    """The plan that says these choices, their ``why`` as comments; of two that cover a call the first one holds.

    ``beside`` is a plan whose other places stay as they are.

    Raises:
        ArgumentValueError: a kernel that nobody here has, a dimension that has a word's name, or a kernel whose source
            is another one here than ``beside`` has it.
    """
    parts: dict[Place, Mapping[str, tuple[Entry, ...]]] = {}
    pins: dict[str, Pin] = {}
    whole: dict[Place, MadeWith] = {}
    if beside is not None:
        parts = {place: ops for place, ops in beside.parts.items() if place not in choices}
        pins = {entry.kernel: beside.pins[entry.kernel] for place, _, entry in beside.entries() if place in parts}
        whole = {place: made for place, made in beside.made_with.items() if place in parts}
    for place, several in choices.items():
        parts[place] = _entries(several)
        for name in dict.fromkeys(entry.kernel for entries in parts[place].values() for entry in entries):
            if name not in registry.kernels:
                raise ArgumentValueError(f"plan: {name} is chosen on {place}, and no kernel here is called that")
            found = pin(registry.kernels[name], source_of)
            if pins.setdefault(name, found).source != found.source:
                text = f"{name} has the source {found.source} here, and {pins[name].source} in the other targets' parts"
                raise ArgumentValueError(f"plan: {text}: a plan has one; write two, or install the same there")
    return Plan(parts, pins, lock, regime, {**whole, **(made_with or {})})


def _entries(choices: Iterable[Choice]) -> dict[str, tuple[Entry, ...]]:
    """Entries by op, which share no call."""
    kinds: dict[str, list[Choice]] = {}
    found: dict[str, list[Entry]] = {}
    for choice in choices:
        kinds.setdefault(choice.kind.text, []).append(choice)
        if clashing := sorted(choice.bounds.keys() & set(WORDS)):
            text = f"{choice.kind.op} has a dimension {clashing[0]!r}, which is a plan's own word"
            raise ArgumentValueError(f"plan: {text}: it cannot be written")
    for several in kinds.values():
        boxes = [choice.bounds for choice in several]
        shared = {second for _, second in overlapping(boxes, [str(i) for i in range(len(boxes))])}
        for i, choice in enumerate(several):
            for box in without(choice.bounds, boxes[:i]) if i in shared else [choice.bounds]:
                entry = Entry.of(replace(choice, bounds=box))
                found.setdefault(choice.kind.op, []).append(entry)
    return {op: tuple(entries) for op, entries in found.items()}
