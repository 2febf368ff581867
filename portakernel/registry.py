"""The registry: every op's kernels, every vendor's archs, this machine's devices. Built once, then immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeGuard

from pydantic import TypeAdapter, ValidationError

from portakernel.arch import ArchSpace, Selector
from portakernel.capability import Capability
from portakernel.contract import Contract
from portakernel.contracts import contract, contracts
from portakernel.errors import ManifestError, UnknownNameError
from portakernel.kernel import Kernel, Priority, listed_kernels, plugin_kernels
from portakernel.locks import make_lock
from portakernel.manifest import ArchFacts, BackendManifest, KernelEntry, Mode, PluginManifest
from portakernel.manifest_file import Loaded, describe_errors
from portakernel.plugin_manager import Package, PluginManager
from portakernel.target import Device, Target
from portakernel.yaml_file import Document

REFERENCE = "reference"


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
        space = ArchSpace(manifest.vendor, lines, families, manifest.open_ended)
        return cls(
            manifest.backend, manifest.vendor, manifest.torch_device, manifest.attach, space, manifest.archs, package,
            manifest.summary,
        )  # fmt: skip


class Registry:
    """Ops, kernels, backends and plugins of this process.

    ``kernels`` holds every kernel by its full name, usable here or not: what cannot serve is a rejection, not an
    absence. Devices are probed when first asked for.
    """

    def __init__(self, manager: PluginManager | None = None) -> None:
        self.manager = manager if manager is not None else PluginManager()
        self._devices: tuple[Device, ...] | None = None
        self._probing = make_lock()
        self.backends: Mapping[str, Backend] = MappingProxyType(self._backends())
        self.spaces: Mapping[str, ArchSpace] = MappingProxyType(
            {backend.vendor: backend.space for backend in self.backends.values()}
        )
        kernels = [*self._plugin_kernels(), *map(self._reference, contracts().values())]
        self.kernels: Mapping[str, Kernel] = MappingProxyType({kernel.name: kernel for kernel in kernels})

    def _backends(self) -> dict[str, Backend]:
        found: dict[str, Backend] = {}
        for name, (package, loaded) in self.manager.backends.items():
            vendor = loaded.manifest.vendor
            rival = next((backend for backend in found.values() if backend.vendor == vendor), None)
            if rival is None:
                found[name] = Backend.from_manifest(package, loaded.manifest)
            else:
                text = f"vendor {vendor!r} is taken by backend {rival.package}"
                self.manager.report_broken(package, "name", loaded.problem(("vendor",), text))
        return found

    def _plugin_kernels(self) -> list[Kernel]:
        found: list[Kernel] = []
        hooked = {package.name: returned for package, returned in self.manager.call("portakernel_kernels")}
        for package, loaded in self.manager.plugins.values():
            if package.name == REFERENCE:
                self.manager.report_broken(
                    package, "name", f"the name {REFERENCE!r} is taken by portakernel's own references"
                )
                continue
            try:
                kernels = plugin_kernels(package, loaded, self.spaces)
                if package.name in hooked:
                    kernels += self._listed(package, loaded, hooked[package.name])
                names = [kernel.name for kernel in kernels]
                if len(set(names)) < len(names):
                    text = f"{package}: portakernel_kernels repeats a kernel of plugin.yaml"
                    raise ManifestError(package.name, [text])
                found += kernels
            except ManifestError as error:
                self.manager.report_broken(package, "kernels", str(error), error)
        return found

    def _listed(self, package: Package, loaded: Loaded[PluginManifest], returned: Any) -> tuple[Kernel, ...]:
        """The kernels that a hook returned, checked as strictly as a manifest's."""
        place, base = str(package), "portakernel_kernels"
        try:
            entries = list(returned)
        except Exception as error:
            text = (
                f"{place}: {base} returned {returned!r}, which is no list of kernels: {type(error).__name__}: {error}"
            )
            raise ManifestError(place, [text]) from error
        document, model = Document(place, {base: entries}, None), dict[str, list[KernelEntry]]
        try:
            kernels = TypeAdapter(model).validate_python(document.data)[base]
        except ValidationError as error:
            raise ManifestError(place, describe_errors(model, document, error)) from error
        return listed_kernels(package, replace(loaded, document=document), self.spaces, kernels)

    def _reference(self, contract: Contract) -> Kernel:
        # it runs on every torch device, known to a backend or not; what shares another's tensors is none
        attached = {backend.vendor: Selector(()) for backend in self.backends.values() if backend.attach}
        capability = Capability(
            targets={"*": Selector(("any",)), **attached},
            dtypes={name: contract.accepted_dtypes(name, {}) for name in contract.typed},
            formats={p.of or p.name: p.choices for p in contract.parameters if p.kind == "format"},
            features=frozenset(feature.name for feature in contract.features),
            properties=frozenset({"deterministic", "inplace", *(() if contract.host_reads else ("graph_capture",))}),
            saves="contract" if contract.saved else "none",
            has_backward=contract.gradient == "kernel",
            forward_ad=True,
        )
        module = f"portakernel.references.{contract.op}"
        return Kernel(
            name=f"{REFERENCE}.{contract.op}",
            op=contract.op,
            plugin=REFERENCE,
            package=None,
            entry=f"{module}:forward",
            variants=(("", capability),),
            priority=Priority((((), 0),)),
            backward=f"{module}:backward" if contract.gradient == "kernel" else None,
            saves=capability.saves,
            requires={"torch": ">=2.11"},
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the backends find on this machine, probed once, on first use."""
        if self._devices is None:
            with self._probing:
                if self._devices is None:
                    self._devices = self._probe()
        return self._devices

    def _probe(self) -> tuple[Device, ...]:
        found: list[Device] = []
        for package, returned in self.manager.call("portakernel_targets"):
            backend = self.backends.get(package.name)
            if backend is None:
                continue
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
            found += [replace(device, attached=backend.attach) for device in ours]
        return tuple(found)

    def attached_to(self, torch_device: str) -> tuple[Device, ...]:
        """The devices of other vendors that share the tensors of a torch device; probes only where there can be any."""
        kind = torch_device.partition(":")[0]
        if not any(backend.attach and backend.torch_device == kind for backend in self.backends.values()):
            return ()
        return tuple(device for device in self.devices if device.attached and device.torch_device == torch_device)

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

    def is_attached(self, kernel: Kernel) -> bool:
        """Whether a kernel serves nothing but devices that are attached to another's torch device."""
        attached = {backend.vendor for backend in self.backends.values() if backend.attach}
        claimed = {vendor for _, capability in kernel.variants for vendor in capability.targets}
        return not kernel.is_reference and claimed <= attached

    def target(self, text: str, *, where: str = "") -> Target:
        """The target written ``vendor:arch``, both known.

        Raises:
            UnknownNameError: no backend has that vendor, or its vendor has no such arch.
            ArgumentValueError: the text is not of that form.
        """
        target = Target.parse(text)
        if target.vendor not in self.spaces:
            raise UnknownNameError("vendor", target.vendor, self.spaces, where=where)
        space = self.spaces[target.vendor]
        others = [vendor for vendor, other in self.spaces.items() if target.arch in other.archs]
        hint = f"It is an arch of {others[0]}: {others[0]}:{target.arch}" if others else ""
        space.check(target.arch, where=where, hint=hint)
        return target

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

    def named(self, name: str, *, where: str = "") -> tuple[Kernel, ...]:
        """The kernels that ``name`` means: one by its full name, or all of a plugin.

        Raises:
            UnknownNameError: neither a kernel nor a plugin is called that.
        """
        if name in self.kernels:
            return (self.kernels[name],)
        of_plugin = tuple(kernel for kernel in self.kernels.values() if kernel.plugin == name)
        if of_plugin:
            return of_plugin
        broken = next((b for b in self.manager.broken if name.partition(".")[0] == b.package.name), None)
        hint = f"Plugin {broken.package} is broken: {broken.reason}" if broken else ""
        raise UnknownNameError("kernel or plugin", name, [*self.kernels, *self.plugins()], where=where, hint=hint)


def _is_device(found: Any) -> TypeGuard[Device]:
    """Whether a hook's answer is a device whose fields are what they say."""
    if not isinstance(found, Device):
        return False
    target: Any = found.target
    torch_device: Any = found.torch_device
    return isinstance(target, Target) and (torch_device is None or isinstance(torch_device, str))
