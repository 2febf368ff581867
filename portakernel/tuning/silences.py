"""Why measurements decide nothing of a call, in words that can be counted."""

from __future__ import annotations

from typing import Literal, get_args

# no_record: no call of this kind was measured on such a device; regime: it was in another regime alone; near: on
# devices with other units alone; gap: the sizes lie between those that were measured, or beyond; busy: others used the
# device meanwhile; stale: the op's contract or a kernel's sources have changed since, or a kernel came later; open: it
# was measured, and no kernel could be compared with another. Empty: they decide.
Silence = Literal["", "no_record", "regime", "near", "gap", "busy", "stale", "open"]
SILENCES: tuple[Silence, ...] = get_args(Silence)
