"""Targets and devices as people name them: ``nvidia:sm_90``, ``nvidia:h100``, ``h100``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from portakernel.errors import ArgumentValueError, UnknownNameError, nearest
from portakernel.words.arch import ArchSpace, normalise, respelled, surplus
from portakernel.words.products import letters, numbered, spelled, spellings
from portakernel.words.target import Device, Target


def find_target(text: str, spaces: Mapping[str, ArchSpace], *, where: str = "") -> Target:
    """The target that ``text`` means: a vendor with an arch or product, or an arch or product that one vendor has.

    Raises:
        UnknownNameError: no backend has that vendor, or its vendor has no such arch and no such product.
        ArgumentValueError: the text is not of that form, or means several archs.
    """
    vendor, colon, name = (part.strip() for part in text.partition(":"))
    if not colon:
        return _without_vendor(respelled(vendor), spaces, where)
    if more := surplus(name):
        prefix, kept = f"{where}: " if where else "", text.strip().removesuffix(more)
        raise ArgumentValueError(f"{prefix}target {text!r} ends with {more!r}, which means nothing; write {kept!r}")
    name = respelled(name)
    target = Target.parse(f"{vendor.casefold()}:{name}")
    if target.vendor not in spaces:
        raise unknown_vendor(vendor, spaces, where)
    space = spaces[target.vendor]
    if meant := space.meant(target.arch):
        return _only(text, [Target(target.vendor, arch) for arch in meant], where)
    if not (space.open_ended or space.is_newer(target.arch) or target.arch in space.families):
        raise _unknown(target, spaces, where)
    space.check(target.arch, where=where)
    return target


def unknown_vendor(name: str, spaces: Mapping[str, ArchSpace], where: str = "") -> UnknownNameError:
    """The error for a vendor that no backend has; where an arch or a product is called so, its vendor is offered."""
    try:
        meant = find_target(name, spaces)
    except (UnknownNameError, ArgumentValueError):
        return UnknownNameError("vendor", name, spaces, where=where)
    return UnknownNameError("vendor", name, spaces, where=where, meant=meant.vendor, hint=f"{name} is {meant}")


def find_device(
    name: str, devices: Sequence[Device], spaces: Mapping[str, ArchSpace], off: Mapping[str, str] | None = None
) -> Device:
    """The device of this machine that ``name`` means: torch's name for it, its uuid, or its target as ``find_target``.

    ``off`` says of vendors and kinds of torch devices why nobody looked for them.

    Raises:
        UnknownNameError: there is no such device, or torch cannot reach it.
    """
    wanted = f"{name}:0" if name in {"cuda", "xpu", "mps"} else name
    usable = [device for device in devices if device.torch_device is not None]
    for device in usable:
        if wanted in {device.torch_device, device.uuid}:
            return device
    target: Target | None = None
    with contextlib.suppress(UnknownNameError, ArgumentValueError):
        target = find_target(name, spaces)
    for device in usable:
        if device.target == target:
            return device
    notes = [device.note for device in devices if device.target == target and device.note]
    known = [known for device in usable for known in (device.torch_device, str(device.target)) if known]
    unseen = (off or {}).get(target.vendor if target is not None else name.partition(":")[0], "")
    raise UnknownNameError("device", name, known, hint=notes[0] if notes else unseen)


def _without_vendor(name: str, spaces: Mapping[str, ArchSpace], where: str) -> Target:
    meant = [Target(vendor, arch) for vendor, space in spaces.items() for arch in space.meant(normalise(name))]
    if meant:
        return _only(name, meant, where)
    for space in spaces.values():
        if name in space.families:
            space.check(name, where=where)
    prefix = f"{where}: " if where else ""
    if (named := spaces.get(name.casefold())) is not None:
        raise ArgumentValueError(f"{prefix}target {name!r} is a vendor without an arch; it has\n{named.described()}")
    known = [like for space in spaces.values() for like in _alike(name, space)]
    offer = _offer(name, known, spaces.values())
    text = f"{prefix}target {name!r} is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942"
    text += ", and no product that a backend lists, such as h100"
    raise ArgumentValueError(f"{text}; {offer}" if offer else text)


def _only(text: str, meant: Sequence[Target], where: str) -> Target:
    """The one target that ``text`` means.

    Raises:
        ArgumentValueError: it may mean several.
    """
    if len(meant) == 1:
        return meant[0]
    prefix = f"{where}: " if where else ""
    raise ArgumentValueError(f"{prefix}target {text!r} may mean {' or '.join(map(str, meant))}; write one of these")


def _unknown(target: Target, spaces: Mapping[str, ArchSpace], where: str) -> UnknownNameError:
    """The error for an arch that the vendor does not have, with all that it has."""
    space = spaces[target.vendor]
    others = [f"{vendor}:{arch}" for vendor, other in spaces.items() for arch in other.meant(target.arch)]
    known = _alike(target.arch, space)
    offer = f"it is {' or '.join(others)}" if others else _offer(target.arch, known, [space])
    return UnknownNameError(
        f"{target.vendor} arch or product",
        target.arch,
        known or space.archs,
        where=where,
        hint=f"{target.vendor} has\n{space.described()}",
        instead=offer or "no name is like it",
    )


def _offer(name: str, known: Sequence[str], spaces: Iterable[ArchSpace]) -> str:
    """A clause that offers the closest of ``known``, as people write them; for a number the products that end in it."""
    if known:
        return nearest(name, known, like=spelled)
    meant = numbered(name, (product for space in spaces for names in space.products.values() for product in names))
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else ""


def _alike(name: str, space: ArchSpace) -> list[str]:
    """The archs, families and products that begin with the same letters: an h300 is like an h100, not an sm_100."""
    first = letters(name)
    products = (
        spelling for names in space.products.values() for name in names for spelling in spellings(name).values()
    )
    return [known for known in (*space.archs, *space.families, *products) if first and letters(known) == first]
