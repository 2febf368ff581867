"""Whether a plan's names and sources are those of an installation: each problem with its place in the file."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping

from portakernel.claims.request import PLAIN_FACTS
from portakernel.contract import Contract
from portakernel.errors import ArgumentTypeError, ArgumentValueError, PortakernelError, UnknownNameError, nearest
from portakernel.host.distributions import version
from portakernel.manifest.yaml_file import KeyPath
from portakernel.plan.dtypes import values_of
from portakernel.plan.pins import SourceOf, mismatch, note
from portakernel.plan.plan import Entry, Pin, Place, Plan
from portakernel.registry.registry import Registry
from portakernel.tuning.key import read_by, tells_apart
from portakernel.words.dtypes import FLOAT64
from portakernel.words.target import Target

Problem = tuple[KeyPath, str]


def judged(
    plan: Plan, places: Collection[Place], registry: Registry, source_of: SourceOf, *, granted: bool = False
) -> Iterator[Problem]:
    """What is wrong: of every part its target, of those for ``places`` ops, kernels, sizes and sources.

    ``granted``: of kernels that only hardware elsewhere runs, what is installed there is taken to be as in the plan.
    """
    used: dict[str, bool] = {}
    here = targets_here(registry)
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
    # whatever hardware they are for: nobody says
    for name in _unused(plan) & registry.kernels.keys():
        for path, text in _of_pins(plan.pins, {name: True}, registry, source_of):
            yield path, f"{text}; no entry uses it: leave it out, if it is not meant"


def _unused(plan: Plan) -> set[str]:
    """The kernels that are pinned, and that no entry of any part uses."""
    return plan.pins.keys() - {entry.kernel for *_, entry in plan.entries()}


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
        values = values_of(contract, kind.features, kind.formats)
        made = contract.at(values | {p.name: kind.dtypes[p.name] for p in contract.parameters if p.name in kind.dtypes})
    except PortakernelError as error:
        yield str(error).removeprefix(f"{contract.op}: ")
        return
    if not kind.dtypes and isinstance(entry.dtypes, str):
        yield f"dtype: no tensor of {contract.op} can be {entry.dtypes} here; give `dtypes` by tensor"
        return
    yield from (f"dtypes: {text}" for text in _of_dtypes(kind.dtypes, made))


def _of_dtypes(dtypes: Mapping[str, str], contract: Contract) -> Iterator[str]:
    """Why no call has these dtypes, and no other: tensors that there are not, or that are missing, or dtypes of them.

    ``contract`` is that of such calls, with every choice made.
    """
    op, found = contract.op, list[str]()
    # where one tensor may be float64 others follow it, or not: that is told of all dtypes together
    wide = (FLOAT64,) if contract.in_float64 else ()
    for name, dtype in dtypes.items():
        if name not in contract.typed:
            found.append(f"{op} has no tensor {name!r}; {nearest(name, contract.typed)}")
        elif dtype not in (*(possible := contract.possible_dtypes(name)), *wide):
            found.append(f"{name} of {op} is never {dtype}; it can be {', '.join(possible)}")
    if missing := [tensor.name for tensor in contract.tensors if not tensor.optional and tensor.name not in dtypes]:
        found.append(f"every call of {op} has {', '.join(missing)}, and this entry not: it covers none")
    if not found:
        try:
            contract.check_dtypes(dtypes)
        except ArgumentTypeError as error:
            found.append(f"no call of {op} has these together: {str(error).removeprefix(f'{op}: ')}")
    yield from found


def targets_here(registry: Registry) -> frozenset[str]:
    """The targets, without units, of this machine's devices."""
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
    here, used = targets_here(registry), dict[str, bool]()
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
    for name in sorted(_unused(plan)):
        unknown = f", and no kernel here is called that; {nearest(name, registry.kernels)}"
        yield f"{name}: no entry uses it{'' if name in registry.kernels else unknown}"
    for place, op, entry in plan.entries():
        if place in places and op in registry.ops:
            yield from _of_unset_bounds(plan, op, entry, registry)
            yield from _of_unread_features(plan, op, entry, registry)


def _of_unset_bounds(plan: Plan, op: str, entry: Entry, registry: Registry) -> Iterator[str]:
    """The bounds on memory that no kernel here has; one of a package that is elsewhere may."""
    if not entry.layout:
        return
    limits = {limit for kernel in registry.for_op(op) for limit in kernel.limits()}
    claimed = {str(limit) for limit in limits if limit.parameter.partition(".")[2] in PLAIN_FACTS}
    misspelled = dict(_of_layout(entry, registry.ops[op]))
    for text in entry.layout:
        if text not in claimed and text not in misspelled:
            why = f"no kernel of {op} here sets {text!r}: no call is of this kind"
            yield f"{plan.name}:{entry.line}: layout: {why}; {nearest(text, claimed)}"


def _of_unread_features(plan: Plan, op: str, entry: Entry, registry: Registry) -> Iterator[str]:
    """The features by which no kernel here tells calls apart; one of a package that is elsewhere may."""
    if not entry.features:
        return
    read = read_by(registry.for_op(op))
    for parameter in registry.ops[op].parameters:
        name = parameter.name
        if entry.features.get(name, parameter.default) != parameter.default and not tells_apart(parameter, read):
            why = f"no kernel of {op} here looks at {name}, by which no kinds of calls differ: this entry covers none"
            yield f"{plan.name}:{entry.line}: features: {why}; leave {name} out"


def _of_unlisted_archs(plan: Plan, registry: Registry) -> Iterator[str]:
    """The parts for archs that are in no list, and may be of hardware that came later, or misspelled."""
    here = targets_here(registry)
    for place in plan.parts:
        target = Target.parse(place.target)
        space = registry.spaces.get(target.vendor)
        if space is None or place.target in here or target.arch in space.archs:
            continue
        if space.archs and (space.open_ended or space.is_newer(target.arch)):  # others are a problem
            where = f"{plan.name}:{plan.lines.get(place, 0)}: targets.{place}"
            what = f"{target.arch!r} is no arch that this portakernel knows, and is taken for a later one"
            yield f"{where}: {what}; {nearest(target.arch, space.archs)}"
