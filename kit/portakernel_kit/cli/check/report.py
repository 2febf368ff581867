"""What ``portakernel check`` prints: results, and a table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portakernel.cli.output import Page, Style
    from portakernel_kit.conformance.result import Result

STATUSES = ("passed", "failed", "skipped")
# Why nothing ran, where nobody knows better.
NOT_READY = "`portakernel doctor` says which kernels are ready here"


def summarise(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For each kernel, how many results of each status, and the reason that matters most: a failure's, or a skip's."""
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        row = rows.setdefault(
            result.kernel, {"kernel": result.kernel, "op": result.op, **dict.fromkeys(STATUSES, 0), "reason": ""}
        )
        worse = result.status == "failed" and not row["failed"]
        if worse or (result.status == "skipped" and not row["reason"]):
            row["reason"] = f"{result.case} {result.aspect}: {result.detail}" if worse else result.detail
        row[result.status] += 1
    return list(rows.values())


def shortened(reason: str) -> str:
    """As much of a reason as a table bears; a failure was printed whole when it came."""
    first = reason.partition("\n")[0]
    return first if len(first) <= 100 else f"{first[:97]}..."


def print_result(out: Page, result: Result, *, verbose: bool) -> None:
    """One result, with what is wrong; ``verbose``: with the traceback, where something was raised."""
    styles: dict[str, Style] = {"passed": "good", "failed": "bad", "skipped": "faint"}
    place = ", ".join(filter(None, (result.device, result.mode)))
    text = f"{result.status} {result.kernel} {result.case} {result.aspect}" + (f" on {place}" if place else "")
    out.line(text, styles[result.status])
    if result.detail:
        out.line(result.detail, indent=4)
    if verbose and result.traceback:
        out.line(result.traceback.rstrip(), "faint", indent=6)


def modes_of(results: Iterable[Result]) -> dict[str, str]:
    """The modes of execution that each kernel ran in, such as an emulator's, where it was not the hardware's own."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        if result.mode and result.status != "skipped":
            found.setdefault(result.kernel, {})[result.mode] = None
    return {kernel: ", ".join(modes) for kernel, modes in found.items()}


def print_summary(
    out: Page,
    summary: Sequence[dict[str, Any]],
    modes: Mapping[str, str],
    seed: int,
    drawn: Mapping[str, Any],
    *,
    interrupted: bool,
    why: str,
) -> None:
    """One line for each kernel, and how many requests were drawn; ``why`` nothing ran, empty where something did."""
    from portakernel.cli.output import Cell

    out.heading("Interrupted; until then:" if interrupted else f"Conformance, seed {seed}")
    rows = [
        (
            f"{row['kernel']} ({modes[row['kernel']]})" if row["kernel"] in modes else row["kernel"],
            Cell(str(row["passed"]), "good" if row["passed"] else ""),
            Cell(str(row["failed"]), "bad" if row["failed"] else ""),
            str(row["skipped"]),
            shortened(str(row["reason"])),
        )
        for row in summary
    ]
    if rows:
        out.table(rows, ("kernel", *STATUSES, "reason"), indent=2, right=(1, 2, 3))
    if why:
        out.line("nothing ran" if interrupted else f"nothing ran: {why}", "bad", indent=2)
    if drawn.get("requests"):
        pairs = f"{drawn['pairs_asked']} of {drawn['pairs_possible']} pairs of what may differ were asked for"
        text = f"{drawn['requests']} drawn requests{'' if interrupted else f'; {pairs}'}"
        out.line(text, indent=2)
        if interrupted:
            out.line(f"to go on: the same command with --seed {seed} --first {drawn['first']}", indent=2)
