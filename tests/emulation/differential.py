"""Every instruction with every drawn form against the reference: ``python tests/emulation/differential.py [ARCH ...]``.

``--seed`` draws others, ``--cases N`` takes N forms of each instruction. Prints what differs, and a line for each
architecture: cases that are equal, instructions compared; the status is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from isa_reference.differential import compare, drawn_cases, known  # noqa: E402
from isa_reference.documents import TABLES  # noqa: E402


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=0)
    given = parser.parse_args()
    failed = False
    for arch in given.arch or TABLES:
        told = compare(arch, drawn_cases(arch, given.seed, cases_of=given.cases))
        for one in told.unlike:
            print(one)
        names = {one.name for one in known(arch)}
        print(
            f"{arch}: {told.equal} cases equal, {len(told.unlike)} not, {told.refused} forms that do not exist; "
            f"{len(told.compared)} of {len(names)} instructions compared",
            flush=True,
        )
        failed |= bool(told.unlike)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
