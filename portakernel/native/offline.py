"""Compiling for a GPU that is not here: what a manifest names as ``offline``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from portakernel.claims.capability import CannotRun
from portakernel.native.code_object import CodeObject
from portakernel.native.diagnosis import CompilerOutputError
from portakernel.native.place import PRETENDED
from portakernel.native.unit import Unit
from portakernel.offline.compiled import Compiled
from portakernel.words.target import Target


@contextmanager
def compiling(
    target: Target, *, multiprocessors: int | None = None, dry: bool = False, emulating: bool = False
) -> Iterator[list[Compiled]]:
    """Inside, a ``Kernel`` called on meta tensors is compiled for ``target``, and added to the list.

    A plugin names it in a module of its own: ``from portakernel.native.offline import compiling``, and in its manifest
    ``offline: portakernel_plugins.<plugin>.offline:compiling``. The cache is filled either way: which of a device's
    multiprocessors will run a kernel does not change it. ``dry`` lists what the cache lacks. With ``emulating``
    nothing is compiled: launches go to the emulator.
    """
    del multiprocessors
    found: list[Compiled] = []
    if emulating:
        yield found
        return

    def take(unit: Unit, name: str, most_shared_bytes: int) -> None:
        label = f"{PurePath(unit.source.file).stem}.{name}"
        if not dry:
            found.append(_compiled(label, unit.build(target), name, most_shared_bytes))
        elif unit.kept(target) is None:
            found.append(Compiled(label, str(target), key=f"{unit.source.path} {unit.names} {unit.for_target(target)}"))

    token = PRETENDED.set((target, take))
    try:
        yield found
    except CannotRun as declined:
        if isinstance(declined.__cause__, CompilerOutputError):
            print(declined.__cause__, file=sys.stderr)  # noqa: T201 - where the compilers' own words are looked for
        raise
    finally:
        PRETENDED.reset(token)


def _compiled(label: str, code: CodeObject, name: str, most_shared_bytes: int) -> Compiled:
    facts = code.kernel(name)
    return Compiled(
        label,
        str(code.target),
        registers=facts.registers,
        spilled_bytes=facts.spilled_bytes,
        shared_bytes=facts.shared_bytes + most_shared_bytes,
        seconds=code.seconds,
        assembly=code.assembly,
        key=code.key,
    )
