"""What one emulated call came to: its results and whether they are right, what was found, what was executed."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any

from portakernel.calling.caller import OpCaller
from portakernel.claims.request import Phase
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.emulation import FindingsError, Launched
from portakernel.errors import PortakernelError
from portakernel.registry.kernel import Kernel
from portakernel_kit.bench.operands import Operands
from portakernel_kit.cli.run.call import Count, emulated_call
from portakernel_kit.cli.run.results import Stated, stated
from portakernel_kit.conformance.emulator import LAUNCHED_NOTHING
from portakernel_kit.conformance.forward import Forward
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.venue import Venue
from portakernel_kit.tune.judging import inputs_of


@dataclass(slots=True)
class Ran:
    """One call. ``problems``: what is wrong with its results by the op's rule. ``stopped``: why it has none."""

    kernel: str
    target: str
    results: list[Stated] = field(default_factory=list[Stated])
    problems: list[str] = field(default_factory=list[str])
    findings: list[str] = field(default_factory=list[str])
    launches: list[str] = field(default_factory=list[str])
    count: Count | None = None
    stopped: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it came to an end, with the right results, and did nothing that hardware may hide."""
        return not (self.findings or self.stopped or self.problems)

    def to_json(self) -> dict[str, Any]:
        """The run as JSON-ready data; stable."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "launches": self.launches,
            "results": [result.to_json() for result in self.results],
            "problems": self.problems,
            "findings": self.findings,
            "stopped": self.stopped,
            "count": self.count.to_json() if self.count is not None else None,
        }


def run_call(now: Dispatcher, kernel: Kernel, venue: Venue, operands: Operands) -> Ran:
    """A call of the kernel where ``venue`` emulates it; what the kernel itself raises is said in ``stopped``.

    Raises:
        PortakernelError: the call cannot be emulated, or the kernel declines it.
    """
    assert venue.emulator is not None
    ran = Ran(kernel.name, str(venue.emulator.target))
    caller = OpCaller(operands.contract, now)
    # The truth is known before the call, which may write its arguments.
    trial = Trial(caller, kernel, venue, inputs_of(operands), frozenset(), is_drawn=True)
    try:
        (call,) = emulated_call(now, kernel, venue.emulator, operands, (Phase.INFERENCE,))
    except FindingsError as error:
        ran.findings = [f"{one.kernel}: {finding}" for one in error.launches for finding in one.run.findings]
        ran.launches = [_launch(one) for one in error.launches]
        ran.stopped = str(error).partition("\n")[0]
        return ran
    except PortakernelError:
        raise
    except Exception as error:  # noqa: BLE001 - the kernel's own
        last = traceback.extract_tb(error.__traceback__)[-1]
        ran.stopped = f"the kernel raised {type(error).__name__} ({last.filename}:{last.lineno}): {error}"
        return ran
    results = tuple(operands.written.values()) or call.results
    ran.problems = trial.compare_results(results)
    ran.results = stated(results, trial.truth)
    ran.findings = call.findings
    ran.launches = [_launch(one) for one in call.launches]
    ran.count = Count.of(call.launches)
    if not call.launches and Forward(trial, [results]).computes():
        ran.stopped = LAUNCHED_NOTHING
    return ran


def _launch(one: Launched) -> str:
    grid = f"{'x'.join(map(str, one.grid))} workgroup{'s' if set(one.grid) != {1} else ''}"
    return f"{one.kernel}: {grid} of {'x'.join(map(str, one.block))} work items"
