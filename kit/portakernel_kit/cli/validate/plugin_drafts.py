"""Manifests of plugins as far as they can be read, and the ops that they offer: known before any kernel is judged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from portakernel.contracts import ship
from portakernel.errors import ManifestError
from portakernel.manifest.loading import Loaded, load_manifest, load_what_is_known
from portakernel.manifest.models import PluginManifest
from portakernel.registry.plugin_manager import Package, PluginManager, installed_packages
from portakernel.registry.plugin_ops import Offer, faults_of, offers_of, ship_ops
from portakernel_kit.cli.validate.entry_imports import import_contracts

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class PluginDraft:
    """What a ``plugin.yaml`` says beside what is wrong with its form, None where that is nothing.

    ``problems`` are those of its form and its ops, ``references`` the functions of its sound ops. ``refused`` has the
    ops that are at fault, each with its place in the manifest; the name of one whose contract cannot be had is empty.
    """

    loaded: Loaded[PluginManifest] | None
    problems: tuple[str, ...]
    refused: Mapping[str, str]
    references: tuple[str, ...] = ()


def read_plugins(files: Sequence[tuple[Package, Path]]) -> list[PluginDraft]:
    """The manifests; the ops among theirs that are sound are known from then on."""
    read = [_read(file) for _, file in files]
    loading_torch = set[str]()
    offers = dict[Path, list[Offer]]()  # of a file that is named twice once: it is no rival of its own
    for (package, file), (loaded, _) in zip(files, read, strict=True):
        if loaded is not None and file.resolve() not in offers:
            imported = import_contracts(package, _own_contracts(package, loaded.manifest))
            loading_torch |= imported.loading_torch
            with _importable(package):
                offers[file.resolve()] = list(offers_of(PluginManager([]), package, loaded, imported.deadly))
    faults = faults_of([offer for several in offers.values() for offer in several])
    for offer, texts in faults.items():
        if offer.contract is not None and not texts:
            ship(offer.contract, offer.entry.reference, offer.package.name)
    drafts = list[PluginDraft]()
    for (_, file), (loaded, problems) in zip(files, read, strict=True):
        refused, references = dict[str, str](), list[str]()
        for offer in offers.get(file.resolve(), ()):
            if offer.entry.contract in loading_torch:
                text = "torch became loaded by importing the contract's module; import it in the reference alone"
                problems.append(offer.loaded.problem((*offer.path, "contract"), text))
            problems += [offer.loaded.problem(offer.path, text) for text in faults[offer]]
            if faults[offer]:
                refused[offer.contract.op if offer.contract is not None else ""] = f"ops[{offer.path[-1]}]"
            else:
                references.append(f"{offer.entry.reference}:forward")
        drafts.append(PluginDraft(loaded, tuple(problems), refused, tuple(references)))
    return drafts


def _own_contracts(package: Package, manifest: PluginManifest) -> list[str]:
    """The contracts among those that a manifest ships which are its own package's."""
    within = f"{package.module}."
    return list(dict.fromkeys(e.contract for e in manifest.ops if f"{e.contract}.".startswith(within)))


def know_installed_ops(beside: Iterable[Package], is_off: Callable[[str], bool]) -> None:
    """Makes known what installed packages ship that are not those of ``beside``, which may be newer than installed.

    Kernels may be for other packages' ops, unless these are switched off.
    """
    theirs = {name for package in beside for name in (package.name, package.module)}
    others = (p for p in installed_packages() if not p.first_party and not is_off(p.name))
    ship_ops(PluginManager(other for other in others if not {other.name, other.module} & theirs))


def as_far_as_known(model: type[M], file: Path) -> Loaded[M] | None:
    """What a manifest says beside what is wrong with its form, so that one slip does not hide what else is wrong."""
    try:
        return load_what_is_known(model, file)
    except ManifestError:
        return None


def _read(file: Path) -> tuple[Loaded[PluginManifest] | None, list[str]]:
    try:
        return load_manifest(PluginManifest, file, strict=True), []
    except ManifestError as error:
        return as_far_as_known(PluginManifest, file), list(error.problems)


@contextmanager
def _importable(package: Package) -> Iterator[None]:
    """Inside, the contracts of a package that is not installed can be imported: kernels cannot be judged without."""
    roots = [str(package.folder.resolve().parents[package.module.count(".")])] if package.folder is not None else []
    sys.path[:0] = roots
    try:
        yield
    finally:
        for root in roots:
            sys.path.remove(root)
