"""What ``portakernel lint`` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from portakernel.cli.output import Cell, Page, Style
from portakernel_kit.cli.check.report import shortened

if TYPE_CHECKING:
    from portakernel_kit.conformance.observing.observation import Findings, Observation, Observed, Outcome, Verdict

_VERDICTS: Mapping[Verdict, tuple[str, Style]] = {
    "would_have_worked": ("would have worked", "doubt"),
    "right": ("right", ""),
    "not_tried": ("not tried", "faint"),
}
_OUTCOMES: Mapping[Outcome, str] = {
    "wrong": "wrong",
    "declined": "refused by the kernel itself",
    "raised": "raised",
    "ended": "ended its process",
    "hung": "did not end",
}


def print_findings(out: Page, findings: Findings) -> None:
    """One kernel: whether its claims hold, and what comes of each refusal."""
    if not findings.ran:
        out.line(f"{findings.kernel} cannot run here: {findings.reason}", "faint")
        return
    out.heading(f"{findings.kernel} on {', '.join(filter(None, (findings.device, findings.mode)))}")
    if findings.results:
        counts = findings.counts()
        told = f": {counts['passed']} passed, {counts['skipped']} skipped"
        told += f", {counts['declined']} of them by the kernel itself" if counts["declined"] else ""
        holds = Cell("every claim holds", "good")
        out.line([Cell(f"{counts['failed']} results fail", "bad") if counts["failed"] else holds, Cell(told)], indent=2)
    observed = findings.observed()
    rows = [(Cell(*_VERDICTS[o.verdict]), o.refusal.claim, _told(o)) for o in observed]
    if rows:
        out.table(rows, ("refusal", "for", "observed"), indent=2)
    if findings.planned is not None and findings.planned.several:
        text = f"{findings.planned.several} more cases are refused for several reasons, which says nothing of any one"
        out.line(text, "faint", indent=2)


def _told(observed: Observed) -> str:
    """What came of the cases of one claim."""
    correct, unjudged = observed.of("correct"), observed.of("unjudged")
    if observed.verdict == "right":
        counts = ((text, len(observed.of(outcome))) for outcome, text in _OUTCOMES.items())
        told = ", ".join(f"{text} in {count}" for text, count in counts if count)
        tried = len(observed.observations) - len(unjudged)
        return f"{told} of {tried}: {_example(observed.of(*_OUTCOMES)[0])}"
    parts = [f"correct in {len(correct)}"] if correct else []
    parts += [f"{len(unjudged)} could not be judged"] if unjudged else []
    parts += [f"{observed.left} left untried"] if observed.left else []
    none = "no case shows it" if observed.refusal.cases else "no case is refused for it alone"
    shown = [*(correct or unjudged)][:1]
    return ", ".join(parts or [none]) + "".join(f": {_example(observation)}" for observation in shown)


def _example(observation: Observation) -> str:
    return shortened(f"{observation.case} {observation.detail}".rstrip())


def print_summary(out: Page, found: Sequence[Findings], seed: int, *, interrupted: bool) -> None:
    """What it comes to."""
    out.heading(f"Interrupted, seed {seed}" if interrupted else f"Declared and observed, seed {seed}")
    ran = [findings for findings in found if findings.ran]
    failing = [findings.kernel for findings in ran if findings.failures]
    observed = [(findings.kernel, o) for findings in ran for o in findings.observed()]
    verdicts = [o.verdict for _, o in observed]
    if not ran:
        out.line("nothing ran: `portakernel doctor` says which kernels are ready here", "bad", indent=2)
        return
    if failing:
        out.line(f"claims fail: {', '.join(failing)}", "bad", indent=2)
    told = ", ".join(f"{verdicts.count(v)} {text}" for v, (text, _) in _VERDICTS.items())
    out.line(f"{len(ran)} of {len(found)} kernels ran; of {len(verdicts)} refusals {told}", indent=2)
    for kernel, o in observed:
        if o.verdict == "would_have_worked":
            left = f", {o.left} left untried" if o.left else ""
            out.line(f"{kernel}: {o.refusal.claim}{left}", "doubt", indent=4)
