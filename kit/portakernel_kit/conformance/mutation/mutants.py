"""Every mutation of one kernel's claims, each with the kernel that claims so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from portakernel.claims.capability import Capability, Limit
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device, Target
from portakernel_kit.conformance.mutation.mutation import Kind, Mutation
from portakernel_kit.conformance.mutation.narrowing import narrowings, with_limit
from portakernel_kit.conformance.venue import Venue, covers
from portakernel_kit.conformance.widening import Widening, on_target, widenings


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation, and ``kernel`` as it then claims to be.

    ``widening``: what is claimed beyond; ``beside``: on a device here that the targets leave out. ``absent``: a module
    that is no longer required. ``untold``: why it cannot be tried here, if it cannot.
    """

    mutation: Mutation
    kernel: Kernel
    widening: Widening | None = None
    beside: Device | None = None
    absent: str = ""
    untold: str = ""


def mutants(dispatcher: Dispatcher, kernel: Kernel, venue: Venue | None, *, nowhere: str = "") -> tuple[Mutant, ...]:
    """All of them, widened claims first; the order is the same in every process.

    ``venue`` is where they are tried; where there is none, none can be, ``nowhere`` being the reason.
    """
    op = contract(kernel.op)
    here = venue.variants(kernel, dispatcher) if venue is not None else tuple(c for _, c in kernel.variants)
    found = list(_widened(dispatcher, kernel, venue, here))
    targets = venue.targets if venue is not None and venue.mode is None else ()
    for narrowing in narrowings(op, kernel, here, targets, dispatcher.registry.spaces):
        mutation = Mutation("removed", kernel.name, narrowing.claim, narrowing.parameter)
        untold = _elsewhere(dispatcher, kernel, narrowing.vendor) if narrowing.vendor is not None else ""
        found.append(Mutant(mutation, narrowing.kernel, untold=untold))
    return tuple(found) if venue is not None else tuple(replace(mutant, untold=nowhere) for mutant in found)


def _widened(
    dispatcher: Dispatcher, kernel: Kernel, venue: Venue | None, here: Sequence[Capability]
) -> Iterator[Mutant]:
    def mutation(claim: str, parameter: str, kind: Kind = "widened") -> Mutation:
        return Mutation(kind, kernel.name, claim, parameter)

    for widening in (*widenings(contract(kernel.op), kernel, here), *_raised(kernel, here)):
        yield Mutant(mutation(widening.claim, widening.parameter), widening.kernel, widening)
    for module, specifier in kernel.requires.items():
        left = {name: needs for name, needs in kernel.requires.items() if name != module}
        needs = f"requires {module} {specifier}".rstrip()
        untold = "the kit itself needs torch" if module == "torch" else ""
        yield Mutant(mutation(needs, module), replace(kernel, requires=left), absent=module, untold=untold)
    if kernel.ready is not None:
        untold = "its probe finds the device usable, so that without it nothing changes here"
        yield Mutant(mutation(f"ready: {kernel.ready}", "ready"), replace(kernel, ready=None), untold=untold)
    if any(c.prebuilt for c in here):
        variants = tuple((name, replace(c, prebuilt=False)) for name, c in kernel.variants)
        untold = "no device here is newer than those that are listed"
        yield Mutant(mutation("prebuilt", "target"), replace(kernel, variants=variants), untold=untold)
    spaces = dispatcher.registry.spaces
    on_devices = venue is not None and venue.mode is None
    devices = [d for d in dispatcher.registry.devices if d.torch_device is not None] if on_devices else []
    for device in devices:
        if not any(covers(c, device.target, spaces) for _, c in kernel.variants):
            widening = on_target(kernel, device.target)
            same = venue is not None and venue.torch_device == device.torch_device
            untold = f"its tensors are those of {venue}, which the kernel serves" if same else ""
            claim = mutation(widening.claim, widening.parameter)
            yield Mutant(claim, widening.kernel, widening, device, untold=untold)
    here_too = {device.target for device in devices}
    for vendor, space in spaces.items():
        others = [t for arch in space.archs if (t := Target(vendor, arch)) not in here_too]
        left_out = [t for t in others if not any(covers(c, t, spaces) for _, c in kernel.variants)]
        if left_out:
            several = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
            untold = _elsewhere(dispatcher, kernel, vendor, left_out[0].arch)
            yield Mutant(mutation(f"not on {left_out[0]}{several}", "target"), kernel, untold=untold)


def _raised(kernel: Kernel, here: Sequence[Capability]) -> Iterator[Widening]:
    """Each largest size, doubled: then the kit has cases at the new one, where a dropped limit has none."""
    for limit in dict.fromkeys(limit for c in here for limit in c.limits if limit.max):
        most = limit.max or 0
        raised = replace(limit, max=2 * most)
        rejection = Limit(limit.parameter, max=most).rejection(2 * most)
        variants = tuple((name, with_limit(limit, raised, c) if c in here else c) for name, c in kernel.variants)
        if rejection is not None:
            names = [name for name, c in kernel.variants if c in here and limit in c.limits]
            some = f" ({', '.join(names)})" if len(names) < len(here) else ""
            claim = f"{limit.parameter} <= {most} and not {2 * most}{some}"
            changed = replace(kernel, variants=variants)
            yield Widening(claim, rejection.code, limit.parameter, changed, (limit, raised))


def _elsewhere(dispatcher: Dispatcher, kernel: Kernel, vendor: str, arch: str = "ARCH") -> str:
    """Why a claim about other hardware cannot be tried, and who judges it, where anybody does."""
    text = f"no such device of {vendor} is here"
    if dispatcher.registry.offline(kernel.plugin) is None:
        return text
    asked = f"--plugin {kernel.plugin} --op {kernel.op} --target {vendor}:{arch}"
    return f"{text}; `portakernel compile {asked}` says whether it compiles"
