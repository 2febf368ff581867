"""Portakernel's own manifests and sources, read and judged once: importing this keeps what is found out about them.

Most tests have a registry of their own, which takes 0.1 s, most of that to read and judge the same files. Processes
that tests fork begin with what the first one knows. Others' files are read as ever, and ours again where they changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portakernel.manifest.loading import load_manifest
from portakernel.manifest.models import BackendManifest, PluginManifest
from portakernel.registry import plugin_manager, registry
from portakernel.registry.manifest_kernels import plugin_kernels
from portakernel.registry.source_files import parsed

ROOT = Path(__file__).parents[1]
OURS = (ROOT / "plugins", ROOT / "backends")

_read: dict[Any, Any] = {}
_judged: list[tuple[tuple[Any, Any], dict[str, Any], Any]] = []
_listed: list[tuple[tuple[Any, Any], dict[str, Any], Any, Any]] = []
_list: Any = registry.Registry._listed  # pyright: ignore[reportPrivateUsage]


def _load(model: Any, path: Path, **options: Any) -> Any:
    if not any(folder in path.parents for folder in OURS):
        return load_manifest(model, path, **options)
    key = model, path, path.stat().st_mtime_ns, *options.items()
    if key not in _read:
        _read[key] = load_manifest(model, path, **options)
    return _read[key]


def _kernels(package: Any, loaded: Any, spaces: Mapping[str, Any]) -> Any:
    if not any(loaded is one for one in _read.values()):
        return plugin_kernels(package, loaded, spaces)
    for of, beside, found in _judged:
        if of[0] == package and of[1] is loaded and beside == spaces:
            return found
    found = plugin_kernels(package, loaded, spaces)
    _judged.append(((package, loaded), dict(spaces), found))
    return found


def _listing(self: Any, package: Any, loaded: Any, returned: Any) -> Any:
    if not any(loaded is one for one in _read.values()):
        return _list(self, package, loaded, returned)
    for of, beside, listed, found in _listed:
        if of[0] == package and of[1] is loaded and beside == self.spaces and listed == returned:
            return found
    found = _list(self, package, loaded, returned)
    _listed.append(((package, loaded), dict(self.spaces), copy.deepcopy(returned), found))
    return found


plugin_manager.load_manifest = _load  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateImportUsage]
registry.Registry._listed = _listing  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
registry.plugin_kernels = _kernels  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateImportUsage]


def kernels() -> list[Any]:
    """Our kernels, as they were judged."""
    return [kernel for _, _, found in _judged for kernel in found]


def _judge_ours() -> None:
    """Judges our kernels over the backends that are installed, as a registry does; no plugin's code is asked."""
    manager = plugin_manager.PluginManager()
    found = [registry.Backend.from_manifest(package, loaded.manifest) for package, loaded in manager.backends.values()]
    spaces = {backend.vendor: backend.space for backend in found}
    for package, loaded in manager.plugins.values():
        if package.first_party:
            _kernels(package, loaded, spaces)


for folder in OURS:
    for file in folder.rglob("*.yaml"):
        for name, model in (("plugin.yaml", PluginManifest), ("backend.yaml", BackendManifest)):
            if file.name == name:
                _load(model, file, strict=False)
    for file in folder.rglob("*.py"):
        parsed(file)
_judge_ours()
