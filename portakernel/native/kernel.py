"""One kernel as a plugin declares it: built and loaded on first use, then found by one look-up and launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from portakernel.native.module import Parameter
from portakernel.native.unit import Unit
from portakernel.target import Target


class Kernel:
    """A ``__global__`` function of a unit, on whatever device its first tensor lies.

    ``name`` is needed where the unit has several. ``compiles``: ``"on call"``, or ``"ahead"`` alone.
    """

    def __init__(
        self,
        unit: Unit,
        parameters: Sequence[Parameter],
        *,
        name: str | None = None,
        compiles: Literal["on call", "ahead"] = "on call",
        most_shared_bytes: int = 0,
    ) -> None:
        raise NotImplementedError

    def __call__(self, grid: Sequence[int], block: Sequence[int], shared_bytes: int, *args: Any) -> None:
        """Launches it, as ``Function`` does; on meta tensors, inside ``compiling(target)``, it is compiled alone.

        Raises:
            CannotRun: it cannot be built or loaded here; nothing was launched.
            CaptureError: it is not built, and a stream is being captured.
        """
        raise NotImplementedError

    def build(self, target: Target) -> None:
        """Sees to it that the cache has it for ``target``."""


def target_of(tensor: Tensor) -> Target:
    """The target that a launch on ``tensor`` is for: of its device, or inside ``compiling(target)`` that one."""
    raise NotImplementedError
