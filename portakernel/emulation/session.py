"""Kernels run by their own Python entries, on CPU tensors: what they launch is compiled for a target, and emulated.

::

    with emulating(Target("amd", "gfx942")) as launches:
        y = rms_norm(x, weight, eps=1e-6)  # a plugin's kernel, called as dispatch calls it

The kernel's wrapper, the configuration that it chooses for the target, its grid and its arguments are those of a call
on such hardware; the memory that a launch may touch is that of its arguments' tensors.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from portakernel.emulation.arch import ARCHS
from portakernel.emulation.errors import NO_TABLES, EmulationError
from portakernel.emulation.launch import Run, emulate
from portakernel.errors import ArgumentTypeError, PortakernelError
from portakernel.words.target import Target

# Instructions of one wave: many times what kernels take on sizes that an emulator is asked for.
BUDGET = 20_000_000
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch: the kernel's function, its grid of workgroups, the work items of one, and what came of it."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    run: Run

    def __str__(self) -> str:
        shown = [f"  {finding}" for finding in self.run.findings[:_MOST_SHOWN]]
        left = len(self.run.findings) - len(shown)
        shown += [f"  and {left} more findings"] if left else []
        ended = ", which did not run to its end" if self.run.stopped else ""
        head = f"{self.kernel} over {'x'.join(map(str, self.grid))} workgroups{ended}"
        return "\n".join([f"{head}:" if shown else head, *shown])


class FindingsError(PortakernelError, RuntimeError):
    """An emulated kernel did what hardware may hide: each finding by instruction, wave, lane and source line."""

    def __init__(self, target: str, launches: Sequence[Launched]) -> None:
        self.target, self.launches = target, tuple(launches)
        super().__init__(f"emulated on {target}, " + "\n".join(map(str, self.launches)))


@dataclass(slots=True)
class Session:
    """What is launched while ``emulating``, and how it is run; ``threads`` of the host, all its cores where None."""

    target: Target
    budget: int
    threads: int | None
    launches: list[Launched] = field(default_factory=list[Launched])

    def launch(
        self, label: str, code: bytes, name: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
        *, names: Sequence[str] = (), dynamic_lds: int = 0,
    ) -> None:  # fmt: skip
        """Runs a kernel of a code object, as ``emulate`` does.

        Raises:
            EmulationError: it cannot be emulated.
            FindingsError: it did not run to its end, so that what it was to compute is not there.
        """
        run = emulate(
            code, name, grid, block, arguments, self.target.arch, names=names, dynamic_lds=dynamic_lds,
            budget=self.budget, threads=self.threads,
        )  # fmt: skip
        self.launches.append(Launched(label, tuple(grid), tuple(block), run))
        if run.stopped:
            raise FindingsError(str(self.target), self.launches[-1:])

    def check(self) -> None:
        """Nothing, where no launch has findings.

        Raises:
            FindingsError: some have.
        """
        unclean = [launched for launched in self.launches if not launched.run.clean]
        if unclean:
            raise FindingsError(str(self.target), unclean)


@contextmanager
def emulating(
    target: Target | str, *, budget: int = BUDGET, threads: int | None = None, check: bool = True
) -> Iterator[list[Launched]]:
    """Within this context, Triton and HIP launches on CPU tensors are compiled for ``target``, and emulated.

    A text such as ``"amd:gfx942"`` is a target too. Launches are those of this thread: through
    ``portakernel.authoring.triton`` and ``portakernel.authoring.native``, and by Triton itself (``kernel[grid](...)``;
    an autotuned kernel has its first configuration). ``budget`` are instructions of one wave, ``threads`` those of the
    host that run workgroups side by side. The list fills with what was launched. Triton compiles for one target at a
    time in a process.

    Raises:
        EmulationError: the target is not emulated, or tinygrad is not installed.
        ArgumentTypeError: it is no target; ArgumentValueError: nor a text that says one.
        FindingsError: a launch did not run to its end; or with ``check``, as the context ends, one has findings.
        CannotRun: a kernel needs more than the target has, or it cannot be compiled here.
    """
    from portakernel.emulation.native_kernels import taking_native_launches

    if not isinstance(target, Target | str):
        raise ArgumentTypeError(
            f"emulating takes a target, such as 'amd:gfx942' or Target('amd', 'gfx942'), not {target!r}"
        )
    target = Target.parse(target) if isinstance(target, str) else target
    check_target(target)
    session = Session(target, budget, threads)
    with ExitStack() as stack:
        stack.enter_context(taking_native_launches(session))
        if importlib.util.find_spec("triton") is not None:
            from portakernel.emulation.triton_kernels import taking_triton_launches

            stack.enter_context(taking_triton_launches(session))
        yield session.launches
    if check:
        session.check()


def check_target(target: Target) -> None:
    """Nothing, where the emulator knows ``target`` and has what it needs.

    Raises:
        EmulationError: it does not, or tinygrad is not installed.
    """
    known = ", ".join(f"amd:{arch}" for arch in ARCHS)
    if target.vendor != "amd" or target.arch not in ARCHS:
        raise EmulationError(f"{target} is not emulated; these are: {known}")
    if importlib.util.find_spec("tinygrad") is None:
        raise EmulationError(NO_TABLES)
