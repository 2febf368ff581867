"""The command for the engine's mutants: ``python tests/emulation/mutants.py --help``."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from isa_reference.mutants import main  # noqa: E402
from tested_mutants import run  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(run))
