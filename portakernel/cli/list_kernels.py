"""``portakernel list``: every kernel, what it claims, and who ships it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portakernel.cli.options import Json, OnlyOp

if TYPE_CHECKING:
    from portakernel.claims.capability import Capability
    from portakernel.registry.kernel import Kernel
    from portakernel.registry.registry import Registry


def command(
    op: OnlyOp = None,
    plugin: Annotated[
        str | None, typer.Option("--plugin", metavar="PLUGIN", help="Only kernels of this plugin.")
    ] = None,
    json: Json = False,
) -> None:
    """List the kernels that are installed: their targets, dtypes, features, priority, and who ships them.

    Listed does not mean usable here: `portakernel doctor` says what is ready, `portakernel explain` what serves.

    For example:

        portakernel list
        portakernel list --op rms_norm --json
    """
    from portakernel.cli.output import page, print_json
    from portakernel.runtime import dispatcher

    registry = dispatcher().registry
    kernels = chosen_kernels(registry, op, plugin)
    if json:
        print_json({"kernels": [kernel_json(registry, kernel) for kernel in kernels]})
        return
    page().table([row for kernel in kernels for row in _rows(registry, kernel)], ("op", "kernel", "", "claims"))
    tell_broken(registry)


def chosen_kernels(
    registry: Registry, op: str | None, plugin: str | None, names: Sequence[str] | None = None
) -> list[Kernel]:
    """The kernels of an op, a plugin, or both; by op, and within it references last, higher priorities first.

    With ``names`` those alone.

    Raises:
        UnknownNameError: there is no such op or plugin, or no kernel with one of the names.
        ArgumentValueError: a kernel with one of the names is of another op or plugin.
    """
    from portakernel.errors import ArgumentValueError, UnknownNameError

    kernels = list(registry.for_op(op)) if op is not None else list(registry.kernels.values())
    if plugin is not None:
        if plugin not in registry.plugins():
            broken = plugin in registry.manager.broken_names()
            hint = f"{plugin} is broken: run `portakernel doctor`." if broken else ""
            raise UnknownNameError("plugin", plugin, registry.plugins(), hint=hint)
        kernels = [kernel for kernel in kernels if kernel.plugin == plugin]
    if names:
        known = [kernel.name for kernel in kernels]
        for name in (name for name in names if name not in known):
            if (other := registry.kernels.get(name)) is not None:
                asked = " and ".join(filter(None, (op, f"plugin {plugin}" if plugin else "")))
                raise ArgumentValueError(
                    f"{name} is a kernel of {other.op}, of plugin {other.plugin}; asked for: {asked}"
                )
            raise UnknownNameError("kernel", name, known)
        kernels = [kernel for kernel in kernels if kernel.name in names]
    return sorted(kernels, key=lambda kernel: (kernel.op, kernel.is_reference, -kernel.priority.highest, kernel.name))


def tell_broken(registry: Registry) -> None:
    """Says on stderr what a list of kernels leaves out."""
    if broken := sorted(registry.manager.broken_names()):
        print(f"left out, being broken: {', '.join(broken)}; `portakernel doctor` says why", file=sys.stderr)


def kernel_json(registry: Registry, kernel: Kernel) -> dict[str, Any]:
    """A kernel's claims as JSON-ready data; stable."""
    return {
        "op": kernel.op,
        "kernel": kernel.name,
        "plugin": kernel.plugin,
        "priority": [
            {
                "when": rule.conditions(),
                "targets": sorted(map(str, rule.targets)) if rule.targets is not None else None,
                "priority": rule.number,
            }
            for rule in kernel.priority.rules
        ],
        "backward": kernel.backward is not None,
        "disabled": kernel.disabled,
        "requires": dict(kernel.requires),
        "variants": [_variant_json(name, capability) for name, capability in kernel.variants],
        "source": _source(registry, kernel),
    }


def _variant_json(name: str, capability: Capability) -> dict[str, Any]:
    return {
        "name": name or None,
        "targets": {vendor: str(selector) for vendor, selector in capability.targets.items()},
        "dtypes": {argument: list(dtypes) for argument, dtypes in capability.dtypes.items()},
        "formats": {argument: list(formats) for argument, formats in capability.formats.items()},
        "limits": [str(limit) for limit in capability.limits],
        "values": {parameter: list(values) for parameter, values in capability.values.items()},
        "features": sorted(capability.features),
        "properties": sorted(capability.properties),
    }


def _source(registry: Registry, kernel: Kernel) -> dict[str, Any]:
    """The distribution that a kernel is from; a reference is from the one that ships the op."""
    from portakernel import __version__
    from portakernel.contracts import shipped
    from portakernel.registry.plugin_manager import DISTRIBUTION

    package = kernel.package
    if kernel.is_reference and kernel.op in shipped():
        package, _ = registry.manager.plugins[shipped()[kernel.op].plugin]
    return {
        "distribution": package.distribution if package else DISTRIBUTION,
        "version": package.version if package else __version__,
        "first_party": kernel.first_party,
    }


def _rows(registry: Registry, kernel: Kernel) -> Iterator[Sequence[str]]:
    """A row for each claim, each with op and kernel, so that a search for either gives whole answers."""
    source = _source(registry, kernel)
    variants = [capability for _, capability in kernel.variants]
    claims = {
        "targets": _joined([_targets(variant.targets) for variant in variants]),
        "dtypes": _joined([_mapping(variant.dtypes) for variant in variants]),
        "features": ", ".join(sorted(kernel.features)),
        "priority": str(kernel.priority),
        "disabled": kernel.disabled or "",
        "source": f"{source['distribution']} {source['version']}" + ("" if source["first_party"] else ", third-party"),
    }
    yield from ((kernel.op, kernel.name, claim, text) for claim, text in claims.items() if text)


def _targets(targets: Mapping[str, object]) -> str:
    if "*" not in targets:
        return "; ".join(f"{vendor}: {selector}" for vendor, selector in targets.items())
    but = ", ".join(vendor for vendor, selector in targets.items() if not str(selector))
    return f"any but {but}" if but else "any"


def _mapping(names: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{argument}: {', '.join(accepted)}" for argument, accepted in names.items())


def _joined(texts: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(texts))
