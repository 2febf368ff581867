"""A kernel's claims as its manifest would say them, and the kernel that the manifest then describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from portakernel.claims.capability import Capability, Limit
from portakernel.contracts import contract
from portakernel.errors import ManifestError
from portakernel.manifest.loading import Loaded, describe_errors
from portakernel.manifest.models import PluginManifest
from portakernel.manifest.yaml_file import Document
from portakernel.registry.kernel import Kernel
from portakernel.registry.manifest_kernels import plugin_kernels
from portakernel.registry.plugin_manager import Package
from portakernel.words.arch import ArchSpace

# The keys of an entry that say what variants claim.
_CLAIMED = ("targets", "dtypes", "formats", "limits", "features", "values", "properties", "prebuilt", "variants")


def entry_index(loaded: Loaded[PluginManifest], kernel: Kernel) -> int | None:
    """The place of the kernel's entry in its manifest; None where a hook lists it."""
    name = kernel.name.partition(".")[2]
    entries = loaded.manifest.kernels
    return next((i for i, entry in enumerate(entries) if (entry.name or entry.op) == name), None)


def read_back(
    package: Package, loaded: Loaded[PluginManifest], index: int, kernel: Kernel, spaces: Mapping[str, ArchSpace]
) -> Kernel:
    """``kernel`` as dispatch knows it once the manifest says at ``index`` what it claims: written, checked and read.

    Raises:
        ManifestError: a manifest cannot say that.
    """
    data = _rewritten(loaded.document.data, index, kernel)
    document = Document(loaded.document.path, data, None)
    try:
        manifest = PluginManifest.model_validate(data)
    except ValidationError as error:
        raise ManifestError(document.path, describe_errors(PluginManifest, document, error)) from error
    (read,) = plugin_kernels(package, Loaded(manifest, document), spaces)
    return read


def differences(wanted: Kernel, read: Kernel) -> list[str]:
    """What dispatch knows of otherwise than was written: a key that nothing reads, or that is read wrongly."""
    keys = ("check", "disabled", "requires", "ready", "saves", "backward")
    found = [key for key in keys if getattr(wanted, key) != getattr(read, key)]
    pairs = zip((_plain(c) for _, c in wanted.variants), (_plain(c) for _, c in read.variants), strict=False)
    found += [f"variants[{i}]" for i, (a, b) in enumerate(pairs) if a != b]
    return found if len(wanted.variants) == len(read.variants) else [*found, "variants"]


def _plain(c: Capability) -> Capability:
    """The claim without limits that limit nothing."""
    return replace(c, limits=tuple(limit for limit in c.limits if limit != Limit(limit.parameter)))


def _rewritten(data: Mapping[str, Any], index: int, kernel: Kernel) -> dict[str, Any]:
    """The manifest's data with this kernel alone, every claim of it said in full."""
    before: Mapping[str, Any] = data["kernels"][index]
    entry = {key: value for key, value in before.items() if key not in _CLAIMED}
    if kernel.variants[0][0]:
        # names that were made up for nameless ones are not names
        named = [{"name": name} if " " not in name else {} for name, _ in kernel.variants]
        pairs = zip(named, kernel.variants, strict=True)
        entry["variants"] = [{**name, **_claim(kernel, c)} for name, (_, c) in pairs]
    else:
        ((_, only),) = kernel.variants
        entry |= _claim(kernel, only)
    entry["saves"] = kernel.saves
    entry["forward_ad"] = any(c.forward_ad for _, c in kernel.variants)
    for key in ("check", "disabled"):
        if getattr(kernel, key) is None:
            entry.pop(key, None)
    defaults = {key: value for key, value in (data.get("defaults") or {}).items() if key == "priority"}
    top = {**data, "defaults": defaults, "kernels": [entry]}
    if kernel.ready is None:
        top.pop("ready", None)
    for place in (top, entry):
        if place.get("requires"):
            place["requires"] = _required(place["requires"], kernel)
    return top


def _claim(kernel: Kernel, c: Capability) -> dict[str, Any]:
    """What a variant claims, key by key."""
    return {
        "targets": {vendor: {"in": list(s.include), "not": list(s.exclude)} for vendor, s in c.targets.items()},
        "dtypes": {name: list(accepted) for name, accepted in c.dtypes.items()},
        "formats": {name: list(c.formats.get(name, ())) for name in contract(kernel.op).formats},
        "limits": {limit.parameter: terms for limit in c.limits if (terms := _terms(limit))},
        "features": sorted(c.features),
        "values": {name: list(accepted) for name, accepted in c.values.items()},
        "properties": dict.fromkeys(sorted(c.properties), True),
        "prebuilt": c.prebuilt,
    }


def _terms(limit: Limit) -> dict[str, Any]:
    terms: dict[str, Any] = {"min": limit.min, "max": limit.max, "multiple_of": limit.multiple_of}
    terms |= {"in": None if limit.one_of is None else list(limit.one_of), "power_of_two": limit.power_of_two or None}
    return {key: value for key, value in terms.items() if value is not None}


def _required(requires: Mapping[str, Any], kernel: Kernel) -> dict[str, Any]:
    """What is required of what the kernel requires."""
    kept = {key: dict(requires.get(key) or {}) for key in ("modules", "distributions")}
    kept = {key: {name: v for name, v in named.items() if name in kernel.requires} for key, named in kept.items()}
    return {**requires, **kept}
