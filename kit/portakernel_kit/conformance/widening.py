"""A kernel's claims widened, one at a time: what only then is admitted had been refused for that claim alone.

To have another kind of claim widened, write a function that yields widenings, and call it in ``widenings``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from portakernel.claims.capability import Capability, Limit, Property, ReasonCode
from portakernel.claims.request import Phase
from portakernel.contract import Contract, TensorArgument
from portakernel.contract.case import Case, Layout
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.arch import Selector
from portakernel.words.target import Target
from portakernel_kit.conformance.claims import elements, just_outside, resized
from portakernel_kit.conformance.inputs import case_shape, is_present
from portakernel_kit.conformance.memory import layouts_of
from portakernel_kit.conformance.result import Aspect

# The aspect of the kit that shows a property, and the reason for which a kernel without it is refused.
PROPERTIES: Mapping[Property, tuple[Aspect, ReasonCode]] = {
    "deterministic": ("determinism", ReasonCode.NOT_DETERMINISTIC),
    "batch_invariant": ("batch_invariance", ReasonCode.NOT_BATCH_INVARIANT),
    "graph_capture": ("graph", ReasonCode.NOT_CAPTURABLE),
    "inplace": ("inplace", ReasonCode.LAYOUT),
}
# The terms of a limit, with what each is where there is none.
_NO_TERM: Mapping[str, Any] = {"min": None, "max": None, "multiple_of": None, "one_of": None, "power_of_two": False}


@dataclass(frozen=True, slots=True)
class Widening:
    """``kernel`` with more claimed in one place: there ``claim``, in words, no longer refuses.

    What is admitted now had been rejected with ``code`` and ``parameter``. ``bound`` is a limit of which a term is
    gone, before and after. ``required`` is a property that a request may require, ``phase`` what it may be for, and
    ``shown_by`` the aspect of the kit that shows whether the kernel can. ``dtype`` is one that ``parameter`` may now
    have. ``partial``: other variants for the same place do not refuse it.
    """

    claim: str
    code: ReasonCode
    parameter: str
    kernel: Kernel
    bound: tuple[Limit, Limit] | None = None
    required: Property | None = None
    phase: Phase = Phase.INFERENCE
    shown_by: Aspect | None = None
    dtype: str | None = None
    partial: bool = False


def widenings(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> Iterator[Widening]:
    """Each claim of ``here``, the kernel's variants for one place, widened in all of them that make it.

    Of a kernel that is switched off in its manifest, that alone.
    """
    if kernel.disabled is not None:
        claim = f"disabled: {kernel.disabled}"
        yield Widening(claim, ReasonCode.DISABLED, "disabled", replace(kernel, disabled=None))
        return
    if kernel.check is not None:
        claim = f"check of {', '.join(kernel.check.reads)}"
        yield Widening(claim, ReasonCode.CANNOT_RUN, "check", replace(kernel, check=None))
    for changes in (_limits, _dtypes, _formats, _values, _features, _properties):
        for widening, change in changes(contract, kernel, here):
            variants = tuple((name, change(c) if c in here else c) for name, c in kernel.variants)
            pairs = zip(kernel.variants, variants, strict=True)
            names = [name for (name, before), (_, after) in pairs if before is not after]
            some = len(names) < len(here)
            claim = f"{widening.claim} ({', '.join(names)})" if some else widening.claim
            if names:
                yield replace(widening, claim=claim, kernel=replace(kernel, variants=variants), partial=some)
    yield from _saving(contract, kernel)
    if contract.gradient == "kernel" and not any(c.forward_ad for _, c in kernel.variants):
        variants = tuple((name, replace(c, forward_ad=True)) for name, c in kernel.variants)
        changed, claim = replace(kernel, variants=variants), "without forward-mode derivatives"
        reason = (ReasonCode.REQUIRES_GRAD, "requires_grad")
        yield Widening(claim, *reason, changed, phase=Phase.FORWARD_AD, shown_by="forward_ad")


def _saving(contract: Contract, kernel: Kernel) -> Iterator[Widening]:
    """That forward keeps what backward needs, where the claim is that it does not."""
    if contract.saved and kernel.saves == "none":
        variants = tuple((name, replace(c, saves="contract")) for name, c in kernel.variants)
        saving = replace(kernel, saves="contract", variants=variants)
        claim = f"without saving {', '.join(saved.name for saved in contract.saved)}"
        reason = (ReasonCode.REQUIRES_GRAD, "requires_grad")
        yield Widening(claim, *reason, saving, phase=Phase.TRAINING, shown_by="saved")


def on_target(kernel: Kernel, target: Target) -> Widening:
    """``kernel`` with all its claims held on ``target`` too, which its targets leave out."""

    def added(c: Capability) -> Capability:
        selector = c.targets.get(target.vendor, Selector(()))
        minus = tuple(term for term in selector.exclude if term != target.arch)
        both = Selector((*selector.include, target.arch), minus)
        return replace(c, targets={**c.targets, target.vendor: both})

    vendors = {vendor for _, c in kernel.variants for vendor in c.targets}
    code = ReasonCode.ARCH if target.vendor in vendors else ReasonCode.VENDOR
    variants = tuple((name, added(c)) for name, c in kernel.variants)
    return Widening(f"not on {target}", code, "target", replace(kernel, variants=variants))


def widened(dispatcher: Dispatcher, kernel: Kernel) -> Dispatcher:
    """``dispatcher`` with ``kernel`` in the place of the one of its name; what was found out so far is shared."""
    registry, changed = copy.copy(dispatcher.registry), copy.copy(dispatcher)
    registry.kernels = MappingProxyType({**registry.kernels, kernel.name: kernel})
    changed.registry = registry
    return changed


# A claim that is still to be widened, and how a variant that makes it changes; any other is returned as it is.
_Changes = Iterator[tuple[Widening, Callable[[Capability], Capability]]]


def _limits(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> _Changes:
    """Each term of each limit, dropped."""

    def drop(term: str, value: object, parameter: str, c: Capability) -> Capability:
        held = [limit for limit in c.limits if limit.parameter == parameter and getattr(limit, term) == value]
        freed = (replace(limit, **{term: _NO_TERM[term]}) if limit in held else limit for limit in c.limits)
        return replace(c, limits=tuple(freed)) if held else c

    terms = {
        Limit(limit.parameter, **{term: getattr(limit, term)}): (limit, term)
        for c in here
        for limit in c.limits
        for term in _NO_TERM
    }
    for alone, (limit, term) in terms.items():
        outside = just_outside(alone)
        rejection = alone.rejection(outside[0]) if outside else None
        if rejection is not None:
            bound = limit, replace(limit, **{term: _NO_TERM[term]})
            claim = Widening(str(alone), rejection.code, limit.parameter, kernel, bound)
            yield claim, partial(drop, term, getattr(limit, term), limit.parameter)


def _dtypes(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> _Changes:
    """Each dtype that the op accepts and the claim leaves out."""

    def add(name: str, dtype: str, c: Capability) -> Capability:
        if name not in c.dtypes or dtype in c.dtypes[name]:
            return c
        found = {**c.dtypes, name: (*c.dtypes[name], dtype)}
        # where the op makes others have that dtype too, they may: it is one dtype that is refused, not several
        known = {name: dtype}
        for other, entries in c.dtypes.items():
            leaders = [entry for entry in contract.accepted_dtypes(other, {}) if entry in known]
            accepted = contract.accepted_dtypes(other, known)
            if leaders and not any(known.get(entry, entry) in accepted for entry in entries):
                found[other] = (*entries, leaders[0])
                known[other] = known[leaders[0]]
        return replace(c, dtypes=found)

    for name in contract.typed:
        for dtype in contract.possible_dtypes(name):
            claim = Widening(f"{name} not {dtype}", ReasonCode.DTYPE, name, kernel, dtype=dtype)
            yield claim, partial(add, name, dtype)


def _formats(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> _Changes:
    """Each scale format that the op accepts and the claim leaves out."""

    def add(name: str, scale_format: str, c: Capability) -> Capability:
        claimed = c.formats.get(name, ())
        return c if scale_format in claimed else replace(c, formats={**c.formats, name: (*claimed, scale_format)})

    for parameter in (parameter for parameter in contract.parameters if parameter.kind == "format"):
        name = parameter.of or parameter.name
        for scale_format in parameter.choices:
            claim = Widening(f"{name} without {scale_format} scales", ReasonCode.SCALE_FORMAT, name, kernel)
            yield claim, partial(add, name, scale_format)


def _values(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> _Changes:
    """Each value of a keyword argument that the claim leaves out."""

    def add(name: str, value: bool | str, c: Capability) -> Capability:
        if value in c.values.get(name, (value,)):
            return c
        return replace(c, values={**c.values, name: (*c.values[name], value)})

    for name in dict.fromkeys(name for c in here for name in c.values):
        for value in contract.parameter(name).possible():
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            yield Widening(f"{name} not {shown}", ReasonCode.FEATURE, name, kernel), partial(add, name, value)


def _features(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> _Changes:
    """Each feature that the claim leaves out; a tensor among them may have any dtype that the op accepts."""

    def add(feature: str, dtypes: Mapping[str, tuple[str, ...]], c: Capability) -> Capability:
        if feature in c.features:
            return c
        return replace(c, features=c.features | {feature}, dtypes={**dtypes, **c.dtypes})

    for feature in contract.features:
        name = feature.name
        dtypes = {name: contract.accepted_dtypes(name, {})} if isinstance(feature, TensorArgument) else {}
        yield Widening(f"without feature {name}", ReasonCode.FEATURE, name, kernel), partial(add, name, dtypes)


def _properties(contract: Contract, kernel: Kernel, here: Sequence[Capability]) -> _Changes:
    """Each property that the claim leaves out."""

    def add(name: str, c: Capability) -> Capability:
        return c if name in c.properties else replace(c, properties=c.properties | {name})

    rows = any(tensor.leading for tensor in contract.at().tensors)
    possible = {"inplace": bool(contract.inplace), "batch_invariant": rows}
    for name, (aspect, code) in PROPERTIES.items():
        if possible.get(name, True):
            claim = Widening(f"without property {name}", code, name, kernel, required=name, shown_by=aspect)
            yield claim, partial(add, name)


def cases_beyond(
    contract: Contract, widening: Widening, claimed: Iterable[Case], max_elements: int
) -> tuple[Case, ...]:
    """Cases that the limit refused and its widening admits: ordinary ones of the claimed, with one thing changed.

    The op's cases know nothing of one kernel's limits. Of a dimension, other sizes: the nearest ones and, beyond a
    largest one, one that is far off. Of a tensor's layout, every other one.
    """
    if widening.bound is None:
        return ()
    # where nothing is computed any size would do
    plain = (c for c in claimed if c.values == "normal" and not (c.layouts or c.given))
    plain = (c for c in plain if 0 not in (*c.leading, *c.dims.values()))
    # the largest that stays small enough says most
    bases = sorted(plain, key=lambda case: elements(contract, case), reverse=True)
    name, _, fact = widening.parameter.partition(".")
    if fact:
        return tuple(_elsewhere(contract, name, bases))
    made = (
        (resized(contract, base, name, size, f"{name} = {size}", max_elements) for base in bases)
        for size in _sizes(*widening.bound)
    )
    return tuple(case for cases in made if (case := next(filter(None, cases), None)) is not None)


def _sizes(before: Limit, after: Limit) -> list[int]:
    """What ``after`` admits and ``before`` does not: the nearest sizes, and twice the largest."""
    step = before.multiple_of or 1
    tried = set(just_outside(before))
    if before.min is not None:
        tried.add((before.min - 1) // step * step)
    if before.max is not None:
        tried |= {(before.max // step + 1) * step, 2 * before.max}
    return sorted(size for size in tried if size >= 0 and after.admits(size) and not before.admits(size))


def _elsewhere(contract: Contract, name: str, bases: Sequence[Case]) -> Iterable[Case]:
    """For each layout, the first of the cases in which the tensor can lie like that, with it lying so."""
    found: dict[Layout, Case] = {}
    for base in bases:
        tensor = contract.at(contract.values(base.parameters)).tensor(name)
        for layout in layouts_of(tensor, len(case_shape(tensor, base))) if is_present(tensor, base) else ():
            # what tells where pieces begin cannot be one number seen everywhere
            if layout != "expanded" or tensor.draw.kind not in ("segments", "offsets"):
                found.setdefault(layout, replace(base, name=f"{name} {layout}", layouts={name: layout}))
    return found.values()
