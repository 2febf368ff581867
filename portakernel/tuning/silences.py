"""Why measurements decide nothing of a call, in words that can be counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

# no_record: no call of this kind was measured on such a device; regime: it was in another regime alone; near: on
# devices with other units alone; gap: the sizes lie between those that were measured, or beyond; busy: others used the
# device meanwhile; stale: the op's contract or a kernel's sources have changed since, or a kernel came later; open: it
# was measured, and no kernel could be compared with another. Empty: they decide.
Silence = Literal["", "no_record", "regime", "near", "gap", "busy", "stale", "open"]
SILENCES: tuple[Silence, ...] = get_args(Silence)


class Silences:
    """Why calls that were measured decide nothing: by kind and sizes, or by kind where none of its records counts."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, tuple[tuple[str, int], ...]], Silence] = {}
        self._kinds: dict[str, Silence] = {}

    def add(self, kind: str, dims: Mapping[str, int], silence: Silence) -> None:
        """Takes note of why the record of a kind and sizes decides nothing."""
        self._at[kind, tuple(sorted(dims.items()))] = silence

    def add_kind(self, kind: str, silence: Silence) -> None:
        """Takes note of why a record of a kind counts for nothing at all."""
        self._kinds[kind] = silence

    def of_kind(self, kind: str) -> Silence:
        """Why nothing is known of a kind."""
        return self._kinds.get(kind, "no_record")

    def among(self, kind: str, sizes: Iterable[Mapping[str, int]]) -> Silence:
        """Why the first of these sizes that was measured decides nothing; a gap where none was."""
        for dims in sizes:
            if (silence := self._at.get((kind, tuple(sorted(dims.items()))))) is not None:
                return silence
        return "gap"
