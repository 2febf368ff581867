"""Compiling for a GPU that is not here: what a manifest names as ``offline``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from portakernel.offline.compiled import Compiled
from portakernel.target import Target


@contextmanager
def compiling(target: Target, *, multiprocessors: int | None = None, dry: bool = False) -> Iterator[list[Compiled]]:
    """Inside, a ``Kernel`` called on meta tensors is compiled for ``target``, and added to the list.

    A plugin names it in a module of its own: ``from portakernel.native.offline import compiling``, and in its manifest
    ``offline: portakernel_plugins.<plugin>.offline:compiling``.
    """
    raise NotImplementedError
    yield []
