"""Whether a plan's names and sources are those of an installation: each problem with its place in the file."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping

from portakernel.claims.request import PLAIN_FACTS
from portakernel.contract import Contract
from portakernel.errors import ArgumentValueError, PortakernelError, UnknownNameError, nearest
from portakernel.host.distributions import version
from portakernel.manifest.yaml_file import KeyPath
from portakernel.plan.pins import SourceOf, mismatch, note
from portakernel.plan.plan import Entry, Pin, Place, Plan
from portakernel.registry.registry import Registry
from portakernel.words.target import Target

Problem = tuple[KeyPath, str]


def judged(
    plan: Plan, places: Collection[Place], registry: Registry, source_of: SourceOf, *, granted: bool = False
) -> Iterator[Problem]:
    """What is wrong: of every part its target, of those for ``places`` ops, kernels, sizes and sources.

    ``granted``: of kernels that only hardware elsewhere runs, what is installed there is taken to be as in the plan.
    """
    used: dict[str, bool] = {}
    here = _targets_here(registry)
    for place, ops in plan.parts.items():
        path: KeyPath = ("targets", str(place))
        try:
            found = str(registry.target(place.target))
        except (UnknownNameError, ArgumentValueError) as error:
            yield path, _unknown_target(place, registry) or str(error)
            continue
        if found != place.target:
            yield path, f"{place.target} is {found}; write {found}/{place.units}"
        for op, entries in ops.items() if place in places else ():
            if op not in registry.ops:
                yield (*path, op), str(UnknownNameError("op", op, registry.ops))
                continue
            for i, entry in enumerate(entries):
                used[entry.kernel] = used.get(entry.kernel, granted) and place.target not in here
                where = (*path, op, i)
                yield from ((where, text) for text in _of_entry(entry, registry.ops[op], registry))
    yield from _of_pins(plan.pins, used, registry, source_of)


def _unknown_target(place: Place, registry: Registry) -> str:
    """That an arch is none of its vendor's, in one line; empty where something else is wrong with the target."""
    target = Target.parse(place.target)
    space = registry.spaces.get(target.vendor)
    if space is None or target.arch in (*space.archs, *space.families):
        return ""
    offer = nearest(target.arch, space.archs)
    return f"{target.arch!r} is no arch of {target.vendor} that this portakernel knows; {offer}"


def _of_layout(entry: Entry, contract: Contract) -> Iterator[tuple[str, str]]:
    """The bounds that speak of no tensor, or of nothing that memory has, and why no kernel can set them."""
    for text in entry.layout:
        tensor, dot, fact = text.partition(" ")[0].partition(".")
        if not dot or tensor not in contract.typed:
            yield text, f"{contract.op} has no tensor {tensor!r}; {nearest(tensor, contract.typed)}"
        elif fact not in PLAIN_FACTS:
            yield text, f"the memory of a tensor has no {fact!r}; {nearest(fact, PLAIN_FACTS)}"


def _of_entry(entry: Entry, contract: Contract, registry: Registry) -> Iterator[str]:
    kernel = registry.kernels.get(entry.kernel)
    if kernel is not None and kernel.op != contract.op:
        yield f"use: {entry.kernel} is a kernel of {kernel.op}, not of {contract.op}"
    for name in entry.bounds:
        if name not in contract.dims:
            yield f"{contract.op} has no dimension {name!r}; {nearest(name, contract.dims)}"
    for text, why in _of_layout(entry, contract):
        yield f"layout: found {text!r}; {why}"
    try:
        kind = entry.kind(contract.op)
        contract.at({name: kind.features[name] for name in contract.choosers if name in kind.features})
    except PortakernelError as error:
        yield str(error).removeprefix(f"{contract.op}: ")
        return
    if not kind.dtypes and isinstance(entry.dtypes, str):
        yield f"dtype: no tensor of {contract.op} can be {entry.dtypes} here; give `dtypes` by tensor"
    for name, dtype in kind.dtypes.items():
        if name not in contract.typed:
            yield f"dtypes: {contract.op} has no tensor {name!r}; {nearest(name, contract.typed)}"
        elif dtype not in (possible := contract.possible_dtypes(name)):
            yield f"dtypes: {name} of {contract.op} is never {dtype}; it can be {', '.join(possible)}"


