"""Which records of a store count no more since the code has changed: what is to be measured again before it ships."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from portakernel.contracts import contracts
from portakernel.registry.kernel import Kernel
from portakernel.tuning.record import Record
from portakernel.tuning.sources import contract_digest, of_files, source_digest
from portakernel.tuning.store import folders, ops_in, read


def voided(root: Path, kernels: Mapping[str, Kernel]) -> Iterator[str]:
    """A sentence for each op, or kernel of it, whose files are others than those that were measured.

    What is installed beside the files may differ: that voids a record where it is used, and is no change of the code.
    """
    for folder in folders(root):
        for op in ops_in(folder):
            records = tuple(read(folder, op).records.values())
            told = dict.fromkeys(text for record in records for text in _of(record, kernels))
            yield from (f"{folder.name}: {text}" for text in told)


def _of(record: Record, kernels: Mapping[str, Kernel]) -> Iterator[str]:
    op = record.key.kind.op
    if op not in contracts():
        yield f"there is no op {op} any more"
        return
    if record.contract != contract_digest(contracts()[op]):
        yield f"the contract of {op} has changed since it was measured"
        return
    for name, entry in record.kernels.items():
        if name not in kernels:
            yield f"there is no kernel {name} any more"
        elif of_files(entry.source) != of_files(source_digest(kernels[name])):
            yield f"{name} has changed since it was measured"
