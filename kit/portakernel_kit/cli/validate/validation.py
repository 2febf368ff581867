"""Everything that is wrong with manifests: file, line, key and text, found without importing a plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from portakernel.config import Config
from portakernel.contracts import contracts
from portakernel.deciding.process_wishes import allowed_plugins, read
from portakernel.errors import ArgumentValueError, ManifestError, nearest
from portakernel.host.distributions import normalised
from portakernel.manifest.loading import Loaded, load_manifest
from portakernel.manifest.models import BackendManifest, Claim, PluginManifest, TargetTerms, terms
from portakernel.manifest.yaml_file import KeyPath, keys_in
from portakernel.registry.manifest_kernels import judged_kernels
from portakernel.registry.plugin_manager import Package, installed_packages
from portakernel.registry.registry import REFERENCE, Backend
from portakernel.registry.source_files import misfit, missing
from portakernel.words.arch import ArchSpace
from portakernel_kit.cli.validate.allowed_imports import past_the_door
from portakernel_kit.cli.validate.claims import claim_problems
from portakernel_kit.cli.validate.entries import source_problems
from portakernel_kit.cli.validate.entry_imports import import_problems
from portakernel_kit.cli.validate.plugin_drafts import PluginDraft, as_far_as_known, know_installed_ops, read_plugins
from portakernel_kit.cli.validate.problems import Problem, problems_in
from portakernel_kit.cli.validate.projects import FILE, Project, read_project

MANIFESTS: Mapping[str, Literal["plugin", "backend"]] = {"plugin.yaml": "plugin", "backend.yaml": "backend"}


@dataclass(frozen=True, slots=True)
class Subject:
    """A manifest to validate, and the package it belongs to; ``installed`` tells found from guessed packages."""

    file: Path
    kind: Literal["plugin", "backend"]
    package: Package
    installed: bool


def installed_subjects() -> tuple[list[Subject], list[Problem]]:
    """Every installed package's manifests, and the packages that have none or cannot be found.

    Those of others that are switched off are left out: nobody has to mend what is not used.
    """
    subjects, problems = list[Subject](), list[Problem]()
    packages, is_off = installed_packages(), _switched_off(Config.from_environment())
    for package in packages:
        if not package.first_party and is_off(package.name):
            continue
        entry_point = f"entry point {package}"
        rivals = [str(other) for other in packages if other.name == package.name and other is not package]
        if rivals and not package.first_party:
            text = f"the name {package.name!r} is taken by {' and '.join(rivals)}; rename one of the entry points"
            problems.append(Problem(entry_point, None, None, text))
        if package.folder is None:
            text = f"module {package.module!r} cannot be found; reinstall {package.distribution}"
            problems.append(Problem(entry_point, None, None, text))
            continue
        found = _in_folder(package.folder)
        if not found:
            problems.append(
                Problem(entry_point, None, None, f"{package.folder} holds neither plugin.yaml nor backend.yaml")
            )
        subjects += [Subject(file, MANIFESTS[file.name], package, True) for file in found]
    return subjects, problems


def _switched_off(config: Config) -> Callable[[str], bool]:
    """Whether a name is in ``PORTAKERNEL_DISABLE``, or lacks on a list of plugins; of wrong files no list is heard."""
    drafts = read(config.policy)
    wrong = any(draft.problems for draft in drafts)
    allowed = None if wrong else allowed_plugins(config, drafts)
    return lambda name: name in config.disable or (allowed is not None and name not in allowed)


def subjects_at(path: Path) -> tuple[list[Subject], list[Problem]]:
    """The manifests that ``path`` names: a file, a package's folder, or that of its ``pyproject.toml``.

    Also what is wrong with how the project registers them.

    Raises:
        ArgumentValueError: there is no such file or folder, or the folder holds no manifest and no project.
    """
    if path.is_dir():
        files = _in_folder(path)
        if not files and (path / FILE).is_file():
            return _registered(path, read_project(path))
        if not files:
            raise ArgumentValueError(
                f"{path} holds neither plugin.yaml, backend.yaml nor {FILE}; name a folder that does"
            )
    elif path.exists():
        files = [path]
    else:
        what = "name a plugin.yaml, a backend.yaml, their folder, their project's, or a policy.yaml"
        raise ArgumentValueError(f"{path}: no such file or folder; {what}")
    folder = files[0].parent.resolve()
    package = next((p for p in installed_packages() if p.folder is not None and p.folder.resolve() == folder), None)
    subjects = [
        Subject(file, MANIFESTS.get(file.name) or _kind(file), package or _guessed_package(file), package is not None)
        for file in files
    ]
    return subjects, []


def _registered(path: Path, project: Project) -> tuple[list[Subject], list[Problem]]:
    """The manifests of a project that may not be installed, and what is wrong with its names."""
    subjects, problems = list[Subject](), list(project.problems)
    for package in project.packages:
        place = (str(path / FILE), None, f"project.entry-points.portakernel.{package.name}")
        folder = package.folder.resolve() if package.folder is not None else None
        for other in installed_packages():
            if other.name != package.name or normalised(other.distribution) == normalised(package.distribution):
                continue  # the project itself may be installed, from here or as a copy
            if other.folder is None or other.folder.resolve() != folder:
                text = f"the name {package.name!r} is taken by {other}; choose another, in the manifests too"
                problems.append(Problem(*place, text))
        files = _in_folder(package.folder) if package.folder is not None else []
        if not files:
            problems.append(Problem(*place, f"{package.folder} holds neither plugin.yaml nor backend.yaml; add one"))
        subjects += [Subject(file, MANIFESTS[file.name], package, True) for file in files]
    return subjects, problems


def problems_of(subjects: Sequence[Subject], *, imports: bool = False) -> dict[Subject, list[Problem]]:
    """Each subject's problems; with ``imports`` those of importing its entries too.

    Vendors are those of the installed backends and of the backends among the subjects.
    """
    problems: dict[Subject, list[Problem]] = {subject: [] for subject in subjects}
    spaces: dict[str, ArchSpace] = {}
    owners: dict[str, Package] = {}
    files = {subject.file.resolve() for subject in subjects}
    # the installed ones first: a new backend cannot take their vendors
    for subject in (*(s for s in installed_subjects()[0] if s.file.resolve() not in files), *subjects):
        if subject.kind != "backend":
            continue
        found = backend_problems(subject, spaces, owners)
        if subject in problems:
            problems[subject] = found
    is_off = _switched_off(Config.from_environment())
    know_installed_ops((subject.package for subject in subjects), is_off)
    plugins = [subject for subject in subjects if subject.kind == "plugin"]
    drafts = read_plugins([(subject.package, subject.file) for subject in plugins])
    for subject, draft in zip(plugins, drafts, strict=True):
        problems[subject] = plugin_problems(subject, spaces, draft, imports=imports)
    # a package that has both manifests is looked through once
    for folder, subject in {subject.package.folder: subject for subject in subjects}.items():
        if folder is not None and (folder / "__init__.py").is_file():
            data = keys_in(subject.file)
            plugin_api = None if data is None else data.get("plugin_api", 1)
            problems[subject] += past_the_door(folder, plugin_api, subject.package.module)
    return problems


def _in_folder(folder: Path) -> list[Path]:
    return [folder / name for name in MANIFESTS if (folder / name).exists()]


def _kind(file: Path) -> Literal["plugin", "backend"]:
    """What a manifest under another name is, by its keys."""
    data = keys_in(file) or {}
    return "backend" if "backend" in data and "plugin" not in data else "plugin"


def _guessed_package(file: Path) -> Package:
    """The package that a file outside any installed one would be: as deep as there are ``__init__.py``."""
    folder = file.parent.resolve()
    parts, parent = [folder.name], folder.parent
    while (folder / "__init__.py").exists() and (parent / "__init__.py").exists():
        parts, folder, parent = [parent.name, *parts], parent, parent.parent
    return Package(parts[-1], ".".join(parts), "not installed", "", file.parent.resolve())


def backend_problems(subject: Subject, spaces: dict[str, ArchSpace], owners: dict[str, Package]) -> list[Problem]:
    """The problems of a ``backend.yaml``; adds its vendor to ``spaces`` and ``owners``."""
    found: list[str] = []
    try:
        loaded = load_manifest(BackendManifest, subject.file, strict=True)
    except ManifestError as error:
        known = as_far_as_known(BackendManifest, subject.file)
        if known is None or ("vendor",) in known.taken_out:
            for vendor in _vendor_meant(subject.file) - spaces.keys():  # that it is known is not what is wrong
                spaces[vendor], owners[vendor] = ArchSpace(vendor, (), {}, open_ended=True), subject.package
            return problems_in(subject.file, error.problems)
        found, loaded = [*error.problems], known
    found += _misnamed(subject, loaded, "backend", loaded.manifest.backend)
    vendor = loaded.manifest.vendor
    if vendor in spaces:
        found.append(loaded.problem(("vendor",), f"vendor {vendor!r} is taken by backend {owners[vendor]}"))
    else:
        owners[vendor] = subject.package
        space = Backend.from_manifest(subject.package, loaded.manifest).space
        # of one whose archs are not all known, none is said not to exist
        spaces[vendor] = replace(space, open_ended=space.open_ended or bool(loaded.taken_out))
    return problems_in(subject.file, list(filter(None, found)))


def _vendor_meant(file: Path) -> set[str]:
    """The vendor of a ``backend.yaml`` that cannot be accepted, where it can be read at all."""
    vendor = (keys_in(file) or {}).get("vendor")
    return {vendor} if isinstance(vendor, str) else set()


def plugin_problems(
    subject: Subject, spaces: Mapping[str, ArchSpace], draft: PluginDraft | None = None, *, imports: bool = False
) -> list[Problem]:
    """The problems of a ``plugin.yaml``, which is read now unless its ``draft`` was before."""
    (draft,) = [draft] if draft is not None else read_plugins([(subject.package, subject.file)])
    found, loaded = [*draft.problems], draft.loaded
    if loaded is None:
        return problems_in(subject.file, found)
    found += _misnamed(subject, loaded, "plugin", loaded.manifest.plugin)
    if loaded.manifest.plugin == REFERENCE:
        found.append(loaded.problem(("plugin",), f"the name {REFERENCE!r} is taken by portakernel's own references"))
    found += [loaded.problem(path, text) for path, text in _strange_targets(loaded.manifest, spaces)]
    kernels, faults = judged_kernels(subject.package, loaded, spaces, draft.refused)
    found += faults
    found += [loaded.problem(path, text) for path, text in claim_problems(kernels, spaces)]
    entries = list(_entries(loaded.manifest))
    found += [loaded.problem(path, text) for path, entry in entries if (text := missing(subject.package, entry))]
    for i, judged in enumerate(kernels):
        if judged is None or judged.faulty & {"entry", "features"}:
            continue
        if text := misfit(subject.package, judged.kernel, contracts()[judged.kernel.op]):
            found.append(loaded.problem(("kernels", i, "entry"), text))
    named = list(dict.fromkeys([*(entry for _, entry in entries), *draft.references]))
    in_sources = list(source_problems(subject.package, named))
    if imports and not in_sources:
        in_sources += import_problems(subject.package, named)
    return [*problems_in(subject.file, list(filter(None, dict.fromkeys(found)))), *in_sources]


def _misnamed(subject: Subject, loaded: Loaded[Any], key: str, name: str) -> list[str]:
    package = subject.package
    if not subject.installed or name == package.name:
        return []
    text = f"is {name!r}, but the entry point of {package.distribution} is named {package.name!r}; they must be equal"
    return [loaded.problem((key,), text)]


def _strange_targets(manifest: PluginManifest, spaces: Mapping[str, ArchSpace]) -> Iterator[tuple[KeyPath, str]]:
    """Vendors and archs that nothing here lists, which at run time may be as they should: others may be installed."""
    for path, targets in _targets(manifest):
        for vendor, value in targets.items():
            here: KeyPath = (*path, "targets", vendor)
            if vendor not in spaces:
                yield here, f"unknown vendor {vendor!r}; {nearest(vendor, spaces)}"
                continue
            for place, term in terms(value):
                for arch, last in spaces[vendor].later_than_listed(term):
                    text = f"{vendor} arch {arch!r} is not listed, and is taken for one that comes after {last}"
                    yield (*here, *place), f"{text}; correct it, or write '{last}+' for all that come after"


def _targets(manifest: PluginManifest) -> Iterator[tuple[KeyPath, Mapping[str, TargetTerms]]]:
    """All that a manifest says of targets, in claims and in rules of a priority."""
    for path, claim in _claims(manifest):
        yield path, claim.targets or {}
    for i, kernel in enumerate(manifest.kernels):
        for j, rule in enumerate(kernel.priority if isinstance(kernel.priority, list) else ()):
            yield ("kernels", i, "priority", j), rule.targets or {}


def _claims(manifest: PluginManifest) -> Iterator[tuple[KeyPath, Claim]]:
    yield ("defaults",), manifest.defaults
    for i, kernel in enumerate(manifest.kernels):
        yield ("kernels", i), kernel
        for j, variant in enumerate(kernel.variants):
            yield ("kernels", i, "variants", j), variant


def _entries(manifest: PluginManifest) -> Iterator[tuple[KeyPath, str]]:
    """Every ``module:function`` of a manifest, with its place."""
    if manifest.ready is not None:
        yield ("ready",), manifest.ready
    for name, mode in manifest.modes.items():
        yield ("modes", name, "context"), mode.context
    if manifest.offline is not None:
        yield ("offline",), manifest.offline
    for i, kernel in enumerate(manifest.kernels):
        yield ("kernels", i, "entry"), kernel.entry
        if kernel.backward is not None:
            yield ("kernels", i, "backward"), kernel.backward
        if kernel.build is not None:
            yield ("kernels", i, "build"), kernel.build
        if kernel.check is not None:
            yield ("kernels", i, "check", "entry"), kernel.check.entry
