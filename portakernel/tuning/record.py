"""A tuning record: of one kind of call on one kind of device, how long each kernel took, and whether it was right.

One line of JSON. What stands before ``kernels`` is the key: two records with the same one are of the same kind of call.
Times are of one machine; what is decided by them names kernels and their sources, never times.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

VERSION = 1
# The longest line that is written, or read.
MOST_BYTES = 64 << 10


class Verdict(StrEnum):
    """What came of a kernel."""

    RIGHT = "right"
    WRONG = "wrong"  # it differs from the reference by more than the op's rule allows
    DECLINED = "declined"  # it cannot be measured so: of graphs, one that cannot be captured
    FAILED = "failed"  # it raised
    CRASHED = "crashed"  # its process ended
    HUNG = "hung"  # its process was ended, after as long as it was given
    UNJUDGED = "unjudged"  # nothing could say whether it is right; it cannot win


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Regime(StrEnum):
    """How times were taken: the host's own counting or not, inputs in the L2 cache or not."""

    EAGER_COLD = "eager/cold"
    EAGER_WARM = "eager/warm"
    GRAPH_COLD = "graph/cold"
    GRAPH_WARM = "graph/warm"


@dataclass(frozen=True, slots=True)
class Key:
    """A kind of call on a kind of device; ``units`` are its multiprocessors or compute units."""

    op: str
    phase: str
    target: str
    units: int
    regime: str
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    formats: Mapping[str, str] = field(default_factory=dict[str, str])
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])
    layout: Mapping[str, int | str] = field(default_factory=dict[str, "int | str"])
    dims: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def text(self) -> str:
        """The key as JSON, the same for equal keys."""
        return canonical(asdict(self))


class Entry(_Part):
    """One kernel: ``us`` are the 10th percentile, median and 90th of the medians of rounds, in microseconds.

    ``error`` is in units of the op's tolerance. ``against`` has, by another kernel that took turns with it, the lower
    bound, median and upper bound of the ratio of its time to that one's.
    """

    source: str = Field(max_length=128)
    verdict: Verdict = Field(strict=False)
    us: tuple[float, float, float] | None = Field(default=None, strict=False)
    rounds: int = Field(default=0, ge=0)
    error: float | None = None
    against: dict[str, tuple[float, float, float]] = Field(default_factory=dict, strict=False)
    detail: str = Field(default="", max_length=2000)


class _Line(_Part):
    v: int
    op: str
    phase: str
    target: str
    units: int = Field(ge=0)
    regime: Regime = Field(strict=False)
    dtypes: dict[str, str]
    formats: dict[str, str]
    features: dict[str, Any]
    layout: dict[str, int | str]
    dims: dict[str, int]
    contract: str
    kernels: dict[str, Entry]
    at: str
    device: str
    driver: str
    torch: str
    busy: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A key, the digest of the op's contract, kernels by name, and the circumstances.

    ``at`` is the time, in ISO 8601; ``device`` a digest of the card's identity, by which two cards are told apart and
    none is found. ``busy``: others used the device meanwhile, so that nothing is decided by it.
    """

    key: Key
    contract: str
    kernels: Mapping[str, Entry]
    at: str
    device: str = ""
    driver: str = ""
    torch: str = ""
    busy: bool = False

    def line(self) -> str:
        """The record as a line, its end included.

        Raises:
            ValueError: it is longer than ``MOST_BYTES``.
        """
        body: dict[str, Any] = {"v": VERSION, **asdict(self.key), "contract": self.contract}
        body["kernels"] = {name: entry.model_dump(mode="json", exclude_defaults=True) for name, entry in self.kernels.items()}
        body |= {"at": self.at, "device": self.device, "driver": self.driver, "torch": self.torch, "busy": self.busy}
        text = canonical(body)
        whole = f'{text[:-1]},"sum":"{_sum(text)}"}}\n'
        if len(whole.encode()) > MOST_BYTES:
            raise ValueError(f"a record of {self.key.op} has {len(whole.encode())} bytes; at most {MOST_BYTES} are kept")
        return whole

    @classmethod
    def parse(cls, line: str) -> Record:
        """The record of a line.

        Raises:
            Damaged: the line is cut short, altered, or no JSON.
            Foreign: it is whole, and of another form.
        """
        text, mark, end = line.rstrip("\n").rpartition(',"sum":"')
        if not mark or end != f'{_sum(text + "}")}"}}':
            raise Damaged("it is cut short, or was altered")
        try:
            found = _Line.model_validate(json.loads(text + "}"))
        except (ValidationError, ValueError, RecursionError) as error:
            raise Foreign(f"it is of another form: {type(error).__name__}") from error
        if found.v != VERSION:
            raise Foreign(f"it is of form {found.v}; this portakernel reads {VERSION}")
        values = {name: getattr(found, name) for name in _KEY}
        return cls(
            Key(**{**values, "regime": str(found.regime)}), found.contract, found.kernels, found.at, found.device,
            found.driver, found.torch, found.busy,
        )  # fmt: skip


_KEY = ("op", "phase", "target", "units", "regime", "dtypes", "formats", "features", "layout", "dims")


class Damaged(ValueError):
    """A line that is not as it was written."""


class Foreign(ValueError):
    """A line that somebody else wrote, or another version."""


def canonical(data: Any) -> str:
    """JSON that is the same for equal data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
