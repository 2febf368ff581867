"""Targets as policy files write them: a vendor, or one with archs or products (``nvidia:sm_90+``, ``nvidia:h100``)."""

from __future__ import annotations

from collections.abc import Mapping

from portakernel.deciding.policies import Scope
from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.words.arch import ArchSpace, Selector, normalise, respelled, surplus

SPELT_SO = "It holds for devices that are called so, if any are"
IN_RANGE = "It holds for the devices in that range, if any are"
NO_VENDOR = "Its wishes are left out"


def read_target(text: str, spaces: Mapping[str, ArchSpace]) -> tuple[Scope, UnknownNameError | None, str]:
    """The scope that ``text`` means; where it names what nothing here lists, the error, and what comes of it.

    Raises:
        ArgumentValueError: it has no such form: no arch where one has to be, a range that is backwards.
    """
    vendor, colon, archs = text.partition(":")
    space, archs = spaces.get(vendor), respelled(archs)
    if colon and not archs.strip():
        such = f", or one of them, as in {f'{vendor}:{space.archs[-1]}'!r}" if space and space.archs else ""
        raise ArgumentValueError(f"names no arch after the colon; write {vendor!r} for all of its archs{such}")
    if more := surplus(archs):
        raise ArgumentValueError(f"ends with {more!r}, which means nothing; write {text.removesuffix(more)!r}")
    if space is None:
        scope = Scope(vendor=vendor, archs=Selector((archs,))) if colon else Scope(vendor=vendor)
        return scope, *_unknown_vendor(vendor, spaces)
    if not colon:
        return Scope(vendor=vendor), None, ""
    terms, unknown = _terms(archs, space)
    others = [f"{name}:{arch}" for name, other in spaces.items() for arch in other.meant(archs.removesuffix("+"))]
    if unknown is not None and others:
        instead = f"it is {' or '.join(others)}"
        unknown = UnknownNameError(f"{vendor} arch", archs, unknown.known, instead=instead)
    return Scope(vendor=vendor, archs=Selector(terms)), unknown, IN_RANGE if _is_range(archs) else SPELT_SO


def _is_range(term: str) -> bool:
    return ".." in term or term.endswith("+")


def _terms(term: str, space: ArchSpace) -> tuple[tuple[str, ...], UnknownNameError | None]:
    """The selector's terms for the text after the colon, products taken as their archs."""
    if term == "any" or term in space.families:
        return (term,), None
    if not _is_range(term):
        meant = list(space.meant(term)) or [term]
        return tuple(meant), None if len(meant) > 1 else _unlisted(normalise(meant[0]), space)
    first, dots, last = term.removesuffix("+").partition("..")
    ends = [_end(name, term, space) for name in ((first, last) if dots else (first,))]
    unknown = next(filter(None, (_unlisted(end, space) for end in ends)), None)
    spelt = "..".join(ends) if dots else f"{ends[0]}+"
    if unknown is None:
        space.parse([spelt])
    return (spelt,), unknown


def _end(name: str, term: str, space: ArchSpace) -> str:
    """The one arch that a range begins or ends with."""
    if not name:
        raise ArgumentValueError(f"range {term!r} lacks an arch; write both, or one with a plus: sm_80..sm_90, sm_80+")
    if name in space.families:
        space.check(name)
    meant = list(space.meant(name)) or [name]
    if len(meant) > 1:
        raise ArgumentValueError(f"{name!r} may mean {' or '.join(meant)}; write one of these")
    return meant[0]


def _unlisted(arch: str, space: ArchSpace) -> UnknownNameError | None:
    # a vendor that lists no arch at all has nothing to hold a name against
    return None if arch in space.archs or (space.open_ended and not space.archs) else space.unknown(arch)


def _unknown_vendor(name: str, spaces: Mapping[str, ArchSpace]) -> tuple[UnknownNameError, str]:
    """The error for a vendor that is none; an arch or product in its place is offered with its vendor."""
    base = normalise(respelled(name.strip().removesuffix("+")))
    sold = [vendor for vendor, space in spaces.items() if base in space.families or space.meant(base)]
    if not sold:
        return UnknownNameError("vendor", name, spaces), SPELT_SO
    offers = " or ".join(repr(f"{vendor}:{respelled(name)}") for vendor in sold)
    return UnknownNameError("vendor", name, spaces, instead=f"did you mean {offers}?"), NO_VENDOR