def _targets_here(registry: Registry) -> frozenset[str]:
    return frozenset(str(device.target) for device in registry.reachable_devices())


def _of_pins(
    pins: Mapping[str, Pin], used: Mapping[str, bool], registry: Registry, source_of: SourceOf
) -> Iterator[Problem]:
    """Of the kernels that are used, by name whether only on hardware that is elsewhere."""
    for name, elsewhere in used.items():
        kernel = registry.kernels.get(name)
        if kernel is None:
            yield ("kernels", name), f"no kernel here is called that; {nearest(name, registry.kernels)}"
            continue
        try:
            differs = mismatch(pins[name], kernel, source_of, elsewhere=elsewhere)
        except OSError as error:
            differs = f"its source cannot be read: {error.strerror or error}"
        if differs:
            yield ("kernels", name), differs


def notes_on(plan: Plan, places: Collection[Place], registry: Registry, source_of: SourceOf) -> Iterator[str]:
    """What is otherwise here than where the plan was made, and no reason to refuse it."""
    here, used = _targets_here(registry), dict[str, bool]()
    for place, _, entry in plan.entries():
        if place in places:
            used[entry.kernel] = used.get(entry.kernel, True) and place.target not in here
    for name in sorted(used.keys() & registry.kernels.keys()):
        with contextlib.suppress(OSError):  # a problem of its own
            if text := note(plan.pins[name], registry.kernels[name], source_of, elsewhere=used[name]):
                yield f"{name}: {text}"
    for place in places:
        made = plan.made_with.get(place)
        if made is None:
            continue
        devices = [device for device in registry.reachable_devices() if str(device.target) == place.target]
        drivers = {device.driver for device in devices if device.driver}
        if made.driver and (others := sorted(drivers - {made.driver})):
            yield f"{place}: the driver is {', '.join(others)} here, and {made.driver} in the plan"
        if made.torch and (now := version("torch") or "not installed") != made.torch:
            yield f"{place}: torch is {now} here, and {made.torch} in the plan"
    yield from _of_unlisted_archs(plan, registry)
    for place, op, entry in plan.entries():
        if place in places and entry.layout and op in registry.ops:
            yield from _of_unset_bounds(plan, op, entry, registry)


def _of_unset_bounds(plan: Plan, op: str, entry: Entry, registry: Registry) -> Iterator[str]:
    """The bounds on memory that no kernel here has; one of a package that is elsewhere may."""
    limits = {limit for kernel in registry.for_op(op) for limit in kernel.limits()}
    claimed = {str(limit) for limit in limits if limit.parameter.partition(".")[2] in PLAIN_FACTS}
    misspelled = dict(_of_layout(entry, registry.ops[op]))
    for text in entry.layout:
        if text not in claimed and text not in misspelled:
            why = f"no kernel of {op} here sets {text!r}: no call is of this kind"
            yield f"{plan.name}:{entry.line}: layout: {why}; {nearest(text, claimed)}"


def _of_unlisted_archs(plan: Plan, registry: Registry) -> Iterator[str]:
    """The parts for archs that are in no list, and may be of hardware that came later, or misspelled."""
    here = _targets_here(registry)
    for place in plan.parts:
        target = Target.parse(place.target)
        space = registry.spaces.get(target.vendor)
        if space is None or place.target in here or target.arch in space.archs:
            continue
        if space.archs and (space.open_ended or space.is_newer(target.arch)):  # others are a problem
            where = f"{plan.name}:{plan.lines.get(place, 0)}: targets.{place}"
            what = f"{target.arch!r} is no arch that this portakernel knows, and is taken for a later one"
            yield f"{where}: {what}; {nearest(target.arch, space.archs)}"
