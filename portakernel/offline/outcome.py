"""What came of compiling one kernel for one target."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from portakernel.offline.compiled import Compiled

Verdict = Literal["native", "compiles", "fails", "unclaimed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job's functions, or why there are none.

    ``evidence`` is what the manifest wants to see in the assembly, ``missing`` says that no function holds it.
    ``shared_bytes_available`` is what a program of the target may share; where None, nobody knows, and what the
    functions need is compared with nothing.
    """

    kernel: str
    target: str
    call: str
    functions: tuple[Compiled, ...] = ()
    evidence: str = ""
    error: str = ""
    seconds: float = 0.0
    shared_bytes_available: int | None = None
    missing: bool = field(init=False)

    def __post_init__(self) -> None:
        found = any(re.search(self.evidence, function.assembly) for function in self.functions)
        object.__setattr__(self, "missing", bool(self.evidence) and not self.error and not found)

    @property
    def verdict(self) -> Verdict:
        """``native``: the instruction that the claim implies is there; ``compiles``: none is named."""
        if self.error or self.missing or self.too_large:
            return "fails"
        if not self.call:
            return "unclaimed"
        return "native" if self.evidence else "compiles"

    @property
    def too_large(self) -> tuple[Compiled, ...]:
        """The functions that need more shared memory than a program of the target has: they cannot be launched."""
        most = self.shared_bytes_available
        return () if most is None else tuple(found for found in self.functions if found.shared_bytes > most)

    @property
    def is_judged(self) -> bool:
        """Whether what the functions share was compared with what the target has."""
        return self.shared_bytes_available is not None or self.most("shared_bytes") == 0

    @property
    def reason(self) -> str:
        """Why it fails, or that nothing was tried."""
        if self.too_large:
            has = f"a program has {self.shared_bytes_available} on {self.target}"
            return "\n".join(
                f"{f.function} needs {f.shared_bytes} bytes of shared memory; {has}" for f in self.too_large
            )
        if self.missing:
            return f"no function has {self.evidence!r} in its assembly"
        return self.error or ("" if self.call else f"claims no call on {self.target}; nothing was compiled")

    def most(self, name: str) -> int:
        """The largest of a resource over the functions."""
        return max((getattr(function, name) for function in self.functions), default=0)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON-ready data; stable."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "call": self.call,
            "verdict": self.verdict,
            "reason": self.reason,
            "evidence": self.evidence,
            "seconds": round(self.seconds, 3),
            "shared_bytes_available": self.shared_bytes_available,
            "functions": [
                {name: getattr(f, name) for name in ("function", "registers", "spilled_bytes", "shared_bytes")}
                for f in self.functions
            ],
        }
