"""Takes what was proven of the emulator into ``docs/emulation.json``, whose tables docs/emulation.md shows.

Beside it ``docs/never_executed.yaml`` says by hand why no case executes some instructions.

``python -m portakernel_pages.emulated OUTPUT...``, with what ``portakernel check --emulate --json`` prints (all kernels
of a target together: what is known of the target's kernels is replaced), and with what
``tests/emulation/differential.py`` and ``tests/emulation/mutants.py`` write with ``--json``.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from portakernel.matrix.table import table

RECORD = Path(__file__).parents[2] / "docs" / "emulation.json"
REASONS = RECORD.with_name("never_executed.yaml")
_EMULATED = " (emulated)"
# By the key that tells a file's kind: what is kept of it.
_KINDS = {"comparison": ("comparison", "exceptions", "elsewhere"), "mutants": ("mutants",)}
# By what the rows of a list are told apart.
_ROWS = {"coverage": "target", "comparison": "target", "mutants": "by"}

Record = dict[str, Any]


def recorded(path: Path = RECORD) -> Record:
    """What a file holds: ``coverage`` and ``comparison`` by target, ``exceptions``, ``elsewhere``, ``mutants``."""
    made: Record = json.loads(path.read_text(encoding="utf-8"))
    return made


def written(record: Record) -> str:
    """The text of a file that holds ``record``: a line for each entry."""
    parts = []
    for key, value in sorted(record.items()):
        if isinstance(value, list):
            lines = ",\n".join(f"  {json.dumps(one)}" for one in value)
            parts.append(f' "{key}": [\n{lines}\n ]')
        else:
            parts.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_outputs(paths: Iterable[Path]) -> Record:
    """What the outputs of commands hold together.

    Raises:
        SystemExit: one is of no command that proves something of the emulator.
    """
    made: Record = {}
    checks: list[Mapping[str, Any]] = []
    for path in paths:
        output: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind = next((kind for kind in _KINDS if kind in output), None)
        if kind is not None:
            made = merged(made, {key: output[key] for key in _KINDS[kind]})
        elif any(row.get("instructions") for row in output.get("results", ())):
            checks.append(output)
        else:
            raise SystemExit(
                f"{path}: needs what `portakernel check --emulate TARGET --json` prints of whole kernels (not with "
                "--drawn), or what tests/emulation/differential.py or mutants.py writes with --json"
            )
    if checks:
        made["coverage"] = _coverage(checks)
    return made


def _coverage(outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By target: the kernels, the instructions in them, and those that no case has executed, with their kernels."""
    held: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    executed: dict[str, set[str]] = defaultdict(set)
    kernels: dict[str, set[str]] = defaultdict(set)
    dates: dict[str, str] = {}
    for output in outputs:
        for row in output["results"]:
            told: Mapping[str, bool] = row.get("instructions") or {}
            if not told:
                continue
            target = row["device"].removesuffix(_EMULATED)
            kernels[target].add(row["kernel"])
            dates[target] = max(dates.get(target, ""), output["circumstances"]["date"][:10])
            for name, done in told.items():
                held[target][name].add(row["kernel"])
                if done:
                    executed[target].add(name)
    return [
        {
            "target": target, "kernels": len(kernels[target]), "instructions": len(held[target]),
            "executed": len(executed[target]), "date": dates[target],
            "never": {name: sorted(held[target][name]) for name in sorted(held[target].keys() - executed[target])},
        }
        for target in sorted(held)
    ]  # fmt: skip


def merged(known: Record, new: Record) -> Record:
    """``known`` with ``new``: rows of the same target, or judge of mutants, are replaced; the rest is as a whole."""
    made = known | new
    for key, by in _ROWS.items():
        anew = {row[by] for row in new.get(key, ())}
        rows = [*(row for row in known.get(key, ()) if row[by] not in anew), *new.get(key, ())]
        if rows:
            made[key] = [row for _, row in sorted((str(row[by]), row) for row in rows)]
    return made


