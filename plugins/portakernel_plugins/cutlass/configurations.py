"""How products are compiled and launched: ``configurations.yaml``, read without a GPU and without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from portakernel.authoring import nearest

PATH = Path(__file__).with_name("configurations.yaml")

SCHEDULES = ("cooperative", "pingpong")
# With the numbers that call.cuh gives them.
RASTERS: Mapping[str, int] = MappingProxyType({"heuristic": 0, "along_m": 1, "along_n": 2})


@dataclass(frozen=True, slots=True)
class Configuration:
    """One entry of the table: what a library is compiled with, and for which calls it is taken.

    ``max_m`` and ``max_k`` bound a call's rows and terms; None: any. ``warp`` and ``stages`` are of the kernels for
    Ampere and Ada, ``schedule``, ``stream_k``, ``swapped`` and ``wgmma_n`` (0: the tile's columns) of those for Hopper,
    ``cluster`` of these and later ones.
    ``swizzle`` and ``raster`` are passed at a launch: to change them compiles nothing.
    """

    name: str
    archs: tuple[str, ...]
    source: str
    tile: tuple[int, int, int]
    max_m: int | None = None
    max_k: int | None = None
    cluster: tuple[int, int] = (1, 1)
    schedule: str = "cooperative"
    stream_k: bool = False
    swapped: bool = False
    wgmma_n: int = 0
    warp: tuple[int, int] = (0, 0)
    stages: int = 0
    swizzle: int = 1
    raster: str = "heuristic"

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(self._problem("schedule", self.schedule, SCHEDULES))
        if self.raster not in RASTERS:
            raise ValueError(self._problem("raster", self.raster, RASTERS))
        if self.stream_k and self.schedule != "cooperative":
            raise ValueError(f"{PATH}: {self.name}: stream_k needs schedule: cooperative")
        # a warpgroup multiplies 64 rows; cooperative, two of them share a tile
        least = 128 if self.schedule == "cooperative" else 64
        if self.generation == "sm90" and self.tile[0] % least:
            text = f"a {self.schedule} tile has {least} rows or a multiple, not {self.tile[0]}"
            raise ValueError(f"{PATH}: {self.name}: {text}")
        if self.wgmma_n and (self.wgmma_n % 8 or self.tile[1] % self.wgmma_n):
            text = f"wgmma_n divides the tile's {self.tile[1]} columns and is a multiple of 8, not {self.wgmma_n}"
            raise ValueError(f"{PATH}: {self.name}: {text}")

    def _problem(self, key: str, value: str, known: Iterable[str]) -> str:
        return f"{PATH}: {self.name}: unknown {key} {value!r}; {nearest(value, known)}"

    def serves(self, M: int, K: int) -> bool:
        """Whether calls with ``M`` rows and ``K`` terms are within its bounds."""
        return (self.max_m is None or self.max_m >= M) and (self.max_k is None or self.max_k >= K)

    @property
    def generation(self) -> str:
        """Whose instructions the source is written for, the last word of its name: sm80, sm90, sm100."""
        return self.source.removesuffix(".cu").rpartition("_")[2]

    @property
    def defines(self) -> tuple[tuple[str, str | int], ...]:
        """The macros of its source that say all of this; the dtypes' come from the call."""
        tile = tuple(zip(("TILE_M", "TILE_N", "TILE_K"), self.tile, strict=True))
        if self.generation == "sm80":
            warp = tuple(zip(("WARP_M", "WARP_N"), self.warp, strict=True))
            return (*tile, *warp, ("STAGES", self.stages))
        cluster = tuple(zip(("CLUSTER_M", "CLUSTER_N"), self.cluster, strict=True))
        if self.generation == "sm100":
            return (*tile, *cluster)
        how = {"PINGPONG": self.schedule == "pingpong", "STREAM_K": self.stream_k, "SWAPPED": self.swapped}
        return (*tile, *cluster, *((name, int(value)) for name, value in how.items()), ("WGMMA_N", self.wgmma_n))


@cache
def table() -> Mapping[str, tuple[Configuration, ...]]:
    """Every entry of the file, by kernel.

    Raises:
        ValueError: an entry has a key that there is not, or values that do not go together.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, list[dict[str, Any]]] = yaml.load(PATH.read_text(encoding="utf-8"), Loader=loader)
    return MappingProxyType({kernel: tuple(map(_configuration, entries)) for kernel, entries in found.items()})


def for_arch(kernel: str, arch: str) -> tuple[Configuration, ...]:
    """The entries of ``kernel`` for an architecture, in order; empty where it has none."""
    return tuple(configuration for configuration in table()[kernel] if arch in configuration.archs)


def _configuration(entry: dict[str, Any]) -> Configuration:
    known = tuple(field.name for field in fields(Configuration))
    for key in entry:
        if key not in known:
            raise ValueError(f"{PATH}: {entry.get('name', entry)}: unknown key {key!r}; {nearest(key, known)}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Configuration(**values)
