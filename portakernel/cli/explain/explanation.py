"""A decision told in sentences: what was asked, who serves it and why, the strongest rivals, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from portakernel.claims.capability import ReasonCode
from portakernel.claims.request import changed_values
from portakernel.cli.advice import advice, of_nearest_variant
from portakernel.cli.options import COMMAND_LINE
from portakernel.cli.output import Cell, Page, Style
from portakernel.contracts import contract
from portakernel.deciding.ranking import tier

if TYPE_CHECKING:
    from portakernel.claims.request import Request
    from portakernel.deciding.decision import Decision
    from portakernel.deciding.ranking import Candidate
    from portakernel.registry.kernel import Kernel
    from portakernel.registry.registry import Registry
    from portakernel.words.graph_forms import GraphForm
    from portakernel.words.target import Target

STRONGEST = 3
# Kernels for other hardware are no rivals: nothing about the call would make them serve.
_ELSEWHERE = frozenset({ReasonCode.VENDOR, ReasonCode.ARCH, ReasonCode.ATTACHED_TARGET})


# How much of one kernel's reasons people are shown.
_SHOWN_REASONS, _SHOWN_STEPS = 2, 3


def print_explanation(page: Page, decision: Decision, registry: Registry, freed: Decision | None = None) -> None:
    """Prints the decision for people: every candidate, with all of its reasons if they are about more than hardware.

    ``freed`` is the decision without what a policy uses strictly, where nothing serves because of it.
    """
    first = strongest(decision)
    others = [candidate for candidate in decision.candidates if candidate not in first]
    page.line(f"{asked(decision.request, registry)}.", "strong")
    page.line()
    if decision.chosen is None:
        page.line("No kernel can serve it.", "bad")
    else:
        page.line([Cell(decision.chosen.name, "good"), f" serves it: {_why(decision)}."])
        slow = decision.chosen.is_reference and decision.form != "inline"
        if slow and not _on_cpu(decision.request.target, registry):
            page.line("It is the reference: correct, but not fast.", "doubt")
    for sentence in _assumed(decision):
        page.line(sentence, "faint")
    for shortfall in decision.shortfalls:
        page.line(f"Note: {shortfall.text}.", "doubt" if shortfall.state == "absent" else "faint")
    for note in decision.notes:
        page.line(f"Note: {note}.", "doubt")
    if first:
        page.heading("The strongest candidates")
        page.table([row for candidate in first for row in _told(candidate, decision)], indent=2)
    if others:
        page.heading("The others" if first else "Every kernel of the op")
        page.table(_by_reason(others), indent=2)
    if steps := list(next_steps(decision, freed)):
        page.heading("What to do")
        for step in steps:
            page.line(step, indent=2)


def strongest(decision: Decision) -> list[Candidate]:
    """At most three: the winner, those that only this call keeps from going before it, then those that come next.

    Where nothing serves: those that a policy lets serve alone, or those with the fewest reasons against them.
    """
    if decision.chosen is None and decision.strict:
        return list(decision.strict[:STRONGEST])
    if decision.chosen is None:
        near = [candidate for candidate in decision.candidates if not _is_elsewhere(candidate)]
        near.sort(key=lambda c: (len(c.rejections), tier(c), -c.priority, c.kernel.name))
        return near[:STRONGEST]
    eligible = [candidate for candidate in decision.candidates if candidate.status == "eligible"]
    return [decision.candidates[0], *refused(decision), *eligible][:STRONGEST]


def refused(decision: Decision) -> list[Candidate]:
    """The candidates that would go before the winner, did nothing about this call speak against them."""
    before = (decision.candidate(name) for name in decision.passed_over)
    return [candidate for candidate in before if not _is_elsewhere(candidate)]


def asked(request: Request, registry: Registry) -> str:
    """What the decision is about: the op, the hardware, the part of the op, and what was said of its arguments."""
    device, described = request.device, contract(request.op)
    if device is not None:
        where = f"this machine's {device.name} ({request.target}, torch device {device.torch_device})"
    else:
        backend = next((b for b in registry.backends.values() if b.vendor == request.target.vendor), None)
        facts = backend.archs.get(request.target.arch) if backend is not None else None
        where = f"{request.target}, {facts.name}" if facts is not None else str(request.target)
        where += f" with {request.units} units" if request.units is not None else ""
    parts = [f"{_listed(names)} {dtype}" for dtype, names in _grouped(request.dtypes).items()]
    parts += [f"{_listed(names)} in scale format {name}" for name, names in _grouped(request.formats).items()]
    parts += [f"{name}={size}" for name, size in request.dims.items()]
    parts += [f"{name}={value!r}" for name, value in changed_values(described, request.values).items()]
    parts += [f"{name} given" for name in request.features if name in described.names]
    parts += [f"required: {_listed(sorted(request.requires))}"] if request.requires else []
    unsaid = [] if any(name in request.dtypes for name in described.names) else ["dtypes"]
    unsaid += [] if request.dims else ["sizes"]
    parts += [f"{' and '.join(unsaid)} left open"] if unsaid else []
    compiled = " in a compiled graph" if request.compiled else ""
    return f"{request.op} on {where}, for {request.phase}{compiled}, with {', '.join(parts)}"


def next_steps(decision: Decision, freed: Decision | None = None) -> Iterator[str]:
    """How the call could be served, or served by a better kernel."""
    if freed is not None and freed.chosen is not None:
        yield f"Without {_listed(_users(decision))} {freed.chosen.name} serves it."
    candidates = strongest(decision) if decision.chosen is None else refused(decision)
    found = False
    for candidate in candidates:
        rejections = [rejection for rejection in candidate.rejections if rejection.code is not ReasonCode.NEEDS_BUILD]
        # a build alone helps only where nothing else is in its way
        rejections = of_nearest_variant(candidate.kernel, rejections or candidate.rejections)
        steps = dict.fromkeys(advice(candidate.kernel, one) for one in rejections)
        # what would have to be another call altogether is no advice
        if steps and all(steps) and len(steps) <= _SHOWN_STEPS:
            found = True
            yield f"For {candidate.kernel.name}: {'; '.join(steps)}."
    if decision.chosen is None and not found and (freed is None or freed.chosen is None):
        yield f"`portakernel matrix --op {decision.request.op}` shows where it is served, and in which dtypes."


def _users(decision: Decision) -> list[str]:
    """What uses kernels strictly: an option, a variable, a line of a policy file."""
    sources = dict.fromkeys(decision.wishes.use.values() if decision.wishes is not None else ())
    return ["--use" if source == COMMAND_LINE else source for source in sources]


def _why(decision: Decision) -> str:
    variant = f"; variant {decision.candidates[0].variant}" if decision.candidates[0].variant else ""
    place = f"; on {decision.target}" if decision.target != decision.request.target else ""
    return decision.why + variant + place


def _assumed(decision: Decision) -> Iterator[str]:
    """What was taken for granted of the winner."""
    if decision.chosen is None or not decision.candidates[0].assumed:
        return
    unprobed = decision.request.device is None
    because = f"Assumed, because {decision.request.target} was not probed" if unprobed else "Assumed"
    yield f"{because}: {'; '.join(decision.candidates[0].assumed)}."


def _told(candidate: Candidate, decision: Decision) -> Iterator[tuple[Cell, str]]:
    """A strong candidate's rows: a sentence with its first reason, and one for each further one."""
    styles: dict[str, Style] = {"chosen": "good", "eligible": "strong", "rejected": "doubt"}
    match candidate.status:
        case "chosen":
            how = _FORMS[candidate.form] if candidate.form is not None else "serves"
            told = [f"{how}, with priority {candidate.priority}; {_source(candidate.kernel)}."]
        case "eligible":
            taken = decision.candidates[0].assumed
            further = [text for text in candidate.assumed if text not in taken]
            assumed = f" Assumed: {'; '.join(further)}." if further else ""
            told = [f"could serve too: {'; '.join(rejection.text for rejection in candidate.rejections)}.{assumed}"]
        case "rejected":
            lead = _lead(candidate, decision)
            first, *further = [f"{rejection.text} ({rejection.code})" for rejection in candidate.rejections]
            told = [f"{lead}cannot serve: {first}.", *(f"also: {reason}." for reason in further[:_SHOWN_REASONS])]
            if (rest := len(further) - _SHOWN_REASONS) > 0:
                told.append(f"and {rest} more reason{'s' * (rest > 1)} (--json has them all)")
    for i, sentence in enumerate(told):
        yield (Cell(candidate.kernel.name, styles[candidate.status]) if i == 0 else Cell("")), sentence


