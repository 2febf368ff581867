"""The registry: every op's kernels, every vendor's archs, this machine's devices. Built once, then immutable."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeGuard

from pydantic import TypeAdapter, ValidationError

from portakernel.claims.capability import Capability
from portakernel.contract import Contract
from portakernel.contracts import contract, own_contracts, reference_module
from portakernel.errors import ManifestError, UnknownNameError
from portakernel.host.foreign import Raised, Returned, call_contained
from portakernel.host.locks import KeyedLocks
from portakernel.host.passing import is_passing
from portakernel.manifest.loading import Loaded, describe_errors
from portakernel.manifest.models import ArchFacts, BackendManifest, KernelEntry, Mode, PluginManifest
from portakernel.manifest.yaml_file import Document
from portakernel.registry.kernel import InGraphs, Kernel, Priority, PriorityRule
from portakernel.registry.manifest_kernels import listed_kernels, plugin_kernels, resting_entries
from portakernel.registry.plugin_manager import Package, PluginManager
from portakernel.registry.plugin_ops import ship_ops
from portakernel.tensors import torch_build
from portakernel.text.printable import exception_text
from portakernel.words.arch import ArchSpace, Selector
from portakernel.words.dtypes import FLOAT64
from portakernel.words.target import Device, Target
from portakernel.words.target_names import find_device, find_target

REFERENCE = "reference"
# In compiled graphs the priority of a formula that Inductor fuses: a kernel has less, unless it was seen to win there.
FUSED = 100
# What ``portakernel_kernels`` returned, under the hook's name.
_Listing = dict[str, list[KernelEntry]]


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to reach a vendor's hardware: its architectures, with what is known of each."""

    name: str
    vendor: str
    torch_device: str
    attach: bool
    space: ArchSpace
    archs: Mapping[str, ArchFacts]
    package: Package
    summary: str = ""

    @classmethod
    def from_manifest(cls, package: Package, manifest: BackendManifest) -> Backend:
        """The backend that ``backend.yaml`` describes."""
        lines = tuple(tuple(line) for line in manifest.lines)
        families = {name: tuple(members) for name, members in manifest.families.items()}
        listed = {arch for line in (*lines, *families.values()) for arch in line}
        # an arch in no line and no family is a line of its own
        lines += tuple((arch,) for arch in manifest.archs if arch not in listed)
        products = {arch: tuple(facts.products) for arch, facts in manifest.archs.items() if facts.products}
        space = ArchSpace(manifest.vendor, lines, families, manifest.open_ended, products)
        return cls(
            manifest.backend, manifest.vendor, manifest.torch_device, manifest.attach, space, manifest.archs, package,
            manifest.summary,
        )  # fmt: skip


