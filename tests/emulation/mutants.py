"""Mutants of the engine's handlers, and how many the reference notices: ``python tests/emulation/mutants.py``.

Makes five mutants of each handler (``isa_reference.mutants`` says which), runs cases of its instruction on each, and
prints how many mutants were noticed, how many handlers have a noticed one, and which have none. ``--cases``: of an
instruction; ``--sample``: handlers drawn instead of all; ``--arch``: on these only.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from isa_reference.mutants import ARCHS, run  # noqa: E402

from portakernel.emulation.build import known_instructions  # noqa: E402


def main() -> int:
    """The command; its status is 1 where a mutant that changes results is not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", action="append", choices=ARCHS)
    given = parser.parse_args()
    names = list(known_instructions())
    if given.sample:
        names = random.Random(given.seed).sample(names, given.sample)
    tally = run(given.arch or ARCHS, names, given.cases)
    print(
        f"{len(tally.handlers)} handlers of {len(names)} have cases; {len(tally.caught)} have a mutant that is noticed"
    )
    print(f"{tally.noticed} mutants noticed, {len(tally.missed)} not ({tally.rate:.1%}); {tally.equal} change nothing")
    print("without a noticed mutant:", ", ".join(sorted(tally.handlers - tally.caught)) or "none")
    print("without cases:", ", ".join(sorted(set(names) - tally.handlers)) or "none")
    for one in tally.missed:
        print("  missed:", one)
    return int(bool(tally.missed))


if __name__ == "__main__":
    sys.exit(main())
