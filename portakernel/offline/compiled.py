"""What a plugin's compiler made of one launch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled function: its resources on ``target``, and its assembly.

    ``registers`` are those of one thread, ``spilled_bytes`` its memory for what did not fit into them,
    ``shared_bytes`` what a program shares. ``seconds`` are near zero where a cache had it.
    """

    function: str
    target: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    seconds: float
    assembly: str = field(repr=False)
