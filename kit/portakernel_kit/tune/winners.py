"""What a fresh record says, in a line: who is the fastest that is right, and by how much."""

from __future__ import annotations

from portakernel.tuning.key import Key
from portakernel.tuning.ranking import decide
from portakernel.tuning.record import Record


def described(key: Key) -> str:
    """A key's call, for people."""
    sizes = " ".join(f"{name}={size}" for name, size in key.dims.items())
    dtypes = " ".join(dict.fromkeys(key.kind.dtypes.values()))
    asked = [f"{name}={value}" for name, value in (*key.kind.formats.items(), *key.kind.features.items())]
    lies = [f"(not {', '.join(key.kind.layout)})"] if key.kind.layout else []
    return " ".join([key.kind.op, sizes, dtypes, *asked, *lies, key.kind.phase])


def winner(record: Record) -> tuple[str, ...]:
    """The call, the kernel that serves it from now on, its time, what priorities pick, the ratio and its bound."""
    call, sources = described(record.key), {name: entry.source for name, entry in record.kernels.items()}
    order = [record.default, *(name for name in record.kernels if name != record.default)]
    outcome = decide(record, sources, order)
    if outcome.kernel is None:
        return call, f"nobody: {outcome.why}", "", record.default, "", ""
    us = record.kernels[outcome.kernel].us
    ratio = (f"{outcome.ratio[1]:.3f}", f"{outcome.ratio[2]:.3f}") if outcome.ratio is not None else ("", "")
    return call, outcome.kernel, f"{us[1]:.1f}" if us is not None else "", record.default, *ratio
