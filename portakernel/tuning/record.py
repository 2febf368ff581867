"""A tuning record: of one kind of call on one kind of device, how long each kernel took, and whether it was right.

One line of JSON. What stands before ``kernels`` is the key: two records with the same one are of the same kind of call.
Times are of one machine; what is decided by them names kernels and their sources, never times.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from portakernel.tuning.key import Key, Kind, Regime, canonical

VERSION = 1
# The longest line that is written, or read.
MOST_BYTES = 64 << 10
_INT64 = (1 << 63) - 1


class Verdict(StrEnum):
    """What came of a kernel."""

    RIGHT = "right"
    WRONG = "wrong"  # it differs from the reference by more than the op's rule allows
    DECLINED = "declined"  # it cannot be measured so: of graphs, one that cannot be captured
    FAILED = "failed"  # it raised
    CRASHED = "crashed"  # its process ended
    HUNG = "hung"  # its process was ended, after as long as it was given
    UNJUDGED = "unjudged"  # nothing could say whether it is right; it cannot win


# Of these a kernel is not asked again for the same key, while its source is the same.
ENDED = (Verdict.CRASHED, Verdict.HUNG)

_Positive = Annotated[float, Field(gt=0)]
_Three = tuple[_Positive, _Positive, _Positive]
_Word = Annotated[str, Field(max_length=200)]
_Size = Annotated[int, Field(ge=0, le=_INT64)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Entry(_Part):
    """One kernel: ``us`` are the 10th percentile, median and 90th of the medians of rounds, in microseconds.

    ``error`` is in units of the op's tolerance. ``against`` has, by another kernel that took turns with it, the lower
    bound, median and upper bound of the ratio of its time to that one's.
    """

    source: _Word
    verdict: Verdict = Field(strict=False)
    us: _Three | None = Field(default=None, strict=False)
    rounds: int = Field(default=0, ge=0, le=_INT64)
    error: float | None = None
    against: dict[_Word, _Three] = Field(default_factory=dict, strict=False)
    detail: str = Field(default="", max_length=2000)


class _Line(_Part):
    v: int
    op: _Word
    phase: _Word
    target: _Word
    units: _Size
    regime: Regime = Field(strict=False)
    dtypes: dict[str, str]
    formats: dict[str, str]
    features: dict[str, Any]
    layout: tuple[str, ...] = Field(strict=False)
    dims: dict[str, _Size]
    contract: _Word
    default: _Word
    kernels: dict[_Word, Entry]
    at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")
    device: _Word
    driver: _Word
    torch: _Word
    busy: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A key, the digest of the op's contract, kernels by name, and the circumstances.

    ``default`` is the kernel that priorities picked, against which the others were timed; empty where they picked none.
    ``at`` is the time, in ISO 8601 and UTC; ``device`` a digest of the card's identity, by which two cards are told
    apart and none is found. ``busy``: others used the device meanwhile, so that nothing is decided by it.
    """

    key: Key
    contract: str
    kernels: Mapping[str, Entry]
    at: str
    default: str = ""
    device: str = ""
    driver: str = ""
    torch: str = ""
    busy: bool = False

    def line(self) -> str:
        """The record as a line, its end included.

        Raises:
            ValueError: it is longer than ``MOST_BYTES``.
        """
        key = self.key
        entries = self.kernels.items()
        text = canonical(
            {
                "v": VERSION,
                **key.kind.parts(),
                "target": key.target,
                "units": key.units,
                "regime": str(key.regime),
                "dims": dict(key.dims),
                "contract": self.contract,
                "default": self.default,
                "kernels": {name: entry.model_dump(mode="json", exclude_defaults=True) for name, entry in entries},
                "at": self.at,
                "device": self.device,
                "driver": self.driver,
                "torch": self.torch,
                "busy": self.busy,
            }
        )
        whole = f'{text[:-1]},"sum":"{_sum(text)}"}}\n'
        if (size := len(whole.encode())) > MOST_BYTES:
            raise ValueError(f"a record of {key.kind.op} has {size} bytes; at most {MOST_BYTES} are kept")
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
            found = _Line.model_validate_json(text + "}")
            kind = Kind(found.op, found.phase, found.dtypes, found.formats, found.features, found.layout)
            key = Key(kind, found.target, found.units, found.regime, found.dims)
            if "NaN" in text or "Infinity" in text:
                _ = key.text  # raises for a number that JSON has not
        except (ValidationError, ValueError, RecursionError) as error:
            raise Foreign(f"it is of another form: {type(error).__name__}") from error
        if found.v != VERSION:
            raise Foreign(f"it is of form {found.v}; this portakernel reads {VERSION}")
        return cls(
            key,
            found.contract,
            found.kernels,
            found.at,
            found.default,
            found.device,
            found.driver,
            found.torch,
            found.busy,
        )


class Damaged(ValueError):  # noqa: N818 - a state of a line, as Foreign is
    """A line that is not as it was written."""


class Foreign(ValueError):  # noqa: N818 - a state of a line, as Damaged is
    """A line that somebody else wrote, or another version."""


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
