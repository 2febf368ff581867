"""Every instruction with every drawn form against the reference: ``python tests/emulation/differential.py [ARCH ...]``.

``--seed`` draws others, ``--seeds N`` so many from there on, ``--cases N`` takes N forms of each instruction. Prints what
differs, and a line for each architecture: cases that are equal, instructions compared; the status is 1 where anything
differs. ``--json FILE`` writes what `python -m portakernel_pages.emulated FILE` takes into docs/emulation.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from isa_reference.differential import compare, drawn_cases  # noqa: E402
from isa_reference.documents import TABLES  # noqa: E402
from isa_reference.proven import elsewhere, exceptions  # noqa: E402

from portakernel.emulation.build import known_instructions  # noqa: E402


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows, compared = [], set[str]()
    for arch in given.arch or TABLES:
        equal = unlike = 0
        exist, alike = set[str](), set[str]()
        for seed in range(given.seed, given.seed + given.seeds):
            told = compare(arch, drawn_cases(arch, seed, cases_of=given.cases))
            print("".join(f"{one}\n" for one in told.unlike), end="")
            equal, unlike = equal + told.equal, unlike + len(told.unlike)
            exist, alike = exist | told.exist, alike | told.compared
        print(f"{arch}: {equal} cases equal, {unlike} not; {len(alike)} of {len(exist)} instructions compared", flush=True)
        compared |= alike
        rows.append({
            "target": f"amd:{arch}", "instructions": len(exist), "compared": len(alike), "cases": equal, "unlike": unlike,
            "seeds": given.seeds, "date": datetime.date.today().isoformat(), "tinygrad": version("tinygrad"),
        })  # fmt: skip
    if given.json:
        left = elsewhere(set(known_instructions()) - compared)
        given.json.write_text(json.dumps({"comparison": rows, "exceptions": exceptions(), "elsewhere": left}, indent=1))
    return int(any(row["unlike"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
