"""The engine's mutants: ``python tests/emulation/mutants.py``.

Makes five mutants of each handler, as isa_reference/mutants.py says, and prints how many were noticed, how many handlers
have a noticed one, and which have none. ``--judge reference``: by the comparison with the documents' pseudocode, in
``--cases`` of each instruction; ``--judge tests``: by tests of handlers that have no pseudocode (tested_mutants.py).
``--sample``: handlers drawn instead of all; ``--arch``: on these only; ``--workers``: processes; ``--json FILE`` writes
what `python -m portakernel_pages.emulated FILE` takes into docs/emulation.md.
"""

import argparse
import datetime
import json
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import tested_mutants  # noqa: E402
from isa_reference.mutants import ARCHS, Tally, run  # noqa: E402

from portakernel.emulation.build import known_instructions  # noqa: E402


def main() -> int:
    """The command; its status is 1 where a mutant that changes results is not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", action="append", choices=("reference", "tests"))
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", action="append", choices=ARCHS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    judges, archs = given.judge or ("tests", "reference"), given.arch or ARCHS
    names = list(known_instructions())
    if given.sample:
        names = random.Random(given.seed).sample(names, given.sample)
    rows = []
    with ProcessPoolExecutor(given.workers) as pool:
        if "tests" in judges:
            several = _parts(sorted(tested_mutants.calls()), given.workers)
            rows.append(_told("tests of their own", list(pool.map(tested_mutants.run, several)), ()))
        if "reference" in judges:
            several = _parts(names, 4 * given.workers)
            told = list(pool.map(run, [archs] * len(several), several, [given.cases] * len(several)))
            by = f"the pseudocode, {given.cases} cases of each" + (", handlers drawn" if given.sample else "")
            rows.append(_told(by, told, names))
    if given.json:
        given.json.write_text(json.dumps({"mutants": rows}))
    return int(any(row["missed"] for row in rows))


def _parts(names: Sequence[str], count: int) -> list[Sequence[str]]:
    return [names[at::count] for at in range(count) if names[at::count]]


def _told(by: str, tallies: Sequence[Tally], names: Sequence[str]) -> dict[str, Any]:
    """Prints what came of mutants; the same as a row of JSON."""
    noticed, equal = sum(tally.noticed for tally in tallies), sum(tally.equal for tally in tallies)
    missed = [one for tally in tallies for one in tally.missed]
    handlers, caught = ({name for tally in tallies for name in getattr(tally, of)} for of in ("handlers", "caught"))
    rate = noticed / max(1, noticed + len(missed))
    print(f"{by}: {len(handlers)} handlers; {len(caught)} have a mutant that is noticed")
    print(f"{noticed} mutants noticed, {len(missed)} not ({rate:.1%}); {equal} change nothing")
    print("without a noticed mutant:", ", ".join(sorted(handlers - caught)) or "none")
    print("without cases:", ", ".join(sorted(set(names) - handlers)) or "none")
    for one in missed:
        print("  missed:", one, flush=True)
    return {
        "by": by, "handlers": len(handlers), "noticed": noticed, "missed": missed, "equal": equal,
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
