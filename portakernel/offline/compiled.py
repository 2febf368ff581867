"""What a plugin's compiler made of one launch, and how a plugin is asked for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from portakernel.words.target import Target


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled function: its resources on ``target``, and its assembly.

    ``registers`` are those of one thread, ``spilled_bytes`` its memory for what did not fit into them,
    ``shared_bytes`` what a program shares, as far as it is known before a launch. ``seconds`` are near zero where a
    cache had it; ``key`` is its name there.
    """

    function: str
    target: str
    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    seconds: float = 0.0
    assembly: str = field(default="", repr=False)
    key: str = ""


class Compiling(Protocol):
    """What a manifest names as ``offline``.

    In the context that it returns, a kernel called on meta tensors launches nothing: what it would launch is compiled
    for ``target``, and added to the list. A plugin whose context takes the other two arguments as well has what is
    missing from its compiler's cache compiled in processes side by side, before ``portakernel.warmup`` makes calls:

    ``multiprocessors`` are those of the device of this machine that calls will run on. The cache has to hold what they
    will look for then; nothing of it is read. With ``dry`` nothing is compiled either, and the list holds what the
    cache lacks, each with its ``key``. That is asked in a process in which other threads launch kernels.

    With ``emulating`` nothing is compiled in it: launches on CPU tensors are taken by an emulator around it
    (``portakernel.emulation``), and a plugin whose wrappers ask where tensors lie has them take these for the target's.
    A plugin whose context takes that argument launches through ``portakernel.authoring`` alone: what it launches for
    AMD's architectures can be emulated.
    """

    def __call__(
        self, target: Target, *, multiprocessors: int | None = None, dry: bool = False, emulating: bool = False
    ) -> AbstractContextManager[list[Compiled]]:
        """The context, with the list that fills in it."""
        ...
