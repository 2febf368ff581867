"""Takes what commands proved into the record that the wheel carries, ``portakernel/matrix/proofs.json``.

``python -m portakernel_pages.proofs OUTPUT...``, with what ``portakernel compile``, ``check`` and ``bench`` print with
``--json``. What is known of a kernel from the same command on the same target is replaced; what several seeds drew on
one day is added up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from portakernel.matrix.proofs import KINDS, RECORD, Proof, merged, read_output, recorded
from portakernel.registry.registry import Registry


def written(proofs: Iterable[Proof]) -> str:
    """The text of a file that holds ``proofs``: a line for each kernel and kind, targets of equal proofs together."""
    targets: dict[str, list[str]] = {}
    for proof in sorted(proofs, key=lambda proof: (proof.kernel, KINDS.index(proof.kind), proof.by, proof.target)):
        left_out = {"target"} if proof.requests else {"target", "requests", "seeds"}
        row = {key: value for key, value in asdict(proof).items() if key not in left_out}
        targets.setdefault(json.dumps(row), []).append(proof.target)
    lines = [json.dumps(json.loads(row) | {"targets": several}) for row, several in targets.items()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> int:
    """Takes the outputs of commands into the record; the process's exit status."""
    kernels = Registry().kernels
    ours = {name: kernel for name, kernel in kernels.items() if kernel.first_party}
    known = recorded()
    for path in sys.argv[1:]:
        known = merged(known, read_output(Path(path), ours))
    RECORD.write_text(written(known), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
