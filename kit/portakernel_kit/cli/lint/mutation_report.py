"""What ``portakernel lint --mutate`` prints for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from portakernel.cli.output import Cell, Page, Style
from portakernel_kit.cli.check.report import shortened

if TYPE_CHECKING:
    from portakernel_kit.conformance.mutation.mutation import Kind, Mutated, Verdict

_VERDICTS: Mapping[Verdict, tuple[str, Style]] = {
    "noticed": ("noticed", "good"),
    "would_have_worked": ("would have worked", "doubt"),
    "unnoticed": ("unnoticed", "bad"),
    "skipped": ("skipped", "faint"),
}
_KINDS: Mapping[Kind, str] = {
    "widened": "no longer refused",
    "removed": "no longer claimed",
    "required": "no longer there",
}


def print_mutated(out: Page, known: Mutated) -> None:
    """One kernel, or one manifest: what was changed, and who noticed it. What was skipped is told by its reasons."""
    place = ", ".join(filter(None, (known.device, known.mode)))
    out.heading(f"{known.subject} on {place}" if place else known.subject)
    for kind, header in _KINDS.items():
        rows = [
            (judged.mutation.claim, Cell(*_VERDICTS[judged.verdict]), judged.by, shortened(judged.detail))
            for judged in known.judged
            if judged.mutation.kind == kind and judged.verdict != "skipped"
        ]
        if rows:
            out.table(rows, (header, "", "by", "what"), indent=2)
    reasons = Counter(judged.detail for judged in known.judged if judged.verdict == "skipped")
    for reason, count in reasons.items():
        out.line(f"{count} skipped: {reason}", "faint", indent=2)
    if known.left:
        out.line(f"{known.left} not tried", "faint", indent=2)


def print_summary(out: Page, found: Sequence[Mutated], seed: int, *, interrupted: bool) -> None:
    """What it comes to: how many of each verdict, and each that went unnoticed."""
    out.heading(f"Interrupted, seed {seed}" if interrupted else f"Mutations, seed {seed}")
    rows = []
    for kind in _KINDS:
        verdicts = Counter(j.verdict for known in found for j in known.judged if j.mutation.kind == kind)
        rows.append(
            (kind, *(Cell(str(verdicts[v]), style if verdicts[v] else "") for v, (_, style) in _VERDICTS.items()))
        )
    out.table(rows, ("", *(text for text, _ in _VERDICTS.values())), indent=2, right=(1, 2, 3, 4))
    for verdict in ("would_have_worked", "unnoticed"):
        text, style = _VERDICTS[verdict]
        for judged in (j for known in found for j in known.judged if j.verdict == verdict):
            why = f": {judged.detail}" if verdict == "unnoticed" else ""
            out.line(f"{text}: {judged.mutation.subject}: {judged.mutation.claim}{why}", style, indent=2)
    if not any(judged.verdict == "noticed" for known in found for judged in known.judged):
        out.line("nothing was proven: `portakernel doctor` says which kernels are ready here", "bad", indent=2)
