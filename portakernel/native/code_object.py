"""What a compiler made: machine code for one architecture, and what is known of the kernels in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from portakernel.words.target import Target

# `code object`: a cubin or hsaco, which the driver launches; `library`: host code too, called by address.
Form = Literal["code object", "library"]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One ``__global__`` function: what it was asked for as, its symbol, and what it takes of the hardware.

    ``registers`` are those of one thread (on AMD vector registers), ``spilled_bytes`` its private memory (stack or
    scratch), ``shared_bytes`` what is statically shared by a block. ``parameters`` are (offset, bytes) of each
    parameter, empty where the code does not tell.
    """

    name: str
    symbol: str
    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    parameters: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CodeObject:
    """Machine code for ``target``, and where it came from.

    ``key`` is its name in the cache; ``path`` lies there, None where nothing can be kept.
    ``compiler`` is the compiler's name and version, ``log`` its warnings, ``seconds`` what it took: 0 where the
    cache had it. ``assembly`` is PTX or AMD's assembly, empty where the compiler gives none.
    """

    key: str
    form: Form
    target: Target
    compiler: str
    kernels: tuple[KernelFacts, ...]
    path: Path | None
    code: bytes = field(repr=False)
    log: str = field(default="", repr=False)
    seconds: float = 0.0
    assembly: str = field(default="", repr=False)

    def kernel(self, name: str) -> KernelFacts:
        """The kernel that was asked for as ``name``, or has that symbol.

        Raises:
            KeyError: there is none.
        """
        for facts in self.kernels:
            if name in (facts.name, facts.symbol):
                return facts
        raise KeyError(
            f"no kernel {name!r} was compiled; these were: {', '.join(facts.name for facts in self.kernels)}"
        )
