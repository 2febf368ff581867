"""A kernel's claims narrowed, one at a time: what then is refused had been served.

To have another kind of claim narrowed, write a function that yields narrowings, and call it in ``narrowings``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from portakernel.claims.capability import Capability, Limit
from portakernel.contract import Contract
from portakernel.registry.kernel import Kernel
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.target import Target

# For a claim, the variant without it: the same one where it does not make it, None where it would claim nothing.
_Change = Callable[[Capability], Capability | None]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """``kernel`` with less claimed in one place, which ``claim`` says in words.

    What is lost is refused for ``parameter``, or for any where a whole variant is gone. ``vendor``: the claim was about
    hardware of that vendor.
    """

    claim: str
    parameter: str
    kernel: Kernel
    vendor: str | None = None


def narrowings(
    contract: Contract,
    kernel: Kernel,
    here: Sequence[Capability],
    targets: Sequence[Target],
    spaces: Mapping[str, ArchSpace],
) -> Iterator[Narrowing]:
    """Each claim of ``here``, the kernel's variants for ``targets``, taken out of all of them that make it.

    A variant of which nothing would be left goes whole. Of a kernel that is switched off in its manifest, none.
    """
    if kernel.disabled is not None:
        return
    for changes in (_listed, _named, _limits):
        for claim, parameter, change in changes(here):
            yield from _narrowed(Narrowing(claim, parameter, kernel), change, here)
    if contract.saved and kernel.saves == "contract" and kernel.backward is None:
        variants = tuple((name, replace(c, saves="none")) for name, c in kernel.variants)
        claim = f"saving {', '.join(saved.name for saved in contract.saved)}"
        yield Narrowing(claim, "requires_grad", replace(kernel, saves="none", variants=variants))
    if any(c.forward_ad for c in here):
        variants = tuple((name, replace(c, forward_ad=False)) for name, c in kernel.variants)
        claim = "forward-mode derivatives"
        yield Narrowing(claim, "requires_grad", replace(kernel, variants=variants))
    for name, variant in kernel.variants if len(kernel.variants) > 1 else ():
        others = tuple(pair for pair in kernel.variants if pair[1] is not variant)
        vendor = None if variant in here else next(iter(variant.targets))
        yield Narrowing(f"all of {name}", "", replace(kernel, variants=others), vendor)
    yield from _targets(kernel, here, targets, spaces)


def _narrowed(narrowing: Narrowing, change: _Change, here: Sequence[Capability]) -> Iterator[Narrowing]:
    """``narrowing`` with its change made in the variants here, where any variant is left."""
    kernel = narrowing.kernel
    changed = [(name, change(c) if c in here else c) for name, c in kernel.variants]
    pairs = zip(changed, kernel.variants, strict=True)
    names = [name for (name, after), (_, before) in pairs if after is not before and after != before]
    if len(names) < len(here):
        narrowing = replace(narrowing, claim=f"{narrowing.claim} ({', '.join(names)})")
    variants = tuple((name, c) for name, c in changed if c is not None)
    if variants and any(c is not None for c in map(change, here)):
        yield replace(narrowing, kernel=replace(kernel, variants=variants))


# Claims in words, the parameter that each is about, and how a variant changes that loses it.
_Changes = Iterator[tuple[str, str, _Change]]


def _listed(here: Sequence[Capability]) -> _Changes:
    """Each dtype and scale format of each argument; each value of each keyword argument of which some are claimed."""
    for key, words in (("dtypes", "as {}"), ("formats", "with {} scales"), ("values", "as {}")):
        listed = ((n, entry) for c in here for n, accepted in getattr(c, key).items() for entry in accepted)
        for name, entry in dict.fromkeys(listed):
            shown = str(entry).lower() if isinstance(entry, bool) else repr(entry) if key == "values" else entry
            yield f"{name} {words.format(shown)}", name, partial(_without, key, name, entry)


def _without(key: str, name: str, entry: object, c: Capability) -> Capability | None:
    claimed: Mapping[str, tuple[object, ...]] = getattr(c, key)
    if entry not in claimed.get(name, ()):
        return c
    left = tuple(other for other in claimed[name] if other != entry)
    changed: Any = {key: {**claimed, name: left}}
    return replace(c, **changed) if left else None


def _named(here: Sequence[Capability]) -> _Changes:
    """Each feature, and each property."""

    def less(key: str, name: str, c: Capability) -> Capability:
        changed: Any = {key: getattr(c, key) - {name}}
        return replace(c, **changed)

    for key, what in (("features", "feature"), ("properties", "property")):
        for name in sorted(frozenset[str]().union(*(getattr(c, key) for c in here))):
            yield f"{what} {name}", name, partial(less, key, name)


def _limits(here: Sequence[Capability]) -> _Changes:
    """Half of what the largest size admits, and each of several listed values."""
    for limit in dict.fromkeys(limit for c in here for limit in c.limits):
        if limit.max is not None:
            step = limit.multiple_of or 1
            half = max(limit.max // 2, limit.min or 0) // step * step
            if half < limit.max:
                claim = f"{limit.parameter} between {half} and {limit.max}"
                yield claim, limit.parameter, partial(with_limit, limit, replace(limit, max=half))
        listed = limit.one_of or ()
        for value in listed if len(listed) > 1 else ():
            left = replace(limit, one_of=tuple(other for other in listed if other != value))
            yield f"{limit.parameter} = {value}", limit.parameter, partial(with_limit, limit, left)


def with_limit(before: Limit, after: Limit, c: Capability) -> Capability:
    """``c`` with one of its limits in the place of another."""
    return replace(c, limits=tuple(after if limit == before else limit for limit in c.limits))


def _targets(
    kernel: Kernel, here: Sequence[Capability], targets: Sequence[Target], spaces: Mapping[str, ArchSpace]
) -> Iterator[Narrowing]:
    """The arch of each device here, and each vendor whose devices are elsewhere."""
    for target in targets:

        def excluding(c: Capability, target: Target = target) -> Capability:
            selector = c.targets.get(target.vendor, Selector(()))
            less = replace(selector, exclude=(*selector.exclude, target.arch))
            return replace(c, targets={**c.targets, target.vendor: less})

        if any(target.vendor in c.targets for c in here):
            yield from _narrowed(Narrowing(f"{target}", "target", kernel), excluding, here)
    elsewhere = dict.fromkeys(vendor for _, c in kernel.variants for vendor in c.targets)
    for vendor in elsewhere:
        if all(target.vendor != vendor for target in targets):

            def without(c: Capability, vendor: str = vendor) -> Capability | None:
                left = {name: selector for name, selector in c.targets.items() if name != vendor}
                return replace(c, targets=left) if left else None

            found = [(name, without(c)) for name, c in kernel.variants]
            variants = tuple((name, c) for name, c in found if c is not None)
            if variants:
                yield Narrowing(f"targets of {vendor}", "target", replace(kernel, variants=variants), vendor)
