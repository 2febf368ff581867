"""Where a kernel's cases run: on a device that it claims, in an execution mode of its plugin, or in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.specifiers import SpecifierSet

from portakernel.claims.capability import Capability, Rejection
from portakernel.claims.float64 import without_tests
from portakernel.claims.request import Request
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import intern_policy, make_layer
from portakernel.deciding.readiness import required
from portakernel.registry.kernel import Kernel
from portakernel.words.arch import ArchSpace
from portakernel.words.target import Device, Target
from portakernel_kit.conformance.emulator import MODE, MOST_ELEMENTS, Emulator, emulator_of

# Its matrix instructions of 16 bits take subnormal numbers for zero, and those of no other of AMD's architectures
# (MIOpen's documentation, "MI200 MFMA behavior specifics"; PyTorch's notes on numerical accuracy).
_MI200 = Target("amd", "gfx90a")


@dataclass(frozen=True, slots=True)
class Emulated:
    """In the place of a device: the emulator of ``target``, which runs the code that kernels are compiled to."""

    target: Target

    @property
    def torch_device(self) -> str:
        """Where the tensors of emulated kernels lie: in this machine's memory."""
        return "cpu"


# Where somebody wants a kernel to run; wherever it can, where None.
Where = Device | Emulated | None


@dataclass(frozen=True, slots=True)
class Venue:
    """A place to run one kernel; ``targets`` are those whose claims hold there.

    In a mode the tensors lie on ``torch_device``, and the kernel answers as on a target that it claims. The mode's own
    allowance is added to the op's tolerance.
    """

    torch_device: str
    targets: tuple[Target, ...]
    device: Device | None = None
    mode: str | None = None
    allowance_ulp: Mapping[str, float] = field(default_factory=dict[str, float])
    max_elements: int | None = None
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext
    emulator: Emulator | None = None

    def __str__(self) -> str:
        if self.emulator is not None:
            return f"{self.emulator.target} ({MODE})"
        return f"{self.targets[0]} ({self.torch_device})" if self.mode is None else self.torch_device

    @property
    def flushes_subnormals(self) -> bool:
        """Whether numbers that are subnormal in float32 count as zero here in every kernel: on Apple's GPUs."""
        return self.torch_device.partition(":")[0] == "mps"

    @property
    def flushes_halves(self) -> bool:
        """Whether what is subnormal in float16 and bfloat16 counts as zero in matrix products here: on AMD's MI200."""
        return self.mode in (None, MODE) and _MI200 in self.targets

    @property
    def captures(self) -> bool:
        """Whether calls can be captured in a graph here: on CUDA and HIP devices."""
        return self.mode is None and self.torch_device.partition(":")[0] == "cuda"

    def variants(self, kernel: Kernel, dispatcher: Dispatcher) -> tuple[Capability, ...]:
        """The kernel's claims that hold here, and are the kit's to test.

        That the reference serves float64 is ``gradcheck``'s: the truth that the kit compares with is just that.
        """
        spaces = dispatcher.registry.spaces
        here = (c for _, c in kernel.variants if any(covers(c, target, spaces) for target in self.targets))
        return tuple(without_tests(kernel.op, claim) for claim in here)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """There is no place to run the kernel, and why."""

    reason: str


def find_venue(dispatcher: Dispatcher, kernel: Kernel, device: Where = None) -> Venue | Unavailable:
    """The first device that the kernel's claims cover (or ``device``), else its plugin's execution mode."""
    spaces = dispatcher.registry.spaces
    if isinstance(device, Emulated):
        return _emulated(dispatcher, kernel, device)
    candidates = dispatcher.registry.devices if device is None else (device,)
    for candidate in candidates:
        covered = any(covers(capability, candidate.target, spaces) for _, capability in kernel.variants)
        if covered and candidate.torch_device is not None:
            return Venue(candidate.torch_device, (candidate.target,), candidate)
    here = ", ".join(str(candidate.target) for candidate in candidates) or "no device"
    reason = f"serves {_claimed(kernel) or 'no target'}; here: {here}"
    entry = dispatcher.registry.manager.plugins.get(kernel.plugin)
    modes = entry[1].manifest.modes if entry is not None else {}
    name = next((n for n, m in modes.items() if device is None or m.torch_device == device.torch_device), None)
    mode = dispatcher.registry.mode(kernel.plugin, name) if name is not None else None
    targets = tuple(dict.fromkeys(target for _, c in kernel.variants for target in claimed_targets(c, spaces)))
    if mode is None or not targets:
        return Unavailable(reason)
    if missing := _missing(kernel):
        return Unavailable(f"{reason}; mode {name!r}: {missing}")
    try:
        enter = dispatcher.entry(mode.context)
    except ImportError as error:
        return Unavailable(f"{reason}; mode {name!r} cannot be loaded: {error}")
    return Venue(mode.torch_device, targets, None, name, mode.allowance_ulp, mode.max_elements, enter)


