"""Wrong results that were found while a process served, as records of the store: other processes heed them."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from portakernel.contract import Contract
from portakernel.host.distributions import version
from portakernel.registry.kernel import Kernel
from portakernel.tuning.key import Key, Kind
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.tuning.store import Writer, folder_of, read
from portakernel.words.target import Device

# How the detail of such an entry begins: what `portakernel tune` finds wrong for its own numbers rules out no other.
_SERVED = "while it served: "
_MOST_DETAIL = 300
_DIGITS = 16


def write_wrong(root: Path, key: Key, kernel: Kernel, contract: Contract, detail: str, device: Device) -> None:
    """Adds to a store that ``kernel`` was wrong for calls of ``key``; what is known of other kernels there stays.

    Raises:
        OSError: it cannot be written.
    """
    folder = folder_of(root, key.target, key.units)
    entry = Entry(source=source_digest(kernel), verdict=Verdict.WRONG, detail=f"{_SERVED}{detail}"[:_MOST_DETAIL])
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    known = read(folder, key.kind.op).records.get(key.text)
    if known is not None and known.contract == contract_digest(contract):
        record = replace(known, kernels={**known.kernels, kernel.name: entry}, at=now)
    else:
        identity = hashlib.sha256((device.uuid or device.name).encode()).hexdigest()[:_DIGITS]
        record = Record(
            key, contract_digest(contract), {kernel.name: entry}, now, kernel.name,
            identity, device.driver or "", version("torch") or "",
        )  # fmt: skip
    with Writer(folder, key.kind.op) as writer:
        writer.write(record)
        writer.sync()


def wrong_ones(record: Record) -> Iterator[tuple[str, str, str]]:
    """The kernels that were wrong while they served: each with its source then, and what was found."""
    for name, entry in record.kernels.items():
        if entry.verdict is Verdict.WRONG and entry.detail.startswith(_SERVED):
            yield name, entry.source, f"{entry.detail.removeprefix(_SERVED)} ({record.at[:10]})"


def any_phase(kind: Kind) -> str:
    """The kind of call, as text, whatever its phase: a kernel that is wrong for inference is so in training."""
    return replace(kind, phase="").text
