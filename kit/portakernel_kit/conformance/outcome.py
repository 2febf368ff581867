"""What one aspect of a case came to, and whatever a kernel or an op raises meanwhile."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from portakernel.claims.capability import CannotRun
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.result import Aspect, Result, Status
from portakernel_kit.conformance.venue import Venue

# How the detail of a ``CannotRun`` begins.
DECLARED = "the kernel declared that it cannot run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one aspect of a case came to."""

    aspect: Aspect
    status: Status
    detail: str = ""
    seconds: float = 0.0
    traceback: str = ""
    instructions: Mapping[str, bool] = field(default_factory=dict[str, bool])


def attempt(aspect: Aspect, check: Callable[[], Sequence[str]]) -> Outcome:
    """The outcome of ``check``, which returns what is wrong; whatever it raises is an outcome too."""
    start = time.perf_counter()
    status: Status = "failed"
    trace = ""
    try:
        problems = check()
        status, detail = ("failed" if problems else "passed"), "; ".join(problems)
    except CannotRun as declared:
        status, detail = "skipped", f"{DECLARED}: {declared}"
    except OpFault as fault:
        detail, trace = str(fault), traceback.format_exc()
    except Exception as error:  # noqa: BLE001 - the plugin border: a kernel that raises fails its case, not the kit
        detail, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
    return Outcome(aspect, status, detail, time.perf_counter() - start, trace)


def ending_in_words(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """``outcomes``; where the op itself turns out to be at fault, a failed one that says so is the last."""
    try:
        yield from outcomes
    except OpFault as fault:
        yield fault_of_op(fault)


def fault_of_op(fault: OpFault) -> Outcome:
    """What a fault of the op itself comes to, while it is handled."""
    return Outcome("claim", "failed", str(fault), traceback=traceback.format_exc())


def result_of(kernel: Kernel, venue: Venue, case: str, outcome: Outcome) -> Result:
    """An outcome as it is reported: of which kernel, where, in which case."""
    return Result(
        kernel.name, kernel.op, case, outcome.aspect, outcome.status, outcome.detail, str(venue), venue.mode,
        outcome.seconds, outcome.traceback, outcome.instructions,
    )  # fmt: skip
