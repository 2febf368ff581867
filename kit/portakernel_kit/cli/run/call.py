"""One call of a kernel in the emulator: its results, what was found, and what was executed, which is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments
from portakernel.calling.launcher import launcher
from portakernel.claims.request import Phase
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.emulation import Launched, emulating
from portakernel.registry.kernel import Kernel
from portakernel_kit.bench.operands import Operands
from portakernel_kit.conformance.emulator import Emulator


@dataclass(frozen=True, slots=True)
class Count:
    """What launches executed: instructions of waves by class, bytes by the width of an access. Not a time."""

    launches: int
    instructions: dict[str, int]
    lane_instructions: int
    loaded: dict[int, int]
    stored: dict[int, int]
    lds_loaded: int
    lds_stored: int
    lds_conflict_cycles: int
    waits: int

    @classmethod
    def of(cls, launches: Sequence[Launched]) -> Count:
        """The sums over launches."""
        counts = [launched.run.counts for launched in launches]
        return cls(
            len(launches),
            _summed(one.instructions for one in counts),
            sum(one.lane_instructions for one in counts),
            _summed(one.loaded for one in counts),
            _summed(one.stored for one in counts),
            sum(one.lds_loaded for one in counts),
            sum(one.lds_stored for one in counts),
            sum(one.lds_conflict_cycles for one in counts),
            sum(one.waits for one in counts),
        )

    def to_json(self) -> dict[str, Any]:
        """The count as JSON-ready data; stable. Widths are bytes of one lane's access."""
        return {
            "launches": self.launches,
            "instructions": {"total": sum(self.instructions.values()), "by_class": self.instructions},
            "lane_instructions": self.lane_instructions,
            "bytes_loaded": {"total": sum(self.loaded.values()), "by_width": _by_text(self.loaded)},
            "bytes_stored": {"total": sum(self.stored.values()), "by_width": _by_text(self.stored)},
            "lds_bytes_loaded": self.lds_loaded,
            "lds_bytes_stored": self.lds_stored,
            "lds_conflict_cycles": self.lds_conflict_cycles,
            "waits": self.waits,
        }


def _summed(parts: Iterable[dict[Any, int]]) -> dict[Any, int]:
    total = Counter[Any]()
    for part in parts:
        total.update(part)
    return {key: total[key] for key in sorted(total)}


def _by_text(widths: dict[int, int]) -> dict[str, int]:
    return {str(width): count for width, count in widths.items()}


@dataclass(frozen=True, slots=True)
class EmulatedCall:
    """The results of a call in one phase, and its launches."""

    phase: Phase
    results: tuple[Tensor, ...]
    launches: tuple[Launched, ...]

    @property
    def findings(self) -> list[str]:
        """What its launches did that hardware may hide, each in words."""
        return [f"{one.kernel}: {finding}" for one in self.launches for finding in one.run.findings]


def operands_of(now: Dispatcher, kernel: Kernel, tensors: Sequence[Tensor | None], values: Sequence[Any]) -> Operands:
    """A call's arguments, as they are given to a kernel."""
    described = contract(kernel.op)
    return Operands(described, Arguments(described, now.registry), tuple(tensors), tuple(values))


def emulated_call(
    now: Dispatcher, kernel: Kernel, emulator: Emulator, operands: Operands, phases: Sequence[Phase],
    threads: int | None = None,
) -> list[EmulatedCall]:  # fmt: skip
    """The kernel called in each of the phases; backward is given what its training form kept, and drawn gradients.

    Raises:
        FindingsError: a launch did not run to its end.
        EmulationError: one cannot be emulated.
        CannotRun: the kernel needs more than the target has.
    """
    calls: list[EmulatedCall] = []
    kept: dict[str, Tensor | None] | None = None
    for phase in phases:
        saved_by = kernel.name if kernel.saves == "own" and phase is Phase.BACKWARD else None
        asked = replace(operands.request(phase, saved_by), target=emulator.target, device=None, attached=())
        launch = launcher(operands.contract, kernel, asked, now)
        if phase is Phase.BACKWARD:
            operands.draw_grads(0)
        with (
            torch.no_grad(),
            emulating(emulator.target, threads=threads, check=False) as launches,
            emulator.compiling(emulator.target, emulating=True),
        ):
            found = launch(*operands.call(phase, kept))
        results = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if phase is Phase.TRAINING:
            kept = operands.keep(results)
        calls.append(EmulatedCall(phase, results, tuple(launches)))
    return calls