def _lead(candidate: Candidate, decision: Decision) -> str:
    """By what a refused candidate would go before the winner; empty where it would not."""
    kernel, priority, winner = candidate.kernel, candidate.priority, decision.candidates[0]
    if kernel.name not in decision.passed_over:
        return ""
    wishes = decision.wishes
    named = wishes is not None and kernel.name in {**wishes.use, **wishes.prefer}
    if not named and (tier(candidate), priority) == (tier(winner), winner.priority):
        return f"would go first by its name, with the same priority {priority}, but "
    return f"would go first, with priority {priority}, but "


# How a compiled graph holds what serves.
_FORMS: Mapping[GraphForm, str] = {
    "inline": "stands inline in the graph, for Inductor to fuse",
    "kernel": "stands in the graph, and Inductor launches it",
    "call": "is called by the graph",
}


def _source(kernel: Kernel) -> str:
    if kernel.package is None:
        return "the formula in plain torch operators"
    return f"from plugin {kernel.plugin if kernel.first_party else kernel.package}"


def _by_reason(candidates: Iterable[Candidate]) -> list[tuple[str, str]]:
    """Each reason with the kernels that it holds for; a kernel with several stands at each of them."""
    reasons = [
        (f"{rejection.code}: {rejection.text}", candidate.kernel.name)
        for candidate in candidates
        for rejection in candidate.rejections
        if rejection.code in _ELSEWHERE or not _is_elsewhere(candidate)
    ]
    names: dict[str, list[str]] = {}
    for reason, name in reasons:
        names.setdefault(reason, []).append(name)
    return [(reason, ", ".join(several)) for reason, several in names.items()]


def _grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    """The keys of each value, in order."""
    found: dict[str, list[str]] = {}
    for key, value in values.items():
        found.setdefault(value, []).append(key)
    return found


def _listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _is_elsewhere(candidate: Candidate) -> bool:
    return any(rejection.code in _ELSEWHERE for rejection in candidate.rejections)


def _on_cpu(target: Target, registry: Registry) -> bool:
    return any(b.vendor == target.vendor and b.torch_device == "cpu" for b in registry.backends.values())
