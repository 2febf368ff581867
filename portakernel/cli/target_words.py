"""What ``--target`` means: hardware as everywhere, or one kind of device, with its units; and which parts of plans."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.plan import Place
    from portakernel.registry.registry import Registry

_UNITS = re.compile(r"[1-9][0-9]{0,5}")


def target_and_units(text: str, registry: Registry) -> tuple[str, int | None]:
    """What ``VENDOR:ARCH`` or ``VENDOR:ARCH/UNITS`` says; units are None where they are not there.

    Raises:
        UnknownNameError: there is no such target.
        ArgumentValueError: the text is of neither form.
    """
    from portakernel.errors import ArgumentValueError

    target, slash, units = text.strip().rpartition("/")
    if not slash:
        return str(registry.target(text)), None
    if not _UNITS.fullmatch(units):
        form = "VENDOR:ARCH/UNITS, with the multiprocessors or compute units, such as nvidia:sm_90/132"
        raise ArgumentValueError(f"--target {text!r}: found {units!r} for units; write VENDOR:ARCH, or {form}")
    return str(registry.target(target)), int(units)


def those_meant(text: str, known: Iterable[Place], registry: Registry) -> list[Place]:
    """The places among ``known`` that ``text`` means, in order; none where it means another.

    Raises:
        UnknownNameError, ArgumentValueError: as ``target_and_units``.
    """
    target, units = target_and_units(text, registry)
    return sorted({place for place in known if place.target == target and units in (None, place.units)})


def place_meant(text: str, known: Collection[Place], registry: Registry, *, known_from: str) -> Place:
    """The one place that ``text`` means: as it says, or without units the one of ``known``, which ``known_from`` has.

    Raises:
        UnknownNameError: there is no such target.
        ArgumentValueError: the text is of neither form, or nothing or several say its units.
    """
    from portakernel.errors import ArgumentValueError
    from portakernel.plan import Place

    target, units = target_and_units(text, registry)
    if units is not None:
        return Place(target, units)
    found = those_meant(text, known, registry)
    if len(found) == 1:
        return found[0]
    if found:
        several = f"{known_from} has {' and '.join(map(str, found))}; add the units, such as {found[0]}"
    else:
        units_of_it = f"add its multiprocessors or compute units, as {target}/UNITS"
        several = f"{known_from} has no part for it; {units_of_it}"
    raise ArgumentValueError(f"--target {text!r}: {several}")
