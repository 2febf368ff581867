"""Every instruction with every drawn form against the reference: ``python tests/emulation/differential.py [ARCH ...]``.

``--seed`` draws others, ``--seeds N`` so many from there on, ``--cases N`` takes N forms of each instruction; ``--workers N``
processes. Prints what differs, and a line for each architecture: cases that are equal, instructions compared; the status is 1 where anything
differs. ``--json FILE`` writes what `python -m portakernel_pages.emulated FILE` takes into docs/emulation.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from isa_reference.differential import Comparison, compare, drawn_cases  # noqa: E402
from isa_reference.documents import TABLES  # noqa: E402
from isa_reference.proven import elsewhere, exceptions  # noqa: E402

from portakernel.emulation.build import known_instructions  # noqa: E402


def _compared(arch: str, seed: int, cases_of: int) -> Comparison:
    return compare(arch, drawn_cases(arch, seed, cases_of=cases_of))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows, compared = [], set[str]()
    archs, seeds = given.arch or list(TABLES), range(given.seed, given.seed + given.seeds)
    with ProcessPoolExecutor(given.workers) as pool:
        running = {
            arch: [pool.submit(_compared, arch, seed, given.cases) for seed in seeds] for arch in archs
        }  # fmt: skip
        for arch, several in running.items():
            told = [one.result() for one in several]
            print("".join(f"{line}\n" for one in told for line in one.unlike), end="")
            exist, alike = set().union(*(one.exist for one in told)), set().union(*(one.compared for one in told))
            equal, unlike = sum(one.equal for one in told), sum(len(one.unlike) for one in told)
            print(
                f"{arch}: {equal} cases equal, {unlike} not; {len(alike)} of {len(exist)} instructions compared",
                flush=True,
            )
            compared |= alike
            rows.append({
                "target": f"amd:{arch}", "instructions": len(exist), "compared": len(alike), "cases": equal,
                "unlike": unlike, "seeds": len(seeds), "date": datetime.date.today().isoformat(),
                "tinygrad": version("tinygrad"),
            })  # fmt: skip
    if given.json:
        left = elsewhere(set(known_instructions()) - compared)
        given.json.write_text(json.dumps({"comparison": rows, "exceptions": exceptions(), "elsewhere": left}, indent=1))
    return int(any(row["unlike"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
