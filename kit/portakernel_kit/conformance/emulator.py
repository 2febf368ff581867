"""The emulator as a place to run kernels: their machine code for a target, on CPU tensors, nothing of it hidden."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.emulation import Kind, Launched, emulating
from portakernel.emulation.session import check_target
from portakernel.offline.compiled import Compiling
from portakernel.offline.workers import offline_context
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Target

# The mode that results are in; what `matrix.proofs` takes for a kernel that was emulated.
MODE = "emulated"
LAUNCHED_NOTHING = "the call launched nothing: no machine code was emulated"
# Tensors of the cases: an emulator does some ten million lane instructions a second, and a case makes a dozen calls.
MOST_ELEMENTS = 1 << 15
# So many calls of one kernel may not come to their end; its others are then left out: each costs as much again.
MOST_ENDLESS = 3
_ENDLESS = frozenset({Kind.BUDGET, Kind.DEADLOCK})

# In code, and no part of what a kernel computes: what stands behind its end, and between instructions.
_PADDING = frozenset({"s_code_end", "s_nop", "unknown"})


@dataclass(slots=True)
class Instructions:
    """The different instructions that stand in what was launched, and those of them that were executed, by name."""

    present: set[str] = field(default_factory=set[str])
    executed: set[str] = field(default_factory=set[str])

    def add(self, launches: Iterable[Launched]) -> None:
        """Adds what launches had and did."""
        for launched in launches:
            self.present |= launched.run.present - _PADDING
            self.executed |= launched.run.executed.keys() - _PADDING

    def join(self, other: Instructions) -> None:
        """Adds what was gathered elsewhere."""
        self.present |= other.present
        self.executed |= other.executed

    def by_name(self) -> dict[str, bool]:
        """Each instruction that is present, and whether it was executed."""
        return {name: name in self.executed for name in sorted(self.present)}

    def __str__(self) -> str:
        never = ", ".join(sorted(self.present - self.executed))
        text = f"{len(self.executed)} of {len(self.present)} different instructions were executed"
        return f"{text}; never: {never}" if never else text


@dataclass(slots=True)
class Emulator:
    """Emulates what one kernel launches, for ``target``; ``launched`` counts the launches so far.

    ``endless`` counts the calls that a deadlock or the budget of instructions has ended. A call is over as its context
    ends, and raises what was found in it.
    """

    target: Target
    compiling: Compiling
    launched: int = 0
    endless: int = 0
    instructions: Instructions = field(default_factory=Instructions)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """The context of one call.

        Raises:
            FindingsError: the call's launches did what hardware may hide.
            EmulationError: one cannot be emulated.
        """
        # one thread of the host: cases run side by side in processes, and their grids are small
        with emulating(self.target, threads=1) as launches, self.compiling(self.target, emulating=True):
            try:
                yield
            finally:
                self.launched += len(launches)
                kinds = {finding.kind for one in launches for finding in one.run.findings}
                self.endless += bool(kinds & _ENDLESS)
                self.instructions.add(launches)

    @property
    def given_up(self) -> str:
        """Why no more calls of the kernel are to be made; empty where they are."""
        if self.endless < MOST_ENDLESS:
            return ""
        return (
            f"left out: {self.endless} calls of this kernel did not come to their end (an endless loop, more "
            "instructions than the budget of a wave, or a deadlock)"
        )


def emulator_of(dispatcher: Dispatcher, kernel: Kernel, target: Target) -> Emulator | str:
    """What emulates ``kernel`` for ``target``; or why nothing can.

    Raises:
        EmulationError: the target is not emulated, or tinygrad is not installed.
    """
    check_target(target)
    if dispatcher.registry.offline(kernel.plugin) is None:
        module = kernel.entry.partition(":")[0]
        return (
            f"the manifest of plugin {kernel.plugin} names no `offline`, which compiles its kernels for {target}: "
            f"where they are in Triton, write `from portakernel.authoring.triton import compiling` in {module} and "
            f"`offline: {module}:compiling` in the manifest (in HIP C++: from portakernel.authoring.native)"
        )
    try:
        compiling = offline_context(dispatcher, kernel)
    except ImportError as error:
        return f"what compiles plugin {kernel.plugin} for {target} cannot be imported: {error}"
    if "emulating" not in inspect.signature(compiling).parameters:
        return (
            f"plugin {kernel.plugin} launches its kernels by means of its own, which no emulator takes; those that are "
            "launched by Triton or through portakernel.authoring.native can be emulated, where `offline` in the "
            "manifest names a context that takes `emulating`, as the `compiling` of portakernel.authoring.triton does"
        )
    return Emulator(target, compiling)
