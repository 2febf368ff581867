"""The architectures that are emulated, and what they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture: its number in ``e_flags``, version, instruction table, wave size and LDS of a workgroup."""

    name: str
    machine: int
    version: tuple[int, int, int]
    table: str
    wave_size: int
    lds_bytes: int


ARCHS: Mapping[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("gfx90a", 0x3F, (9, 0, 10), "cdna", 64, 64 << 10),
        Arch("gfx942", 0x4C, (9, 4, 2), "cdna", 64, 64 << 10),
        Arch("gfx950", 0x4F, (9, 5, 0), "cdna", 64, 160 << 10),
        Arch("gfx1100", 0x41, (11, 0, 0), "rdna3", 32, 64 << 10),
        Arch("gfx1201", 0x4E, (12, 0, 1), "rdna4", 32, 64 << 10),
    )
}
