"""What the kit found: one result for each aspect of each case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped"]
Aspect = Literal[
    "claim",  # whether the kernel claims the case, and can be used here at all
    "forward",  # outputs in fresh memory
    "out",  # outputs in memory of the caller, contiguous and not
    "inplace",  # outputs over an input
    "written",  # arguments that the op writes, and no other element of them
    "saved",  # what forward keeps for backward
    "backward",  # gradients
    "autograd",  # gradients through portakernel.ops
    "forward_ad",  # forward-mode derivatives
    "determinism",  # equal bits for equal calls
    "graph",  # captured in a CUDA graph, and replayed on other numbers
    "batch_invariance",  # equal bits for a row alone
    "purity",  # inputs, and the memory around them, as they were
    "view",  # results in memory of their own
    "threads",  # equal bits for calls from several threads at once
    "memory",  # nothing kept of calls whose results are dropped
    "boundary",  # just outside a claim is refused
    "coverage",  # no claim without a case
]


@dataclass(frozen=True, slots=True)
class Result:
    """One aspect of one case of one kernel.

    ``case`` carries the dtypes: ``rms_norm[sliced rows, x=bfloat16, weight=float32]``; of one that was drawn the scale
    formats too: ``quantize_fp8[drawn 7, granularity=row, x=bfloat16, dtype=float8_e5m2]``. ``detail`` says what is
    wrong, or why nothing ran. ``device`` is where it ran, ``mode`` the plugin's execution mode where that was no
    device of its own. ``instructions`` is what an emulator tells of a kernel: those in its code by name, and which of
    them the cases have executed.
    """

    kernel: str
    op: str
    case: str
    aspect: Aspect
    status: Status
    detail: str = ""
    device: str = ""
    mode: str | None = None
    seconds: float = 0.0
    traceback: str = ""
    instructions: Mapping[str, bool] = field(default_factory=dict[str, bool])

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-ready data; stable. Without ``instructions`` where nothing was emulated."""
        made = asdict(self)
        if not self.instructions:
            del made["instructions"]
        return made

    def __str__(self) -> str:
        return f"{self.kernel} {self.case} {self.aspect}: {self.status}" + (f": {self.detail}" if self.detail else "")
