"""The support matrix: what the manifests claim for each op on each arch, and how the arch computes it.

Claims meet facts here: a kernel's dtypes and scale formats (``plugin.yaml``) are *native* to an arch, *emulated* by it
by conversion, or *absent* (``backend.yaml``). Nothing is imported and nothing is run: a claim is not a proof.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from portakernel.claims.capability import Capability
from portakernel.claims.float64 import without_tests
from portakernel.contracts import contract
from portakernel.errors import UnknownNameError
from portakernel.manifest.models import ArchFacts, NativeEmulated
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Backend, Registry
from portakernel.text.printable import one_line
from portakernel.words.arch import ArchSpace
from portakernel.words.dtypes import DTYPES
from portakernel.words.target_names import unknown_vendor


@dataclass(frozen=True, slots=True)
class Marks:
    """How an arch computes what a kernel claims there."""

    native: tuple[str, ...] = ()
    emulated: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @classmethod
    def of(cls, claimed: Iterable[str], support: NativeEmulated) -> Marks:
        """The claimed names, by how the arch supports them."""
        names = tuple(dict.fromkeys(claimed))
        return cls(
            tuple(name for name in names if name in support.native),
            tuple(name for name in names if name in support.emulated),
            tuple(name for name in names if name not in (*support.native, *support.emulated)),
        )

    def to_json(self) -> dict[str, list[str]]:
        """The marks as JSON-ready data; stable."""
        return {"native": list(self.native), "emulated": list(self.emulated), "absent": list(self.absent)}


@dataclass(frozen=True, slots=True)
class Serving:
    """What one kernel claims on one arch: the variants that reach it together; marks are None where no facts are."""

    dtypes: Marks | None
    formats: Marks | None
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Archs of one family on which every kernel of an op claims the same; none listed: any arch of that vendor."""

    vendor: str
    family: str | None
    archs: tuple[str, ...]
    servings: Mapping[str, Serving]


@dataclass(frozen=True, slots=True)
class OpSupport:
    """One op's kernels, and what they claim where; a kernel that does not reach a place is not among its servings."""

    op: str
    summary: str
    kernels: tuple[Kernel, ...]
    places: tuple[Place, ...]

    def to_json(self) -> dict[str, Any]:
        """The op's support as JSON-ready data; stable."""
        return {
            "op": self.op,
            "summary": self.summary,
            "kernels": [
                {
                    "kernel": kernel.name,
                    "plugin": kernel.plugin,
                    "backward": kernel.backward is not None,
                    "disabled": kernel.disabled,
                }
                for kernel in self.kernels
            ],
            "places": [
                {
                    "vendor": place.vendor,
                    "family": place.family,
                    "archs": list(place.archs),
                    "kernels": [
                        {
                            "kernel": name,
                            "dtypes": serving.dtypes.to_json() if serving.dtypes is not None else None,
                            "formats": serving.formats.to_json() if serving.formats is not None else None,
                            "features": list(serving.features),
                        }
                        for name, serving in place.servings.items()
                    ],
                }
                for place in self.places
            ],
        }


def support_matrix(
    registry: Registry, *, op: str | None = None, vendor: str | None = None, plugin: str | None = None
) -> tuple[OpSupport, ...]:
    """Every op's support, or that of one op, on one vendor's hardware, by one plugin; ops without kernels left out.

    Raises:
        UnknownNameError: there is no such op, vendor or plugin.
    """
    if vendor is not None and vendor not in registry.spaces:
        raise unknown_vendor(vendor, registry.spaces)
    if plugin is not None and plugin not in registry.plugins():
        raise UnknownNameError("plugin", plugin, registry.plugins())
    ops = [op] if op is not None else list(registry.ops)
    found = (_op_support(registry, name, vendor, plugin) for name in ops)
    return tuple(support for support in found if support.kernels)


def _op_support(registry: Registry, op: str, vendor: str | None, plugin: str | None) -> OpSupport:
    kernels = [kernel for kernel in registry.for_op(op) if plugin in (None, kernel.plugin)]
    kernels.sort(key=lambda kernel: (kernel.is_reference, -kernel.priority.highest, kernel.name))
    backends = [backend for backend in registry.backends.values() if vendor in (None, backend.vendor)]
    places = tuple(place for backend in backends for place in _places(backend, kernels) if place.servings)
    if vendor is not None:
        reached = {name for place in places for name in place.servings}
        kernels = [kernel for kernel in kernels if kernel.name in reached]
    return OpSupport(op, contract(op).summary, tuple(kernels), places)


def _places(backend: Backend, kernels: Sequence[Kernel]) -> list[Place]:
    """The backend's archs, neighbours of one family with equal servings together."""
    rows: list[Place] = []
    for arch in backend.space.archs or ("",):
        facts = backend.archs.get(arch)
        found = ((kernel.name, _serving(kernel, backend.space, arch, facts)) for kernel in kernels)
        servings = {name: serving for name, serving in found if serving is not None}
        family = _family(backend.space, arch)
        if rows and family is not None and (rows[-1].family, rows[-1].servings) == (family, servings):
            rows[-1] = replace(rows[-1], archs=(*rows[-1].archs, arch))
        else:
            rows.append(Place(backend.vendor, family, (arch,) if arch else (), servings))
    return rows


