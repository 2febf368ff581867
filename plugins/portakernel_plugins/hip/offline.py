"""Compiling for GPUs that are not here, as ``portakernel compile`` asks for it, and emulating them."""
# pyright: reportPrivateUsage=false
# It stands in for a function of this plugin's, see below.

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from portakernel.authoring import ArgumentValueError, Compiled, Target
from portakernel.authoring.native import compiling as compiling_units
from portakernel.authoring.native import target_of
from portakernel_plugins.hip import launch

__all__ = ["compiling"]


@contextmanager
def compiling(
    target: Target, *, multiprocessors: int | None = None, dry: bool = False, emulating: bool = False
) -> Iterator[list[Compiled]]:
    """The context of ``portakernel.authoring.native``; with ``emulating``, CPU tensors count as the target's."""
    if emulating:
        _ask_for_the_target()
    with compiling_units(target, multiprocessors=multiprocessors, dry=dry, emulating=emulating) as found:
        yield found


@functools.cache
def _ask_for_the_target() -> None:
    """From now on launches on CPU tensors are configured for the target that they are emulated for, if for any.

    ``launch`` itself refuses such tensors by name before anybody is asked; its text is what measurements are kept for.
    """
    without = launch._arch_without_device

    def arch_of(x: Tensor) -> str:
        try:
            return target_of(x).arch
        except ArgumentValueError:
            return without(x)

    launch._arch_without_device = arch_of