def _emulated(dispatcher: Dispatcher, kernel: Kernel, device: Emulated) -> Venue | Unavailable:
    target = device.target
    if not any(covers(claim, target, dispatcher.registry.spaces) for _, claim in kernel.variants):
        return Unavailable(f"serves {_claimed(kernel) or 'no target'}, not {target}")
    if missing := _missing(kernel):
        return Unavailable(missing)
    emulator = emulator_of(dispatcher, kernel, target)
    if isinstance(emulator, str):
        return Unavailable(emulator)
    return Venue(device.torch_device, (target,), None, MODE, {}, MOST_ELEMENTS, emulator.enter, emulator)


def _claimed(kernel: Kernel) -> str:
    """The vendors that a kernel's variants are for, each with all of its archs, each arch once."""
    found: dict[str, list[str]] = {}
    for _, claim in kernel.variants:
        for vendor, selector in claim.targets.items():
            found.setdefault(vendor, []).extend((str(selector),) if selector.exclude else selector.include)
    return ", ".join(f"{vendor} {', '.join(dict.fromkeys(archs))}" for vendor, archs in sorted(found.items()))


def venue_beside(dispatcher: Dispatcher, kernel: Kernel, device: Where = None) -> Venue | None:
    """The first device here (or ``device``) that torch reaches, where the kernel's claims cover none."""
    if isinstance(device, Emulated):
        return None
    candidates = dispatcher.registry.devices if device is None else (device,)
    found = next((c for c in candidates if c.torch_device is not None and not (c.attached and device is None)), None)
    if found is None or found.torch_device is None or dispatcher.readiness.not_installed(kernel):
        return None
    return Venue(found.torch_device, (found.target,), found)


def covers(capability: Capability, target: Target, spaces: Mapping[str, ArchSpace]) -> bool:
    """Whether the claim holds on ``target``, whatever the rest of a request."""
    return capability.serving_target(Request("", target), spaces) is not None


def claimed_targets(capability: Capability, spaces: Mapping[str, ArchSpace]) -> Iterator[Target]:
    """For each vendor with an installed backend, one arch that the claim covers."""
    for vendor, space in spaces.items():
        targets = (Target(vendor, arch) for arch in space.archs or ("unlisted",))
        if (inside := next((target for target in targets if covers(capability, target, spaces)), None)) is not None:
            yield inside


def refusals(dispatcher: Dispatcher, kernel: Kernel, venue: Venue, request: Request) -> tuple[Rejection, ...]:
    """Why ``kernel`` does not serve ``request`` at ``venue``: its claims and, on a device, whether it is usable there.

    What people prefer or deny does not enter; what they switch off does.
    """
    policy = intern_policy((make_layer("conformance", use=(kernel.name,)),))
    if venue.mode is None:
        return dispatcher.rejections(kernel.name, request, policy)
    found: dict[Rejection, None] = {}
    for target in venue.targets:
        asked = replace(request, target=target, attached=(), device=None)
        rejections = dispatcher.rejections(kernel.name, asked, policy)
        rejections = rejections or _checked(dispatcher, kernel, asked, venue)
        if not rejections:
            return ()
        found |= dict.fromkeys(rejections)
    return tuple(found)


def _checked(dispatcher: Dispatcher, kernel: Kernel, request: Request, venue: Venue) -> tuple[Rejection, ...]:
    """The plugin's own test, which dispatch runs for devices only; in a mode, which it can refuse."""
    if kernel.check is None:
        return ()
    values = {name.replace(".", "_"): request.value(name) for name in kernel.check.reads}
    with venue.enter():
        rejection = dispatcher.entry(kernel.check.entry)(**values)
    return (rejection,) if rejection is not None else ()


def _missing(kernel: Kernel) -> str:
    for module, specifier, version in required(kernel):
        if version is None:
            return f"needs {module} {specifier}, which is not installed"
        if not SpecifierSet(specifier).contains(version, prereleases=True):
            return f"needs {module} {specifier}; {version} is installed"
    return ""
