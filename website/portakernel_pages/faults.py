"""Takes what `portakernel faults` found into ``docs/faults.json``, which docs/conformance.md and the site show by op.

``python -m portakernel_pages.faults OUTPUT...``, with files that ``portakernel faults PLUGIN --output FILE`` has
written. What is known of a plugin's faults is replaced: of those written by hand, or of those that the command made.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from portakernel.contracts import own_contracts
from portakernel.matrix.table import table

RECORD = Path(__file__).parents[2] / "docs" / "faults.json"
_VERDICTS = ("killed", "alive", "equal", "not_run")
_VERSIONS = ("torch", "triton")


@dataclass(frozen=True, slots=True)
class Found:
    """What came of faults in one plugin's kernels: ``made`` by the command, or written by hand.

    ``faults`` counts each once, ``ops`` in every op whose kernels reach it; both by verdict.
    """

    plugin: str
    made: bool
    faults: Mapping[str, int]
    ops: Mapping[str, Mapping[str, int]]
    date: str
    seed: int
    budget_s: float
    modes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


def recorded(path: Path = RECORD) -> tuple[Found, ...]:
    """What a file holds."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    for row in rows:
        row["modes"] = tuple(row["modes"])
    return tuple(Found(**row) for row in rows)


def written(found: Iterable[Found]) -> str:
    """The text of a file that holds ``found``, a line for each."""
    rows = sorted(found, key=lambda one: (one.made, one.plugin))
    return "[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n"


def read_output(path: Path) -> Found:
    """What a run of `portakernel faults` has written.

    Raises:
        SystemExit: it is something else, or the run was interrupted.
    """
    output: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if not {"plugin", "faults", "ops", "summary"} <= output.keys():
        raise SystemExit(f"{path}: needs what `portakernel faults PLUGIN --output FILE` writes")
    if output["interrupted"] or not output["faults"]:
        raise SystemExit(f"{path}: the run was interrupted, or tried nothing; the same command with --output goes on")
    known = output["circumstances"]

    def counts(row: Mapping[str, Any]) -> dict[str, int]:
        return {verdict: row[verdict] for verdict in _VERDICTS}

    return Found(
        output["plugin"],
        # who writes one says why
        not any(fault["why"] for fault in output["faults"]),
        counts(output["summary"]),
        {row["name"]: counts(row) for row in output["ops"]},
        known["date"][:10],
        output["seed"],
        output["budget_s"],
        tuple(sorted({kernel["mode"] for kernel in output["kernels"] if kernel["mode"]})),
        {name: known["versions"][name] for name in _VERSIONS if name in known["versions"]},
    )


def merged(known: Iterable[Found], new: Sequence[Found]) -> tuple[Found, ...]:
    """``known`` with ``new`` in the place of what was found in the same plugin's faults of the same kind."""
    anew = {(one.plugin, one.made): one for one in new}
    return (*(one for one in known if (one.plugin, one.made) not in anew), *anew.values())


def _rate(counts: Mapping[str, int]) -> str:
    """How many were killed of those that were tried and are not equal to the original."""
    tried = counts["killed"] + counts["alive"]
    return f"{counts['killed']} of {tried}" if tried else "none tried"


def _sum(rows: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for row in rows:
        total.update(row)
    return total


def by_op(found: Sequence[Found]) -> dict[str, str]:
    """For each op, how many faults in each plugin's kernels were killed, for people."""
    texts: dict[str, list[str]] = {}
    for plugin in sorted({one.plugin for one in found}):
        of = [one.ops for one in found if one.plugin == plugin]
        for op in dict.fromkeys(name for ops in of for name in ops):
            total = _sum(ops[op] for ops in of if op in ops)
            if total["killed"] + total["alive"]:
                texts.setdefault(op, []).append(f"{plugin} {_rate(total)}")
    return {op: "faults found: " + ", ".join(several) for op, several in texts.items()}


def figures(found: Sequence[Found]) -> str:
    """The table of docs/conformance.md: a row for each plugin's faults."""
    rows = []
    for made in (False, True):
        of = [one for one in found if one.made is made]
        label = "made by the command" if made else "written by hand"
        rows += [_figures(f"{label}: `{one.plugin}`", one.faults) for one in of]
        if len(of) > 1:
            rows.append(_figures(f"{label}: all", _sum(one.faults for one in of)))
    return table(("", "killed", "alive", "equal", "not run", "rate"), rows)


def _figures(label: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    tried = counts["killed"] + counts["alive"]
    rate = f"{counts['killed'] / tried:.0%}".replace("%", " %") if tried else ""
    return (label, *(str(counts[verdict] or "") for verdict in _VERDICTS), rate)


def ops_table(found: Sequence[Found]) -> str:
    """The table of docs/conformance.md: a row for each op, all plugins together."""
    rows = []
    for op in sorted(own_contracts()):
        cells = []
        for made in (False, True):
            of = [one.ops[op] for one in found if one.made is made and op in one.ops]
            total = _sum(of)
            left = f" ({total['not_run']} not run)" if total["not_run"] else ""
            cells.append(_rate(total) + left if of else "")
        if any(cells):
            rows.append((f"`{op}`", *cells))
    return table(("op", "written", "made"), rows)


def with_figures(text: str, found: Sequence[Found]) -> str:
    """docs/conformance.md with its two tables of figures as they are.

    Raises:
        ValueError: it no longer has one of them.
    """
    for head, made in (("|  | killed |", figures(found)), ("| op | written |", ops_table(found))):
        before = re.compile(rf"^{re.escape(head)}.*\n(?:\|.*\n)+", re.MULTILINE)
        times = len(before.findall(text))
        if times != 1:
            raise ValueError(f"docs/conformance.md has a table that begins {head!r} {times} times; once is needed")
        text = before.sub(lambda _, made=made: f"{made}\n", text)  # type: ignore[misc]
    return text


def main() -> int:
    """Takes the outputs into the record; the process's exit status."""
    new = [read_output(Path(path)) for path in sys.argv[1:]]
    RECORD.write_text(written(merged(recorded() if RECORD.exists() else (), new)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
