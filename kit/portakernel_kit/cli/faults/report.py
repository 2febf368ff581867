"""What ``portakernel faults`` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from portakernel.cli.output import Cell, Page, Style
from portakernel_kit.cli.check.report import NOT_READY, shortened

if TYPE_CHECKING:
    from portakernel_kit.faults.fault import Judged, Verdict
    from portakernel_kit.faults.results import Results, Row
    from portakernel_kit.faults.serving import Baseline

_VERDICTS: Mapping[Verdict, tuple[str, Style]] = {
    "killed": ("killed", "good"),
    "proven": ("proven", "good"),
    "equal": ("equal", "faint"),
    "alive": ("alive", "bad"),
    "unproven": ("unproven", "bad"),
    "not_run": ("not run", "faint"),
}


def print_baseline(out: Page, baseline: Baseline) -> None:
    """An unchanged kernel: where it was measured, or why it was not, or what is wrong with it."""
    place = ", ".join(filter(None, (baseline.place, baseline.mode)))
    if baseline.fails:
        out.line(f"{baseline.kernel} is wrong without any fault: {baseline.fails}", "bad")
    elif baseline.absent:
        out.line(f"{baseline.kernel} does not run here: {baseline.absent}", "faint")
    else:
        out.line(f"{baseline.kernel} on {place}: {baseline.requests} requests measured", "faint")


def print_judged(out: Page, judged: Judged) -> None:
    """One fault: where it is, the diff in one line, and who found it."""
    text, style = _VERDICTS[judged.verdict]
    fault = judged.fault
    out.line(f"{text} {fault.id} {fault.where} {fault.kind}: {difference(judged)}", style)
    told = " ".join(filter(None, (judged.by, judged.kernel, judged.case)))
    detail = ": ".join(filter(None, (told, shortened(judged.detail))))
    if detail:
        out.line(detail, indent=4)
    if judged.again:
        out.line(f"portakernel check --one '{judged.again}'", "faint", indent=4)


def difference(judged: Judged) -> str:
    """The replaced text beside the new one, in the line where it begins."""
    fault = judged.fault
    before, after = _in_one_line(fault.before), _in_one_line(fault.after) or "nothing"
    return f"`{before}` → `{after}` in `{fault.text}`" if before != fault.text else f"`{before}` → `{after}`"


def _in_one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 160 else f"{words[:157]}..."


def print_summary(out: Page, results: Results, again: str, *, interrupted: bool) -> None:
    """A table for each op, what is left out, each survivor, and how it is tried again."""
    if results.fails:
        text = f"nothing was tried: {results.plugin} fails as it is, which `portakernel check` shows"
        out.line(text, "bad")
        return
    out.heading(f"Interrupted, seed {results.seed}" if interrupted else f"Faults, seed {results.seed}")
    verdicts: list[Verdict] = [
        v for v in _VERDICTS if results.total.verdicts[v] or v in ("killed", "alive", "equal", "not_run")
    ]
    header = ("", "faults", *(_VERDICTS[v][0] for v in verdicts), "rate", "by")
    right = tuple(range(1, len(header) - 1))
    rows = [*results.by_op(), results.total]
    out.table([_cells(row, verdicts) for row in rows], header, indent=2, right=right)
    if kinds := results.by_kind():
        out.heading("By kind")
        out.table([_cells(row, verdicts) for row in kinds], header, indent=2, right=right)
    _print_left_out(out, results)
    bad = [one for one in results.judged if one.verdict in ("alive", "unproven")]
    if bad:
        out.heading("Survivors")
        for one in bad:
            out.line(f"{one.fault.id} {one.fault.where} {one.fault.kind}: {difference(one)}", "bad", indent=2)
            if one.detail:
                out.line(one.detail, indent=4)
        out.line(f"one of them again: {again} {bad[0].fault.id}", "faint", indent=2)
    if not interrupted and set(results.total.verdicts) <= {"not_run"}:  # a survivor says enough
        why = "; ".join(dict.fromkeys(one.detail for one in results.judged)) or "there was none to try"
        absent = any(baseline.absent for baseline in results.baselines)
        text = NOT_READY if absent else f"no fault was put to a kernel: {shortened(why)}"
        out.line(f"nothing was proven: {text}", "bad", indent=2)


def _cells(row: Row, verdicts: Sequence[Verdict]) -> Sequence[str | Cell]:
    counts = [Cell(str(row.verdicts[v]), _VERDICTS[v][1] if row.verdicts[v] else "") for v in verdicts]
    rate = "" if row.rate is None else f"{100 * row.rate:.1f} %"
    by = ", ".join(f"{name} {count}" for name, count in row.by.most_common())
    return (row.name, str(row.verdicts.total()), *counts, rate, by)


def _print_left_out(out: Page, results: Results) -> None:
    """What was not tried, and why."""
    left = results.listed - len(results.judged)
    if left:
        out.line(f"{left} of {results.listed} faults were not tried", "faint", indent=2)
    for rule, count in results.excluded.items():
        out.line(f"{count} left out by rule: {rule}", "faint", indent=2)
    for text in results.unread:
        out.line(f"cannot be read: {text}", "bad", indent=2)
    for entry in results.stale:
        file, text, kind, before, after, _ = entry.identity
        said = f"stale: {entry.place}: {file} has no {kind} `{before}` → `{after}` in `{text}` any more"
        out.line(f"{said}; remove the entry, or write it anew", "doubt", indent=2)
