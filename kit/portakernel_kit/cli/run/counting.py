"""What calls execute in the emulator, phase by phase: for ``portakernel compile --count``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portakernel.claims.capability import CannotRun
from portakernel.claims.request import Phase
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.emulation import EmulationError, FindingsError
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Target
from portakernel_kit.bench.contenders import described_error
from portakernel_kit.cli.run.call import Count, emulated_call, operands_of
from portakernel_kit.cli.run.count import NO_TIME, print_count
from portakernel_kit.conformance.offline_jobs import calls_of
from portakernel_kit.conformance.venue import Emulated, Venue, find_venue

if TYPE_CHECKING:
    from portakernel.cli.output import Page


@dataclass(frozen=True, slots=True)
class Counted:
    """One call of a kernel in one phase; ``error`` says why nothing was counted, or what was found."""

    kernel: str
    target: str
    call: str
    phase: str
    count: Count | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """The count as JSON-ready data; stable. It is of instructions and bytes, and no time."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "call": self.call,
            "phase": self.phase,
            "count": self.count.to_json() if self.count is not None else None,
            "error": self.error,
        }


def counted(
    now: Dispatcher, kernel: Kernel, target: Target, calls: Collection[str], *, every: bool
) -> Iterator[Counted]:
    """Of those ``calls`` that ``portakernel compile`` makes of the kernel, what each phase executes."""
    venue = find_venue(now, kernel, Emulated(target))
    for job, inputs in calls_of(now, kernel, target, every=every):
        if str(job) not in calls:
            continue
        if not isinstance(venue, Venue) or venue.emulator is None:
            reason = venue.reason if not isinstance(venue, Venue) else str(venue)
            yield Counted(kernel.name, str(target), str(job), "", error=reason)
            continue
        # what a kernel keeps of its own for backward is nobody else's: there backward is not counted
        phases = [phase for phase in job.phases if kernel.saves == "contract" or phase is Phase.INFERENCE]
        operands = operands_of(now, kernel, inputs.tensors, inputs.values)
        try:
            for call in emulated_call(now, kernel, venue.emulator, operands, phases):
                told = "; ".join(call.findings)
                yield Counted(kernel.name, str(target), str(job), str(call.phase), Count.of(call.launches), told)
        except (EmulationError, FindingsError, CannotRun) as error:
            yield Counted(kernel.name, str(target), str(job), "", error=str(error))
        except Exception as error:  # noqa: BLE001 - a kernel's own, which says nothing of the others
            yield Counted(kernel.name, str(target), str(job), "", error=described_error(error))


def print_counted(out: Page, counts: Sequence[Counted]) -> None:
    """What each call and phase executed, and what was found."""
    out.heading(f"What calls {NO_TIME}")
    for one in counts:
        out.line(", ".join(filter(None, (one.call, one.phase))), "bad" if one.error else "strong", indent=2)
        if one.count is not None:
            print_count(out, one.count, indent=4)
        if one.error:
            out.line(one.error, indent=4)