def _serving(kernel: Kernel, space: ArchSpace, arch: str, facts: ArchFacts | None) -> Serving | None:
    """What ``kernel`` claims on ``arch``; None where its claims do not reach."""
    reaching: list[Capability] = []
    for _, capability in kernel.variants:
        selector = capability.selector(space.vendor)
        if selector is not None and space.membership(selector, arch, prebuilt=capability.prebuilt).inside:
            reaching.append(without_tests(kernel.op, capability))
    if not reaching:
        return None
    dtypes = [name for claim in reaching for names in claim.dtypes.values() for name in names if name in DTYPES]
    formats = [name for claim in reaching for names in claim.formats.values() for name in names]
    features = frozenset[str]().union(*(claim.features for claim in reaching))
    if facts is None:
        return Serving(None, None, tuple(sorted(features)))
    return Serving(Marks.of(dtypes, facts.dtypes), Marks.of(formats, facts.formats), tuple(sorted(features)))


def _family(space: ArchSpace, arch: str) -> str | None:
    """The smallest family that lists ``arch``: one may be part of another."""
    listing = [(len(members), name) for name, members in space.families.items() if arch in members]
    return min(listing)[1] if listing else None


def markdown(matrix: Sequence[OpSupport]) -> str:
    """The matrix as a page in Markdown: an overview of several ops, then each op with its kernels and places."""
    overview = [_overview(matrix)] if len(matrix) > 1 else []
    sections = [_section(support) for support in matrix] or ["No kernel claims that."]
    return "\n\n".join([_HEAD, *overview, *sections]) + "\n"


_HEAD = """\
# Support matrix

What the manifests claim, as `portakernel matrix` prints it; not what was proven, which `portakernel check` does.

- *native*: the architecture computes in every dtype and scale format that the kernel takes there.
- *emulated*: those it converts to a wider dtype first: correct, at the wider dtype's speed.
- *absent*: those it has in neither way: left to kernels that decode them themselves.
- A scale format goes as far as the dtypes of its elements: where those are absent, so is the format. Some processors
  compute natively in what their architecture marks as emulated; `portakernel explain` asks the one at hand.
- –: the kernel does not claim the architecture."""


def _overview(matrix: Sequence[OpSupport]) -> str:
    """Which plugins have kernels for which op and vendor."""
    vendors = list(dict.fromkeys(place.vendor for support in matrix for place in support.places))
    rows = []
    for support in matrix:
        plugins = {kernel.name: kernel.plugin for kernel in support.kernels}
        cells = []
        for vendor in vendors:
            names = [name for place in support.places if place.vendor == vendor for name in place.servings]
            cells.append(", ".join(dict.fromkeys(plugins[name] for name in plugins if name in names)) or "–")
        rows.append((f"[`{support.op}`](#{support.op})", *cells))
    return "## Overview\n\n" + table(("op", *vendors), rows)


def _section(support: OpSupport) -> str:
    parts = [f"## {support.op}", support.summary, _claims(support), _served(support)]
    return "\n\n".join(part for part in parts if part)


def _claims(support: OpSupport) -> str:
    """A row for each variant of each kernel; columns that would be empty throughout are left out."""
    headers = (
        "kernel",
        "dtypes",
        "scale formats",
        "limits",
        "values",
        "features",
        "properties",
        "gradient",
        "priority",
    )
    rows = []
    for kernel in support.kernels:
        gradient = "kernel" if kernel.backward is not None else ""
        for variant, claim in kernel.variants:
            name = f"`{kernel.name}`" + (f" ({variant})" if variant else "")
            rows.append(
                (
                    f"{name}, disabled: {kernel.disabled}" if kernel.disabled else name,
                    _by_argument(claim.dtypes),
                    _by_argument(claim.formats),
                    "; ".join(map(str, claim.limits)),
                    _by_argument({name: [str(v).lower() for v in taken] for name, taken in claim.values.items()}),
                    ", ".join(sorted(claim.features)),
                    ", ".join(sorted(claim.properties)),
                    gradient,
                    kernel.priority.summary,
                )
            )
    filled = [i for i in range(len(headers)) if any(row[i] for row in rows)]
    return table([headers[i] for i in filled], [[row[i] or "–" for i in filled] for row in rows])


def _served(support: OpSupport) -> str:
    """A row for neighbouring places with equal marks, a column for each kernel."""
    names = [kernel.name for kernel in support.kernels]

    def marks(place: Place) -> tuple[str, ...]:
        return (place.vendor, *(_mark(place.servings.get(name)) for name in names))

    rows = []
    for (vendor, *cells), several in itertools.groupby(support.places, key=marks):
        archs = [(place.family, ", ".join(place.archs) or "any") for place in several]
        where = "; ".join(f"{family}: {listed}" if family is not None else listed for family, listed in archs)
        rows.append((vendor, where, *cells))
    return table(("vendor", "architectures", *(f"`{name}`" for name in names)), rows) if rows else ""


def _mark(serving: Serving | None) -> str:
    if serving is None:
        return "–"
    if serving.dtypes is None or serving.formats is None:
        return "yes"
    native = (*serving.dtypes.native, *serving.formats.native)
    emulated = (*serving.dtypes.emulated, *serving.formats.emulated)
    absent = (*serving.dtypes.absent, *serving.formats.absent)
    parts = ["native"] if native else []
    parts += [f"emulated: {', '.join(emulated)}"] if emulated and (native or absent) else []
    parts += ["emulated"] if emulated and not native and not absent else []
    parts += [f"absent: {', '.join(absent)}"] if absent else []
    return "; ".join(parts) or "yes"


def _by_argument(names: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{argument}: {', '.join(accepted)}" for argument, accepted in names.items())


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(one_line(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(headers), f"|{'---|' * len(headers)}", *map(line, rows)])
