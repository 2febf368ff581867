"""How kernels are launched: ``configurations.yaml``, looked up by kernel, architecture and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).with_name("configurations.yaml")

# Bytes of the widest access, and of a pack of elements.
PACK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Configuration:
    """How one kernel is launched for one size.

    ``row_threads`` of a block's ``threads`` take a row, and each holds ``packs`` of it: 0 where that would be more than
    ``most_packs``, and the row is read again or is several blocks'. ``blocks`` as many as take part after part, for
    kernels whose blocks stay.
    """

    threads: int
    row_threads: int
    packs: int
    most_packs: int
    blocks: int = 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.threads // self.row_threads


@cache
def entries() -> Mapping[str, list[dict[str, Any]]]:
    """What the file says, by kernel."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a first call waits for it, and the other takes longer
    found: dict[str, list[dict[str, Any]]] = yaml.load(PATH.read_text(encoding="utf-8"), Loader=loader)
    return found


def _entry(kernel: str, arch: str, size: int) -> Mapping[str, Any]:
    here = [entry for entry in entries()[kernel] if arch.startswith(tuple(entry.get("archs", ("",))))]
    return next((entry for entry in here if size <= entry.get("up_to", size)), here[-1])


@lru_cache(maxsize=4096)
def configuration(kernel: str, arch: str, size: int) -> Configuration:
    """The entry of ``kernel`` for rows of ``size`` packs; by nothing else, so that no row's bits depend on others."""
    entry = _entry(kernel, arch, size)
    row_threads: int = entry["threads"]
    if "row_threads" in entry:
        row_threads = min(entry["row_threads"], 1 << max(size - 1, 0).bit_length())
    packs, most = max(1, -(-size // row_threads)), entry.get("packs", 0)
    return Configuration(entry["threads"], row_threads, packs if packs <= most else 0, most)


@cache
def fixed(kernel: str, arch: str) -> Configuration:
    """The entry of a ``kernel`` whose threads take ``packs`` packs whatever the size."""
    entry = _entry(kernel, arch, 0)
    packs = entry.get("packs", 1)
    return Configuration(entry["threads"], entry["threads"], packs, packs, entry.get("blocks", 0))
