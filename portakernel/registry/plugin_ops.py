"""Ops of other distributions: contract and reference that a manifest lists under ``ops``, looked at, then known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from portakernel.contract import Contract
from portakernel.contract.field_values import value_faults
from portakernel.contract.signature_text import signature
from portakernel.contract.soundness import contract_faults
from portakernel.contracts import own_contracts, ship, shipped
from portakernel.host.foreign import Raised, call_bounded, call_contained
from portakernel.manifest.loading import Loaded
from portakernel.manifest.models import OpEntry, PluginManifest
from portakernel.manifest.yaml_file import KeyPath
from portakernel.registry.plugin_manager import Package, PluginManager
from portakernel.registry.source_files import disagreement, missing
from portakernel.text.printable import exception_text


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """An op that a package would ship: where its manifest says so, and its contract, where it has one."""

    package: Package
    loaded: Loaded[PluginManifest]
    path: KeyPath
    entry: OpEntry
    contract: Contract | None
    faults: tuple[str, ...]


def ship_ops(manager: PluginManager) -> Mapping[str, Contract]:
    """Makes every sound op of the packages in force known, and returns them by name.

    What is wrong with others is kept as broken.
    """
    found = dict[str, Contract]()
    offers = [offer for package, loaded in manager.plugins.values() for offer in offers_of(manager, package, loaded)]
    for offer, faults in faults_of(offers).items():
        if faults:
            for text in faults:
                manager.report_broken(offer.package, "ops", offer.loaded.problem(offer.path, text))
        elif offer.contract is not None:
            ship(offer.contract, offer.entry.reference, offer.package.name)
            found[offer.contract.op] = offer.contract
    return MappingProxyType(dict(sorted(found.items())))


def offers_of(
    manager: PluginManager, package: Package, loaded: Loaded[PluginManifest], deadly: Mapping[str, str] | None = None
) -> Iterator[Offer]:
    """The ops that a manifest lists; their contracts' modules are imported, unless the package may not be.

    ``deadly`` are entries of contracts that would end or hold the process, and what is to be said of each.
    """
    if manager.is_off(package):
        return
    for i, entry in enumerate(loaded.manifest.ops):
        path: KeyPath = ("ops", i)
        if text := _outside(package, entry) or missing(package, entry.contract):
            text = text.replace("has no function", "has nothing called")
            yield Offer(package, loaded, path, entry, None, (text,))
            continue
        if text := (deadly or {}).get(entry.contract, ""):
            yield Offer(package, loaded, path, entry, None, (text,))
            continue
        what = f"importing {entry.contract} of {package}"
        outcome = call_bounded(what, partial(_member, entry.contract), manager.patience_s)
        if isinstance(outcome, Raised):
            text = f"importing {entry.contract} failed: {exception_text(outcome.error)}"
            yield Offer(package, loaded, path, entry, None, (text,))
        elif not isinstance(outcome.value, Contract):
            text = f"{entry.contract} is a {type(outcome.value).__name__}; name a portakernel.authoring.Contract"
            yield Offer(package, loaded, path, entry, None, (text,))
        else:
            yield _judged(package, loaded, path, entry, outcome.value)


def _judged(
    package: Package, loaded: Loaded[PluginManifest], path: KeyPath, entry: OpEntry, contract: Contract
) -> Offer:
    def faults() -> tuple[str, ...]:
        own = (*contract_faults(contract), *value_faults(contract))
        return own or tuple(_reference_faults(package, entry, contract))

    judged = call_contained(faults)
    if isinstance(judged, Raised):  # fields of quite another kind, such as names in the place of cases
        text = f"{entry.contract} cannot be read as a contract: {exception_text(judged.error)}"
        return Offer(package, loaded, path, entry, None, (text,))
    return Offer(package, loaded, path, entry, contract, judged.value)


def faults_of(offers: list[Offer]) -> Mapping[Offer, tuple[str, ...]]:
    """What is wrong with each offer: its own faults, and that its op's name is taken."""
    found = dict[Offer, tuple[str, ...]]()
    for offer in offers:
        op = offer.contract.op if offer.contract is not None else ""
        rivals = [o.package for o in offers if o is not offer and o.contract is not None and o.contract.op == op]
        taken = ""
        if op in own_contracts():
            taken = f"the op {op!r} is portakernel's own; give yours another name"
        elif op and rivals:
            taken = f"the op {op!r} is shipped by {' and '.join(map(str, rivals))} too; rename one, or uninstall it"
        elif op in shipped() and shipped()[op].plugin != offer.package.name:
            taken = f"the op {op!r} is shipped by {shipped()[op].plugin} in this process; rename one"
        found[offer] = (*offer.faults, *([taken] if taken else []))
    return found


def _member(entry: str) -> object:
    import importlib

    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def _outside(package: Package, entry: OpEntry) -> str:
    for module in (entry.contract.partition(":")[0], entry.reference):
        if not f"{module}.".startswith(f"{package.module}."):
            return f"{module!r} is outside the plugin's own package {package.module!r}"
    return ""


def _reference_faults(package: Package, entry: OpEntry, contract: Contract) -> Iterator[str]:
    """What the reference lacks that the contract asks of it, as far as its source tells."""
    positional = [tensor.name for tensor in contract.tensors if not tensor.keyword]
    keywords = [tensor.name for tensor in contract.tensors if tensor.keyword]
    keywords += [parameter.name for parameter in contract.parameters]
    wanted = {"forward": (positional, [*keywords, *(["out"] if contract.outputs else [])])}
    if contract.tolerance.rule == "plain":
        wanted["plain"] = (positional, keywords)
    if contract.gradient == "kernel":
        grads = [f"grad_{output.name}" for output in contract.outputs if output.differentiable]
        kept = [*grads, *contract.backward_inputs, *(saved.name for saved in contract.saved)]
        parameters = [parameter.name for parameter in contract.parameters]
        wanted["backward"] = (kept, [*parameters, "needs"])
        if contract.tolerance.rule == "ulp":
            wanted["magnitudes"] = (kept, parameters)
    for function, (given, by_name) in wanted.items():
        if text := missing(package, f"{entry.reference}:{function}"):
            yield f"the reference is not whole: {text}"
        elif text := disagreement(package, f"{entry.reference}:{function}", given, by_name):
            takes = f"{function}({', '.join(given)}, *, {', '.join(by_name)})"
            yield f"{text}; for {signature(contract)} it is {takes}"