class Registry:
    """Ops, kernels, backends and plugins of this process.

    ``kernels`` holds every kernel by its full name, usable here or not: what cannot serve is a rejection, not an
    absence. ``ops`` has every op's contract by name: portakernel's own, and those that these packages ship, whatever
    other packages the process has known. Devices are probed when first asked for.
    """

    def __init__(self, manager: PluginManager | None = None) -> None:
        self.manager = manager if manager is not None else PluginManager()
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._probing = KeyedLocks()
        self.backends: Mapping[str, Backend] = MappingProxyType(self._backends())
        self.spaces: Mapping[str, ArchSpace] = MappingProxyType(
            {backend.vendor: backend.space for backend in self.backends.values()}
        )
        # Entries for ops that nobody here has, which rest: with their file's line and what to do.
        self.resting_entries: list[tuple[Package, str]] = []
        self.ops: Mapping[str, Contract] = MappingProxyType({**own_contracts(), **ship_ops(self.manager)})
        kernels = [*self._plugin_kernels(), *map(self._reference, self.ops.values())]
        self.kernels: Mapping[str, Kernel] = MappingProxyType(
            {kernel.name: kernel for kernel in kernels if kernel.op in self.ops}
        )

    def _backends(self) -> dict[str, Backend]:
        backends: dict[str, Backend] = {}
        for name, (package, loaded) in self.manager.backends.items():
            vendor = loaded.manifest.vendor
            rival = next((backend for backend in backends.values() if backend.vendor == vendor), None)
            if rival is None:
                backends[name] = Backend.from_manifest(package, loaded.manifest)
            else:
                text = f"vendor {vendor!r} is taken by backend {rival.package}"
                self.manager.report_broken(package, "name", loaded.problem(("vendor",), text))
        return backends

    def _plugin_kernels(self) -> list[Kernel]:
        accepted: list[Kernel] = []
        hooked = {package.name: returned for package, returned in self.manager.call("portakernel_kernels")}
        for package, loaded in self.manager.plugins.values():
            if package.name == REFERENCE:
                self.manager.report_broken(
                    package, "name", f"the name {REFERENCE!r} is taken by portakernel's own references"
                )
                continue
            try:
                kernels = plugin_kernels(package, loaded, self.spaces)
                self.resting_entries += [(package, text) for text in resting_entries(loaded)]
                if package.name in hooked:
                    kernels += self._listed(package, loaded, hooked[package.name])
                names = [kernel.name for kernel in kernels]
                if len(set(names)) < len(names):
                    text = f"{package}: portakernel_kernels repeats a kernel of plugin.yaml"
                    raise ManifestError(package.name, [text])
                accepted += kernels
            except ManifestError as error:
                self.manager.report_broken(package, "kernels", str(error), error)
        return accepted

    def _listed(self, package: Package, loaded: Loaded[PluginManifest], returned: Any) -> tuple[Kernel, ...]:
        """The kernels that a hook returned, checked as strictly as a manifest's."""
        place, base = str(package), "portakernel_kernels"
        listing = call_contained(lambda: list(returned))
        if isinstance(listing, Raised):
            error = listing.error
            text = f"{place}: {base} returned {returned!r}, which is no list of kernels: {exception_text(error)}"
            raise ManifestError(place, [text]) from error
        entries = listing.value
        document = Document(place, {base: entries}, None)
        try:
            kernels = listing_model().validate_python(document.data)[base]
        except ValidationError as error:
            raise ManifestError(place, describe_errors(_Listing, document, error)) from error
        return listed_kernels(package, replace(loaded, document=document), self.spaces, kernels)

    def _reference(self, contract: Contract) -> Kernel:
        # it runs on every torch device, known to a backend or not; what shares another's tensors is none
        attached = {backend.vendor: Selector(()) for backend in self.backends.values() if backend.attach}
        capability = Capability(
            targets={"*": Selector(("any",)), **attached},
            dtypes={
                name: (*contract.accepted_dtypes(name, {}), *((FLOAT64,) if name == contract.in_float64 else ()))
                for name in contract.typed
            },
            formats={p.of or p.name: p.choices for p in contract.parameters if p.kind == "format"},
            features=frozenset(feature.name for feature in contract.features),
            properties=frozenset({"deterministic", "inplace", *(() if contract.host_reads else ("graph_capture",))}),
            saves="contract" if contract.saved else "none",
            has_backward=contract.gradient == "kernel",
            forward_ad=True,
        )
        module = reference_module(contract.op)
        return Kernel(
            name=f"{REFERENCE}.{contract.op}",
            op=contract.op,
            plugin=REFERENCE,
            package=None,
            entry=f"{module}:forward",
            variants=(("", capability),),
            priority=Priority((PriorityRule(0),)),
            in_graphs=_in_graphs(contract),
            backward=f"{module}:backward" if contract.gradient == "kernel" else None,
            saves=capability.saves,
            requires={"torch": ">=2.11"},
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that all backends find on this machine, each probed once, on first use."""
        return self._of(self.backends.values())

    def reachable_devices(self) -> tuple[Device, ...]:
        """The devices of those vendors that the installed torch can reach; the others' backends are not asked."""
        return self._of(backend for backend in self.backends.values() if self.reaches(backend))

    def devices_on(self, kind: str) -> tuple[Device, ...]:
        """The devices that torch can reach as ``kind`` (``"cuda"``); no other vendor is probed."""
        backends = (b for b in self.backends.values() if b.torch_device == kind and not b.attach and self.reaches(b))
        return self._of(backends)

    def attached_to(self, torch_device: str) -> tuple[Device, ...]:
        """The devices of other vendors that share the tensors of a torch device; no other vendor is probed."""
        kind = torch_device.partition(":")[0]
        attached = self._of(b for b in self.backends.values() if b.attach and b.torch_device == kind)
        return tuple(device for device in attached if device.torch_device == torch_device)

    def devices_of(self, backend: Backend) -> tuple[Device, ...]:
        """The devices that one backend finds; kept, unless a fault that passes was in the way."""
        if backend.name not in self._devices:
            with self._probing.holding(backend.name, f"portakernel_targets of {backend.package}"):
                if backend.name not in self._devices:
                    outcome = self._probe(backend)
                    if isinstance(outcome, Raised) and is_passing(outcome.error):
                        return ()
                    self._devices[backend.name] = outcome.value if isinstance(outcome, Returned) else ()
        return self._devices[backend.name]

    def reaches(self, backend: Backend) -> bool:
        """Whether the installed torch is built for a backend's vendor; nothing is probed to say so."""
        return torch_build.reaches(torch_build.installed(), backend.vendor)

    def _of(self, backends: Iterable[Backend]) -> tuple[Device, ...]:
        return tuple(device for backend in backends for device in self.devices_of(backend))

    def _probe(self, backend: Backend) -> Returned[tuple[Device, ...]] | Raised:
        package = backend.package
        if package not in self.manager.implementing("portakernel_targets"):
            return Returned(())
        outcome = self.manager.ask(package, "portakernel_targets")
        if isinstance(outcome, Raised):
            return outcome
        returned = outcome.value
        devices = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        strangers = [device for device in devices if not _is_device(device)]
        foreign = {device.target.vendor for device in devices if _is_device(device)} - {backend.vendor}
        if foreign:
            text = f"portakernel_targets returned devices of {', '.join(sorted(foreign))}; the backend's vendor is"
            self.manager.report_broken(package, "hook", f"{text} {backend.vendor}")
        if strangers:
            kind = type(strangers[0]).__name__
            self.manager.report_broken(
                package, "hook", f"portakernel_targets returned a {kind}; it must return Devices"
            )
        ours = [device for device in devices if _is_device(device) and device.target.vendor == backend.vendor]
        return Returned(tuple(replace(device, attached=backend.attach) for device in ours))

    def for_op(self, op: str) -> tuple[Kernel, ...]:
        """Every kernel of ``op``.

        Raises:
            UnknownNameError: there is no such op.
        """
        contract(op)
        return tuple(kernel for kernel in self.kernels.values() if kernel.op == op)

    def plugins(self) -> tuple[str, ...]:
        """The names of all plugins with kernels here, the core's references included."""
        return tuple(dict.fromkeys(kernel.plugin for kernel in self.kernels.values()))

    @property
    def foreign(self) -> frozenset[str]:
        """The plugins whose kernels are another package's own."""
        return frozenset(name for name, (_, loaded) in self.manager.plugins.items() if loaded.manifest.foreign)

    def is_attached(self, kernel: Kernel) -> bool:
        """Whether a kernel serves nothing but devices that are attached to another's torch device."""
        attached = {backend.vendor for backend in self.backends.values() if backend.attach}
        claimed = {vendor for _, capability in kernel.variants for vendor in capability.targets}
        return not kernel.is_reference and claimed <= attached

    def target(self, text: str, *, where: str = "") -> Target:
        """The target that ``text`` means: ``vendor:arch``, or with a product in the arch's place (``nvidia:h100``).

        The vendor may be left out where one alone has such an arch or product.

        Raises:
            UnknownNameError: no backend has that vendor, or its vendor has no such arch and no such product.
            ArgumentValueError: the text is not of that form, or means several archs.
        """
        return find_target(text, self.spaces, where=where)

    def device(self, name: str) -> Device:
        """The device of this machine that ``name`` means: torch's name for it, its uuid, or its target.

        Raises:
            UnknownNameError: there is no such device, torch cannot reach it, or its backend is switched off.
        """
        off = {
            key: f"The {backend.name} backend looks for no device here: {why}"
            for backend in self.backends.values()
            if (why := self.manager.why_off(backend.package))
            for key in (backend.vendor, *(() if backend.attach else (backend.torch_device,)))
        }
        return find_device(name, self.devices, self.spaces, off)

    def mode(self, plugin: str, name: str) -> Mode | None:
        """A plugin's way to execute without its device."""
        entry = self.manager.plugins.get(plugin)
        return entry[1].manifest.modes.get(name) if entry else None

    def offline(self, plugin: str) -> str | None:
        """A plugin's way to compile for targets that are not here."""
        entry = self.manager.plugins.get(plugin)
        return entry[1].manifest.offline if entry else None

    def units(self, plugin: str) -> str | None:
        """A plugin's list of what can be built ahead for a target."""
        entry = self.manager.plugins.get(plugin)
        return entry[1].manifest.units if entry else None

    def find(self, name: str) -> tuple[Kernel, ...]:
        """The kernels that ``name`` means: one by its full name, or all of a plugin; none where nothing has it."""
        if name in self.kernels:
            return (self.kernels[name],)
        return tuple(kernel for kernel in self.kernels.values() if kernel.plugin == name)

    def named(self, name: str, *, where: str = "") -> tuple[Kernel, ...]:
        """The kernels that ``name`` means (``find``).

        Raises:
            UnknownNameError: neither a kernel nor a plugin is called that.
        """
        if kernels := self.find(name):
            return kernels
        if name in self.ops:
            text = f"that is an op, whose kernels are {', '.join(kernel.name for kernel in self.for_op(name))}"
            raise UnknownNameError("kernel or plugin", name, self.kernels, where=where, instead=text)
        plugin, hint = name.partition(".")[0], ""
        known = self.manager.plugins.get(plugin)
        if broken := next((fault for fault in self.manager.broken if fault.package.name == plugin), None):
            hint = f"Plugin {broken.package} is broken: {broken.reason.partition(chr(10))[0]}"
        elif broken := next((fault for fault in self.manager.broken_but_off if fault.package.name == plugin), None):
            text = f"Plugin {broken.package} may not be imported ({self.manager.why_off(broken.package)})"
            hint = f"{text}, and is broken besides: {broken.reason.partition(chr(10))[0]}"
        elif known and "portakernel_kernels" in known[1].manifest.hooks and self.manager.is_off(known[0]):
            hint = f"Plugin {known[0]} may not be imported, so that kernels which it lists in code are not known"
        raise UnknownNameError("kernel or plugin", name, [*self.kernels, *self.plugins()], where=where, hint=hint)


@functools.cache
def listing_model() -> TypeAdapter[_Listing]:
    """What judges the form of a listing; to make it takes ten milliseconds."""
    return TypeAdapter(_Listing)


def _in_graphs(contract: Contract) -> InGraphs:
    """How compiled graphs hold the op's reference; what writes into its arguments is called."""
    if contract.in_graphs == "call" or contract.mutated:
        return InGraphs()
    return InGraphs("inline", Priority((PriorityRule(FUSED),)) if contract.in_graphs == "fused" else None)


def _is_device(answer: Any) -> TypeGuard[Device]:
    """Whether a hook's answer is a device whose fields are what they say."""
    if not isinstance(answer, Device):
        return False
    target: Any = answer.target
    torch_device: Any = answer.torch_device
    return isinstance(target, Target) and (torch_device is None or isinstance(torch_device, str))