def coverage(record: Record) -> str:
    """A row for each target: of the instructions in the kernels, how many the kit's cases executed, and which never."""
    rows = []
    for row in record.get("coverage", ()):
        share = f"{row['executed'] / row['instructions']:.1%}".replace("%", " %")
        rows.append((
            f"`{row['target']}`", str(row["kernels"]), str(row["instructions"]), f"{row['executed']} ({share})",
            _names(list(row["never"])) or "none",
        ))  # fmt: skip
    return table(("target", "kernels", "instructions in them", "executed", "never executed"), rows)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why cases never execute some instructions, in some kernels or (``kernels`` empty) in all; and what does."""

    why: str
    instructions: Sequence[str]
    kernels: Sequence[str] = ()
    test: str = ""


def reasons(path: Path = REASONS) -> list[Reason]:
    """What ``docs/never_executed.yaml`` says."""
    return [Reason(**one) for one in yaml.safe_load(path.read_text(encoding="utf-8"))]


def reasons_of(name: str, kernel: str, known: Iterable[Reason]) -> list[Reason]:
    """Of those, what is said of an instruction in a kernel."""
    return [one for one in known if name in one.instructions and (not one.kernels or kernel in one.kernels)]


def never(record: Record) -> str:
    """A row for each reason for which cases never execute instructions, with those of them that they do not."""
    held = {(name, kernel) for row in record.get("coverage", ()) for name, of in row["never"].items() for kernel in of}
    rows = []
    for one in reasons():
        here = sorted({name for name, kernel in held if reasons_of(name, kernel, [one])})
        if here:
            test = f"; `{one.test}` executes it on every target" if one.test else ""
            rows.append((_names(here), ", ".join(f"`{kernel}`" for kernel in one.kernels) or "any", one.why + test))
    return table(("never executed", "in the code of", "why"), rows)


def comparison(record: Record) -> str:
    """A row for each target: instructions compared with the documents' pseudocode, in how many cases."""
    rows = [
        (
            f"`{row['target']}`", f"{row['compared']} of {row['instructions']}", f"{row['cases']:,}".replace(",", " "),
            str(row["seeds"]), str(row["unlike"]),
        )
        for row in record.get("comparison", ())
    ]  # fmt: skip
    return table(("compared with pseudocode", "instructions", "cases equal", "seeds", "cases unlike"), rows)


def exceptions(record: Record) -> str:
    """A row for each way in which the comparison departs from the documents' pseudocode, and why."""
    rows = [(_names(row["instructions"]), row["reason"]) for row in record.get("exceptions", ())]
    return table(("departs from the pseudocode", "why"), rows)


def elsewhere(record: Record) -> str:
    """A row for each kind of instruction that is not compared with pseudocode, and what proves it."""
    rows = [(row["what"], str(len(row["instructions"])), row["proven"]) for row in record.get("elsewhere", ())]
    return table(("without pseudocode", "handlers", "proven by"), rows)


def mutants(record: Record) -> str:
    """A row for each test that mutants of the engine are put to, with the rate of those that it notices."""
    rows = []
    for row in record.get("mutants", ()):
        changed = row["noticed"] + len(row["missed"])
        rate = f"{row['noticed'] / max(1, changed):.1%}".replace("%", " %")
        rows.append((
            row["by"], str(row["handlers"]), str(row["noticed"]), f"{len(row['missed'])}", str(row["equal"]), rate,
        ))  # fmt: skip
    return table(("mutants judged by", "handlers", "noticed", "missed", "change nothing", "rate"), rows)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_TABLES = {
    "| target | kernels |": coverage, "| never executed |": never, "| compared with pseudocode |": comparison,
    "| departs from the pseudocode |": exceptions, "| without pseudocode |": elsewhere,
    "| mutants judged by |": mutants,
}  # fmt: skip


def with_tables(text: str, record: Record) -> str:
    """docs/emulation.md with its tables as the record has them.

    Raises:
        ValueError: it no longer has one of them.
    """
    for head, made in _TABLES.items():
        before = re.compile(rf"^{re.escape(head)}.*\n(?:\|.*\n)+", re.MULTILINE)
        times = len(before.findall(text))
        if times != 1:
            raise ValueError(f"docs/emulation.md has a table that begins {head!r} {times} times; once is needed")
        text = before.sub(lambda _, made=made: f"{made(record)}\n", text)  # type: ignore[misc]
    return text


def main() -> int:
    """Takes the outputs into the record; the process's exit status."""
    known = recorded() if RECORD.exists() else {}
    RECORD.write_text(written(merged(known, read_outputs(map(Path, sys.argv[1:])))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
