"""Whether a plan's names and sources are those of an installation: each problem with its place in the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from portakernel.contract import Contract
from portakernel.errors import ArgumentValueError, PortakernelError, UnknownNameError, nearest
from portakernel.host.distributions import version
from portakernel.manifest.yaml_file import KeyPath
from portakernel.plan.pins import SourceOf, mismatch, other_versions, pin
from portakernel.plan.plan import Entry, Pin, Place, Plan
from portakernel.registry.registry import Registry

Problem = tuple[KeyPath, str]


def judged(plan: Plan, places: Collection[Place], registry: Registry, source_of: SourceOf) -> Iterator[Problem]:
    """What is wrong: of every part its target, of those for ``places`` ops, kernels, sizes and sources."""
    used: dict[str, None] = {}
    for place, ops in plan.parts.items():
        path: KeyPath = ("targets", str(place))
        try:
            found = str(registry.target(place.target))
        except (UnknownNameError, ArgumentValueError) as error:
            yield path, str(error)
            continue
        if found != place.target:
            yield path, f"{place.target} is {found}; write {found}/{place.units}"
        for op, entries in ops.items() if place in places else ():
            if op not in registry.ops:
                yield (*path, op), str(UnknownNameError("op", op, registry.ops))
                continue
            for i, entry in enumerate(entries):
                used[entry.kernel] = None
                where = (*path, op, i)
                yield from ((where, text) for text in _of_entry(entry, registry.ops[op], registry))
    yield from _of_pins({name: plan.pins[name] for name in used}, registry, source_of)


def _of_entry(entry: Entry, contract: Contract, registry: Registry) -> Iterator[str]:
    kernel = registry.kernels.get(entry.kernel)
    if kernel is not None and kernel.op != contract.op:
        yield f"use: {entry.kernel} is a kernel of {kernel.op}, not of {contract.op}"
    for name in entry.bounds:
        if name not in contract.dims:
            yield f"{contract.op} has no dimension {name!r}; {nearest(name, contract.dims)}"
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


def _of_pins(pins: Mapping[str, Pin], registry: Registry, source_of: SourceOf) -> Iterator[Problem]:
    for name, pinned in pins.items():
        kernel = registry.kernels.get(name)
        if kernel is None:
            yield ("kernels", name), f"no kernel here is called that; {nearest(name, registry.kernels)}"
            continue
        try:
            differs = mismatch(pinned, pin(kernel, source_of))
        except OSError as error:
            differs = f"its source cannot be read: {error.strerror or error}"
        if differs:
            yield ("kernels", name), differs


def notes_on(plan: Plan, places: Collection[Place], registry: Registry, source_of: SourceOf) -> Iterator[str]:
    """What is otherwise here than where the plan was made, and no reason to refuse it."""
    used = {entry.kernel for place, _, entry in plan.entries() if place in places}
    for name in sorted(used & registry.kernels.keys()):
        for text in other_versions(plan.pins[name], pin(registry.kernels[name], source_of)):
            yield f"{name}: {text}"
    for place in places:
        made = plan.made_with.get(place)
        if made is None:
            continue
        devices = [device for device in registry.reachable_devices() if str(device.target) == place.target]
        drivers = {device.driver for device in devices if device.driver}
        if made.driver and (others := sorted(drivers - {made.driver})):
            yield f"{place}: the driver is {', '.join(others)} here, and {made.driver} in the plan"
        if made.torch and (here := version("torch") or "not installed") != made.torch:
            yield f"{place}: torch is {here} here, and {made.torch} in the plan"
    for place, op, entry in plan.entries():
        if place in places and entry.layout and op in registry.ops:
            claimed = {str(limit) for kernel in registry.for_op(op) for limit in kernel.limits()}
            for text in entry.layout:
                if text not in claimed:
                    yield f"{plan.name}:{entry.line}: no kernel of {op} here sets {text!r}: no call is of this kind"
