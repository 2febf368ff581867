"""``python -m portakernel_pages.modes``: runs every mode for every op, and writes or prints the page."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path


def main() -> int:
    """Writes the page to ``--write``'s path, or prints it; the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m portakernel_pages.modes", description=__doc__)
    parser.add_argument("--write", metavar="PATH", type=Path, help="write the page there instead of printing it")
    path: Path | None = parser.parse_args().write
    from portakernel.contracts import own_contracts
    from portakernel_pages.modes.table import observed, page

    with warnings.catch_warnings():
        # which kernel serves is not what the page is about, and torch's compiler warns of its own parts
        warnings.simplefilter("ignore")
        text = page(observed(list(own_contracts())))
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
